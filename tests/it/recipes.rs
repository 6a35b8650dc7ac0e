//! The recipes of docs/scripting.md, run as they stand there: by `/bin/sh` as a script or as cron runs a line of a crontab, in an
//! environment with next to nothing in it, without a terminal, and from a directory that cannot be written.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::botapi::{BotApi, TOKEN};
use crate::harness::{CANARY, Home, Run, merged};
use crate::model::{Model, Reply};

/// Where nobody can make a file, not even root.
const NOT_TO_BE_WRITTEN: &str = "/proc";

/// Each recipe: its title, and the lines of its one block of shell.
fn recipes() -> Vec<(String, String)> {
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/scripting.md")).unwrap();
    let section = page
        .split("\n## ")
        .find(|section| section.starts_with("Recipes\n"))
        .expect("a section of recipes");
    let parts = section.split("\n### ").skip(1).map(|part| {
        let (title, text) = part.split_once('\n').unwrap();
        let blocks: Vec<&str> = text.split("\n```sh\n").skip(1).collect();
        assert_eq!(blocks.len(), 1, "a recipe is one block: {title}");
        let (script, _) = blocks[0].split_once("```").expect("the block ends");
        (title.to_owned(), script.to_owned())
    });
    parts.collect()
}

/// The schedule and the command of a crontab line, the command as cron hands it to the shell: `\%` is a percent sign, and
/// what follows a bare one would be standard input.
fn crontab(line: &str) -> (&str, String) {
    let line = line.trim_end();
    assert!(!line.contains('\n'), "a crontab entry is one line: {line}");
    let fields = if line.starts_with('@') { 1 } else { 5 };
    let at = line
        .match_indices(' ')
        .nth(fields - 1)
        .expect("a command behind the schedule")
        .0;
    let (schedule, command) = line.split_at(at);
    match schedule.strip_prefix('@') {
        Some(word) => assert!(
            ["hourly", "daily", "weekly", "monthly", "reboot"].contains(&word),
            "{schedule}"
        ),
        None => assert!(
            schedule
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || " */,-".contains(c)),
            "{schedule}"
        ),
    }
    let command = command.trim().replace("\\%", "\u{0}");
    assert!(
        !command.contains('%'),
        "cron would end the command at the bare %: {command}"
    );
    (schedule, command.replace('\u{0}', "%"))
}

/// A user's home with bantam in it, and the model that it asks.
struct Board {
    model: Model,
    home: Home,
}

impl Board {
    fn with(replies: impl IntoIterator<Item = Reply>) -> Self {
        let model = Model::scripted(replies);
        let home = Home::with(&model.config());
        let board = Self { model, home };
        fs::create_dir_all(board.user(".local/bin")).unwrap();
        symlink(board.home.path(""), board.user(".bantam")).unwrap();
        symlink(crate::program::program(), board.user(".local/bin/bantam")).unwrap();
        board
    }

    /// A path in the user's home.
    fn user(&self, below: &str) -> PathBuf {
        self.home.path("").parent().unwrap().join(below)
    }

    /// A program that tells something about a machine which a test does not have.
    fn program(&self, name: &str, script: &str) {
        let path = self.user(".local/bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a recipe of this title.
    #[track_caller]
    fn cooks(&self, title: &str) -> Run {
        self.cooks_in(Path::new(NOT_TO_BE_WRITTEN), title)
    }

    #[track_caller]
    fn cooks_in(&self, cwd: &Path, title: &str) -> Run {
        let (_, script) = recipes()
            .into_iter()
            .find(|(name, _)| name == title)
            .expect("a recipe of this title");
        let path = format!("{}:/usr/bin:/bin", self.user(".local/bin").display());
        self.shell(cwd, &script, &[("PATH", &path)])
    }

    /// Runs the one line of a recipe as cron does.
    #[track_caller]
    fn is_due(&self, title: &str) -> Run {
        let (_, line) = recipes()
            .into_iter()
            .find(|(name, _)| name == title)
            .expect("a recipe of this title");
        let (_, command) = crontab(&line);
        let env = [
            ("PATH", "/usr/bin:/bin"),
            ("LOGNAME", "somebody"),
            ("SHELL", "/bin/sh"),
        ];
        self.shell(&self.user(""), &command, &env)
    }

    #[track_caller]
    fn shell(&self, cwd: &Path, script: &str, env: &[(&str, &str)]) -> Run {
        let started = std::time::Instant::now();
        let mut shell = Command::new("/usr/bin/timeout");
        shell
            .args(["60", "/bin/sh", "-c", script])
            .env_clear()
            .env("HOME", self.user(""))
            .current_dir(cwd);
        shell.envs(env.iter().copied()).stdin(Stdio::null());
        let output = shell.output().unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(
            !stdout.contains(CANARY) && !stderr.contains(CANARY),
            "the key is shown"
        );
        Run {
            code: output.status.code(),
            killed_by: None,
            stdout,
            stderr,
            took: started.elapsed(),
        }
    }

    fn read(&self, below: &str) -> String {
        fs::read_to_string(self.user(below)).unwrap_or_else(|e| panic!("{below}: {e}"))
    }
}

#[test]
fn there_are_eleven_recipes_and_each_is_run_here() {
    let titles: Vec<String> = recipes().into_iter().map(|(title, _)| title).collect();
    assert_eq!(titles.len(), 11, "{titles:?}");
    for title in titles {
        let runs =
            ["cooks(", "cooks_in(&repository, ", "is_due("].map(|run| format!("{run}\"{title}\")"));
        let here = include_str!("recipes.rs");
        assert!(
            runs.iter().any(|run| here.contains(run)),
            "nobody runs the recipe {title:?}"
        );
    }
}

#[test]
fn a_crontab_line_is_taken_apart_as_cron_does() {
    assert_eq!(
        crontab("*/5 1,2 * * 1-5 echo \\%F x\n"),
        ("*/5 1,2 * * 1-5", "echo %F x".to_owned())
    );
    assert_eq!(crontab("@daily  true\n"), ("@daily", "true".to_owned()));
}

#[test]
fn what_the_kernel_complains_about() {
    let board = Board::with([Reply::text("The card is failing.")]);
    board.program(
        "dmesg",
        "seq 500 | sed 's/^/line /'; echo 'mmc0: error -110'",
    );
    board
        .cooks("What the kernel complains about")
        .exits(0)
        .prints("The card is failing.\n")
        .is_quiet();
    let asked = board.model.request(0).last("user");
    assert!(
        asked.contains("Anything wrong here?") && asked.contains("mmc0: error -110"),
        "{asked}"
    );
    assert!(
        asked.contains("line 402\n") && !asked.contains("line 401\n"),
        "the last hundred lines: {asked}"
    );
    assert!(!board.home.path("sessions").exists());
}

#[test]
fn the_disk_every_morning() {
    let board = Board::with([Reply::text("Half full."), Reply::text("A little more.")]);
    for _ in 0..2 {
        let run = board.is_due("The disk, every morning");
        run.exits(0).prints("").is_quiet();
    }
    assert_eq!(board.read("disk.log"), "Half full.\nA little more.\n");
    let second = board.model.request(1);
    assert_eq!(
        second.texts("assistant"),
        ["Half full."],
        "it goes on where it was"
    );
    assert!(
        second
            .texts("user")
            .iter()
            .all(|day| day.contains("Filesystem")),
        "{:?}",
        second.texts("user")
    );
    assert_eq!(board.home.session("cli_disk").turns(), ["done", "done"]);
}

#[test]
fn a_page_of_the_diary_every_night() {
    let board = Board::with([Reply::text("Rain is weather too.")]);
    board
        .is_due("A page of the diary, every night")
        .exits(0)
        .prints("")
        .is_quiet();
    let asked = board.model.request(0).last("user");
    let (_, rest) = asked.split_once("It is ").expect("the date is asked about");
    let date = &rest[..10];
    assert!(
        date.starts_with("20") && rest[10..].starts_with(". One thought"),
        "{asked}"
    );
    assert_eq!(
        board.read(&format!("diary-{date}.txt")),
        "Rain is weather too.\n"
    );
}

#[test]
fn a_word_to_your_chat_every_morning() {
    let board = Board::with([Reply::text("It is well.")]);
    let api = BotApi::start();
    api.chat(123_456_789);
    let bot = json!({ "channels": { "telegram": { "token": TOKEN, "api_base": api.base() } } });
    board
        .home
        .config(&merged(board.model.config(), &bot).to_string());
    board
        .is_due("A word to your chat, every morning")
        .exits(0)
        .prints("")
        .is_quiet();
    assert_eq!(api.texts(123_456_789), ["It is well."]);
    assert!(board.model.request(0).last("user").contains("load average"));
}

#[test]
fn a_word_on_each_line_of_a_file() {
    let board = Board::with(["fault", "harmless", "fault"].map(Reply::text));
    fs::write(
        board.user("errors.txt"),
        "I/O error\nhello & \"bye\"\nout of memory\n",
    )
    .unwrap();
    let run = board.cooks("A word on each line of a file");
    run.exits(0)
        .prints("I/O error: fault\nhello & \"bye\": harmless\nout of memory: fault\n")
        .is_quiet();
    let asked = board.model.request(1).last("user");
    assert!(
        asked.ends_with("nothing else: hello & \"bye\""),
        "one line, and nothing of the others: {asked}"
    );
    assert_eq!(board.model.request(1).tools(), Vec::<&str>::new());
}

#[test]
fn a_commit_message() {
    let board = Board::with([
        Reply::error(400, "no"),
        Reply::text("Water the plants\n\nThey were dry."),
    ]);
    let repository = board.user("repository");
    fs::create_dir(&repository).unwrap();
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", board.user(""))
            .current_dir(&repository);
        let output = git.output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    fs::write(
        board.user(".gitconfig"),
        "[user]\nname = A\nemail = a@example.invalid\n",
    )
    .unwrap();
    fs::write(repository.join("plants.txt"), "watered\n").unwrap();
    for args in [&["init", "-q"][..], &["add", "plants.txt"]] {
        assert!(git(args).0, "{args:?}");
    }
    // No answer, no message, no commit.
    let run = board.cooks_in(&repository, "A commit message");
    assert_ne!(run.code, Some(0));
    run.prints("").fails_with_a_hint();
    assert!(!git(&["log"]).0);

    let run = board.cooks_in(&repository, "A commit message");
    run.exits(0).prints("").is_quiet();
    assert_eq!(
        git(&["log", "--format=%B"]).1.trim(),
        "Water the plants\n\nThey were dry."
    );
    assert!(
        board.model.request(1).last("user").contains("+watered"),
        "{:?}",
        board.model.request(1).last("user")
    );
}

#[test]
fn one_json_object_a_run_and_what_to_do_when_it_failed() {
    let board = Board::with([Reply::text("Berta."), Reply::error(401, "no such key")]);
    let run = board.cooks("One JSON object a run, and what to do when it failed");
    run.exits(0).prints("").is_quiet();
    let run = board.cooks("One JSON object a run, and what to do when it failed");
    run.exits(4).is_quiet();
    assert!(
        run.stdout
            .starts_with("bantam ended with 4: bantam: error: asking openai/test-model: "),
        "{}",
        run.stdout
    );
    let kept = board.read("answers.jsonl");
    let kept: Vec<Value> = kept
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (kept.len(), &kept[0]["output"], &kept[0]["ok"]),
        (2, &"Berta.".into(), &true.into())
    );
    assert_eq!(
        (&kept[1]["ok"], &kept[1]["error"]["kind"]),
        (&false.into(), &"auth".into())
    );
}

#[test]
fn a_log_by_a_template() {
    let board = Board::with([Reply::text("Nothing is wrong.")]);
    board.program(
        "journalctl",
        "test \"$*\" = '-b -u ssh --no-pager' && echo 'sshd[1]: Accepted publickey'",
    );
    board
        .cooks("A log, by a template")
        .exits(0)
        .prints("Nothing is wrong.\n")
        .is_quiet();
    let asked = board.model.request(0).last("user");
    assert!(
        asked.contains("a log of sshd.") && asked.contains("Accepted publickey"),
        "{asked}"
    );
}

#[test]
fn a_picture_from_the_camera() {
    let board = Board::with([Reply::text("Yes, with a parcel."), Reply::text("No.")]);
    fs::write(
        board.user("door.jpg"),
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00 and so on",
    )
    .unwrap();
    board
        .cooks("A picture from the camera")
        .exits(0)
        .prints("somebody is at the door\n")
        .is_quiet();
    board
        .cooks("A picture from the camera")
        .exits(1)
        .prints("")
        .is_quiet();
    let content = board.model.request(0).messages().pop().unwrap()["content"].clone();
    let image = content
        .as_array()
        .unwrap()
        .iter()
        .find_map(|part| part["image_url"]["url"].as_str());
    assert!(
        image.is_some_and(|url| url.starts_with("data:image/jpeg;base64,/9j/4")),
        "{content}"
    );
}

#[test]
fn try_later() {
    let down = || Reply::error(503, "overloaded");
    // Two runs with all their tries, and then an answer.
    let board = Board::with((0..6).map(|_| down()).chain([Reply::text("Open.")]));
    board.program("sleep", "echo \"$1\" >>\"$HOME/slept\"");
    let run = board.cooks("Try later");
    run.exits(0).prints("").fails_with_a_hint();
    assert_eq!(
        (board.read("sign.txt"), board.read("slept")),
        ("Open.\n".to_owned(), "60\n600\n".to_owned())
    );

    // What does not pass by itself is not tried again, and the sign stays as it is.
    let board = Board::with([Reply::error(401, "no such key")]);
    fs::write(board.user("sign.txt"), "Open.\n").unwrap();
    board
        .cooks("Try later")
        .exits(4)
        .prints("")
        .fails_with_a_hint();
    assert_eq!(board.read("sign.txt"), "Open.\n");

    let board = Board::with((0..9).map(|_| down()));
    board.program("sleep", "");
    board.cooks("Try later").exits(5).prints("");
}

#[test]
fn what_would_be_sent() {
    let board = Board::with([]);
    fs::write(board.user("notes.md"), "Buy seeds.\n").unwrap();
    board
        .cooks("What would be sent")
        .exits(0)
        .prints("no password in it\n")
        .is_quiet();
    fs::write(
        board.user("notes.md"),
        "The password of the router is hunter2.\n",
    )
    .unwrap();
    let run = board.cooks("What would be sent");
    run.exits(0).is_quiet();
    assert!(
        run.stdout.contains("The password of the router"),
        "{}",
        run.stdout
    );
    assert!(!board.home.path("sessions").exists());
}

/// The blocks of README.md and docs/ that are set off by four spaces and call bantam, each with the page it is on.
fn blocks() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for page in [
        "README",
        "docs/guide",
        "docs/telegram",
        "docs/cron",
        "docs/scripting",
        "docs/settings",
        "docs/jail",
    ] {
        let text = fs::read_to_string(root.join(format!("{page}.md"))).unwrap();
        let mut block = String::new();
        let mut before = "";
        for line in text.lines().chain([""]) {
            match line.strip_prefix("    ") {
                Some(code) if !block.is_empty() || before.is_empty() => {
                    block += &format!("{code}\n");
                }
                _ if block.contains("bantam ") => {
                    found.push((page.to_owned(), std::mem::take(&mut block)));
                }
                _ => block.clear(),
            }
            before = line;
        }
    }
    found
}

/// They ask on a terminal, do not end, or need servers of the internet: other tests have them.
const NOT_IN_A_SCRIPT: [&str; 3] = [
    "bantam agent\n",
    "bantam gateway\n",
    "bantam onboard telegram\n",
];

#[test]
fn every_block_of_commands_in_the_documentation_runs_as_it_stands() {
    let board = Board::with([]);
    let api = BotApi::start();
    api.chat(123_456_789);
    board.home.config(
        &json!({
            "agents": { "defaults": { "model_name": "demo/demo" } },
            "channels": { "telegram": { "token": TOKEN, "api_base": api.base(), "allow_from": [123_456_789] } }
        })
        .to_string(),
    );
    for name in [
        "dmesg",
        "journalctl",
        "systemctl",
        "loginctl",
        "rustup",
        "cargo",
        "scp",
    ] {
        board.program(name, "echo fine");
    }
    board.program("jq", "cat");
    fs::create_dir_all(board.user("project")).unwrap();
    for (name, text) in [
        ("article.txt", "Hens."),
        ("notes.md", "# Hens"),
        ("token.txt", TOKEN),
    ] {
        fs::write(board.user(name), text).unwrap();
    }
    fs::write(
        board.user("photo.jpg"),
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00 and so on",
    )
    .unwrap();
    fs::write(board.user("invoice.pdf"), crate::attach::pdf()).unwrap();
    fs::create_dir_all(board.user("path/to/folder")).unwrap();
    fs::write(
        board.user("path/to/folder/SKILL.md"),
        "---\nname: folder\ndescription: x\n---\n",
    )
    .unwrap();
    board
        .home
        .bantam()
        .args(["onboard", "--yes"])
        .run()
        .exits(0);
    board.home.agent(["first"]).exits(0);

    let path = format!("{}:/usr/bin:/bin", board.user(".local/bin").display());
    let blocks = blocks();
    assert!(blocks.len() >= 20, "{blocks:?}");
    for (page, block) in blocks {
        if NOT_IN_A_SCRIPT.contains(&block.as_str()) || block.starts_with("bantam mcp add ") {
            continue;
        }
        // A line of a crontab.
        let is_due = block.starts_with(|c: char| c.is_ascii_digit());
        let script = if is_due {
            crontab(&block).1
        } else {
            block.replace("bantam config edit\n", "")
        };
        let script = format!(
            "set -e\n{}",
            script.replace("$HOME/bin/", "$HOME/.local/bin/")
        );
        let run = board.shell(&board.user(""), &script, &[("PATH", &path)]);
        // Where there is no jail, doctor says so.
        let is_fine =
            run.code == Some(0) || (block.starts_with("bantam doctor") && run.code == Some(1));
        assert!(
            is_fine,
            "{page}:\n{block}exit {:?}\n{}{}",
            run.code, run.stdout, run.stderr
        );
    }
    assert_eq!(
        api.texts(123_456_789).len(),
        1,
        "the answer that was to be delivered"
    );
}
