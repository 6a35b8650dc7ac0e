//! A disk that fills up at each moment of a turn: answers are acknowledged only if they are stored, and stored messages remain.
//!
//! Each of these tests runs again in a private mount namespace, where the home is a small file system.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::contract::object;
use crate::harness::{Home, Run, merged};
use crate::model::{Model, Reply, call};

/// Set inside the namespace.
const INSIDE: &str = "BANTAM_TEST_INSIDE";

/// Longer than the rest of a page, so that writing needs more space.
fn long(what: &str) -> String {
    format!("{what} {}", "and so on ".repeat(1000))
}

/// Runs the test of this name in a mount namespace, or returns that it already runs in one.
#[track_caller]
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    // Other users than root may mount in a user namespace.
    let kind = if rustix::process::geteuid().is_root() {
        "-m"
    } else {
        "-Urm"
    };
    let mut again = Command::new("unshare");
    again
        .arg(kind)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1");
    let output = again.output().unwrap();
    let told =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(
        output.status.success() && told[0].contains("1 passed"),
        "{}\n{}",
        told[0],
        told[1]
    );
    false
}

/// A home on a separate file system, and a model.
struct Board {
    model: Model,
    home: Home,
}

impl Board {
    fn asking(model: Model) -> Self {
        let home = Home::empty();
        let root = home.dir("");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k,mode=700", "none"])
            .arg(root)
            .status();
        assert!(mounted.unwrap().success());
        let config = merged(
            model.config(),
            &json!({ "tools": { "exec": { "sandbox": "off" } } }),
        );
        home.config(&config.to_string());
        Self { model, home }
    }

    fn filler(&self) -> PathBuf {
        self.home.path("filler")
    }

    /// Fills the file system.
    fn fill(&self) {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.filler())
            .unwrap();
        for piece in [[0; 4096].as_slice(), &[0]] {
            loop {
                match file.write(piece) {
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::StorageFull => break,
                    Err(e) => panic!("{e}"),
                }
            }
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    fn stored(&self) -> Vec<u8> {
        fs::read(self.home.path("sessions/cli_default.jsonl")).unwrap_or_default()
    }

    /// With free space, the conversation continues with all its messages.
    #[track_caller]
    fn goes_on(&self, before: &[u8]) {
        assert!(
            self.stored().starts_with(before),
            "what was stored is there"
        );
        self.make_room();
        self.home
            .agent(["-m", "And now?"])
            .exits(0)
            .prints("Better.\n")
            .is_quiet();
        let session = self.home.session("cli_default");
        session.has_one_result_per_call();
        assert_eq!(session.texts("assistant").last(), Some(&"Better."));
        assert_eq!(session.turns().last(), Some(&"done"));
        assert!(self.stored().starts_with(before));
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // Before the home is removed.
        let unmounted = Command::new("umount")
            .arg("--lazy")
            .arg(self.home.path(""))
            .status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// Checks that the turn failed for lack of space, with a hint.
#[track_caller]
fn failed(run: &Run) {
    let told = object(run);
    assert_eq!(
        (&told["error"]["kind"], &told["output"]),
        (&json!("failed"), &json!("")),
        "{told}"
    );
    let [message, hint] =
        ["message", "hint"].map(|key| told["error"][key].as_str().unwrap_or_default().to_owned());
    assert!(message.contains("No space left on device"), "{told}");
    assert!(hint.contains("free some space"), "{told}");
}

/// Returns a first turn, which is stored, and then the replies of the test.
fn replies(rest: impl IntoIterator<Item = Reply>) -> Model {
    Model::scripted(
        [Reply::text("Hello.")]
            .into_iter()
            .chain(rest)
            .chain([Reply::text("Better.")]),
    )
}

#[test]
fn another_disk_that_a_command_fills_up() {
    if !is_inside("full::another_disk_that_a_command_fills_up") {
        return;
    }
    let other = Home::empty();
    let dir = other.dir("other");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=40m,mode=700", "none"])
        .arg(&dir)
        .status();
    assert!(mounted.unwrap().success());
    // The clock ticks ten times per second.
    let script = "for n in $(seq 40); do head -c 1000000 /dev/zero >$0/$n; sleep .05; done";
    let command = shell_words::join(["sh", "-c", script, dir.to_str().unwrap()]);
    let model = Model::scripted([
        Reply::call("exec", &json!({ "command": command })),
        Reply::text("Done."),
    ]);
    let open = json!({ "tools": { "exec": { "sandbox": "off" }, "write_paths": [dir] } });
    let home = Home::with(&merged(model.config(), &open));
    home.agent(["-m", "go"]).exits(0);
    let unmounted = Command::new("umount").arg("--lazy").arg(&dir).status();
    assert!(unmounted.unwrap().success());
    let result = model.request(1).last("tool");
    assert!(result.contains("the disk is nearly full"), "{result}");
}

#[test]
fn a_disk_that_is_full_before_the_first_turn() {
    if !is_inside("full::a_disk_that_is_full_before_the_first_turn") {
        return;
    }
    let board = Board::asking(Model::scripted([Reply::text("Better.")]));
    board.fill();
    let run = board.home.agent(["--json", "-m", "hi"]);
    failed(&run);
    assert_eq!(board.model.requests().len(), 0);
    board.make_room();
    board.home.dir("workspace");
    board.fill();
    let run = board.home.agent(["--json", "-m", "hi"]);
    failed(&run);
    assert_eq!(board.model.requests().len(), 0);
    board.goes_on(&[]);
}

#[test]
fn a_disk_that_is_full_before_a_turn() {
    if !is_inside("full::a_disk_that_is_full_before_a_turn") {
        return;
    }
    let board = Board::asking(replies([]));
    board.home.agent(["-m", "hi"]).exits(0);
    let before = board.stored();
    board.fill();
    let run = board
        .home
        .agent(["--json", "-m", &long("Think about this.")]);
    failed(&run);
    assert_eq!(
        board.model.requests().len(),
        1,
        "a question that is not stored is not asked"
    );
    assert_eq!(board.stored(), before);
    board.goes_on(&before);
}

#[test]
fn a_disk_that_fills_up_while_the_model_thinks() {
    if !is_inside("full::a_disk_that_fills_up_while_the_model_thinks") {
        return;
    }
    let board = Board::asking(replies([Reply::text(&long("An answer.")).held()]));
    board.home.agent(["-m", "hi"]).exits(0);
    let running = board
        .home
        .bantam()
        .args(["agent", "--json", "-m", "Think."])
        .spawn();
    board.model.wait_for_requests(2);
    let before = board.stored();
    board.fill();
    board.model.release();
    failed(&running.finish());
    assert_eq!(
        board.stored(),
        before,
        "nothing of an answer that does not fit"
    );
    board.goes_on(&before);
    assert_eq!(board.home.session("cli_default").texts("user").len(), 3);

    // Also without --json, standard output contains only stored answers.
    let board = Board::asking(replies([Reply::text(&long("An answer.")).held()]));
    board.home.agent(["-m", "hi"]).exits(0);
    let running = board.home.bantam().args(["agent", "-m", "Think."]).spawn();
    board.model.wait_for_requests(2);
    board.fill();
    board.model.release();
    running
        .finish()
        .exits(1)
        .prints("")
        .fails_with_a_hint()
        .says("free some space");
    board.goes_on(&[]);
}

#[test]
fn a_disk_that_is_full_when_calls_are_to_be_stored() {
    if !is_inside("full::a_disk_that_is_full_when_calls_are_to_be_stored") {
        return;
    }
    let arguments = json!({ "command": format!("rm keep.txt # {}", long("because")) });
    let board = Board::asking(replies([Reply::call("exec", &arguments).held()]));
    board.home.write("workspace/keep.txt", "kept");
    board.home.agent(["-m", "hi"]).exits(0);
    let running = board
        .home
        .bantam()
        .args(["agent", "--json", "-m", "Tidy up."])
        .spawn();
    board.model.wait_for_requests(2);
    let before = board.stored();
    board.fill();
    board.model.release();
    failed(&running.finish());
    assert!(
        board.home.path("workspace/keep.txt").exists(),
        "a call that is not stored is not run"
    );
    assert_eq!(board.stored(), before);
    board.goes_on(&before);
}

#[test]
fn a_disk_that_a_tool_fills_up() {
    if !is_inside("full::a_disk_that_a_tool_fills_up") {
        return;
    }
    let fill = "cat /dev/zero >>../filler; echo full";
    let calls = [
        call("call_1", "exec", &json!({ "command": fill })),
        call(
            "call_2",
            "write_file",
            &json!({ "path": "notes.txt", "content": long("new") }),
        ),
    ];
    let look = call(
        "call_3",
        "exec",
        &json!({ "command": "head -c 20000 /dev/zero | tr '\\0' x" }),
    );
    let board = Board::asking(replies([Reply::calls(calls), Reply::calls([look])]));
    board.home.write("workspace/notes.txt", "old");
    board.home.agent(["-m", "hi"]).exits(0);
    let run = board.home.agent(["--json", "-m", "Fill it."]);
    // Eventually a result is too long for the free space; until then, the model gets an error.
    failed(&run);
    assert_eq!(
        fs::read_to_string(board.home.path("workspace/notes.txt")).unwrap(),
        "old",
        "whole or not at all"
    );
    let request = board.model.request(2);
    let told: Vec<Value> = request
        .messages()
        .into_iter()
        .filter(|m| m["role"] == "tool")
        .cloned()
        .collect();
    assert!(
        told[1]["content"]
            .as_str()
            .unwrap()
            .contains("No space left on device"),
        "{told:?}"
    );
    let before = board.stored();
    board.goes_on(&before);
    // A call with a lost result has a replacement that reports it.
    let last = board.model.requests().pop().unwrap();
    assert!(
        last.texts("tool")
            .last()
            .unwrap()
            .contains("interrupted, outcome unknown"),
        "{:?}",
        last.texts("tool")
    );
}

#[test]
fn a_file_that_cannot_be_written_is_named_once() {
    let model = Model::never_asked();
    let home = Home::with(&model.config());
    let run = home
        .bantam()
        .args(["agent", "-m", "hi"])
        .after("trap '' XFSZ\nulimit -f 0")
        .run();
    run.exits(1).says("creating the workspace: cannot write ");
    let named = run.stderr.matches("/README.md").count();
    assert_eq!(named, 1, "{}", run.stderr);
}
