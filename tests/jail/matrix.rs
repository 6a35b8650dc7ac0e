//! Every attack in all conditions, as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock};

use serde_json::json;

use crate::attack::{Attack, Who};
use crate::fixture::Disk;
use crate::harness::unique;
use crate::kernel::{Rule, When, landlock_version};
use crate::runner::{Ground, Outcome, Results, SandboxRun, bare, sandboxed};
use crate::{escapes, files};

const EPERM: i32 = libc::EPERM;
const ENOSYS: i32 = libc::ENOSYS;

/// All kinds of namespaces that `clone` and `unshare` make.
const NEW: u32 = 0x7e02_0000;

/// Forbids namespaces.
pub const NO_NAMESPACES: &[Rule] = &[
    Rule(libc::SYS_unshare, When::Has(0, NEW), EPERM),
    Rule(libc::SYS_clone, When::Has(0, NEW), EPERM),
    // Its flags are in memory, which a filter cannot read. The C library then uses clone.
    Rule(libc::SYS_clone3, When::Always, ENOSYS),
];

/// Like a kernel built without Landlock.
pub const NO_LANDLOCK: &[Rule] = &[
    Rule(libc::SYS_landlock_create_ruleset, When::Always, ENOSYS),
    Rule(libc::SYS_landlock_add_rule, When::Always, ENOSYS),
    Rule(libc::SYS_landlock_restrict_self, When::Always, ENOSYS),
];

/// User that starts the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Starter {
    /// Root, who also owns the workspace.
    Root,
    /// Root, with a workspace owned by a user.
    RootForUser,
    User,
}

impl Starter {
    /// Returns the user of the commands, seen from outside: a new one for each netns, because the kernel counts a user's
    /// processes in all namespaces. These users exist on no machine.
    pub fn ground(self, rules: &'static [&'static [Rule]]) -> Ground {
        let user = 61_000 + u32::try_from(unique()).unwrap();
        match self {
            Self::Root => Ground {
                uid: 0,
                owner: 0,
                rules,
                landlock: None,
            },
            Self::RootForUser => Ground {
                uid: 0,
                owner: user,
                rules,
                landlock: None,
            },
            Self::User => Ground {
                uid: user,
                owner: user,
                rules,
                landlock: None,
            },
        }
    }
}

/// A name, the user that starts the program, features that the kernel lacks, and the version of Landlock that it reports.
pub type Conditions = (
    &'static str,
    Starter,
    &'static [&'static [Rule]],
    Option<i64>,
);

/// Columns of the table. Root for a user under Landlock alone is left out: before Landlock, the process takes all ids of the
/// workspace's owner and drops every capability, so it equals the process of "user: Landlock".
pub const COLUMNS: [Conditions; 7] = [
    ("root: both", Starter::Root, &[], None),
    (
        "root for a user: namespaces",
        Starter::RootForUser,
        &[NO_LANDLOCK],
        None,
    ),
    ("user: namespaces", Starter::User, &[NO_LANDLOCK], None),
    ("user: Landlock", Starter::User, &[NO_NAMESPACES], None),
    ("user: both", Starter::User, &[], None),
    // Ubuntu 24.04, which restricts user namespaces, has version 4, which does not confine signals.
    ("user: Landlock 4", Starter::User, &[NO_NAMESPACES], Some(4)),
    // The root of a container.
    ("root: Landlock", Starter::Root, &[NO_NAMESPACES], None),
];

/// Columns with namespaces, and columns without.
pub const IN_NAMESPACES: [usize; 4] = [0, 1, 2, 4];
pub const LANDLOCK_ALONE: [usize; 3] = [3, 5, 6];

pub fn ground(column: usize) -> Ground {
    let (_, starter, rules, landlock) = COLUMNS[column];
    Ground {
        landlock,
        ..starter.ground(rules)
    }
}

/// Returns all attacks, in the order of the table's rows.
pub fn attacks() -> Vec<Attack> {
    let tables = [
        files::READ,
        files::SECRETS,
        files::WRITE,
        escapes::NETWORK,
        escapes::PROCESSES,
        escapes::RESOURCES,
        escapes::PRIVILEGE,
    ];
    let disk = files::DISK.iter().map(|(_, attack)| *attack);
    tables.concat().into_iter().chain(disk).collect()
}

/// Number of runs of an attack without an effect, because a busy machine may prevent it from starting in time. A successful
/// escape is not repeated.
const TRIES: usize = 3;

/// Runs all attacks by `run`, those on the disk separately, because each has its own disk. Repeats attacks whose result is not
/// `clear` yet.
fn all(
    mut run: impl FnMut(&[Attack], Disk) -> Results,
    clear: impl Fn(&Attack, &Outcome) -> bool,
) -> Results {
    let on_disks: Vec<&str> = files::DISK.iter().map(|(_, attack)| attack.id).collect();
    let mut left = attacks();
    let mut results = Results::new();
    for _ in 0..TRIES {
        let others: Vec<Attack> = left
            .iter()
            .copied()
            .filter(|attack| !on_disks.contains(&attack.id))
            .collect();
        if !others.is_empty() {
            results.extend(run(&others, Disk::Shared));
        }
        for (options, attack) in files::DISK
            .iter()
            .filter(|(_, attack)| left.iter().any(|a| a.id == attack.id))
        {
            results.extend(run(&[*attack], Disk::OfItsOwn(options)));
        }
        left.retain(|attack| {
            results
                .get(attack.id)
                .is_some_and(|result| !clear(attack, &result.outcome))
        });
    }
    results
}

/// Returns the effects of the attacks without a sandbox, as root or as a user. Computed once.
fn baseline(starter: Starter) -> &'static Results {
    static BARE: [OnceLock<Results>; 2] = [OnceLock::new(), OnceLock::new()];
    // Commands for a user have the user's rights, so the baseline is that user.
    let as_root = starter == Starter::Root;
    let user = if as_root {
        Starter::Root
    } else {
        Starter::User
    };
    let run = |attacks: &[Attack], disk| bare(user.ground(&[]).uid, attacks, disk);
    BARE[usize::from(as_root)].get_or_init(|| all(run, |_, outcome| *outcome == Outcome::Escaped))
}

/// Returns one cell of the table.
fn cell(attack: &Attack, starter: Starter, results: &Results) -> &'static str {
    if starter != Starter::Root && attack.who == Who::Root {
        return "needs root";
    }
    if baseline(starter)[attack.id].outcome != Outcome::Escaped {
        return "inconclusive";
    }
    match results[attack.id].outcome {
        Outcome::Stopped => "stopped",
        Outcome::Escaped => "**ESCAPED**",
        Outcome::NotBegun => "inconclusive",
    }
}

type Column = BTreeMap<&'static str, &'static str>;

/// Finished columns; the last one prints the table.
static DONE: Mutex<BTreeMap<usize, Column>> = Mutex::new(BTreeMap::new());

fn table(columns: &BTreeMap<usize, Column>) -> String {
    let mut text = String::from("\n| attack | |");
    for n in columns.keys() {
        write!(text, " {} |", COLUMNS[*n].0).unwrap();
    }
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(columns.len()));
    for attack in attacks() {
        write!(text, "\n| {} | {} |", attack.id, attack.what).unwrap();
        for cells in columns.values() {
            write!(text, " {} |", cells[attack.id]).unwrap();
        }
    }
    text.push_str("\n| | stopped |");
    for cells in columns.values() {
        let stopped = cells.values().filter(|cell| **cell == "stopped").count();
        let counted = cells.values().filter(|cell| **cell != "needs root").count();
        write!(text, " {stopped} of {counted} |").unwrap();
    }
    text.push_str("\n\nNot in the table:\n");
    for (what, why) in LEFT_OUT {
        writeln!(text, "- {what}: {why}").unwrap();
    }
    text
}

/// Attacks without a row, and the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "S07, running a program that was dropped into the workspace",
        "by design: it runs in the sandbox like any other",
    ),
    (
        "W13, the hook itself",
        "by design it can be written; the row shows that it reaches nothing when it runs",
    ),
    (
        "setting the clock (half of S03), kill -9 -1 (P02)",
        "a bare run would hurt the machine; P02 sends a signal that is ignored",
    ),
    (
        "writing to a disk, sysrq and core_pattern (S05, S06)",
        "opened or read one byte of, never written",
    ),
    (
        "systemd-run, at, crontab",
        "need a running service; they speak to it by a socket (N06) or a file (W05)",
    ),
    (
        "passing a descriptor over a socket",
        "takes a helper outside who hands it out; a socket outside is not reached (N06)",
    ),
    (
        "the target of a link outside, and names outside (stat)",
        "under Landlock alone nothing in the kernel guards them; in namespaces there is no outside",
    ),
    (
        "a bomb of shared memory",
        "memory_mb counts what a process has for itself, and says so; time and the OOM killer end it",
    ),
    (
        "running a program from memory",
        "crosses no boundary: it runs in the sandbox like any other",
    ),
];

#[track_caller]
fn holds_on(column: usize) {
    let (name, starter, rules, _) = COLUMNS[column];
    if !rules.contains(&NO_LANDLOCK) {
        let version = landlock_version();
        assert!(
            version >= 3,
            "this kernel has Landlock {version}, so \"{name}\" cannot be shown on it: 3 is needed"
        );
    }
    let attacks = attacks();
    let mut end = String::new();
    let run = |attacks: &[Attack], disk| {
        let SandboxRun {
            results,
            status,
            stderr,
        } = sandboxed(ground(column), attacks, &json!({}), disk);
        writeln!(end, "bantam ended with {status:?} and said: {stderr}").unwrap();
        results
    };
    let needs_more = |attack: &Attack| starter != Starter::Root && attack.who == Who::Root;
    let results = all(run, |attack, outcome| {
        needs_more(attack) || *outcome != Outcome::NotBegun
    });
    let cells: Column = attacks
        .iter()
        .map(|attack| (attack.id, cell(attack, starter, &results)))
        .collect();
    let mut bad = String::new();
    for attack in attacks
        .iter()
        .filter(|attack| !["stopped", "needs root"].contains(&cells[attack.id]))
    {
        let bare = baseline(starter)
            .get(attack.id)
            .map(|bare| (bare.outcome.clone(), first(&bare.told)));
        let told = first(&results[attack.id].told);
        writeln!(
            bad,
            "{} {}: {} (told {told:?}; bare: {bare:?})",
            attack.id, attack.what, cells[attack.id]
        )
        .unwrap();
    }
    let mut done = DONE.lock().unwrap();
    done.insert(column, cells);
    if done.len() == COLUMNS.len() {
        // Bypasses the capture of test output, because the table is the purpose of this suite.
        std::io::stderr()
            .write_all(table(&done).as_bytes())
            .unwrap();
    }
    drop(done);
    assert!(bad.is_empty(), "{name}:\n{bad}{end}");
}

/// Returns the start of the output, a line or two.
fn first(told: &str) -> String {
    told.chars().take(300).collect()
}

#[test]
fn attacks_by_root_with_both_fail() {
    holds_on(0);
}

#[test]
fn root_for_a_user_with_namespaces_only() {
    holds_on(1);
}

#[test]
fn attacks_by_user_with_namespaces_fail() {
    holds_on(2);
}

#[test]
fn attacks_by_user_with_landlock_fail() {
    holds_on(3);
}

#[test]
fn a_user_with_both() {
    holds_on(4);
}

#[test]
fn a_user_with_an_older_landlock_only() {
    holds_on(5);
}

#[test]
fn root_with_landlock_only() {
    holds_on(6);
}

/// Attacks stopped not by a sandbox but by how a command is started and ended, and thus also with `"sandbox": "off"`: by a
/// clean environment, an agent that denies inspection, closed descriptors, empty standard input, limits, cut and cleaned
/// output, killing all processes, and no new privileges. Also killing the agent, which never starts once the workspace is moved
/// away.
const WITHOUT_A_JAIL: &[&str] = &[
    "E01", "E02", "E05", "P01", "P05", "P06", "P07", "P11", "P12", "P13", "P17", "D02", "D04",
    "D05", "D06", "D07", "D08", "D09", "D10", "D13", "D14", "D15", "D18", "P21", "P22", "S01",
];

/// Tests the oracle: if exec runs without a sandbox, the same attacks through the same program count as escapes.
#[test]
fn without_a_sandbox_the_same_attacks_through_the_same_program_escape() {
    let config = json!({ "tools": { "exec": { "sandbox": "off" } } });
    let run = |attacks: &[Attack], disk| {
        sandboxed(Starter::User.ground(&[]), attacks, &config, disk).results
    };
    let expected =
        |attack: &Attack| attack.who == Who::Anybody && !WITHOUT_A_JAIL.contains(&attack.id);
    let results = all(run, |attack, outcome| {
        !expected(attack) || *outcome == Outcome::Escaped
    });
    let missed: Vec<&str> = attacks()
        .iter()
        .filter(|attack| expected(attack) && results[attack.id].outcome != Outcome::Escaped)
        .map(|attack| attack.id)
        .collect();
    assert!(
        missed.is_empty(),
        "not seen to escape, though nothing holds them: {missed:?}"
    );
}
