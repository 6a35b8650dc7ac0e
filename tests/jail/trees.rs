//! Directories that are replaced by links between two calls, or lead to forbidden places from the start. Tools must be unable
//! to decide where the next call goes.

use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::harness::{merged, walk};
use crate::matrix::{COLUMNS, ground};
use crate::model::{Call, Model, Reply, call};
use crate::netns;
use crate::runner::{Ground, ended, start};

struct Attack {
    name: &'static str,
    /// Prepares the files, and returns additional configuration.
    set: fn(&Fixture) -> Value,
    /// Command that replaces the directory, run from the fixture's root if that is open, with `$ROOT` and `$TARGET`.
    replace: &'static str,
    /// Path of the home afterwards, for tools: relative to the workspace, or to the fixture if it begins with a slash.
    home: &'static str,
    /// Turn that is refused, and the setting named in the refusal.
    refused: (usize, &'static str),
}

/// Creates a directory next to the home with others in it.
fn around(fixture: &Fixture) -> String {
    for inner in ["ws", "ref", "x"] {
        fs::create_dir_all(fixture.path("around").join(inner)).unwrap();
    }
    fixture.path("around").display().to_string()
}

fn at(fixture: &Fixture, place: &str) -> String {
    fixture.path(place).display().to_string()
}

fn workspace(path: &str) -> Value {
    json!({ "agents": { "defaults": { "workspace": path } } })
}

/// Makes the default workspace a link.
fn link_workspace(fixture: &Fixture, to: &str) -> Value {
    fs::remove_dir_all(fixture.workspace()).unwrap();
    symlink(to, fixture.workspace()).unwrap();
    json!({})
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "the workspace in a writable tree",
        set: |fixture| {
            merged(
                workspace(&at(fixture, "around/ws")),
                &json!({ "tools": { "write_paths": [around(fixture)] } }),
            )
        },
        replace: "cd $ROOT/around && mv ws old && ln -s $TARGET ws",
        home: ".",
        refused: (0, "agents.defaults.workspace"),
    },
    Attack {
        name: "the workspace where everything is open",
        set: |fixture| {
            around(fixture);
            let open = json!({ "agents": { "defaults": { "restrict_to_workspace": false } } });
            merged(workspace(&at(fixture, "around/ws")), &open)
        },
        replace: "cd $ROOT/around && mv ws old && ln -s $TARGET ws",
        home: ".",
        refused: (1, "agents.defaults.workspace"),
    },
    Attack {
        name: "a writable tree in the workspace",
        set: |fixture| {
            fs::create_dir_all(fixture.workspace().join("sub/out")).unwrap();
            json!({ "tools": { "write_paths": [fixture.workspace().join("sub/out")] } })
        },
        replace: "mv sub sub2; mkdir sub; ln -s $TARGET sub/out",
        home: "/home/workspace/sub/out",
        refused: (0, "tools.write_paths"),
    },
    Attack {
        name: "a readable tree in a writable one",
        set: |fixture| json!({ "tools": { "write_paths": [around(fixture)], "read_paths": [at(fixture, "around/ref")] } }),
        replace: "cd $ROOT/around && mv ref old; ln -s $TARGET ref",
        home: "/around/ref",
        refused: (0, "tools.read_paths"),
    },
    Attack {
        name: "a tree that is not there yet",
        set: |fixture| json!({ "tools": { "read_paths": [fixture.workspace().join("later")] } }),
        replace: "ln -s $TARGET later",
        home: "/home/workspace/later",
        refused: (0, "tools.read_paths"),
    },
    Attack {
        name: "a tree by another name",
        set: |fixture| {
            let around = around(fixture);
            symlink("around", fixture.path("name")).unwrap();
            json!({ "tools": { "write_paths": [around, at(fixture, "name/x")] } })
        },
        replace: "cd $ROOT/around && mv x old; ln -s $TARGET x",
        home: "/name/x",
        refused: (0, "tools.write_paths"),
    },
    Attack {
        name: "a workspace that is the home",
        set: |fixture| link_workspace(fixture, "."),
        replace: ":",
        home: ".",
        refused: (0, "agents.defaults.workspace"),
    },
    Attack {
        name: "a workspace that holds the home",
        set: |fixture| link_workspace(fixture, ".."),
        replace: ":",
        home: "home",
        refused: (0, "agents.defaults.workspace"),
    },
    Attack {
        name: "a workspace that is agent/",
        set: |fixture| link_workspace(fixture, "agent"),
        replace: ":",
        home: "..",
        refused: (0, "agents.defaults.workspace"),
    },
    Attack {
        name: "what bantam obeys in a writable tree",
        set: |fixture| {
            let around = around(fixture);
            fs::rename(fixture.home().join("agent"), fixture.path("around/agent")).unwrap();
            symlink("../around/agent", fixture.home().join("agent")).unwrap();
            json!({ "tools": { "write_paths": [around] } })
        },
        replace: ":",
        home: "/around",
        refused: (0, "agent"),
    },
];

/// Replacements of the directories: the home, or another directory of the user. Each has a secret, the attack whose canary that
/// is, and a file with instructions.
const TARGETS: [(&str, &str, &str, &str); 2] = [
    ("home", "state/secret", "H02", "agent/IDENTITY.md"),
    ("user", ".ssh/id_ed25519", "R13", ".ssh/authorized_keys"),
];

/// Calls of a command and of the file tools after the replacement.
fn tries(home: &str, secret: &str, obeyed: &str) -> Vec<Call> {
    let command = format!("cat {home}/{secret}; echo evil >{home}/{obeyed}");
    vec![
        call("cat", "exec", &json!({ "command": command })),
        call(
            "read",
            "read_file",
            &json!({ "path": format!("{home}/{secret}") }),
        ),
        call(
            "write",
            "write_file",
            &json!({ "path": format!("{home}/{obeyed}"), "content": "evil" }),
        ),
    ]
}

/// Returns the results of the attack, in the turn that replaced the directory and in the next one.
fn outcome_of(attack: &Attack, ground: Ground, target: usize) -> Vec<String> {
    let (place, secret, canary, obeyed) = TARGETS[target];
    netns::enter(ground.owner, "nothing", move |netns| {
        let slot: Arc<Mutex<Option<Arc<Fixture>>>> = Arc::default();
        let (shared, replace, home) = (Arc::clone(&slot), attack.replace, attack.home);
        let model = Model::answering(move |_, number| {
            let fixture = shared.lock().unwrap().clone().unwrap();
            let root = fixture.home().parent().unwrap().display().to_string();
            let command = format!("TARGET={root}/{place} ROOT={root}; {replace}");
            let seen = if home.starts_with('/') {
                format!("{root}{home}")
            } else {
                home.to_owned()
            };
            match number {
                0 => Reply::calls([call("replace", "exec", &json!({ "command": command }))]),
                1 | 3 => Reply::calls(tries(&seen, secret, obeyed)),
                _ => Reply::text("Done."),
            }
        });
        let fixture = Fixture::shared(netns, ground.owner, &[], &model.config());
        let config = fixture.home().join("config.json");
        let extra = (attack.set)(&fixture);
        fs::write(&config, merged(model.config(), &extra).to_string()).unwrap();
        let root = fixture.home().parent().unwrap().to_owned();
        for path in walk(&root) {
            lchown(&path, Some(fixture.uid), Some(fixture.uid)).unwrap();
        }
        *slot.lock().unwrap() = Some(Arc::clone(&fixture));
        let said = [(); 2].map(|()| ended(&mut start(netns, &fixture, ground)));
        let mut got = Vec::new();
        let secret = fixture.canary(canary);
        for (n, request) in model.requests().iter().enumerate() {
            let results = request.texts("tool");
            got.extend(
                results
                    .iter()
                    .filter(|text| text.contains(&secret))
                    .map(|text| format!("{n}: {text:.200}")),
            );
        }
        let now = fs::read_to_string(fixture.path(place).join(obeyed)).unwrap_or_default();
        got.extend(now.contains("evil").then(|| format!("{obeyed}: {now}")));
        let (turn, setting) = attack.refused;
        let codes = said
            .each_ref()
            .map(|(status, _)| status.and_then(|status| status.code()));
        let asked = model.requests().len();
        // An allowed turn requests the replacement and then these calls, and gets results of both.
        let expected = if turn == 0 {
            ([Some(3), Some(3)], 0)
        } else {
            ([Some(0), Some(3)], 3)
        };
        let named = format!("bantam: error: {setting}: {}", root.display());
        let ends = (codes, asked) == expected
            && said[turn..].iter().all(|(_, text)| text.contains(&named));
        got.extend((!ends).then(|| format!("asked {asked} times: {said:?}")));
        got
    })
}

#[track_caller]
fn hold_on(column: usize) {
    let mut bad = Vec::new();
    for attack in ATTACKS {
        for (n, target) in TARGETS.iter().enumerate() {
            let got = outcome_of(attack, ground(column), n);
            if !got.is_empty() {
                bad.push(format!("{}, {}: {got:?}", attack.name, target.0));
            }
        }
    }
    assert!(bad.is_empty(), "{}:\n{}", COLUMNS[column].0, bad.join("\n"));
}

#[test]
fn trees_hold_as_root() {
    hold_on(0);
}

#[test]
fn trees_hold_as_root_for_a_user_in_namespaces() {
    hold_on(1);
}

#[test]
fn file_tools_are_confined_with_namespaces() {
    hold_on(2);
}

#[test]
fn file_tools_are_confined_with_landlock() {
    hold_on(3);
}

#[test]
fn trees_hold_under_both() {
    hold_on(4);
}

#[test]
fn trees_hold_under_an_older_landlock() {
    hold_on(5);
}

#[test]
fn trees_hold_as_root_under_landlock() {
    hold_on(6);
}
