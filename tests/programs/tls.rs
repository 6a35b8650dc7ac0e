//! HTTPS, served by a real nginx with certificates made by openssl: trusted servers work, and each kind of untrusted one has a
//! separate error.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Home, Run, config_for, merged, until};
use crate::model::{Model, Reply};
use crate::program::program;
use crate::tunnel::Proxy;

/// Path in Debian's package.
const NGINX: &str = "/usr/sbin/nginx";

/// Certificates: name, start and end of validity, host, and protocol.
const SITES: [(&str, &str, &str, &str, &str); 5] = [
    (
        "good",
        "20200101000000Z",
        "20600101000000Z",
        "IP:127.0.0.1",
        "TLSv1.2 TLSv1.3",
    ),
    (
        "expired",
        "20200101000000Z",
        "20210101000000Z",
        "IP:127.0.0.1",
        "TLSv1.2 TLSv1.3",
    ),
    (
        "future",
        "20580101000000Z",
        "20600101000000Z",
        "IP:127.0.0.1",
        "TLSv1.2 TLSv1.3",
    ),
    (
        "other",
        "20200101000000Z",
        "20600101000000Z",
        "DNS:other.example",
        "TLSv1.2 TLSv1.3",
    ),
    (
        "old",
        "20200101000000Z",
        "20600101000000Z",
        "IP:127.0.0.1",
        "TLSv1.1",
    ),
];

const AUTHORITY: &str = "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n\
                         unique_subject=no\ncopy_extensions=copy\nrand_serial=yes\n[p]\ncommonName=supplied\n";

/// An nginx in front of a model, with a port for each certificate. It ends with the test.
struct Nginx {
    process: Child,
    dir: PathBuf,
    ports: Vec<(&'static str, u16)>,
}

impl Nginx {
    fn before(model: &Model, dir: &Path) -> Self {
        assert!(
            Path::new(NGINX).exists(),
            "nginx is missing: tests/run installs it"
        );
        certificates(dir);
        // Another process can take one of the ports before nginx does, which then ends.
        let mut starts = (0..5).filter_map(|_| Self::start(model, dir));
        starts.next().expect("nginx does not start")
    }

    /// Starts nginx on unused ports, and waits until it listens or ends.
    fn start(model: &Model, dir: &Path) -> Option<Self> {
        let names = SITES
            .iter()
            .map(|site| (site.0, site.4))
            .chain([("self", "TLSv1.2 TLSv1.3")]);
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let held: Vec<_> = names
            .map(|(name, protocols)| (name, protocols, free()))
            .collect();
        let ports: Vec<_> = held
            .iter()
            .map(|(name, _, held)| (*name, held.local_addr().unwrap().port()))
            .collect();
        let target = model.base().replace("/v1", "");
        let mut servers = String::new();
        for ((name, protocols, _), (_, port)) in held.iter().zip(&ports) {
            servers += &format!(
                "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {name}.pem; ssl_certificate_key {name}.key; \
                 ssl_protocols {protocols}; ssl_ciphers DEFAULT@SECLEVEL=0; \
                 location / {{ proxy_pass {target}; proxy_http_version 1.1; proxy_buffering off; }} }}\n"
            );
        }
        drop(held);
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};"));
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {{}}\n\
             http {{ access_log off; {}\n{servers}}}\n",
            temporary.join(" ")
        );
        fs::write(dir.join("nginx.conf"), config).unwrap();
        let mut command = Command::new(NGINX);
        command
            .arg("-p")
            .arg(dir)
            .args(["-c", "nginx.conf", "-e", "stderr"])
            .stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let mut nginx = Self {
            process,
            dir: dir.to_owned(),
            ports,
        };
        let mut has_ended = false;
        until("nginx listens or ends", || {
            let good = (Ipv4Addr::LOCALHOST, nginx.port("good"));
            let listens = TcpStream::connect(good).is_ok();
            has_ended = nginx.process.try_wait().unwrap().is_some();
            listens || has_ended
        });
        (!has_ended).then_some(nginx)
    }

    fn port(&self, name: &str) -> u16 {
        self.ports.iter().find(|(site, _)| *site == name).unwrap().1
    }

    fn base(&self, name: &str) -> String {
        format!("https://127.0.0.1:{}/v1", self.port(name))
    }

    /// Asks this site; with `trusts`, the authority's certificate is installed.
    fn asked(&self, name: &str, trusts: bool) -> Run {
        let home = once(&self.base(name), &json!({}));
        let asked = home.bantam().args(["agent", "-m", "hi"]);
        if trusts {
            asked.env("SSL_CERT_FILE", self.dir.join("ca.pem")).run()
        } else {
            asked.run()
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn once(base: &str, extra: &Value) -> Home {
    let once = json!({ "agents": { "defaults": { "max_retries": 0 } } });
    Home::with(&merged(merged(config_for(base), &once), extra))
}

/// Makes an authority, a certificate for each site, and a self-signed one.
fn certificates(dir: &Path) {
    let openssl = |line: &str| {
        let output = Command::new("openssl")
            .args(line.split_whitespace())
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "openssl {line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    fs::write(dir.join("ca.cnf"), AUTHORITY).unwrap();
    fs::write(dir.join("index.txt"), "").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {key} -keyout ca.key -out ca.pem -days 9000 -subj /CN=authority"
    ));
    openssl(&format!(
        "req -x509 {key} -keyout self.key -out self.pem -days 9000 -subj /CN=self -addext subjectAltName=IP:127.0.0.1"
    ));
    for (name, begins, ends, whose, _) in SITES {
        openssl(&format!(
            "req {key} -keyout {name}.key -out {name}.csr -subj /CN={name} -addext subjectAltName={whose}"
        ));
        openssl(&format!(
            "ca -batch -config ca.cnf -cert ca.pem -keyfile ca.key -rand_serial -notext \
             -startdate {begins} -enddate {ends} -in {name}.csr -out {name}.pem"
        ));
    }
}

#[test]
fn untrusted_certificates_have_distinct_errors() {
    let model =
        Model::scripted(["Trusted.", "Trusted by the system.", "Through."].map(Reply::text));
    let place = Home::empty();
    let nginx = Nginx::before(&model, &place.dir("nginx"));
    nginx.asked("good", true).answers("Trusted.\n").is_quiet();
    for (site, trusts, says) in [
        ("good", false, "an unknown authority signed the certificate"),
        ("self", false, "self-signed"),
        ("expired", true, "the certificate expired on 2021-01-01"),
        (
            "future",
            true,
            "the certificate is not valid before 2058-01-01",
        ),
        ("other", true, "the certificate is for "),
        ("old", true, "only an old version of TLS"),
    ] {
        println!("{site}");
        nginx.asked(site, trusts).fails(3).prints("").says(says);
    }
    // An authority that the system trusts, and which is not compiled in.
    let home = once(&nginx.base("good"), &json!({}));
    let trusting = "mount -t tmpfs none /etc/ssl/certs && cp \"$CA\" /etc/ssl/certs/ca-certificates.crt && exec \"$0\" agent -m hi";
    let mut command = Command::new("unshare");
    command
        .args(["-rm", "sh", "-c", trusting, program()])
        .env("CA", nginx.dir.join("ca.pem"));
    let output = command
        .env("BANTAM_HOME", home.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "Trusted by the system.\n",
        "{told}"
    );
    // HTTPS through a proxy.
    let proxy = Proxy::leading_to(format!("127.0.0.1:{}", nginx.port("good")));
    let home = once(
        &nginx.base("good"),
        &json!({ "model_list": [ { "proxy": proxy.url() } ] }),
    );
    let run = home
        .bantam()
        .env("SSL_CERT_FILE", nginx.dir.join("ca.pem"))
        .args(["agent", "-m", "hi"])
        .run();
    run.answers("Through.\n");
    assert_eq!(
        proxy.asked(),
        [format!("CONNECT 127.0.0.1:{} HTTP/1.1", nginx.port("good"))]
    );
}
