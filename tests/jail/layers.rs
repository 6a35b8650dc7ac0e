//! Each layer of the sandbox matters: if the kernel only pretends to set it up, an attack that it had stopped succeeds, or the
//! program notices and refuses to run commands.

use serde_json::json;

use crate::attack::Attack;
use crate::fixture::Disk;
use crate::kernel::{Rule, When};
use crate::matrix::{NO_LANDLOCK, NO_NAMESPACES, Starter, attacks};
use crate::runner::{Ground, Outcome, sandboxed};

/// Evidence that a layer is missing.
enum Then {
    /// This attack succeeds.
    Escapes(&'static str),
    /// Commands are refused.
    Refused,
}
use Then::{Escapes, Refused};

/// Pretends to set limits; reading them, without a new limit, works.
const NO_LIMITS: &[Rule] = &[Rule(libc::SYS_prlimit64, When::Has(2, u32::MAX), 0)];

const NO_REAPER: &[Rule] = &[pretended_prctl(PR_SET_CHILD_SUBREAPER)];

const PR_SET_DUMPABLE: u32 = 4;
const PR_CAPBSET_DROP: u32 = 24;
pub const PR_SET_CHILD_SUBREAPER: u32 = 36;
const PR_SET_NO_NEW_PRIVS: u32 = 38;

const fn pretended(call: libc::c_long) -> Rule {
    Rule(call, When::Always, 0)
}

const fn pretended_prctl(option: u32) -> Rule {
    Rule(libc::SYS_prctl, When::Is(0, option), 0)
}

/// A layer, the user that starts the program, features that the kernel lacks (so that no other layer stops the attack), calls
/// that it pretends to make, and the evidence.
type Case = (&'static str, Starter, &'static [&'static [Rule]], Then);

const LAYERS: &[Case] = &[
    (
        "the new root",
        Starter::User,
        &[NO_LANDLOCK, &[pretended(libc::SYS_pivot_root)]],
        Escapes("R01"),
    ),
    (
        "read-only system trees",
        Starter::User,
        &[NO_LANDLOCK, &[pretended(libc::SYS_mount_setattr)]],
        Escapes("W23"),
    ),
    (
        "read-only switches in /proc",
        Starter::Root,
        &[NO_LANDLOCK, &[pretended(libc::SYS_mount_setattr)]],
        Escapes("S06"),
    ),
    (
        "Landlock",
        Starter::User,
        &[
            NO_NAMESPACES,
            &[pretended(libc::SYS_landlock_restrict_self)],
        ],
        Escapes("R01"),
    ),
    (
        "the filter, beside namespaces",
        Starter::User,
        &[NO_LANDLOCK, &[pretended(libc::SYS_seccomp)]],
        Escapes("S02"),
    ),
    (
        "the filter, against leases",
        Starter::User,
        &[NO_LANDLOCK, &[pretended(libc::SYS_seccomp)]],
        Escapes("S14"),
    ),
    (
        "the filter, beside Landlock",
        Starter::User,
        &[NO_NAMESPACES, &[pretended(libc::SYS_seccomp)]],
        Escapes("N03"),
    ),
    (
        "no capabilities",
        Starter::Root,
        &[
            NO_NAMESPACES,
            &[
                pretended(libc::SYS_capset),
                pretended_prctl(PR_CAPBSET_DROP),
            ],
        ],
        Escapes("P18"),
    ),
    (
        "no new privileges",
        Starter::User,
        &[NO_LANDLOCK, &[pretended_prctl(PR_SET_NO_NEW_PRIVS)]],
        Refused,
    ),
    (
        "no new privileges and the filter",
        Starter::User,
        &[
            &[
                pretended_prctl(PR_SET_NO_NEW_PRIVS),
                pretended(libc::SYS_seccomp),
            ],
            NO_NAMESPACES,
        ],
        Refused,
    ),
    (
        "not dumpable",
        Starter::User,
        &[NO_LANDLOCK, &[pretended_prctl(PR_SET_DUMPABLE)]],
        Escapes("P17"),
    ),
    (
        "closed descriptors",
        Starter::User,
        &[&[pretended(libc::SYS_close_range)]],
        Escapes("E05"),
    ),
    (
        "the limit on memory",
        Starter::User,
        &[NO_LIMITS],
        Escapes("D02"),
    ),
    (
        "the limit on files",
        Starter::User,
        &[NO_LIMITS],
        Escapes("D03"),
    ),
    (
        "the limit on processes",
        Starter::User,
        &[NO_LIMITS],
        Escapes("D01"),
    ),
];

#[test]
fn each_layer_alone_stops_its_attack() {
    let mut bad = Vec::new();
    for (layer, starter, rules, then) in LAYERS {
        let id = match then {
            Escapes(id) => *id,
            Refused => "W01",
        };
        let attack: Vec<Attack> = attacks()
            .into_iter()
            .filter(|attack| attack.id == id)
            .collect();
        let run = sandboxed(starter.ground(rules), &attack, &json!({}), Disk::Shared);
        let result = &run.results[id];
        let wanted = match then {
            Escapes(_) => Outcome::Escaped,
            Refused => Outcome::NotBegun,
        };
        let said = format!("without {layer}: {id} {:?}", result.outcome);
        eprintln!("{said}");
        if result.outcome != wanted {
            bad.push(format!(
                "{said}, told {:?}, {:?} {}",
                result.told, run.status, run.stderr
            ));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// If Landlock confines signals, all processes of a command are killed at the same time; otherwise the reaper must find them.
#[test]
fn an_older_landlock_needs_the_reaper() {
    let attack: Vec<Attack> = attacks()
        .into_iter()
        .filter(|attack| attack.id == "P05")
        .collect();
    for (landlock, wanted) in [(None, Outcome::Stopped), (Some(4), Outcome::Escaped)] {
        let ground = Starter::User.ground(&[NO_NAMESPACES, NO_REAPER]);
        let results = sandboxed(
            Ground { landlock, ..ground },
            &attack,
            &json!({}),
            Disk::Shared,
        )
        .results;
        assert_eq!(
            results["P05"].outcome, wanted,
            "Landlock {landlock:?}: {}",
            results["P05"].told
        );
    }
}

/// The network namespace protects the host's services; with a network configured, they are reachable.
#[test]
fn without_a_network_of_its_own_a_command_reaches_the_hosts() {
    let attack: Vec<Attack> = attacks()
        .into_iter()
        .filter(|attack| ["N01", "N10"].contains(&attack.id))
        .collect();
    for (network, wanted) in [
        ("full", Outcome::Escaped),
        ("guarded", Outcome::Stopped),
        ("none", Outcome::Stopped),
    ] {
        let config = json!({ "tools": { "exec": { "network": network } } });
        let results = sandboxed(Starter::User.ground(&[]), &attack, &config, Disk::Shared).results;
        for (id, result) in &results {
            assert_eq!(
                result.outcome, wanted,
                "{id} with the network {network}: {}",
                result.told
            );
        }
    }
}
