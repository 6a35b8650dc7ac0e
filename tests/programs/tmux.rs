//! The conversation in a real terminal, displayed by tmux.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::Home;
use crate::model::{Model, Reply};
use crate::program::{directory, program};

/// A shell in a separate terminal. Dropping it kills everything in it.
struct Pane {
    socket: String,
}

impl Pane {
    fn open(home: &Home, columns: u32, rows: u32) -> Self {
        let socket = directory()
            .join(format!("tmux-{}", crate::harness::unique()))
            .display()
            .to_string();
        let pane = Self { socket };
        let shell = format!(
            "env -i PATH=/usr/local/bin:/usr/bin:/bin TERM=screen-256color LANG=C.UTF-8 TZ=UTC PS1='$ ' BANTAM_HOME={} bash --norc --noprofile",
            home.path("").display()
        );
        let (columns, rows) = (columns.to_string(), rows.to_string());
        pane.tmux(
            &[
                "-f",
                "/dev/null",
                "new-session",
                "-d",
                "-x",
                &columns,
                "-y",
                &rows,
                &shell,
            ],
            "",
        );
        pane.waits_for("$ ");
        pane
    }

    /// Starts a conversation in it.
    fn talk(home: &Home, columns: u32, rows: u32) -> Self {
        let pane = Self::open(home, columns, rows);
        pane.runs("agent -q");
        pane
    }

    fn runs(&self, arguments: &str) {
        self.types(&format!("clear; {} {arguments}", program()));
        self.key("Enter");
        self.waits_until("a prompt", |screen| {
            screen.lines().any(|line| line.starts_with('>')) && !screen.contains('$')
        });
    }

    #[track_caller]
    fn tmux(&self, args: &[&str], input: &str) -> String {
        let mut command = Command::new("tmux");
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm");
        command
            .args(["-u", "-S", &self.socket])
            .args(args)
            .stdin(Stdio::piped());
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("tmux is installed: tests/run does it");
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "tmux {args:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn types(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text], "");
    }

    fn key(&self, key: &str) {
        self.tmux(&["send-keys", key], "");
    }

    fn pastes(&self, text: &str) {
        self.tmux(&["load-buffer", "-"], text);
        self.tmux(&["paste-buffer", "-p"], "");
    }

    fn screen(&self) -> String {
        let screen = self.tmux(&["capture-pane", "-p"], "");
        screen
            .lines()
            .map(str::trim_end)
            .collect::<Vec<_>>()
            .join("\n")
            .trim_end()
            .to_owned()
    }

    #[track_caller]
    fn waits_until(&self, what: &str, condition: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let screen = self.screen();
            if condition(&screen) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "waited 20 s for {what:?}; the screen shows:\n{screen}"
            );
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn waits_for(&self, text: &str) {
        self.waits_until(text, |screen| screen.contains(text.trim_end()));
    }

    /// Types a question, and waits for its answer.
    #[track_caller]
    fn asks(&self, question: &str, answer: &str) {
        self.types(question);
        self.key("Enter");
        self.waits_for(answer);
    }

    /// Checks the end of the display.
    #[track_caller]
    fn shows_last(&self, text: &str) {
        self.waits_until(text, |screen| screen.ends_with(text));
    }

    /// Checks that the shell edits and echoes as before.
    #[track_caller]
    fn leaves(&self) {
        self.types("stty -a | tr ' ' '\\n' | grep -xE -- '-?(icanon|echo|isig|icrnl);?' | xargs echo modes");
        self.key("Enter");
        // bash edits with its own modes, and restores the earlier modes before a command.
        self.waits_for("\nmodes icrnl isig icanon echo");
    }
}

impl Drop for Pane {
    fn drop(&mut self) {
        self.tmux(&["kill-server"], "");
    }
}

#[test]
fn a_paste_is_one_message_whatever_its_last_byte() {
    let (model, home) = Home::of(Model::scripted([
        Reply::text("One."),
        Reply::text("Two."),
        Reply::text("Three."),
    ]));
    let pane = Pane::talk(&home, 80, 24);
    pane.pastes("first\n\tsecond\nthird");
    pane.shows_last("> first\n        second\nthird");
    pane.key("Enter");
    pane.waits_for("One.");
    pane.pastes("ends with a line feed\n");
    pane.asks("and more", "Two.");
    let long = format!("{}end", "0123456789".repeat(1000));
    pane.pastes(&long);
    pane.shows_last("end");
    pane.types("ing");
    pane.key("Home");
    pane.asks("the ", "Three.");
    pane.key("C-d");
    pane.waits_for("$ ");
    pane.leaves();
    for (n, text) in [
        "first\n\tsecond\nthird",
        "ends with a line feed\nand more",
        &format!("the {long}ing"),
    ]
    .iter()
    .enumerate()
    {
        assert!(
            model.request(n).last("user").ends_with(text),
            "{}",
            model.request(n).body
        );
    }
}

#[test]
fn typed_history_is_kept_across_runs() {
    let (model, home) = Home::of(Model::scripted([
        Reply::text("One."),
        Reply::text("Two."),
        Reply::text("Three."),
    ]));
    let pane = Pane::talk(&home, 80, 24);
    pane.types("a question about basil");
    pane.key("M-Enter");
    pane.asks("of two lines", "One.");
    pane.asks("plants", "Two.");
    pane.asks("/quit", "$ ");
    pane.runs("agent -q");
    pane.types("draft");
    for (key, shown) in [
        ("Up", "> /quit"),
        ("Up", "> plants"),
        ("Down", "> /quit"),
        ("Down", "> draft"),
    ] {
        pane.key(key);
        pane.shows_last(shown);
    }
    pane.key("C-r");
    pane.types("bas");
    pane.shows_last("(reverse-i-search)`bas': a question about basil\nof two lines");
    pane.key("End");
    pane.key("Down");
    pane.key("End");
    pane.types("!");
    pane.shows_last("> a question about basil\nof two lines!");
    pane.key("Enter");
    pane.waits_for("Three.");
    pane.key("C-d");
    pane.leaves();
    assert!(
        model
            .request(2)
            .last("user")
            .ends_with("\na question about basil\nof two lines!")
    );
    assert!(home.files().contains(&"state/history".to_owned()));
    pane.runs("agent -q --no-session");
    pane.key("Up");
    pane.types("nothing");
    pane.shows_last("> nothing");
}

#[test]
fn ctrl_c_clears_the_line_and_stops_the_answer() {
    let held = |reply: Reply| [reply, Reply::text("Yes.")];
    let replies = held(Reply::text("Never.").held())
        .into_iter()
        .chain(held(Reply::text("Once upon a time").held_after(3)));
    let (model, home) = Home::of(Model::scripted(replies.collect::<Vec<_>>()));
    let pane = Pane::open(&home, 80, 24);
    pane.runs("agent");
    pane.types("never mind");
    pane.key("C-c");
    pane.shows_last("> never mind\n>");
    pane.types("hi");
    pane.key("Enter");
    model.wait_for_requests(1);
    pane.waits_for("thinking...");
    pane.types("there?");
    pane.key("C-c");
    pane.shows_last("bantam: stopped\n>");
    // Text typed during an answer is stored for the prompt.
    pane.types("there?");
    pane.key("Enter");
    pane.shows_last("Yes.\n\n>");
    pane.asks("a story", "Once upon");
    pane.key("C-c");
    pane.shows_last("bantam: stopped\n>");
    pane.types("still?");
    pane.key("Enter");
    pane.shows_last("Yes.\n\n>");
    pane.key("C-d");
    pane.waits_for("$ ");
    pane.leaves();
    assert!(
        model.request(1).last("user").ends_with("\nthere?"),
        "{}",
        model.request(1).body
    );
}
