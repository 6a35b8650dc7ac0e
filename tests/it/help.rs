//! One table of commands: help, documentation, and suggestions for typos.

use std::fs;
use std::path::Path;

use crate::harness::{Home, has_all};
use crate::model::{Model, Reply};

/// Returns every command in `bantam help`, by name: `agent`, `sessions list`.
fn commands(home: &Home) -> Vec<String> {
    let run = home.run(["help"]);
    run.exits(0).is_quiet();
    let mut names = Vec::new();
    let mut is_listed = true;
    let text = run.stdout.replace("\n                              ", " ");
    for line in text.lines() {
        // Examples follow the list.
        is_listed &= !line.starts_with("Topics:");
        let Some(line) = line.strip_prefix("  bantam ").filter(|_| is_listed) else {
            continue;
        };
        let name = line.split_whitespace().next().unwrap();
        match line.split_once(" ... ") {
            Some((group, verbs)) => {
                let (_, verbs) = verbs.split_once(": ").unwrap();
                names.extend(verbs.split(", ").map(|verb| format!("{group} {verb}")));
            }
            None => names.push(name.to_owned()),
        }
    }
    names
}

/// Returns README.md and the pages of docs/, by file name.
fn documentation() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = fs::read_dir(root.join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = pages
        .chain([root.join("README.md")])
        .filter(|path| path.extension().is_some_and(|e| e == "md"));
    files
        .map(|path| {
            (
                path.file_stem().unwrap().to_str().unwrap().to_owned(),
                fs::read_to_string(path).unwrap(),
            )
        })
        .collect()
}

#[test]
fn every_page_of_the_documentation_is_in_the_program() {
    let home = Home::empty();
    let overview = home.run(["help"]).stdout;
    assert!(overview.lines().count() <= 40, "{overview}");
    for (name, text) in documentation() {
        if ["architecture", "building", "figures"].contains(&name.as_str()) {
            continue;
        }
        if name == "README" {
            assert!(
                text.lines().count() <= 120,
                "README.md has {} lines",
                text.lines().count()
            );
            continue;
        }
        assert!(overview.contains(&name), "{name} is missing: {overview}");
        let run = home.run(["help", &name]);
        run.exits(0).is_quiet();
        let lines = text.lines().filter(|line| !line.starts_with("<!--"));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        assert!(run.stdout.contains(&text), "{name}: {}", run.stdout);
    }
    assert!(
        home.run(["help", "cron"])
            .stdout
            .contains("bantam cron add"),
        "the commands come, too"
    );
}

#[test]
fn texts_of_the_program_need_no_home() {
    let home = Home::empty();
    for words in [
        "help",
        "help cron",
        "help PDF",
        "man",
        "completions bash",
        "--version",
    ] {
        let run = home
            .bantam()
            .without("BANTAM_HOME")
            .args(words.split(' '))
            .run();
        run.exits(0).is_quiet();
    }
}

#[test]
fn every_command_has_a_page_and_a_place_in_the_readme() {
    let home = Home::empty();
    let docs = documentation();
    let commands = commands(&home);
    for name in [
        "agent",
        "onboard",
        "status",
        "tools",
        "sessions list",
        "sessions show",
        "help",
    ] {
        assert!(
            commands.iter().any(|command| command == name),
            "{name} is missing: {commands:?}"
        );
    }
    for command in &commands {
        let page = home.bantam().arg("help").args(command.split(' ')).run();
        page.exits(0).is_quiet();
        assert!(
            page.stdout.starts_with(&format!("Usage: bantam {command}")),
            "{}",
            page.stdout
        );
        let flags = home.bantam().args(command.split(' ')).arg("--help").run();
        let lines = flags.exits(0).stdout.lines().count();
        assert!((3..=60).contains(&lines), "{command}: {}", flags.stdout);
        // A page of the same name follows: `bantam help models`.
        assert!(page.stdout.starts_with(&flags.stdout), "{}", page.stdout);
        let is_mentioned = docs
            .iter()
            .any(|(_, text)| text.contains(&format!("bantam {command}")));
        assert!(
            is_mentioned,
            "neither README.md nor docs/ mentions `bantam {command}`"
        );
    }
    assert_eq!(
        home.files(),
        Vec::<String>::new(),
        "help leaves nothing behind"
    );
}

/// Natural words, and the pages that a search must name for each of them.
const WORDS: &str = "
cost models|price models|budget models|month recipes|subscription recipes|ollama models
default model recipes|fallback models|model models|keys models|key models|api key models
proxy models|slow recipes|offline recipes|group recipes|groups recipes|partner recipes
spam recipes|strangers recipes|voice recipes|personality recipes|language recipes
two bots recipes|docker recipes|raspberry recipes|windows recipes|mac recipes|phone http
open webui http|token http|update backup|upgrade backup|uninstall backup|restore backup
move backup|privacy backup|logs troubleshooting|log troubleshooting|forget recipes
remove cron|timezone cron|reminder recipes|remind cron|timer recipes|schedule cron|pdf guide|image guide
photo guide|picture guide|network permissions|permission permissions|access permissions
folder permissions|ask permissions|password sandbox|safe sandbox|local mcp|timeout scripting
quiet agent|json scripting|script scripting|error scripting|tools.exec.network settings";

#[test]
fn natural_words_are_found_in_the_pages() {
    let home = Home::empty();
    for row in WORDS.split(['|', '\n']).filter(|row| !row.is_empty()) {
        let (word, page) = row.rsplit_once(' ').unwrap();
        let run = home.bantam().arg("help").args(word.split(' ')).run();
        run.exits(0).is_quiet();
        let is_named = run.stdout.contains(&format!("bantam help {page} "))
            || run.stdout.contains(&format!("bantam {page} "));
        assert!(is_named, "{word} does not name {page}: {}", run.stdout);
        assert!(run.stdout.lines().count() <= 10, "{word}: {}", run.stdout);
    }
    let found = home.bantam().args(["help", "docker"]).run();
    assert!(found.stdout.contains("bantam help recipes docker "));
    let section = home.bantam().args(["help", "recipes", "docker"]).run();
    let text = section.exits(0).is_quiet().stdout.clone();
    assert!(
        text.starts_with("## How do I run it in Docker?\n"),
        "{text}"
    );
    assert!(text.lines().count() < 60, "{text}");
    for topic in ["backup", "memory", "sandbox"] {
        let page = home.run(["help", topic]);
        assert!(page.exits(0).stdout.starts_with("# "), "{}", page.stdout);
    }
}

/// The shells ask for the names that may take the place of the last word.
#[test]
fn names_are_completed() {
    let (_model, home) = Home::of(Model::answering(|_, _| Reply::text("Hello.")));
    let names = |words: &[&str]| {
        let run = home.bantam().arg("__complete").args(words).run();
        run.exits(0).is_quiet();
        let name = |line: &str| line.split('\t').next().unwrap().to_owned();
        run.stdout.lines().map(name).collect::<Vec<_>>()
    };
    home.agent(["-s", "garden", "hi"]).exits(0);
    home.run(["an unnamed one"]).exits(0);
    // A name may not write to the terminal.
    home.agent(["-s", "ga\u{1b}[31mrden", "hi"]).exits(0);
    home.write(
        "agent/skills/tidy/SKILL.md",
        "---\nname: tidy\ndescription: x\n---\nTidy.\n",
    );
    home.run(["cron", "add", "-n", "water", "-e", "1h", "hi"])
        .exits(0);
    let server = r#"mcpServers.time={"command":"true"}"#.split_once('=').unwrap();
    home.run(["config", "set", server.0, server.1]).exits(0);
    home.write("agent/prompts/news.md", "News of {{input}}");
    home.write("sessions/telegram_-100_7.jsonl", "");
    let chat = "telegram:-100_7";
    for (words, expected) in [
        (&["-t", ""][..], &["explain-log", "news", "summarize"][..]),
        (&["-t", "ne"], &["news"]),
        (&["--to", "tele"], &[chat]),
        (&["send", "--to", "telegram:-"], &[chat]),
        (&["cron", "add", "--to", ""], &[chat]),
        (&["sessions", "show", "ga"], &["garden"]),
        (&["-s", ""], &["garden"]),
        (&["cron", "run", "w"], &["water"]),
        (&["mcp", "test", ""], &["time"]),
        (&["skills", "show", ""], &["tidy"]),
        (&["agent", "--model", "te"], &["test"]),
        (&["config", "get", "log."], &["log.json", "log.level"]),
        (&["help", "mem"], &["memory"]),
        (&["sessions", "--j"], &["--json"]),
        (&["no", "such", "--bud"], &["--budget-tokens"]),
    ] {
        assert_eq!(names(words), expected, "{words:?}");
    }
    // The shell completes files.
    home.run(["__complete", "-a", ""]).exits(1).prints("");
    home.write("config.json", "{");
    assert!(names(&["config", "set", ""]).is_empty());
}

#[test]
fn a_group_alone_lists() {
    let (_model, home) = Home::of(Model::answering(|_, _| Reply::text("Hello.")));
    home.agent(["-s", "garden", "hi"]).exits(0);
    for args in [&["sessions"][..], &["sessions", "--json"]] {
        let run = home.run(args);
        run.exits(0).shows("garden");
    }
    for group in ["cron", "skills", "mcp", "config"] {
        home.run([group]).exits(0);
    }
}

#[test]
fn tools_list_needs_no_model() {
    let home =
        Home::with(&serde_json::json!({ "agents": { "defaults": { "model_name": "openai/x" } } }));
    let run = home.run(["tools"]);
    run.exits(0).is_quiet();
    let of = |name: &str| {
        let line = run
            .stdout
            .lines()
            .find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} is not listed: {}", run.stdout))
            .to_owned()
    };
    has_all(&of("read_file"), [" safe ", "built in"]);
    has_all(&of("exec"), [" runs ", "Run a command"]);
    assert_eq!(home.files(), ["config.json"], "it only looks");

    let home = Home::with(&serde_json::json!({ "tools": { "exec": { "enabled": false } } }));
    let run = home.run(["tools"]);
    run.exits(0).says("tools.exec.enabled");
    assert!(!run.stdout.contains("exec"), "{}", run.stdout);
}
