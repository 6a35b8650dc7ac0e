//! Fails every system call of a turn in sequence. Printed answers must not be lost, files must not be damaged, and the next
//! turn must continue.
//!
//! Each run is a turn in which one call of the program fails once, and a turn without a fault after it. A test uses a sample of
//! the calls; `BANTAM_FAULTS=all` uses every call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde_json::{Value, json};

use crate::busy::{answer_to, busy};
use crate::harness::{Home, Run, merged};
use crate::model::Model;
use crate::seccomp_trace::{Verdict, trace};
use crate::stored::segments;

/// Default number of faults that a test tries.
const SAMPLE: usize = 80;

/// Time limit of a turn.
const LIMIT: Duration = Duration::from_secs(30);

const FILES: &[i32] = &[libc::EIO, libc::ENOSPC, libc::EINTR];
const OPENED: &[i32] = &[libc::EIO, libc::ENOSPC, libc::EMFILE, libc::EINTR];
const CONNECTED: &[i32] = &[libc::EIO, libc::ENOMEM, libc::EINTR];

/// System calls that can fail on a worn, full or busy machine, and their errors.
const FAULTS: &[(libc::c_long, &str, &[i32])] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, "open", OPENED),
    (libc::SYS_openat, "openat", OPENED),
    (libc::SYS_openat2, "openat2", OPENED),
    (libc::SYS_read, "read", &[libc::EIO, libc::EINTR]),
    (libc::SYS_pread64, "pread64", &[libc::EIO, libc::EINTR]),
    (libc::SYS_readv, "readv", &[libc::EIO, libc::EINTR]),
    (libc::SYS_write, "write", FILES),
    (libc::SYS_pwrite64, "pwrite64", FILES),
    (libc::SYS_writev, "writev", FILES),
    (libc::SYS_fsync, "fsync", FILES),
    (libc::SYS_fdatasync, "fdatasync", FILES),
    (libc::SYS_ftruncate, "ftruncate", FILES),
    (libc::SYS_lseek, "lseek", &[libc::EIO]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, "rename", &[libc::EIO, libc::ENOSPC]),
    (libc::SYS_renameat, "renameat", &[libc::EIO, libc::ENOSPC]),
    (libc::SYS_renameat2, "renameat2", &[libc::EIO, libc::ENOSPC]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, "mkdir", &[libc::EIO, libc::ENOSPC]),
    (libc::SYS_mkdirat, "mkdirat", &[libc::EIO, libc::ENOSPC]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, "unlink", &[libc::EIO]),
    (libc::SYS_unlinkat, "unlinkat", &[libc::EIO]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, "readlink", &[libc::EIO]),
    (libc::SYS_readlinkat, "readlinkat", &[libc::EIO]),
    (libc::SYS_getdents64, "getdents64", &[libc::EIO]),
    (libc::SYS_statx, "statx", &[libc::EIO]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_newfstatat, "newfstatat", &[libc::EIO]),
    (
        libc::SYS_flock,
        "flock",
        &[libc::EIO, libc::ENOLCK, libc::EINTR],
    ),
    (libc::SYS_socket, "socket", &[libc::EMFILE, libc::ENOBUFS]),
    (libc::SYS_socketpair, "socketpair", &[libc::EMFILE]),
    (
        libc::SYS_connect,
        "connect",
        &[libc::ECONNREFUSED, libc::ENETUNREACH, libc::EINTR],
    ),
    (libc::SYS_sendto, "sendto", CONNECTED),
    (libc::SYS_sendmsg, "sendmsg", CONNECTED),
    (libc::SYS_recvfrom, "recvfrom", CONNECTED),
    (libc::SYS_recvmsg, "recvmsg", CONNECTED),
    (libc::SYS_setsockopt, "setsockopt", &[libc::ENOMEM]),
    (libc::SYS_getsockopt, "getsockopt", &[libc::ENOMEM]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, "poll", &[libc::ENOMEM, libc::EINTR]),
    (libc::SYS_ppoll, "ppoll", &[libc::ENOMEM, libc::EINTR]),
    (libc::SYS_pipe2, "pipe2", &[libc::EMFILE]),
    (libc::SYS_dup, "dup", &[libc::EMFILE]),
    (libc::SYS_fcntl, "fcntl", &[libc::EMFILE]),
    (libc::SYS_clone, "clone", &[libc::EAGAIN, libc::ENOMEM]),
    (libc::SYS_clone3, "clone3", &[libc::EAGAIN, libc::ENOMEM]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_vfork, "vfork", &[libc::EAGAIN]),
    (libc::SYS_wait4, "wait4", &[libc::EINTR]),
    (libc::SYS_waitid, "waitid", &[libc::EINTR]),
    (libc::SYS_getrandom, "getrandom", &[libc::EINTR]),
    (libc::SYS_prctl, "prctl", &[libc::EPERM]),
];

/// A fault in one system call.
#[derive(Clone, Copy, Debug)]
struct Fault {
    call: libc::c_long,
    name: &'static str,
    /// Number of the call of this kind, from 0.
    when: usize,
    errno: i32,
}

/// Runs `work` with a fault in the first program that it starts. Returns how many calls of each kind were made, and the target
/// of the failed call.
fn with<T: Send>(fault: Option<Fault>, work: impl FnOnce() -> T + Send) -> (T, Vec<usize>, String) {
    let calls: Vec<libc::c_long> = FAULTS.iter().map(|(call, ..)| *call).collect();
    let mut counts = vec![0; FAULTS.len()];
    let mut first = None;
    let mut begun = false;
    let mut about = String::new();
    let done = trace(&calls, work, |stop| {
        let Some(program) = stop.program() else {
            return Verdict::GoOn;
        };
        // Skips the dynamic loader, which a static program lacks. bantam first denies inspection by others.
        begun |= stop.call == libc::SYS_prctl;
        if *first.get_or_insert(program) != program || !begun {
            return Verdict::GoOn;
        }
        let kind = calls.iter().position(|call| *call == stop.call).unwrap();
        counts[kind] += 1;
        match fault.filter(|fault| fault.call == stop.call && fault.when + 1 == counts[kind]) {
            Some(fault) => {
                let at = match fault.name {
                    "open" | "mkdir" | "rename" | "unlink" => stop.path(0),
                    "openat" | "openat2" | "mkdirat" | "statx" => stop.path(1),
                    _ => stop.target(0),
                };
                about = at.display().to_string();
                Verdict::Fail(fault.errno)
            }
            None => Verdict::GoOn,
        }
    });
    (done, counts, about)
}

/// Command that runs the turn.
#[derive(Clone, Copy, PartialEq)]
enum Told {
    Text,
    Json,
}

/// A kind of turn.
struct Scene {
    told: Told,
    config: Value,
    /// Files that exist before the turn.
    before: Vec<(String, Vec<u8>)>,
}

impl Scene {
    fn home(&self) -> Home {
        let home = Home::with(&self.config);
        home.write("workspace/notes.txt", "water the plants\n");
        for (name, bytes) in &self.before {
            home.write(name, bytes);
        }
        home
    }

    #[track_caller]
    fn ask(&self, home: &Home, question: &str) -> Run {
        let args: &[&str] = if self.told == Told::Json {
            &["--json"]
        } else {
            &[]
        };
        home.bantam()
            .args(["agent", "-m", question])
            .args(args)
            .spawn()
            .finish_within(LIMIT)
    }

    /// Returns errors of a turn with a fault, and of the turn after it.
    fn suffers(&self, fault: Fault) -> Vec<String> {
        let home = self.home();
        let stored_before = answers(&home).unwrap();
        let (run, _, about) = with(Some(fault), || {
            catch_unwind(AssertUnwindSafe(|| self.ask(&home, "question-1")))
        });
        let mut wrong = Vec::new();
        let Ok(run) = run else {
            return vec![format!("{fault:?} at {about}: it does not end")];
        };
        let mut expect = |holds: bool, what: &str| {
            if !holds {
                let (out, err) = (run.stdout.trim(), run.stderr.trim());
                wrong.push(format!(
                    "{fault:?} at {about}: {what}: {:?} {:?}\n  {out}\n  {err}",
                    run.code, run.killed_by
                ));
            }
        };
        let answer = answer_to("question-1");
        let (good, told) = match self.told {
            Told::Text => (
                run.stdout == format!("{answer}\n"),
                run.stdout.contains(&answer),
            ),
            Told::Json => {
                let object: Option<Value> = serde_json::from_str(&run.stdout).ok();
                let told = |key: &str| {
                    object
                        .as_ref()
                        .map_or(Value::Null, |object| object[key].clone())
                };
                (
                    told("ok") == true && told("output") == *answer,
                    told("output") == *answer,
                )
            }
        };
        expect(run.killed_by.is_none(), "it was ended by a signal");
        expect(
            matches!(run.code, Some(0..=7 | 130)),
            "that is no exit code of ours",
        );
        expect(
            good || run.code != Some(0),
            "all is said to be well, and there is no answer",
        );
        // A broken output cannot report its own failure.
        let silenced = about.starts_with("pipe:") && fault.name.contains("write");
        let errors = run
            .stderr
            .lines()
            .filter(|line| line.starts_with("bantam: error: "))
            .count();
        expect(
            errors == usize::from(run.code != Some(0)) || silenced,
            "not one error is told",
        );
        let answers_now = answers(&home);
        let mut kept = stored_before;
        if told {
            kept.push(answer);
        }
        match answers_now {
            Ok(now) => expect(
                kept.iter().all(|answer| now.contains(answer)),
                "an answer is not stored",
            ),
            Err(e) => expect(false, &e),
        }
        // The next turn must succeed.
        let after = self.ask(&home, "question-2");
        kept.push(answer_to("question-2"));
        let well = after.code == Some(0) && after.stdout.contains(&answer_to("question-2"));
        expect(
            well,
            &format!(
                "the next turn fails: {:?} {} {}",
                after.code, after.stdout, after.stderr
            ),
        );
        match answers(&home) {
            Ok(now) => expect(
                kept.iter().all(|answer| now.contains(answer)),
                "an answer is lost by the next turn",
            ),
            Err(e) => expect(false, &e),
        }
        if wrong.is_empty() {
            home.session("cli_default").has_one_result_per_call();
        }
        wrong
    }

    /// Tries the faults of a turn of this kind.
    fn is_attacked(&self) {
        let home = self.home();
        let (run, counts, _) = with(None, || self.ask(&home, "question-1"));
        run.exits(0);
        let mut faults: Vec<Fault> = Vec::new();
        for ((call, name, errors), count) in FAULTS.iter().zip(counts) {
            for when in 0..count {
                faults.extend(errors.iter().map(|errno| Fault {
                    call: *call,
                    name,
                    when,
                    errno: *errno,
                }));
            }
        }
        assert!(faults.len() > 200, "only {}", faults.len());
        let all = faults.len();
        let step = if std::env::var("BANTAM_FAULTS").is_ok_and(|n| n == "all") {
            1
        } else {
            all.div_ceil(SAMPLE)
        };
        let tried: Vec<Fault> = faults.into_iter().step_by(step).collect();
        let wrong: Vec<String> = tried
            .iter()
            .flat_map(|fault| self.suffers(*fault))
            .collect();
        println!("{} of {all} faults tried", tried.len());
        assert!(
            wrong.is_empty(),
            "{} of {} went wrong:\n{}",
            wrong.len(),
            tried.len(),
            wrong.join("\n")
        );
    }
}

/// Returns the model's texts in every segment of the conversation; an error if one is damaged.
fn answers(home: &Home) -> Result<Vec<String>, String> {
    let all = segments(&home.path("sessions"), "cli_default")?;
    Ok(all
        .values()
        .flat_map(|session| session.texts("assistant"))
        .map(str::to_owned)
        .collect())
}

fn config(model: &Model, window: u64) -> Value {
    let extra = json!({ "model_list": [{ "context_window": window }], "tools": { "exec": { "sandbox": "off" } } });
    merged(model.config(), &extra)
}

#[test]
fn first_turn_survives_any_fault() {
    let model = busy("echo one; echo two", answer_to);
    Scene {
        told: Told::Text,
        config: config(&model, 100_000),
        before: Vec::new(),
    }
    .is_attacked();
}

#[test]
fn continued_session_turn_survives_any_fault() {
    let model = busy("echo one; echo two", answer_to);
    let mut scene = Scene {
        told: Told::Json,
        config: config(&model, 100_000),
        before: Vec::new(),
    };
    scene.before = after(&scene, &["question-0"]);
    scene.is_attacked();
}

#[test]
fn renewing_turn_survives_any_fault() {
    let model = busy("echo one; echo two", answer_to);
    let mut scene = Scene {
        told: Told::Text,
        config: config(&model, 5200),
        before: Vec::new(),
    };
    let long = format!("question-0 {}", "words ".repeat(1500));
    scene.before = after(&scene, &[&long]);
    let home = scene.home();
    scene.ask(&home, "question-1").exits(0);
    assert!(
        home.path("sessions/cli_default.1.jsonl").exists(),
        "the turn begins a segment"
    );
    scene.is_attacked();
}

/// Returns the sessions and other stored files after these turns.
fn after(scene: &Scene, questions: &[&str]) -> Vec<(String, Vec<u8>)> {
    let home = scene.home();
    for question in questions {
        scene.ask(&home, question).exits(0);
    }
    let files = home
        .files()
        .into_iter()
        .filter(|file| file.starts_with("sessions/") || file.starts_with("usage/"));
    files
        .map(|file| (file.clone(), std::fs::read(home.path(&file)).unwrap()))
        .collect()
}
