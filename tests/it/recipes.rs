//! The recipes of docs/scripting.md, run literally: see [`crate::board`].

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::board::{Board, crontab, recipes};
use crate::botapi::{BotApi, TOKEN};
use crate::harness::{has_all, has_fields, merged};
use crate::model::Reply;

#[test]
fn there_are_eleven_recipes_and_each_is_run_here() {
    let titles: Vec<String> = recipes().into_iter().map(|(title, _)| title).collect();
    assert_eq!(titles.len(), 11, "{titles:?}");
    for title in titles {
        let runs =
            ["cooks(", "cooks_in(&repository, ", "is_due("].map(|run| format!("{run}\"{title}\")"));
        let here = [
            include_str!("recipes.rs"),
            include_str!("../programs/git.rs"),
        ]
        .concat();
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
fn dmesg_recipe_sends_the_kernel_log() {
    let board = Board::with([Reply::text("The card is failing.")]);
    board.program(
        "dmesg",
        "seq 500 | sed 's/^/line /'; echo 'mmc0: error -110'",
    );
    board
        .cooks("Summarize kernel messages")
        .answers("The card is failing.\n")
        .is_quiet();
    let asked = board.model.request(0).last("user");
    has_all(&asked, ["Anything wrong here?", "mmc0: error -110"]);
    assert!(
        asked.contains("line 402\n") && !asked.contains("line 401\n"),
        "the last hundred lines: {asked}"
    );
    assert!(!board.home.path("sessions").exists());
}

#[test]
fn disk_recipe_compares_days_in_one_conversation() {
    let board = Board::with([Reply::text("Half full."), Reply::text("A little more.")]);
    for _ in 0..2 {
        let run = board.is_due("Report the disk every morning");
        run.answers("").is_quiet();
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
fn diary_recipe_writes_a_dated_file() {
    let board = Board::with([Reply::text("Rain is weather too.")]);
    board
        .is_due("Write a diary entry every night")
        .answers("")
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
fn report_recipe_reaches_the_chat() {
    let board = Board::with([Reply::text("It is well.")]);
    let api = BotApi::start();
    api.chat(123_456_789);
    let bot = json!({ "channels": { "telegram": { "token": TOKEN, "api_base": api.base() } } });
    board
        .home
        .config(&merged(board.model.config(), &bot).to_string());
    board.program(
        "uptime",
        "echo ' 07:30:00 up 9 days, load average: 0.10, 0.20, 0.30'",
    );
    board
        .is_due("Send a daily report to Telegram")
        .answers("")
        .is_quiet();
    assert_eq!(api.texts(123_456_789), ["It is well."]);
    assert!(board.model.request(0).last("user").contains("load average"));
}

#[test]
fn line_recipe_asks_for_each_line() {
    let board = Board::with(["error", "harmless", "error"].map(Reply::text));
    fs::write(
        board.user("errors.txt"),
        "I/O error\nhello & \"bye\"\nout of memory\n",
    )
    .unwrap();
    let run = board.cooks("Classify each line of a file");
    run.answers("I/O error: error\nhello & \"bye\": harmless\nout of memory: error\n")
        .is_quiet();
    let asked = board.model.request(1).last("user");
    assert!(
        asked.ends_with("nothing else: hello & \"bye\""),
        "one line, and nothing of the others: {asked}"
    );
    assert_eq!(board.model.request(1).tools(), Vec::<&str>::new());
}

#[test]
fn json_recipe_reports_answer_or_failure() {
    let board = Board::with([Reply::text("Berta."), Reply::error(401, "no such key")]);
    let run = board.cooks("Append one JSON object per run, and handle failures");
    run.answers("").is_quiet();
    let run = board.cooks("Append one JSON object per run, and handle failures");
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
    has_fields(
        &kept[1],
        &json!({ "ok": false, "error": { "kind": "auth" } }),
    );
}

#[test]
fn log_recipe_fills_the_template() {
    let board = Board::with([Reply::text("Nothing is wrong.")]);
    board.program(
        "journalctl",
        "test \"$*\" = '-b -u ssh --no-pager' && echo 'sshd[1]: Accepted publickey'",
    );
    board
        .cooks("Explain a log with a template")
        .answers("Nothing is wrong.\n")
        .is_quiet();
    let asked = board.model.request(0).last("user");
    has_all(&asked, ["a log of sshd.", "Accepted publickey"]);
}

#[test]
fn camera_recipe_answers_by_exit_code() {
    let board = Board::with([Reply::text("Yes, with a parcel."), Reply::text("No.")]);
    fs::write(
        board.user("door.jpg"),
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00and so on\xff\xc0\0\x11\x08\0\x01\0\x01",
    )
    .unwrap();
    board
        .cooks("Check a camera image")
        .answers("somebody is at the door\n")
        .is_quiet();
    board
        .cooks("Check a camera image")
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
fn retry_recipe_repeats_only_exit_code_5() {
    let down = || Reply::error(503, "overloaded");
    // Two runs with all their retries, and then an answer.
    let board = Board::with((0..6).map(|_| down()).chain([Reply::text("Open.")]));
    board.program("sleep", "echo \"$1\" >>\"$HOME/slept\"");
    let run = board.cooks("Retry later");
    run.answers("").fails_with_a_hint();
    assert_eq!(
        (board.read("sign.txt"), board.read("slept")),
        ("Open.\n".to_owned(), "60\n600\n".to_owned())
    );

    // A permanent error is not retried, and the marker remains unchanged.
    let board = Board::with([Reply::error(401, "no such key")]);
    fs::write(board.user("sign.txt"), "Open.\n").unwrap();
    board.cooks("Retry later").fails(4).prints("");
    assert_eq!(board.read("sign.txt"), "Open.\n");

    let board = Board::with((0..9).map(|_| down()));
    board.program("sleep", "");
    board.cooks("Retry later").exits(5).prints("");
}

#[test]
fn dry_run_recipe_finds_a_password() {
    let board = Board::with([]);
    fs::write(board.user("notes.md"), "Buy seeds.\n").unwrap();
    board
        .cooks("Search a request before sending it")
        .answers("no password in it\n")
        .is_quiet();
    fs::write(
        board.user("notes.md"),
        "The password of the router is hunter2.\n",
    )
    .unwrap();
    let run = board.cooks("Search a request before sending it");
    run.exits(0).is_quiet();
    has_all(&run.stdout, ["The password of the router"]);
    assert!(!board.home.path("sessions").exists());
}

#[test]
fn readme_commands_print_their_results() {
    let readme = include_str!("../../README.md");
    let (_, section) = readme.split_once("## What you can do with it").unwrap();
    let block = section.split("```").nth(1).unwrap();
    let shown: Vec<(&str, &str)> = block
        .split("\n$ ")
        .skip(1)
        .map(|part| part.split_once('\n').unwrap())
        .collect();
    assert_eq!(shown.len(), 5, "{shown:?}");
    let answers = shown.iter().map(|(_, answer)| answer.trim_end());
    let answers = answers.filter(|answer| !answer.starts_with("Added job "));
    let board = Board::with(answers.map(Reply::text));
    board.program("journalctl", "echo 'mmc0: error -110'");
    board.program("jq", r#"sed 's/.*"output":"\([^"]*\)".*/\1/'"#);
    let project = board.user("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("article.txt"), "Hens.").unwrap();
    fs::write(project.join("photo.jpg"), PHOTO).unwrap();
    let path = board.search_path();
    for (command, answer) in shown {
        let run = board.shell(&project, command, &[("PATH", &path)]);
        run.exits(0);
        let first = answer.lines().next().unwrap_or_default();
        let (_, name) = first.rsplit_once('(').unwrap_or_default();
        let is_added = answer.starts_with("Added job ") && run.stdout.contains(name);
        assert!(
            run.stdout.trim_end() == answer.trim_end() || is_added,
            "{command}: {}",
            run.stdout
        );
    }
}

/// Header of a JPEG file of one pixel.
const PHOTO: &[u8] = b"\xff\xd8\xff\xc0\0\x11\x08\0\x01\0\x01";

/// Returns the indented blocks of README.md and docs/ that call bantam, and the commands in tables of examples, each with its
/// page.
fn blocks() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let pages = "README docs/guide docs/models docs/permissions docs/recipes docs/telegram docs/cron \
        docs/scripting docs/settings docs/sandbox";
    for page in pages.split_whitespace() {
        let text = fs::read_to_string(root.join(format!("{page}.md"))).unwrap();
        let mut block = String::new();
        let mut before = "";
        for line in text.lines().chain([""]) {
            match line.strip_prefix("    ") {
                Some(code) if !block.is_empty() || before.is_empty() => {
                    block += &format!("{code}\n");
                }
                _ if block.contains("bantam ") || starts_with_a_program(&block) => {
                    found.push((page.to_owned(), std::mem::take(&mut block)));
                }
                _ => block.clear(),
            }
            let example = line.split_once(" | `bantam config set ");
            if let Some((command, _)) = example.and_then(|(_, rest)| rest.split_once('`')) {
                found.push((page.to_owned(), format!("bantam config set {command}\n")));
            }
            before = line;
        }
    }
    found
}

/// Programs of the system that blocks run without bantam; the test replaces them.
const PROGRAMS: [&str; 5] = ["cargo", "docker", "scp", "tar", ".github/image"];

fn starts_with_a_program(block: &str) -> bool {
    let first = block.split(' ').next().unwrap_or_default();
    PROGRAMS.contains(&first)
}

/// They need a terminal, do not end, or need servers on the internet; other tests cover them.
const NOT_IN_A_SCRIPT: [&str; 3] = ["bantam agent\n", "bantam gateway\n", "bantam onboard\n"];

#[test]
fn every_block_of_commands_in_the_documentation_runs_as_it_stands() {
    let board = Board::with([]);
    let api = BotApi::start();
    api.chat(123_456_789);
    let config = json!({
        "agents": { "defaults": { "model_name": "demo/demo" } },
        "channels": { "telegram": { "token": TOKEN, "api_base": api.base(), "allow_from": [123_456_789] } }
    });
    board.home.config(&config.to_string());
    let names = "dmesg journalctl systemctl loginctl rustup cargo scp sudo docker tar";
    for name in names.split_whitespace() {
        board.program(name, "echo fine");
    }
    board.program("jq", "cat");
    let folders = "project notes drafts .config/systemd/user .github".split_whitespace();
    for folder in folders {
        fs::create_dir_all(board.user(folder)).unwrap();
    }
    symlink("/usr/bin/true", board.user(".github/image")).unwrap();
    for (name, text) in [
        ("article.txt", "Hens."),
        ("notes.md", "# Hens"),
        ("token.txt", TOKEN),
    ] {
        fs::write(board.user(name), text).unwrap();
    }
    fs::write(board.user("photo.jpg"), PHOTO).unwrap();
    fs::write(board.user("invoice.pdf"), crate::pdf::pdf()).unwrap();
    fs::create_dir_all(board.user("path/to/folder")).unwrap();
    fs::write(
        board.user("path/to/folder/SKILL.md"),
        "---\nname: folder\ndescription: x\n---\n",
    )
    .unwrap();
    board.home.run(["onboard", "--yes"]).exits(0);

    let path = board.search_path();
    let blocks = blocks();
    assert!(blocks.len() >= 20, "{blocks:?}");
    for (page, block) in blocks {
        if NOT_IN_A_SCRIPT.contains(&block.as_str()) || block.starts_with("bantam mcp add ") {
            continue;
        }
        board.home.config(&config.to_string());
        if !board.home.path("sessions/cli_default.jsonl").exists() {
            board.home.agent(["first"]).exits(0);
        }
        // A crontab line.
        let is_due = block.starts_with(|c: char| c.is_ascii_digit());
        let script = if is_due {
            crontab(&block).1
        } else {
            block.replace("bantam config edit\n", "")
        };
        let script = format!(
            "set -e\n{}",
            script.replace("$HOME/bin/", "$HOME/.cargo/bin/")
        );
        // A unit is installed in this directory instead of the machine.
        let root = board.user("root").display().to_string();
        let env = [("PATH", path.as_str()), ("DESTDIR", root.as_str())];
        let run = board.shell(&board.user(""), &script, &env);
        // Without a sandbox, doctor reports that.
        let is_fine =
            run.code == Some(0) || (block.starts_with("bantam doctor") && run.code == Some(1));
        assert!(
            is_fine,
            "{page}:\n{block}exit {:?}\n{}{}",
            run.code, run.stdout, run.stderr
        );
    }
    let delivered = api.texts(123_456_789);
    assert_eq!(
        delivered.len(),
        4,
        "two of send, one of --to, and that of a job, which goes to the owner: {delivered:?}"
    );
}
