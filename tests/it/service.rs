//! Who keeps the gateway running: a service manager, which is told how it is and given a unit, or nobody, as process 1 of a
//! container.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::bot::config;
use crate::botapi::{BotApi, Fault};
use crate::harness::{Home, merged, until};
use crate::model::{Model, Reply};

/// The one who may.
const OWNER: i64 = 42;

#[test]
fn the_service_manager_hears_that_it_lives_also_while_polls_fail() {
    let model = Model::never_asked();
    let api = BotApi::start();
    let home = Home::with(&config(&model, &api));
    api.fault("getUpdates", Fault::Error(401, "Unauthorized"));
    let path = home.dir("run").join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let heard = || {
        let mut bytes = [0; 200];
        let length = socket.recv(&mut bytes).expect("a word within a minute");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let gateway = home
        .bantam()
        .arg("gateway")
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "1000000")
        .spawn();
    assert_eq!(heard(), "READY=1");
    gateway.wait_for_stderr("Telegram refused the token");
    let begun = Instant::now();
    let mut beats = 0;
    while beats < 5 {
        beats += usize::from(heard() == "WATCHDOG=1");
    }
    // A pause after such a fault is of a minute, and they come twice a second.
    assert!(begun.elapsed() < Duration::from_secs(45));
    gateway.signal(Signal::TERM);
    until("it says that it ends", || heard() == "STOPPING=1");
    gateway.finish().exits(0);
}

/// The words of a unit's line, without what quotes and percent signs are for.
fn words(value: &str) -> Vec<String> {
    shell_words::split(&value.replace("%%", "%")).unwrap()
}

#[test]
fn a_unit_is_printed_for_this_home_and_this_program() {
    let home = Home::with(
        &json!({ "agents": { "defaults": { "workspace": "/srv/a b" } },
        "tools": { "write_paths": ["/srv/100%"] } }),
    );
    let odd = home.dir("odd \"50%\" \\ home");
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
    // Every line is a comment, a section, or a key with a value.
    let mut section = "";
    for line in unit
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        match line.strip_prefix('[') {
            Some(name) => section = name.strip_suffix(']').expect("a section"),
            None => {
                assert!(
                    line.split_once('=')
                        .is_some_and(|(key, _)| key.chars().all(char::is_alphanumeric)),
                    "{line}"
                );
            }
        }
        assert!(["Unit", "Service", "Install"].contains(&section), "{line}");
    }
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
        ("Type", "notify"),
        ("Restart", "on-failure"),
        ("KillMode", "mixed"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("WantedBy", "multi-user.target"),
    ] {
        assert_eq!(one(key), value);
    }
    // A poll and what it may take beyond; a pause; and an end.
    assert!(one("WatchdogSec").parse::<u64>().unwrap() > 2 * (50 + 25));
    assert!((4..60).contains(&one("TimeoutStopSec").parse::<u64>().unwrap()));
    // What would take the sandbox away.
    for key in [
        "RestrictNamespaces",
        "ProtectProc",
        "ProcSubset",
        "ProtectKernelTunables",
        "ProtectKernelLogs",
        "ProtectClock",
        "ProtectHostname",
    ] {
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
    let nowhere = home.path("nowhere");
    home.bantam()
        .env("BANTAM_HOME", &nowhere)
        .arg("service")
        .run()
        .exits(0)
        .says("bantam onboard creates it");
    assert!(!nowhere.exists());

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
    // At a terminal it is told what to type next.
    let shown = home
        .bantam()
        .args(["service", "--system"])
        .on_a_terminal()
        .run();
    assert!(
        shown
            .exits(0)
            .stdout
            .contains("systemctl enable --now bantam"),
        "{}",
        shown.stdout
    );
}

/// As in a container: process 1 of a namespace, with an orphan that it did not start.
const CONTAINER: &str = r#"exec unshare -r --pid --mount-proc --fork --kill-child sh -c 'sleep 1 & exec "$0" "$@"' "$0" "$@""#;

/// The processes below this one, each with how it stands.
fn children(pid: i32) -> Vec<(i32, String)> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let stands = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may hold anything.
        Some((
            pid.parse().unwrap(),
            stat.rsplit_once(") ")?.1.chars().take(1).collect(),
        ))
    };
    list.split_whitespace().filter_map(stands).collect()
}

#[test]
fn as_process_1_it_takes_in_who_is_left_behind_and_ends_when_it_is_told() {
    let model = Model::answering(|request, _| match request.texts("tool").len() {
        0 => Reply::call("exec", &json!({ "command": "(sleep 100 &) ; echo done" })),
        _ => Reply::text(&request.last("tool")),
    });
    let api = BotApi::start();
    let home = Home::with(&merged(
        config(&model, &api),
        &json!({ "tools": { "exec": { "sandbox": "auto" } } }),
    ));
    let gateway = home.bantam().arg("gateway").after(CONTAINER).spawn();
    gateway.wait_for_stderr("serving as");
    api.text(OWNER, "go");
    let texts = api.wait_for_texts(OWNER, 1);
    assert!(texts[0].contains("done"), "{texts:?}");
    let first = children(gateway.pid())[0].0;
    until("nobody is left but the gateway", || {
        children(first).len() == 1
    });
    let below = children(first)[0].0;
    until("nothing that it started is left", || {
        children(below).is_empty()
    });
    let begun = Instant::now();
    rustix::process::kill_process(rustix::process::Pid::from_raw(first).unwrap(), Signal::TERM)
        .unwrap();
    gateway.finish().exits(0);
    assert!(
        begun.elapsed() < Duration::from_secs(40),
        "{:?}",
        begun.elapsed()
    );
}
