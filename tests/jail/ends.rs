//! All processes of a command end with it: when it ends, when its time is up, when the user stops the turn, and when the
//! program is killed.

use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::attack::{Attack, Effect, sh};
use crate::fixture::Fixture;
use crate::harness::until;
use crate::kernel::Rule;
use crate::matrix::{NO_LANDLOCK, NO_NAMESPACES, Starter, attacks};
use crate::model::{Model, Reply, call};
use crate::netns::{self, Bound};
use crate::refusal::told_in;
use crate::runner::{Ground, ended, start};

/// Every way to leave a process behind, each with the marker. The command continues until it is released.
const CROWD: Attack = sh(
    "CROWD",
    "everything that could be left behind",
    Effect::Alive,
    r#"
sleep "$1" &
nohup sleep "$1" >/dev/null 2>&1 &
setsid sleep "$1" </dev/null >/dev/null 2>&1 &
( setsid sh -c 'sleep "$0" </dev/null >/dev/null 2>&1 & exit 0' "$1" & )
( trap '' HUP INT TERM QUIT; setsid sleep "$1" & )
sleep "$1" & kill -STOP $!
until [ -e let-go ]; do :; done
"#,
);
/// Number of processes left behind, including the shell.
const MANY: usize = 7;

#[derive(Clone, Copy, PartialEq)]
enum End {
    OfItself,
    Timeout,
    Stopped,
    Killed,
}

/// Processes that were alive when the result was sent, and the result.
type Left = (Vec<u32>, String);

fn all_end(ground: Ground, end: End) {
    netns::enter(ground.owner, "nothing", |netns| {
        let slot: Arc<Mutex<Option<Arc<Fixture>>>> = Arc::default();
        let left: Arc<Mutex<Option<Left>>> = Arc::default();
        let model = {
            let (slot, left) = (Arc::clone(&slot), Arc::clone(&left));
            Model::answering(move |request, number| {
                let fixture = slot.lock().unwrap().clone().unwrap();
                if number > 0 {
                    *left.lock().unwrap() = Some((fixture.alive(&CROWD), request.last("tool")));
                    return Reply::text("Done.");
                }
                let command = CROWD.command(fixture.marker(&CROWD));
                Reply::call(
                    "exec",
                    &json!({ "command": command, "timeout": if end == End::Timeout { 10 } else { 60 } }),
                )
            })
        };
        let fixture = Fixture::shared(netns, ground.owner, &[CROWD], &model.config());
        fs::write(fixture.workspace().join(CROWD.file()), CROWD.text()).unwrap();
        fixture.prepare(&[CROWD]);
        fixture.count_processes_of(&CROWD);
        let mut slot = slot.lock().unwrap();
        let mut child = start(netns, &fixture, ground);
        *slot = Some(Arc::clone(&fixture));
        drop(slot);
        until("the crowd is there", || {
            fixture.most_processes_of(&CROWD) >= MANY
        });
        let signal = |signal| kill_process(Pid::from_child(&child), signal).unwrap();
        match end {
            End::OfItself => fs::write(fixture.workspace().join("let-go"), "").unwrap(),
            End::Timeout => {}
            End::Stopped => signal(Signal::INT),
            End::Killed => signal(Signal::KILL),
        }
        let (status, stderr) = ended(&mut child);
        let told = left.lock().unwrap().take();
        match end {
            End::OfItself | End::Timeout => {
                let (alive, told) =
                    told.unwrap_or_else(|| panic!("the model was never told: {status:?} {stderr}"));
                assert!(
                    alive.is_empty(),
                    "alive when the result was told: {alive:?}"
                );
                assert_eq!(
                    told.contains("timed out after 10 s"),
                    end == End::Timeout,
                    "{told}"
                );
                assert!(!told.starts_with("error"), "{told}");
            }
            End::Stopped => assert_eq!(fixture.alive(&CROWD), [0; 0], "alive after the stop"),
            End::Killed => {}
        }
        // If the program is killed, its workers need a moment to notice.
        until("all have ended", || fixture.alive(&CROWD).is_empty());
        fixture.agent.store(0, Ordering::Relaxed);
    });
}

/// Tests every end in each of these conditions.
fn on(starter: Starter, rules: &'static [&'static [Rule]]) {
    for end in [End::OfItself, End::Timeout, End::Stopped, End::Killed] {
        all_end(starter.ground(rules), end);
    }
}

#[test]
fn processes_end_with_landlock_without_signal_scope() {
    for end in [End::OfItself, End::Timeout, End::Stopped, End::Killed] {
        all_end(
            Ground {
                landlock: Some(4),
                ..Starter::User.ground(&[NO_NAMESPACES])
            },
            end,
        );
    }
}

#[test]
fn processes_end_with_namespaces_only() {
    on(Starter::Root, &[NO_LANDLOCK]);
    on(Starter::User, &[NO_LANDLOCK]);
}

#[test]
fn processes_end_with_landlock_only() {
    on(Starter::Root, &[NO_NAMESPACES]);
    on(Starter::User, &[NO_NAMESPACES]);
}

#[test]
fn processes_end_with_namespaces_and_landlock() {
    on(Starter::Root, &[]);
    on(Starter::User, &[]);
}

/// Maximum number of processes in the netns of a fork bomb, which is more than a command may have.
const BOMBED: usize = 400;

/// Fork bombs: a plain one, one whose processes leave each other's sessions, and one whose processes go on after the end of
/// their first thread. Each ends by itself, because the test cannot end one that this program leaves behind.
const BOMBS: [&str; 3] = [
    "perl -e '$end = time + 60; fork while time < $end'",
    "perl -MPOSIX -e '$end = time + 60; while (time < $end) { fork or setsid }'",
    r"python3 -c '
import ctypes, os, threading, time
end = time.time() + 60
def bomb():
    while time.time() < end:
        try:
            if os.fork() == 0: hide()
        except OSError: pass
def hide():
    threading.Thread(target=bomb).start()
    ctypes.CDLL(None).pthread_exit(None)
hide()'",
];

/// A fork bomb fills the netns faster than its processes can be killed one at a time.
fn bombs_end(landlock: Option<i64>) {
    for bomb in BOMBS {
        let bound = Bound::new(BOMBED).on_one_core();
        if !bound.holds_root() {
            eprintln!("this machine gives no pids group, so no fork bomb is tried");
            return;
        }
        let ground = Ground {
            landlock,
            ..Starter::Root.ground(&[NO_NAMESPACES])
        };
        netns::enter_bounded(ground.owner, "nothing", bound, |netns| {
            let marked = attacks()[0];
            let started = Instant::now();
            let ask = move |fixture: &Fixture, _: &[String]| {
                let command = format!("{bomb} {}", fixture.marker(&marked));
                vec![call(
                    "bomb",
                    "exec",
                    &json!({ "command": command, "timeout": 3 }),
                )]
            };
            told_in(
                netns,
                ground,
                &json!({}),
                |_| (),
                ask,
                |fixture, told| {
                    assert_eq!(
                        fixture.alive(&marked),
                        [0; 0],
                        "alive after the turn: {bomb}, {told:?}"
                    );
                    assert!(
                        started.elapsed() < Duration::from_secs(60),
                        "the bomb ended by itself: {bomb}"
                    );
                },
            );
        });
    }
}

#[test]
fn fork_bombs_end_with_landlock_only() {
    bombs_end(None);
}

#[test]
fn fork_bombs_end_with_landlock_without_signal_scope() {
    bombs_end(Some(4));
}
