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
use crate::netns;
use crate::refusal::told_in;
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
        netns::enter(ground.owner, "nothing", |netns| {
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
            told_in(netns, ground, &json!({}), set, ask, |fixture, told| {
                fixture.wait_for_listeners();
                for attack in &chosen {
                    assert!(fixture.has_begun(attack), "{told:?}");
                    assert!(!fixture.shows(attack, ""), "{}: {told:?}", attack.id);
                }
            });
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
        netns::enter(ground.owner, "nothing", |netns| {
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
            told_in(netns, ground, &json!({}), set, ask, |_, told| {
                assert!(told[0].1.contains("begun"), "{name}: {told:?}");
                let mut bytes = [0; 16];
                let heard = rustix::io::read(reader.get().unwrap(), &mut bytes).is_ok();
                assert_eq!(heard, rules.contains(&NO_LANDLOCK), "{name}: {told:?}");
            });
        });
    }
}

const FILL: &str = r#"i=0; while [ $i -lt 1000 ]; do head -c 1048576 /dev/zero >"$D/fill-$i" || exit; sleep .01; i=$((i+1)); done"#;

/// A command must leave free space on a disk that is mounted in an open directory.
fn other_disks_are_watched(column: usize) {
    let opened: [fn(&Fixture) -> Value; 2] =
        [|_| everything(), |fixture| outside(fixture, "write_paths")];
    for open in opened {
        let ground = ground(column);
        netns::enter(ground.owner, "nothing", |netns| {
            let set = |fixture: &Fixture| {
                let disk = fixture.path("outside/other disk");
                fs::create_dir(&disk).unwrap();
                kernel::mount("tmpfs", &disk, "size=64m,mode=0777").unwrap();
                configure(fixture, &open(fixture));
            };
            let ask = |fixture: &Fixture, _: &[String]| {
                let disk = fixture.path("outside/other disk");
                let command = format!("D='{}'; {FILL}", disk.display());
                vec![call(
                    "fill",
                    "exec",
                    &json!({ "command": command, "timeout": 30 }),
                )]
            };
            told_in(netns, ground, &json!({}), set, ask, |fixture, told| {
                let disk = fixture.path("outside/other disk");
                let left = rustix::fs::statvfs(&disk).unwrap();
                kernel::unmount(&disk).unwrap();
                assert!(100 * left.f_bavail / left.f_blocks > 5, "{told:?}");
                assert!(told[0].1.contains("the disk is nearly full"), "{told:?}");
            });
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
        netns::enter(ground.owner, "nothing", |netns| {
            let ask = |_: &Fixture, _: &[String]| {
                let command = "cat /proc/keys /proc/key-users; echo read";
                vec![call("read", "exec", &json!({ "command": command }))]
            };
            told_in(
                netns,
                ground,
                &json!({}),
                |_| (),
                ask,
                |_, told| {
                    let said = &told[0].1;
                    assert!(said.contains("read") && !said.contains(':'), "{said}");
                },
            );
        });
    }
}
