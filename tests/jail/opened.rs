//! Directories opened in addition to the workspace: their services cannot be contacted, and their disks not filled.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::OnceLock;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use serde_json::{Value, json};

use crate::attack::Attack;
use crate::fixture::Fixture;
use crate::harness::merged;
use crate::kernel;
use crate::matrix::{COLUMNS, IN_NAMESPACES, LANDLOCK_ALONE, NO_LANDLOCK, attacks, ground};
use crate::model::call;
use crate::refusal::told;
use crate::runner::Ground;

/// Attacks on sockets by path, which succeed without a sandbox in [`crate::matrix`].
const SOCKETS: [&str; 3] = ["N06", "N12", "N13"];

fn everything() -> Value {
    json!({ "agents": { "defaults": { "restrict_to_workspace": false } } })
}

/// Adds values to the configuration that only the fixture knows.
fn configure(fixture: &Fixture, more: &Value) {
    let path = fixture.home().join("config.json");
    let config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    fs::write(path, merged(config, more).to_string()).unwrap();
}

fn outside(fixture: &Fixture, setting: &str) -> Value {
    json!({ "tools": { setting: [fixture.path("outside")] } })
}

fn sockets_are_out_of_reach(column: usize) {
    let opened: [fn(&Fixture) -> Value; 3] = [
        |_| everything(),
        |fixture| outside(fixture, "read_paths"),
        |fixture| outside(fixture, "write_paths"),
    ];
    for open in opened {
        let ground = ground(column);
        let chosen: Vec<Attack> = attacks()
            .into_iter()
            .filter(|attack| SOCKETS.contains(&attack.id))
            .collect();
        let ask = |fixture: &Fixture, _: &[String]| {
            let chosen: Vec<Attack> = attacks()
                .into_iter()
                .filter(|attack| SOCKETS.contains(&attack.id))
                .collect();
            fixture.prepare(&chosen);
            let command =
                |attack: &Attack| json!({ "command": attack.command(fixture.marker(attack)) });
            chosen
                .iter()
                .map(|attack| call(attack.id, "exec", &command(attack)))
                .collect()
        };
        let set = |fixture: &Fixture| configure(fixture, &open(fixture));
        told(ground, &json!({}), set, ask, |fixture, told| {
            fixture.wait_for_listeners();
            for attack in &chosen {
                assert!(fixture.has_begun(attack), "{told:?}");
                assert!(!fixture.shows(attack, ""), "{}: {told:?}", attack.id);
            }
        });
    }
}

#[test]
fn open_directory_sockets_are_blocked_in_namespaces() {
    IN_NAMESPACES.into_iter().for_each(sockets_are_out_of_reach);
}

#[test]
fn sockets_in_open_trees_are_out_of_reach_under_landlock() {
    LANDLOCK_ALONE
        .into_iter()
        .for_each(sockets_are_out_of_reach);
}

/// With Landlock, a reader of a pipe in a read-only directory receives nothing from a command. The columns without it show that
/// the test would notice.
#[test]
fn pipes_in_readable_trees_are_not_written_to_under_landlock() {
    for (name, starter, rules, landlock) in COLUMNS {
        let ground = Ground {
            landlock,
            ..starter.ground(rules)
        };
        let reader = OnceLock::new();
        let set = |fixture: &Fixture| {
            let pipe = fixture.path("outside/pipe");
            mknodat(CWD, &pipe, FileType::Fifo, Mode::empty(), 0).unwrap();
            fs::set_permissions(&pipe, Permissions::from_mode(0o666)).unwrap();
            chown(&pipe, Some(fixture.uid), Some(fixture.uid)).unwrap();
            // Opened in both directions, so that neither end waits for the other.
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            reader
                .set(open(&pipe, flags, Mode::empty()).unwrap())
                .unwrap();
            configure(fixture, &outside(fixture, "read_paths"));
        };
        let ask = |fixture: &Fixture, _: &[String]| {
            let command = format!(
                "echo begun; echo heard >{}",
                fixture.path("outside/pipe").display()
            );
            vec![call("write", "exec", &json!({ "command": command }))]
        };
        told(ground, &json!({}), set, ask, |_, told| {
            assert!(told[0].1.contains("begun"), "{name}: {told:?}");
            let mut bytes = [0; 16];
            let heard = rustix::io::read(reader.get().unwrap(), &mut bytes).is_ok();
            assert_eq!(heard, rules.contains(&NO_LANDLOCK), "{name}: {told:?}");
        });
    }
}

/// Commands that fill the disk at `$D`: slowly, with four writers at once after a pause, its bytes or its
/// files, and in one go.
const FILLS: [&str; 4] = [
    r#"i=0; while [ $i -lt 1000 ]; do head -c 1048576 /dev/zero >"$D/fill-$i" || exit; sleep .01; i=$((i+1)); done"#,
    r#"sleep .3; for n in 1 2 3 4; do cat /dev/zero >"$D/fill-$n" & done; wait"#,
    r#"sleep .3; for n in 1 2 3 4; do mkdir "$D/$n"; perl -e 'chdir shift; open F, ">", $_ or exit for 1..60000' "$D/$n" & done; wait"#,
    r#"head -c 90m /dev/zero >"$D/fill""#,
];

/// A command must leave free space on a disk that is mounted in an open directory.
fn other_disks_are_watched(column: usize) {
    let opened: [fn(&Fixture) -> Value; 2] =
        [|_| everything(), |fixture| outside(fixture, "write_paths")];
    for (fill, open) in FILLS.into_iter().zip(opened.into_iter().cycle()) {
        let ground = ground(column);
        let set = |fixture: &Fixture| {
            let disk = fixture.path("outside/other disk");
            fs::create_dir(&disk).unwrap();
            let size = "size=160m,nr_inodes=50000,mode=0777";
            kernel::mount("tmpfs", &disk, size).unwrap();
            configure(fixture, &open(fixture));
        };
        let ask = move |fixture: &Fixture, _: &[String]| {
            let disk = fixture.path("outside/other disk");
            let command = format!("D='{}'; {fill}", disk.display());
            vec![call(
                "fill",
                "exec",
                &json!({ "command": command, "timeout": 30 }),
            )]
        };
        told(ground, &json!({}), set, ask, |fixture, told| {
            let disk = fixture.path("outside/other disk");
            let left = rustix::fs::statvfs(&disk).unwrap();
            kernel::unmount(&disk).unwrap();
            let left = [
                100 * left.f_bavail / left.f_blocks,
                100 * left.f_favail / left.f_files,
            ];
            let name = COLUMNS[column].0;
            // A busy machine measures late, and less is left than on an idle one.
            assert!(
                left[0] > 0 && left[1] > 0,
                "{name}: {left:?} % left, {fill}: {told:?}"
            );
            assert!(
                told[0].1.contains("the disk is nearly full"),
                "{name}, {fill}: {told:?}"
            );
        });
    }
}

#[test]
fn other_disks_are_watched_in_namespaces() {
    IN_NAMESPACES.into_iter().for_each(other_disks_are_watched);
}

#[test]
fn other_disks_are_watched_under_landlock() {
    LANDLOCK_ALONE.into_iter().for_each(other_disks_are_watched);
}

/// The kernel reports its keys to every user, and has one for each user of the machine.
#[test]
fn kernel_keys_are_hidden_in_namespaces() {
    for column in IN_NAMESPACES {
        let ground = ground(column);
        let ask = |_: &Fixture, _: &[String]| {
            let command = "cat /proc/keys /proc/key-users; echo read";
            vec![call("read", "exec", &json!({ "command": command }))]
        };
        told(
            ground,
            &json!({}),
            |_| (),
            ask,
            |_, told| {
                let said = &told[0].1;
                assert!(said.contains("read") && !said.contains(':'), "{said}");
            },
        );
    }
}

/// What the kernel tells only to root is told to no command, also of root, and none can be kept from being killed first.
#[test]
fn machine_state_is_hidden_and_unchanged_in_namespaces() {
    let closed = |entry: &fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        let mode = fs::symlink_metadata(entry.path())
            .ok()?
            .permissions()
            .mode();
        (!name.starts_with(|c: char| c.is_ascii_digit()) && mode & 0o004 == 0).then_some(name)
    };
    let entries = [fs::read_dir("/proc"), fs::read_dir("/proc/tty")].map(Result::unwrap);
    let names: Vec<String> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| closed(&entry))
        .collect();
    assert!(
        names
            .iter()
            .any(|name| name == "slabinfo" || name == "vmallocinfo"),
        "{names:?}"
    );
    for column in IN_NAMESPACES {
        let ground = ground(column);
        let names = names.join(" ");
        let ask = move |_: &Fixture, _: &[String]| {
            let command = format!(
                "for e in {names}; do for f in /proc/$e /proc/tty/$e; do \
                     timeout 1 head -c 9 $f | wc -c; ls -A $f | grep -v ^/; done; done 2>/dev/null | grep -vx 0; \
                     (echo 0 >/proc/self/oom_score_adj; echo x >/proc/self/comm) 2>/dev/null && echo written; \
                     cat /proc/self/oom_score_adj; grep -c . /proc/cpuinfo >/dev/null && echo read"
            );
            vec![call("read", "exec", &json!({ "command": command }))]
        };
        let judge = |_: &Fixture, told: Vec<(String, String)>| {
            let (name, ..) = COLUMNS[column];
            assert_eq!(told[0].1.trim(), "500\nread", "{name}");
        };
        told(ground, &json!({}), |_| (), ask, judge);
    }
}
