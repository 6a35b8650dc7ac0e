//! What a user opens besides the workspace: services that listen there are not spoken to, and disks there are not filled.

use std::fs;

use serde_json::{Value, json};

use crate::attack::Attack;
use crate::fixture::Fixture;
use crate::harness::merged;
use crate::kernel;
use crate::matrix::{COLUMNS, attacks};
use crate::model::call;
use crate::netns;
use crate::refusal::told_in;
use crate::runner::Ground;

/// Attacks on sockets by their paths, which succeed without a jail in [`crate::matrix`].
const SOCKETS: [&str; 3] = ["N06", "N12", "N13"];

fn everything() -> Value {
    json!({ "agents": { "defaults": { "restrict_to_workspace": false } } })
}

/// Adds to the configuration what only the fixture knows.
fn configure(fixture: &Fixture, more: &Value) {
    let path = fixture.home().join("config.json");
    let config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    fs::write(path, merged(config, more).to_string()).unwrap();
}

fn outside(fixture: &Fixture, setting: &str) -> Value {
    json!({ "tools": { setting: [fixture.path("outside")] } })
}

fn sockets_are_out_of_reach(column: usize) {
    let (_, starter, rules, landlock) = COLUMNS[column];
    let ground = || Ground { landlock, ..starter.ground(rules) };
    let opened: [fn(&Fixture) -> Value; 3] =
        [|_| everything(), |fixture| outside(fixture, "read_paths"), |fixture| outside(fixture, "write_paths")];
    for open in opened {
        let ground = ground();
        netns::enter(ground.owner, "nothing", |netns| {
            let chosen: Vec<Attack> = attacks().into_iter().filter(|attack| SOCKETS.contains(&attack.id)).collect();
            let ask = |fixture: &Fixture, _: &[String]| {
                let chosen: Vec<Attack> = attacks().into_iter().filter(|attack| SOCKETS.contains(&attack.id)).collect();
                fixture.prepare(&chosen);
                let command = |attack: &Attack| json!({ "command": attack.command(fixture.marker(attack)) });
                chosen.iter().map(|attack| call(attack.id, "exec", &command(attack))).collect()
            };
            let set = |fixture: &Fixture| configure(fixture, &open(fixture));
            told_in(netns, ground, &json!({}), set, ask, |fixture, told| {
                std::thread::park_timeout(std::time::Duration::from_millis(300));
                for attack in &chosen {
                    assert!(fixture.has_begun(attack), "{told:?}");
                    assert!(!fixture.shows(attack, ""), "{}: {told:?}", attack.id);
                }
            });
        });
    }
}

#[test]
fn sockets_in_open_trees_are_out_of_reach_of_root_with_both() {
    sockets_are_out_of_reach(0);
}

#[test]
fn sockets_in_open_trees_are_out_of_reach_in_namespaces() {
    sockets_are_out_of_reach(2);
}

#[test]
fn sockets_in_open_trees_are_out_of_reach_under_landlock() {
    sockets_are_out_of_reach(3);
}

const FILL: &str =
    r#"i=0; while [ $i -lt 1000 ]; do head -c 1048576 /dev/zero >"$D/fill-$i" || exit; sleep .01; i=$((i+1)); done"#;

/// A disk that is mounted in an open tree, and is not the tree's own, keeps some room.
fn other_disks_are_watched(column: usize) {
    let (_, starter, rules, landlock) = COLUMNS[column];
    let opened: [fn(&Fixture) -> Value; 2] = [|_| everything(), |fixture| outside(fixture, "write_paths")];
    for open in opened {
        let ground = Ground { landlock, ..starter.ground(rules) };
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
                vec![call("fill", "exec", &json!({ "command": command, "timeout": 30 }))]
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
    other_disks_are_watched(2);
}

#[test]
fn other_disks_are_watched_under_landlock() {
    other_disks_are_watched(3);
}
