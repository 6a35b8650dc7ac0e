//! Every attack on every ground, as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock};

use serde_json::json;

use crate::attack::{Attack, Who};
use crate::fight::{Fought, Ground, Outcome, Results, bare, jailed};
use crate::kernel::{Rule, When, landlock_version};
use crate::{files, reach};

/// An ordinary user: one that no machine has, so that no process but ours is its.
const USER: u32 = 61_234;

const EPERM: i32 = libc::EPERM;
const ENOSYS: i32 = libc::ENOSYS;

/// Every kind of namespace that `clone` and `unshare` make.
const NEW: u32 = 0x7e02_0000;

/// As where namespaces are forbidden.
pub const NO_NAMESPACES: &[Rule] = &[
    Rule(libc::SYS_unshare, When::Has(0, NEW), EPERM),
    Rule(libc::SYS_clone, When::Has(0, NEW), EPERM),
    // Its flags are in memory, where a filter cannot look. The C library then uses clone.
    Rule(libc::SYS_clone3, When::Always, ENOSYS),
];

/// As on a kernel built without Landlock.
pub const NO_LANDLOCK: &[Rule] = &[
    Rule(libc::SYS_landlock_create_ruleset, When::Always, ENOSYS),
    Rule(libc::SYS_landlock_add_rule, When::Always, ENOSYS),
    Rule(libc::SYS_landlock_restrict_self, When::Always, ENOSYS),
];

/// The grounds, in the order of the table's columns.
const GROUNDS: [(&str, Ground); 6] = [
    ("root, namespaces", Ground { uid: 0, owner: 0, rules: &[NO_LANDLOCK] }),
    ("root, Landlock", Ground { uid: 0, owner: 0, rules: &[NO_NAMESPACES] }),
    ("root, both", Ground { uid: 0, owner: 0, rules: &[] }),
    ("user, namespaces", Ground { uid: USER, owner: USER, rules: &[NO_LANDLOCK] }),
    ("user, Landlock", Ground { uid: USER, owner: USER, rules: &[NO_NAMESPACES] }),
    ("user, both", Ground { uid: USER, owner: USER, rules: &[] }),
];

/// All attacks, in the order of the table's rows.
pub fn attacks() -> Vec<Attack> {
    let tables = [
        files::READ,
        files::SECRETS,
        files::WRITE,
        reach::NETWORK,
        reach::PROCESSES,
        reach::RESOURCES,
        reach::PRIVILEGE,
    ];
    tables.concat()
}

/// What the attacks do bare, as root or as the user. Found out once.
fn baseline(uid: u32) -> &'static Results {
    static BARE: [OnceLock<Results>; 2] = [OnceLock::new(), OnceLock::new()];
    BARE[usize::from(uid != 0)].get_or_init(|| bare(uid, &attacks()))
}

/// One cell of the table.
fn cell(attack: &Attack, uid: u32, fought: &Results) -> &'static str {
    if uid != 0 && attack.who == Who::Root {
        return "needs root";
    }
    if baseline(uid)[attack.id].outcome != Outcome::Escaped {
        return "inconclusive";
    }
    match fought[attack.id].outcome {
        Outcome::Stopped => "stopped",
        Outcome::Escaped => "**ESCAPED**",
        Outcome::NotBegun => "inconclusive",
    }
}

/// The columns that are there already; the last one to come prints the table.
static COLUMNS: Mutex<BTreeMap<usize, BTreeMap<&'static str, &'static str>>> = Mutex::new(BTreeMap::new());

fn table() -> String {
    let columns = COLUMNS.lock().unwrap();
    let mut text = String::from("\n| attack | |");
    columns.keys().for_each(|n| write!(text, " {} |", GROUNDS[*n].0).unwrap());
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(columns.len()));
    for attack in attacks() {
        write!(text, "\n| {} | {} |", attack.id, attack.what).unwrap();
        columns.values().for_each(|cells| write!(text, " {} |", cells[attack.id]).unwrap());
    }
    text.push_str("\n| | stopped |");
    for cells in columns.values() {
        let stopped = cells.values().filter(|cell| **cell == "stopped").count();
        let counted = cells.values().filter(|cell| **cell != "needs root").count();
        write!(text, " {stopped} of {counted} |").unwrap();
    }
    text + "\n"
}

#[track_caller]
fn holds_on(column: usize) {
    let (name, ground) = GROUNDS[column];
    if !ground.rules.contains(&NO_LANDLOCK) {
        let version = landlock_version();
        assert!(version >= 3, "this kernel has Landlock {version}, so \"{name}\" cannot be shown on it: 3 is needed");
    }
    let attacks = attacks();
    let Fought { results, status, stderr } = jailed(ground, &attacks, &json!({}));
    let cells: BTreeMap<_, _> = attacks.iter().map(|a| (a.id, cell(a, ground.uid, &results))).collect();
    let mut bad = String::new();
    for attack in attacks.iter().filter(|attack| !["stopped", "needs root"].contains(&cells[attack.id])) {
        let bare = baseline(ground.uid).get(attack.id).map(|bare| (bare.outcome.clone(), first(&bare.told)));
        let told = first(&results[attack.id].told);
        writeln!(bad, "{} {}: {} (told {told:?}; bare: {bare:?})", attack.id, attack.what, cells[attack.id]).unwrap();
    }
    COLUMNS.lock().unwrap().insert(column, cells);
    if COLUMNS.lock().unwrap().len() == GROUNDS.len() {
        // Past the capture of test output: the table is what this suite is for.
        std::io::stderr().write_all(table().as_bytes()).unwrap();
    }
    assert!(bad.is_empty(), "{name}:\n{bad}bantam ended with {status:?} and said: {stderr}");
}

/// As much of what was told as fits a line or two.
fn first(told: &str) -> String {
    told.chars().take(300).collect()
}

#[test]
fn root_with_namespaces_only() {
    holds_on(0);
}

#[test]
fn root_with_landlock_only() {
    holds_on(1);
}

#[test]
fn root_with_both() {
    holds_on(2);
}

#[test]
fn a_user_with_namespaces_only() {
    holds_on(3);
}

#[test]
fn a_user_with_landlock_only() {
    holds_on(4);
}

#[test]
fn a_user_with_both() {
    holds_on(5);
}

/// The oracle itself: where exec runs without a jail, nearly everything must show as an escape.
#[test]
fn without_a_jail_the_same_attacks_through_the_same_program_escape() {
    let config = json!({ "tools": { "exec": { "sandbox": "off" } } });
    let attacks = attacks();
    let ground = Ground { uid: USER, owner: USER, rules: &[] };
    let results = jailed(ground, &attacks, &config).results;
    let missed: Vec<&str> = attacks
        .iter()
        .filter(|attack| attack.who == Who::Anybody && results[attack.id].outcome != Outcome::Escaped)
        .map(|attack| attack.id)
        .collect();
    eprintln!("{missed:?}");
}
