//! Skills from a git repository, served by git itself.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::harness::{Home, has_all, until};

const TEA: &str =
    "---\nname: tea\ndescription: Makes tea.\n---\nBoil water, then run sh scripts/steep.sh.\n";

/// A local server.
struct Served {
    server: Child,
    address: String,
}

impl Served {
    /// Runs a program that writes its port into a file.
    fn new(code: &str, folder: &Path) -> Self {
        let server = Command::new("python3")
            .args(["-c", code])
            .current_dir(folder)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let port = || fs::read_to_string(folder.join("port")).unwrap_or_default();
        until("the server listens", || !port().is_empty());
        // Proxies are not used for 127.0.0.1.
        let address = format!("https://127.0.0.2:{}", port());
        Self { server, address }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

/// Serves the bare repositories of a folder over HTTPS, by git's own backend.
const GIT_SERVER: &str = r"
import http.server, os, socketserver, ssl, subprocess
class Git(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self):
        path, _, query = self.path.partition('?')
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        env = {'GIT_PROJECT_ROOT': os.getcwd(), 'GIT_HTTP_EXPORT_ALL': '1', 'PATH': '/usr/local/bin:/usr/bin:/bin',
               'PATH_INFO': path, 'QUERY_STRING': query, 'REQUEST_METHOD': self.command,
               'CONTENT_TYPE': self.headers.get('Content-Type') or '', 'REMOTE_ADDR': '127.0.0.1',
               'HTTP_CONTENT_ENCODING': self.headers.get('Content-Encoding') or '',
               'GIT_PROTOCOL': self.headers.get('Git-Protocol') or ''}
        said = subprocess.run(['git', 'http-backend'], input=body, env=env, capture_output=True).stdout
        head, _, body = said.partition(b'\r\n\r\n')
        lines = [line.split(': ', 1) for line in head.decode().split('\r\n')]
        self.send_response(next((int(v.split()[0]) for k, v in lines if k == 'Status'), 200))
        for name, value in lines:
            if name != 'Status':
                self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *args):
        pass
server = socketserver.ThreadingTCPServer(('127.0.0.2', 0), Git)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
open('port', 'w').write(str(server.server_address[1]))
server.serve_forever()
";

#[test]
fn a_skill_is_cloned_from_a_repository() {
    let other = Home::empty();
    other.write("work/skills/tea/SKILL.md", TEA);
    other.write("work/skills/tea/scripts/steep.sh", "echo steeped\n");
    other.write("work/skills/soup/SKILL.md", TEA.replace("tea", "soup"));
    let root = other.path("");
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(&root)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &root);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {output:?}");
    };
    run("git", &["-C", "work", "init", "-q"]);
    run("git", &["-C", "work", "add", "."]);
    let name = ["-c", "user.name=A", "-c", "user.email=a@example.invalid"];
    let commit = ["-C", "work", "commit", "-q", "-m", "Skills"];
    run("git", &[&name[..], &commit].concat());
    run("git", &["clone", "-q", "--bare", "work", "skills.git"]);
    let key = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.2 -addext subjectAltName=IP:127.0.0.2 \
               -keyout key.pem -out cert.pem";
    run("openssl", &key.split_whitespace().collect::<Vec<_>>());
    let served = Served::new(GIT_SERVER, &root);
    let address = &served.address;

    let home = Home::empty();
    let install = |source: &str| {
        home.bantam()
            .env("SSL_CERT_FILE", other.path("cert.pem").to_str().unwrap())
            .args(["skills", "install", "--yes", source])
            .run()
    };
    // A private address is reachable only if the configuration opens it.
    install(&format!("{address}/skills.git#tea")).exits(1);
    home.config(&json!({ "tools": { "web": { "fetch": { "allow_private": true } } } }).to_string());
    install(&format!("{address}/skills.git"))
        .exits(2)
        .says("has 2 skills");
    // An address without a repository fails, and leaves no files.
    install(&format!("{address}/skills.zip")).exits(1);
    assert!(!home.path("state/skill.new").exists());
    let run = install(&format!("{address}/skills.git#tea"));
    run.exits(0);
    has_all(&run.stdout, ["scripts: scripts/steep.sh"]);
    let installed = home.path("agent/skills/tea");
    assert_eq!(fs::read_to_string(installed.join("SKILL.md")).unwrap(), TEA);
    assert!(!installed.join(".git").exists() && !home.path("agent/skills/soup").exists());
    assert!(!home.path("state/skill.new").exists());
}
