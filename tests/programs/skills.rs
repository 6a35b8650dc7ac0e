//! Skills from zip files that Python packs, and from addresses.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::harness::{Home, until};

const TEA: &str =
    "---\nname: tea\ndescription: Makes tea.\n---\nBoil water, then run sh scripts/steep.sh.\n";

/// Packs a folder as `NAME.zip`, beside it.
fn pack(folder: &Path) -> String {
    let packed = Command::new("python3")
        .args(["-m", "zipfile", "-c"])
        .arg(folder.with_extension("zip"))
        .arg(folder)
        .status();
    assert!(packed.unwrap().success());
    folder.with_extension("zip").display().to_string()
}

/// Serves a folder over HTTP on this machine.
struct Served {
    server: Child,
    address: String,
}

impl Served {
    fn new(folder: &Path) -> Self {
        let code = "import http.server, socketserver\n\
                    server = socketserver.ThreadingTCPServer(('127.0.0.2', 0), http.server.SimpleHTTPRequestHandler)\n\
                    open('port', 'w').write(str(server.server_address[1]))\n\
                    server.serve_forever()";
        let server = Command::new("python3")
            .args(["-c", code])
            .current_dir(folder)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let port = || fs::read_to_string(folder.join("port")).unwrap_or_default();
        until("the server listens", || !port().is_empty());
        // A proxy is not asked for 127.0.0.1.
        let address = format!("http://127.0.0.2:{}", port());
        Self { server, address }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

#[test]
fn a_skill_comes_from_a_zip_file_and_from_an_address() {
    let other = Home::empty();
    other.write("skills/tea/SKILL.md", TEA);
    other.write("skills/tea/scripts/steep.sh", "echo steeped\n");
    let packed = pack(&other.path("skills/tea"));
    let served = Served::new(&other.path(""));
    for source in [
        packed,
        format!("{}/skills/tea.zip", served.address),
        format!("{}/skills/tea.zip#tea", served.address),
    ] {
        let home = Home::empty();
        let open = json!({ "tools": { "web": { "fetch": { "allow_private": true } } } });
        home.config(&open.to_string());
        let run = home
            .bantam()
            .args(["skills", "install", "--yes", &source])
            .run();
        run.exits(0);
        assert!(
            run.stdout.contains("scripts: scripts/steep.sh"),
            "{source}: {}",
            run.stdout
        );
        let installed = home.path("agent/skills/tea");
        assert_eq!(fs::read_to_string(installed.join("SKILL.md")).unwrap(), TEA);
        assert!(installed.join("scripts/steep.sh").exists());
        assert!(!installed.join(".git").exists());
        assert!(!home.path("state/skill.new").exists());
    }
}

#[test]
fn what_others_offer_is_asked_about_and_private_addresses_are_not_reached() {
    let other = Home::empty();
    other.write("tea/SKILL.md", TEA);
    pack(&other.path("tea"));
    let served = Served::new(&other.path(""));
    let home = Home::empty();
    for source in ["tea.zip", "tea.git"] {
        let source = format!("{}/{source}", served.address);
        home.bantam()
            .args(["skills", "install", "--yes", &source])
            .run()
            .exits(1);
    }
    home.config(&json!({ "tools": { "web": { "fetch": { "allow_private": true } } } }).to_string());
    // A real git runs in the jail, behind the proxy.
    home.bantam()
        .args(["skills", "install", "--yes"])
        .arg(format!("{}/tea.git", served.address))
        .run()
        .exits(1)
        .says("the guarded network carries https:// only");
    home.bantam()
        .args(["skills", "install", &format!("{}/tea.zip", served.address)])
        .run()
        .exits(2)
        .says("not a terminal");
    assert!(!home.path("agent/skills/tea").exists());
}
