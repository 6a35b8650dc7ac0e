//! A disk that fills up at each moment of a turn: answers are acknowledged only if they are stored, and stored messages remain.
//!
//! Each of these tests runs again in a private mount namespace, where the home is a small file system.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::bot;
use crate::botapi::BotApi;
use crate::contract::object;
use crate::harness::{Home, Run, has_all, has_fields, merged};
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
    assert!(output.status.success(), "{}\n{}", told[0], told[1]);
    has_all(&told[0], ["1 passed"]);
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
            .answers("Better.\n")
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
    has_fields(
        &told,
        &json!({ "error": { "kind": "failed" }, "output": "" }),
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
fn disk_filled_during_request_ends_turn() {
    if !is_inside("full::disk_filled_during_request_ends_turn") {
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
}

#[test]
fn disk_filled_by_tool_ends_turn() {
    if !is_inside("full::disk_filled_by_tool_ends_turn") {
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
        board.home.read("workspace/notes.txt"),
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
    has_all(
        told[1]["content"].as_str().unwrap(),
        ["No space left on device"],
    );
    let before = board.stored();
    board.goes_on(&before);
    // A call with a lost result has a replacement that reports it.
    let last = board.model.requests().pop().unwrap();
    has_all(
        last.texts("tool").last().unwrap(),
        ["interrupted, outcome unknown"],
    );
}

#[test]
fn full_disk_delays_messages_to_a_bot() {
    if !is_inside("full::full_disk_delays_messages_to_a_bot") {
        return;
    }
    let api = BotApi::start();
    let model = Model::answering(|_, n| {
        if n == 1 {
            Reply::text(&long("An answer.")).held()
        } else {
            Reply::text("Hello.")
        }
    });
    let board = Board::asking(model);
    let home = &board.home;
    home.config(&bot::config(&board.model, &api).to_string());
    let gateway = bot::start(home);
    api.text(42, "hi");
    api.wait_for_texts(42, 1);
    api.text(42, "and now?");
    board.model.wait_for_holds(1);
    board.fill();
    board.model.release();
    let texts = api.wait_for_texts(42, 2);
    assert!(texts[1].contains("No space left on device"), "{texts:?}");
    // A message that cannot be stored remains at Telegram.
    api.text(42, &"later ".repeat(600));
    gateway.wait_for_stderr("cannot record messages");
    board.make_room();
    assert_eq!(api.wait_for_texts(42, 3)[2], "Hello.");
    bot::ends(gateway);
    let gateway = bot::start(home);
    api.text(42, "/help");
    assert!(api.wait_for_texts(42, 4)[3].contains("/new"));
    bot::ends(gateway);
}

#[test]
fn copies_for_chats_leave_free_space() {
    if !is_inside("full::copies_for_chats_leave_free_space") {
        return;
    }
    let send = call("call_1", "message", &json!({ "file": "notes.txt" }));
    let board = Board::asking(replies([Reply::calls([send])]));
    let (home, api) = (&board.home, BotApi::start());
    home.config(&bot::config(&board.model, &api).to_string());
    home.write("workspace/notes.txt", "short");
    home.agent(["-m", "hi"]).exits(0);
    home.agent(["-m", "Send it."]).exits(0);
    let told = board.model.request(2);
    assert!(told.texts("tool")[0].contains("too little free space"));
    assert!(api.sent(42).is_empty());
}

#[test]
fn doctor_names_a_full_disk() {
    if !is_inside("full::doctor_names_a_full_disk") {
        return;
    }
    let board = Board::asking(Model::scripted([Reply::text("Hello.")]));
    board.home.agent(["-m", "hi"]).exits(0);
    board.fill();
    let run = board.home.run(["doctor"]);
    run.exits(1);
    let mut failed = run.stdout.lines().filter(|line| line.starts_with("FAIL"));
    let disk = failed.next().unwrap_or_default();
    has_all(disk, ["the disk is full"]);
    assert!(failed.next().is_none(), "{}", run.stdout);
    assert!(!run.stdout.contains("tools.exec.enabled"), "{}", run.stdout);
}
