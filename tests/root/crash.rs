//! `kill -9` at any moment: the next turn finds a session that it can continue.

use std::collections::HashSet;
use std::fs;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::busy::{answer_to, busy};
use crate::harness::{Home, Run, has_all, merged, until};
use crate::marker::Marker;
use crate::model::{Model, Reply, call};
use crate::seccomp_trace::{Verdict, trace};
use crate::stored::{assert_single_result_per_call, segments};

/// Returns the number of killed turns, each killed a little later: `BANTAM_KILLS`, or this default.
fn kills() -> u32 {
    std::env::var("BANTAM_KILLS")
        .map_or(40, |count| count.parse().expect("BANTAM_KILLS is a number"))
}

/// Required content of a conversation after kills: every answer that a run has printed, and a result for each call.
struct Told {
    home: Home,
    answers: Vec<String>,
}

impl Told {
    /// Records the answer of a run that has printed one, even if it was killed afterwards.
    fn note(&mut self, run: &Run, question: &str) {
        let object: Option<Value> = serde_json::from_str(&run.stdout).ok();
        let answer = answer_to(question);
        let told = match object {
            Some(object) => object["output"] == *answer,
            None => run.stdout == format!("{answer}\n"),
        };
        if told {
            self.answers.push(answer);
        }
    }

    /// Returns errors in the stored conversation.
    fn wrong(&self) -> Option<String> {
        let all = match segments(&self.home.path("sessions"), "cli_killed") {
            Err(damage) => return Some(damage),
            Ok(all) => all,
        };
        let said: HashSet<&str> = all
            .values()
            .flat_map(|session| session.texts("assistant"))
            .collect();
        let lost = self
            .answers
            .iter()
            .find(|answer| !said.contains(answer.as_str()));
        lost.map(|answer| format!("lost: {answer}"))
    }
}

/// Kills turns of one conversation at all stages.
#[track_caller]
fn attacked(window: u64, long: usize) -> Told {
    let model = busy("echo one; echo two", answer_to);
    let extra = json!({ "model_list": [{ "context_window": window }], "tools": { "exec": { "sandbox": "off" } } });
    let home = Home::with(&merged(model.config(), &extra));
    home.write("workspace/notes.txt", "water the plants\n");
    // The first run creates the workspace and takes longer; the others vary with the load of the machine.
    let runs = (0..4).map(|n| home.agent(["-s", "whole", "-m", &format!("question-{n}")]));
    let whole = runs.map(|run| run.exits(0).took).min().unwrap();
    let mut told = Told {
        home,
        answers: Vec::new(),
    };
    for n in 0..long {
        let question = format!("question-long{n}");
        let run = told.home.agent(["-s", "killed", "-m", &question]);
        run.exits(0);
        told.note(&run, &question);
    }
    let before = model.requests().len();

    let (kills, mut unfinished) = (kills(), 0);
    for n in 0..kills {
        let question = format!("question-{n}");
        let json: &[&str] = if n % 2 == 0 { &[] } else { &["--json"] };
        let padded = format!("{question} {}", "and so on ".repeat(40));
        let running = told
            .home
            .bantam()
            .args(["agent", "-s", "killed", "-m", &padded])
            .args(json)
            .spawn();
        // The only sleep in these tests, because it varies the moment of the kill. The golden ratio spreads the moments over
        // the duration of a turn and a little more, for any number of kills.
        let part = f64::from(n) * 0.618_033_988_749_894_9 % 1.0;
        thread::sleep(whole.mul_f64(part * 1.3));
        running.signal(Signal::KILL);
        let run = running.finish();
        unfinished += u32::from(run.killed_by.is_some());
        told.note(&run, &question);
    }
    assert!(
        unfinished > kills / 3,
        "only {unfinished} of {kills} turns were killed in time"
    );
    // Checks every request of every turn, each built on the state after earlier kills.
    for request in model.requests().into_iter().skip(before) {
        assert_single_result_per_call(&request.messages());
    }
    let run = told.home.agent(["-s", "killed", "-m", "question-last"]);
    run.answers("That was question-last.\n");
    told.note(&run, "question-last");
    assert_eq!(told.wrong(), None);
    let session = told.home.session("cli_killed");
    session.has_one_result_per_call();
    assert_eq!(session.turns().last(), Some(&"done"));
    let segments = segments(&told.home.path("sessions"), "cli_killed")
        .unwrap()
        .len();
    println!(
        "{kills} kills, {unfinished} in time, {} answers told, {segments} segments",
        told.answers.len()
    );
    told
}

#[test]
fn killed_turn_leaves_usable_session() {
    let told = attacked(1_000_000, 0);
    // Checks that this test would find an error.
    let live = told.home.path("sessions/cli_killed.jsonl");
    let whole = fs::read_to_string(&live).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    fs::write(&live, lines[..lines.len() - 2].concat()).unwrap();
    assert_eq!(told.wrong().unwrap(), "lost: That was question-last.");
    fs::write(&live, &whole[..whole.len() - 3]).unwrap();
    assert!(told.wrong().unwrap().contains("the last line is torn"));
}

#[test]
fn killed_long_session_turn_loses_nothing() {
    attacked(1_000_000, 8);
}

#[test]
fn a_turn_killed_while_segments_begin_loses_nothing() {
    let told = attacked(6500, 0);
    assert!(
        told.home.path("sessions/cli_killed.2.jsonl").exists(),
        "segments begin"
    );
}

#[test]
fn a_turn_killed_before_any_of_its_system_calls_loses_nothing() {
    const CALLS: &[libc::c_long] = &[
        libc::SYS_write,
        libc::SYS_fdatasync,
        libc::SYS_fsync,
        libc::SYS_sendto,
        libc::SYS_renameat,
        libc::SYS_openat,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink,
    ];
    let model = busy("echo one; echo two", answer_to);
    let extra = json!({ "model_list": [{ "context_window": 5700 }], "tools": { "exec": { "sandbox": "off" } } });
    let home = Home::with(&merged(model.config(), &extra));
    home.write("workspace/notes.txt", "water the plants\n");
    let mut told = Told {
        home,
        answers: Vec::new(),
    };
    let mut killed = 0;
    for n in 0.. {
        let mut left = n;
        let question = format!("question-{n}");
        let padded = format!("{question} {}", "and so on ".repeat(40));
        let mut first = None;
        let work = || told.home.agent(["-s", "killed", "-m", &padded]);
        let run = trace(CALLS, work, |stop| {
            let program = stop.program();
            if program.is_none() || *first.get_or_insert(program) != program {
                return Verdict::GoOn;
            }
            left -= 1;
            if left == -1 {
                Verdict::Kill
            } else {
                Verdict::GoOn
            }
        });
        told.note(&run, &question);
        if run.code == Some(0) {
            break;
        }
        killed += 1;
    }
    assert_eq!(told.wrong(), None);
    told.home.session("cli_killed").has_one_result_per_call();
    println!("{killed} kills, {} answers told", told.answers.len());
    assert!(killed > 20, "{killed}");
}

#[test]
fn killed_turn_gets_placeholder_results() {
    let marker = Marker::new();
    let model = Model::scripted([
        Reply::calls([call(
            "call_a",
            "exec",
            &json!({ "command": format!("sleep {marker}") }),
        )]),
        Reply::text("I do not know what happened."),
    ]);
    let home = Home::with(&merged(
        model.config(),
        &json!({ "tools": { "exec": { "sandbox": "off" } } }),
    ));
    let running = home.bantam().args(["agent", "-m", "sleep"]).spawn();
    until("the command runs", || !marker.alive().is_empty());
    running.signal(Signal::KILL);
    running.finish();

    home.agent(["-m", "what happened?"]).exits(0);
    let request = model.request(1);
    assert_single_result_per_call(&request.messages());
    has_all(&request.texts("tool")[0], ["interrupted, outcome unknown"]);
}

#[test]
fn command_children_end_with_killed_bantam() {
    let marker = Marker::new();
    let model = Model::scripted([Reply::call(
        "exec",
        &json!({ "command": format!("setsid sleep {marker} & sleep {marker}") }),
    )]);
    let home = Home::with(&merged(
        model.config(),
        &json!({ "tools": { "exec": { "sandbox": "off" } } }),
    ));
    let running = home.bantam().args(["agent", "-m", "sleep"]).spawn();
    until("both sleepers sleep", || {
        marker
            .alive()
            .iter()
            .filter(|line| line.contains(" sleep "))
            .count()
            >= 2
    });
    running.signal(Signal::KILL);
    running.finish();
    until("both sleepers are gone", || marker.alive().is_empty());
}

#[test]
fn a_killed_turn_does_not_keep_the_session_busy() {
    let model = Model::scripted([Reply::text("never").held(), Reply::text("Here.")]);
    let home = Home::with(&model.config());
    let running = home.bantam().args(["agent", "-m", "first"]).spawn();
    model.wait_for_requests(1);
    running.signal(Signal::KILL);
    running.finish();
    // It would fail as busy if it waited for the dead process.
    home.agent(["-m", "second"]).answers("Here.\n");
}

#[test]
fn directory_named_like_temporary_file_is_kept() {
    let write = json!({ "path": "a.txt", "content": "after" });
    let model = Model::scripted([Reply::call("write_file", &write), Reply::text("Done.")]);
    let home = Home::with(&model.config());
    home.write("workspace/a.txt", "before");
    home.write("workspace/.bantam-new/b.txt", "there");
    home.agent(["-m", "write"]).exits(0);
    let text = |path: &str| fs::read_to_string(home.path(path)).unwrap();
    assert_eq!(text("workspace/a.txt"), "after");
    assert_eq!(text("workspace/.bantam-new/b.txt"), "there");
}

/// A file that the model writes appears atomically, and a killed process leaves nothing that the next write does not remove.
#[test]
fn a_write_that_is_killed_leaves_no_file_behind() {
    let model = Model::answering(|request, _| {
        let last = request.messages().pop().unwrap().clone();
        if last["role"] == "tool" {
            return Reply::text("Done.");
        }
        let content = request.last("user");
        Reply::call(
            "write_file",
            &json!({ "path": "a.txt", "content": content }),
        )
    });
    let rename = [libc::SYS_renameat, libc::SYS_renameat2];
    for call in [libc::SYS_write, libc::SYS_linkat, libc::SYS_renameat] {
        for is_new in [true, false] {
            let home = Home::with(&model.config());
            home.write("workspace/b.txt", "there");
            if !is_new {
                home.write("workspace/a.txt", "before");
            }
            let mut killed = 0;
            let calls: &[libc::c_long] = if rename.contains(&call) {
                &rename
            } else {
                &[call]
            };
            let judge = |stop: &crate::seccomp_trace::Stop| {
                let at = if call == libc::SYS_linkat { 2 } else { 0 };
                let is_ours = stop.target(at).to_string_lossy().contains("/workspace");
                if killed > 0 || !is_ours || stop.program().is_none() {
                    return Verdict::GoOn;
                }
                killed += 1;
                Verdict::Kill
            };
            trace(
                calls,
                || home.agent(["-m", "first"]).exits(0).stdout.len(),
                judge,
            );
            let left = || {
                let files = home.files().into_iter();
                files
                    .filter(|file| file.contains("/.bantam-"))
                    .collect::<Vec<String>>()
            };
            println!("{call} {is_new}: {killed} killed, {:?} left", left());
            if call == libc::SYS_write {
                assert_eq!(killed, 1);
            }
            // Between two names for the file, the second one remains if the process ends at that moment.
            assert!(rename.contains(&call) || left().is_empty(), "{:?}", left());
            home.agent(["-m", "second"]).exits(0);
            assert_eq!(left(), [""; 0], "{call} {is_new}");
            let content = fs::read_to_string(home.path("workspace/a.txt")).unwrap();
            assert!(content.contains("second"), "{content}");
        }
    }
}
