//! The systemd unit of the gateway.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::harness::{Home, has_all};

/// Returns the words of a unit's line, without quotes and escapes of percent signs.
fn words(value: &str) -> Vec<String> {
    shell_words::split(&value.replace("%%", "%")).unwrap()
}

#[test]
fn a_unit_is_printed_for_this_home_and_this_program() {
    let home = Home::with(
        &json!({ "agents": { "defaults": { "workspace": "/srv/a b" } },
        "tools": { "write_paths": ["/srv/100%"] } }),
    );
    let odd = home.dir("odd 50% home");
    let print = |args: &[&str]| home.bantam().arg("service").args(args).run();
    let run = print(&["--system"]);
    run.exits(0).is_quiet();
    let unit = run.stdout.clone();
    let values = |unit: &str, key: &str| -> Vec<String> {
        let lines = unit.lines().filter_map(|line| line.split_once('='));
        lines
            .filter(|(name, _)| *name == key)
            .map(|(_, value)| value.to_owned())
            .collect()
    };
    let one = |key: &str| match &values(&unit, key)[..] {
        [value] => value.clone(),
        values => panic!("{key}: {values:?} in {unit}"),
    };
    assert_eq!(
        words(&one("ExecStart")),
        [crate::program::program(), "gateway"]
    );
    let root = home
        .path("")
        .display()
        .to_string()
        .trim_end_matches('/')
        .to_owned();
    assert_eq!(words(&one("Environment")), [format!("BANTAM_HOME={root}")]);
    let writable: Vec<String> = values(&unit, "ReadWritePaths")
        .iter()
        .flat_map(|value| words(value))
        .collect();
    assert_eq!(
        writable,
        [format!("-{root}"), "-/srv/a b".into(), "-/srv/100%".into()]
    );
    for (key, value) in [
        ("Type", "exec"),
        ("Restart", "on-failure"),
        ("RestartPreventExitStatus", "2 3 4"),
        ("KillMode", "mixed"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("WantedBy", "multi-user.target"),
    ] {
        assert_eq!(one(key), value);
    }
    assert!((4..60).contains(&one("TimeoutStopSec").parse::<u64>().unwrap()));
    // Keys that would disable the sandbox.
    let keys = "RestrictNamespaces ProtectProc ProcSubset ProtectKernelTunables ProtectKernelLogs \
        ProtectClock ProtectHostname";
    for key in keys.split_whitespace() {
        assert_eq!(values(&unit, key), [""; 0], "{key}");
    }

    let run = home
        .bantam()
        .env("BANTAM_HOME", &odd)
        .args(["service", "--system"])
        .run();
    let environment = values(&run.exits(0).stdout, "Environment");
    assert_eq!(
        words(&environment[0]),
        [format!("BANTAM_HOME={}", odd.display())]
    );
    home.config(
        &json!({ "agents": { "defaults": { "restrict_to_workspace": false } } }).to_string(),
    );
    let run = print(&["--system"]);
    assert_eq!(
        values(&run.exits(0).stdout, "ReadWritePaths"),
        [""; 0],
        "what is let loose is not held"
    );
    let own = print(&[]);
    let is_root = rustix::process::geteuid().is_root();
    let target = if is_root {
        "multi-user.target"
    } else {
        "default.target"
    };
    assert_eq!(values(&own.exits(0).stdout, "WantedBy"), [target]);
}

/// Uses a fake `systemctl` and `loginctl`, which record their arguments, and a directory of units.
#[test]
fn unit_is_installed_and_uninstalled() {
    let home = Home::with(&json!({}));
    let log = home.path("log.txt");
    let bin = home.dir("bin");
    let fake = |text: &str| {
        for name in ["systemctl", "loginctl"] {
            let program = home.write(&format!("bin/{name}"), format!("#!/bin/sh\n{text}\n"));
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
    };
    fake(&format!("echo \"$(basename $0) $*\" >>'{}'", log.display()));
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let service = |flag: &str| {
        home.bantam()
            .args(["service", "--system", flag])
            .env("PATH", &path)
            .env("DESTDIR", home.path("root"))
            .run()
    };
    let logged = || {
        let text = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let unit = home.path("root/etc/systemd/system/bantam.service");
    let reload = "systemctl daemon-reload";
    // A newer unit replaces an older one.
    for _ in 0..2 {
        let run = service("--install");
        has_all(&run.exits(0).stdout, ["bantam status"]);
        assert!(fs::read_to_string(&unit).unwrap().contains("ExecStart="));
        let enable = "systemctl enable --now bantam.service";
        assert_eq!(logged(), [reload, reload, enable]);
    }
    service("--uninstall").exits(0);
    assert!(!unit.exists());
    assert_eq!(logged(), ["systemctl disable --now bantam.service", reload]);
    service("--uninstall").exits(1).says("does not exist");

    fs::write(&unit, "[Unit]\nDescription=something else\n").unwrap();
    for flag in ["--install", "--uninstall"] {
        service(flag).fails(1);
    }
    has_all(&fs::read_to_string(&unit).unwrap(), ["something else"]);
    fs::remove_file(&unit).unwrap();

    // Nothing is written if the unit cannot run.
    fake("echo 'Failed to connect to bus' >&2\nexit 1");
    service("--install")
        .exits(1)
        .says("Failed to connect")
        .says("@reboot BANTAM_HOME=");
    assert!(!unit.exists());
    fake(&format!(
        "echo \"$(basename $0) $*\" >>'{}'\n[ $1 != enable ]",
        log.display()
    ));
    service("--install").exits(1).says("enable --now");
    assert!(!unit.exists());
    let last = logged().pop();
    assert_eq!(
        last.as_deref(),
        Some("systemctl disable --now bantam.service")
    );
    home.config("{ nope }");
    service("--install").exits(3).says("config.json");
    assert!(!unit.exists());
}
