//! Tests the address guard with name servers, redirects and neighbors, in a private network.
//!
//! The loopback of that network also answers for public addresses, so that they are reachable; two of them belong to an
//! interface. Every inner address has a canary that counts connections.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::chown;
use std::panic::resume_unwind;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::addresses::private;
use crate::fixture::new_name;
use crate::harness::{Home, config_for, has_all, has_none, walk};
use crate::kernel::{self, Birth, born};
use crate::matrix::{IN_NAMESPACES, LANDLOCK_ALONE, ground};
use crate::model::{Model, Reply};
use crate::program::program;
use crate::runner::{Ground, ended};

/// A site on the internet.
const PUBLIC: &str = "93.184.216.34";

/// Addresses that are forbidden without permission.
const CANARIES: [&str; 11] = [
    "127.0.0.1",
    "127.255.255.254",
    // An interface's own address, and one in its network.
    "9.9.9.1",
    "9.9.9.2",
    "10.0.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.100.100.200",
    "::1",
    "2606:4700:1::1",
    "2606:4700:1::2",
];

const SET_UP: &str = "
ip addr add 9.9.9.1/24 dev lo
for net in 93.184.216.0/24 10.0.0.0/8 192.168.0.0/16 169.254.0.0/16 100.64.0.0/10; do ip route add local $net dev lo; done
if [ -e /proc/net/if_inet6 ]; then
    ip -6 addr add 2606:4700:1::1/64 dev lo nodad
    ip -6 addr add 2606:4700:1::2/128 dev lo nodad
fi
mount --bind \"$1\" /etc/resolv.conf
mount --bind \"$2\" /etc/nsswitch.conf";

/// Names and their addresses, for the first query and for all later ones.
const NAMES: [(&str, &[&str], &[&str]); 10] = [
    ("public.test", &[PUBLIC], &[PUBLIC]),
    ("inward.test", &["127.0.0.1"], &["127.0.0.1"]),
    ("six.test", &["::1"], &["::1"]),
    ("mixed.test", &[PUBLIC, "127.0.0.1"], &[PUBLIC, "127.0.0.1"]),
    ("mixed-six.test", &[PUBLIC, "::1"], &[PUBLIC, "::1"]),
    ("own.test", &["9.9.9.1"], &["9.9.9.1"]),
    ("neighbour.test", &["9.9.9.2"], &["9.9.9.2"]),
    ("metadata.test", &["169.254.169.254"], &["169.254.169.254"]),
    ("rebind.test", &[PUBLIC], &["127.0.0.1"]),
    ("rebind-late.test", &[PUBLIC], &["10.0.0.1"]),
];

/// Servers of the network.
struct Network {
    knocks: Arc<AtomicUsize>,
    /// Number of queries for each name.
    asked: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// Runs `body` in a private network.
fn in_network(body: impl FnOnce(&Network) + Send) {
    let run = || {
        if let Err(e) = kernel::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWNET) {
            panic!(
                "this test needs root and the right to make namespaces (try sudo, or a privileged container): {e}"
            );
        }
        kernel::keep_mounts_private().unwrap();
        kernel::loopback_up().unwrap();
        let files = std::env::temp_dir().join(format!("bantam-guard-{}", new_name()));
        fs::create_dir(&files).unwrap();
        let (resolv, order) = (files.join("resolv.conf"), files.join("nsswitch.conf"));
        fs::write(&resolv, "nameserver 127.0.0.1\n").unwrap();
        fs::write(&order, "hosts: files dns\n").unwrap();
        let set_up = Command::new("sh")
            .args(["-ec", SET_UP, "sh"])
            .args([&resolv, &order])
            .status()
            .unwrap();
        assert!(set_up.success(), "on Debian: apt-get install iproute2");
        fs::remove_dir_all(&files).unwrap();
        body(&Network::start());
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| resume_unwind(panic));
}

impl Network {
    fn start() -> Self {
        let network = Self {
            knocks: Arc::default(),
            asked: Arc::default(),
        };
        for address in CANARIES {
            let Ok(listener) = TcpListener::bind((address, 80)) else {
                assert!(
                    address.contains(':') && !fs::exists("/proc/net/if_inet6").unwrap(),
                    "no canary at {address}"
                );
                continue;
            };
            let knocks = network.knocks.clone();
            serve(listener, move |_| {
                knocks.fetch_add(1, Ordering::SeqCst);
                "200 OK\r\nContent-Length: 13\r\n\r\nYou found me.".to_owned()
            });
        }
        serve(
            TcpListener::bind((PUBLIC, 80)).unwrap(),
            |path| match path.split_once("/to/") {
                Some((_, target)) => format!(
                    "302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n",
                    target.trim_end_matches("/chat/completions")
                ),
                None => "200 OK\r\nContent-Length: 12\r\n\r\nFar and away".to_owned(),
            },
        );
        let (socket, asked) = (
            UdpSocket::bind("127.0.0.1:53").unwrap(),
            network.asked.clone(),
        );
        thread::spawn(move || answer_names(&socket, &asked));
        network
    }

    fn knocks(&self) -> usize {
        self.knocks.load(Ordering::SeqCst)
    }
}

/// Answers every connection once. It ends with the test process.
fn serve(listener: TcpListener, answer: impl Fn(&str) -> String + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that has hung up is counted anyway.
            let path = path(&stream).unwrap_or_default();
            let answer = answer(&path);
            let answer = format!(
                "HTTP/1.1 {}",
                answer.replacen("\r\n", "\r\nConnection: close\r\n", 1)
            );
            // Sent in one write, because closing resets the connection if a body is unread, and drops unsent data.
            (&stream).write_all(answer.as_bytes()).ok();
        }
    });
}

/// Returns the path of a request. The body is not read.
fn path(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut lines = (&mut reader).lines().map_while(Result::ok);
    let first = lines.next()?;
    lines.find(String::is_empty)?;
    first.split(' ').nth(1).map(str::to_owned)
}

/// Serves the names in [`NAMES`].
fn answer_names(socket: &UdpSocket, asked: &Mutex<BTreeMap<String, usize>>) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        let (mut name, mut at) = (String::new(), 12);
        while query[at] > 0 {
            let label = &query[at + 1..=at + usize::from(query[at])];
            name = format!(
                "{name}{}{}",
                if name.is_empty() { "" } else { "." },
                String::from_utf8_lossy(label)
            );
            at += 1 + label.len();
        }
        let (wants_six, end) = (query[at + 2] == 28, at + 5);
        let mut asked = asked.lock().unwrap();
        let times = asked.entry(name.clone()).or_default();
        *times += usize::from(!wants_six);
        let known = NAMES.iter().find(|(known, ..)| *known == name);
        let meant = known
            .map(|(_, first, then)| if *times <= 1 { *first } else { *then })
            .unwrap_or_default();
        let found: Vec<IpAddr> = meant.iter().map(|ip| ip.parse().unwrap()).collect();
        let found: Vec<_> = found
            .into_iter()
            .filter(|ip| ip.is_ipv6() == wants_six)
            .collect();
        let mut answer = query[..end.min(length)].to_vec();
        let code = if known.is_some() { 0x80 } else { 0x83 };
        let count = u8::try_from(found.len()).unwrap();
        answer[2..12].copy_from_slice(&[0x85, code, 0, 1, 0, count, 0, 0, 0, 0]);
        for ip in found {
            let bytes = match ip {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            let (kind, size) = if wants_six { (28, 16) } else { (1, 4) };
            answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 0, 0, size]);
            answer.extend(bytes);
        }
        socket.send_to(&answer, from).unwrap();
    }
}

/// Returns the results for a model that fetches all of these.
fn fetch(urls: Vec<String>, settings: &Value) -> Vec<String> {
    let count = urls.len();
    let model = Model::answering(
        move |request, _| match urls.get(request.texts("tool").len()) {
            Some(url) => Reply::call("web_fetch", &json!({ "url": url })),
            None => Reply::text("Done."),
        },
    );
    let many =
        json!({ "agents": { "defaults": { "max_tool_iterations": 300 } }, "tools": settings });
    Home::asking(&model, &many)
        .agent(["-m", "go on"])
        .answers("Done.\n");
    let results = model.requests().pop().unwrap().texts("tool");
    assert_eq!(results.len(), count);
    results
}

/// Returns all names and spellings of inner addresses.
fn inner_urls() -> Vec<String> {
    let names = NAMES
        .iter()
        .map(|(name, ..)| *name)
        .filter(|name| *name != "public.test" && !name.starts_with("rebind"));
    let own =
        "9.9.9.1 9.9.9.2 9.9.9.255 [::ffff:9.9.9.1] [64:ff9b::9.9.9.1] 0x09090902 [2606:4700:1::1]";
    let hosts = names
        .chain(own.split(' '))
        .chain(["[2606:4700:1::2]"])
        .map(|host| format!("http://{host}/"));
    private("80").into_iter().chain(hosts).collect()
}

#[test]
fn pages_of_private_networks_are_refused() {
    in_network(|network| {
        let urls = inner_urls();
        assert!(urls.len() >= 90);
        let direct = fetch(urls.clone(), &json!({}));
        let redirects = urls
            .iter()
            .filter(|url| url.contains("://") && !url.contains(['\r', ' ']))
            .cloned();
        let redirected: Vec<String> = redirects
            .map(|url| format!("http://public.test/to/{url}"))
            .collect();
        assert!(redirected.len() >= 85);
        for result in direct.iter().chain(&fetch(redirected, &json!({}))) {
            has_none(result, ["You found me", "Far and away"]);
        }
        assert_eq!(network.knocks(), 0);

        // Checks that the network works.
        let text = fetch(
            vec![
                "http://public.test/".to_owned(),
                format!("http://{PUBLIC}/"),
            ],
            &json!({}),
        );
        assert!(
            text.iter().all(|text| text.contains("Far and away")),
            "{text:?}"
        );
        let inner = [
            "http://inward.test/",
            "http://9.9.9.2/",
            "http://public.test/to/http://own.test/",
        ];
        let open = json!({ "web": { "fetch": { "allow_private": true } } });
        let text = fetch(inner.map(str::to_owned).to_vec(), &open);
        assert!(
            text.iter().all(|text| text.contains("You found me")),
            "{text:?}"
        );
        assert_eq!(network.knocks(), inner.len());
    });
}

#[test]
fn rebinding_name_server_reaches_no_private_address() {
    in_network(|network| {
        let urls = [
            "http://rebind.test/",
            "http://rebind.test/again",
            "http://public.test/to/http://rebind-late.test/to/http://rebind-late.test/",
        ];
        let text = fetch(urls.map(str::to_owned).to_vec(), &json!({}));
        assert!(
            text[0].contains("Far and away"),
            "judged and connected to as judged: {}",
            text[0]
        );
        assert!(text[1].contains("127.0.0.1 is this machine"), "{}", text[1]);
        has_all(&text[2], ["10.0.0.1 is a private network address"]);
        assert_eq!(
            network.asked.lock().unwrap()["rebind.test"],
            2,
            "each page asks once"
        );
        assert_eq!(network.knocks(), 0);
    });
}

/// Requests every target from the configured proxy, and prints its replies.
const TUNNELS: &str = r#"
import json, os, socket
host, port = os.environ["http_proxy"].removeprefix("http://").split(":")
for target in json.loads(TARGETS):
    with socket.create_connection((host, int(port)), 60) as s:
        s.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        said = s.makefile("rb").readline().decode().split(" ")[1]
        if said == "200":
            s.sendall(b"GET / HTTP/1.0\r\n\r\n")
            said += " " + s.makefile("rb").read().decode().split("\r\n")[-1]
    print(said, target)
"#;

/// Connects to every target without a proxy.
const DIRECT: &str = r#"
import json, socket
for target in json.loads(TARGETS):
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), 5).close()
        print(200, target)
    except (OSError, ValueError) as error:
        print("-", target, error)
"#;

/// Returns the output of this script in a command with the guarded network, and the number of inner targets it tried; three
/// more targets follow them.
fn command_reaches(column: usize, script: &str) -> (String, usize) {
    let authority = |url: &String| {
        let rest = url.split_once("//").map_or(url.as_str(), |(_, rest)| rest);
        let host = rest
            .split(['/', '?', '#', '\\', '\r'])
            .next()
            .unwrap()
            .to_owned();
        if host.ends_with(":80") {
            host
        } else {
            format!("{host}:80")
        }
    };
    let mut targets: Vec<String> = inner_urls().iter().map(authority).collect();
    let count = targets.len();
    targets.extend(["rebind.test:80", "rebind.test:80", "public.test:80"].map(str::to_owned));
    let script = script.replace("TARGETS", &json!(json!(targets).to_string()).to_string());
    let command = format!(
        "cat >t.py <<'END'\n{script}\nEND\npython3 t.py >out; grep -vc ^2 out; grep ^2 out"
    );
    let model = Model::scripted([
        Reply::call("exec", &json!({ "command": command, "timeout": 120 })),
        Reply::text("Done."),
    ]);
    let home = Home::asking(
        &model,
        &json!({ "tools": { "exec": { "network": "guarded" } } }),
    );
    home.dir("workspace");
    let Ground {
        uid, owner, rules, ..
    } = ground(column);
    for path in walk(home.path("").parent().unwrap()) {
        chown(path, Some(owner), Some(owner)).unwrap();
    }
    let mut bantam = Command::new(program());
    bantam
        .args(["agent", "-n", "-m", "go on"])
        .current_dir("/")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    bantam
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("BANTAM_HOME", home.path(""));
    born(
        &mut bantam,
        Birth {
            rules,
            ..Birth::of(uid)
        },
    );
    let (status, stderr) = ended(&mut bantam.spawn().unwrap());
    assert!(
        status.is_some_and(|status| status.success()),
        "{status:?}: {stderr}"
    );
    (model.request(1).last("tool"), count)
}

#[test]
fn guarded_command_cannot_reach_private_addresses() {
    for column in IN_NAMESPACES {
        in_network(|network| {
            let (result, count) = command_reaches(column, TUNNELS);
            let reached = "200 Far and away rebind.test:80\n200 Far and away public.test:80";
            has_all(&result, [&format!("{}\n{reached}", count + 1)]);
            assert_eq!(network.knocks(), 0);
        });
    }
}

#[test]
fn under_landlock_alone_a_command_with_the_guarded_network_reaches_nothing() {
    for column in LANDLOCK_ALONE {
        in_network(|network| {
            let (result, count) = command_reaches(column, DIRECT);
            has_all(&result, [&format!("{}\n", count + 3)]);
            has_none(&result, ["200 "]);
            assert_eq!(
                (network.knocks(), network.asked.lock().unwrap().len()),
                (0, 0)
            );
        });
    }
}

#[test]
fn servers_of_the_configuration_do_not_lead_inside_by_a_redirect() {
    in_network(|network| {
        let inward = "http://public.test/to/http://127.0.0.1/";
        let model = Model::scripted([Reply::text("Done.")]);
        let home = Home::asking(
            &model,
            &json!({ "mcpServers": { "far": { "url": inward } } }),
        );
        home.agent(["-m", "hi"]).exits(0).says("redirect");
        Home::with(&config_for(inward))
            .agent(["-m", "hi"])
            .exits(3)
            .prints("");
        let search = json!({ "web": { "search": { "base_url": inward, "provider": "searxng" } } });
        let model = Model::scripted([
            Reply::call("web_search", &json!({ "query": "x" })),
            Reply::text("Done."),
        ]);
        Home::asking(&model, &json!({ "tools": search }))
            .agent(["-m", "hi"])
            .exits(0);
        has_all(&model.request(1).last("tool"), ["302"]);
        assert_eq!(network.knocks(), 0);
    });
}
