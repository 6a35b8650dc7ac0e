//! Completions in the shells that they are for, and the manual page as its reader sees it.

use serde_json::{Value, json};

use crate::harness::Home;
use crate::support::program::directory;

/// What `program` prints for a script that uses what `bantam ARGS` printed.
fn shell(home: &Home, program: &[&str], args: &[&str], script: &str) -> String {
    let made = home.bantam().args(args).run();
    made.exits(0).is_quiet();
    let file = home.write("made", &made.stdout);
    let mut shell = std::process::Command::new(program[0]);
    shell
        .args(&program[1..])
        .arg(script.replace("FILE", file.to_str().unwrap()));
    shell
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", directory().display()))
        .env("BANTAM_HOME", home.path(""))
        .env("HOME", home.path(""))
        .stdin(std::process::Stdio::null());
    let output = shell
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", program[0]));
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(
        output.status.success() && stderr.is_empty(),
        "{program:?}: {stdout}{stderr}"
    );
    stdout
}

#[test]
fn the_shells_complete_commands_subcommands_and_flags() {
    let home = Home::empty();
    home.config(
        &json!({
            "agents": { "defaults": { "model_name": "demo/demo" } },
            "model_list": [{ "model_name": "mine", "model": "demo/demo" }],
            "mcpServers": { "clock": { "command": "true" } },
        })
        .to_string(),
    );
    home.write("agent/skills/$(touch gone)/SKILL.md", "---\nname: x\n---\n");
    home.write(
        "agent/skills/tea/SKILL.md",
        "---\nname: tea\ndescription: Makes tea.\n---\nBoil.",
    );
    home.write("agent/prompts/brew.md", "{{input}}");
    home.agent(["-s", "garden", "-m", "time"]).exits(0);
    home.bantam()
        .args([
            "cron", "add", "-e", "1h", "-n", "water", "Water", "--to", "none",
        ])
        .run()
        .exits(0);
    let listed = home.bantam().args(["cron", "list", "--json"]).run();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let job = listed["jobs"][0]["id"].as_str().unwrap().to_owned();
    let complete = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let list = words
            .iter()
            .map(|word| format!("'{word}'"))
            .collect::<Vec<_>>()
            .join(" ");
        let last = words.len() - 1;
        let bash = format!(
            ". FILE; COMP_WORDS=({list}); COMP_CWORD={last}; _bantam; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let zsh = format!(
            "compdef() {{ }}; _describe() {{ print -lr -- \"${{(@P)2}}\"; }}; _files() {{ }}; source FILE; \
             words=({list}); CURRENT={}; _bantam",
            last + 1
        );
        let fish = format!("source FILE; complete -C '{line}'");
        let names = |text: String, after: char| {
            let names = text
                .lines()
                .map(|line| line.split(after).next().unwrap().to_owned());
            let mut names: Vec<String> =
                names.filter(|name| name.starts_with(words[last])).collect();
            names.sort();
            names
        };
        [
            names(
                shell(
                    &home,
                    &["bash", "--norc", "-c"],
                    &["completions", "bash"],
                    &bash,
                ),
                '\n',
            ),
            names(
                shell(&home, &["zsh", "-f", "-c"], &["completions", "zsh"], &zsh),
                ':',
            ),
            names(
                shell(
                    &home,
                    &["fish", "--no-config", "-c"],
                    &["completions", "fish"],
                    &fish,
                ),
                '\t',
            ),
        ]
    };
    for (line, expected) in [
        ("bantam se", &["service", "sessions"][..]),
        ("bantam sessions re", &["reset"]),
        ("bantam sessions show --a", &["--after"]),
        ("bantam agent --no-se", &["--no-session"]),
        ("bantam cron add --to x --na", &["--name"]),
        ("bantam sessions show cli_g", &["cli_garden"]),
        ("bantam agent -q --session g", &["garden"]),
        ("bantam skills show te", &["tea"]),
        ("bantam cron run ", &[&job]),
        ("bantam mcp test c", &["clock"]),
        ("bantam agent --model min", &["mine"]),
        ("bantam agent --template b", &["brew"]),
        ("bantam config get tools.exec.net", &["tools.exec.network"]),
        ("bantam help scr", &["scripting"]),
    ] {
        for (found, name) in complete(line).iter().zip(["bash", "zsh", "fish"]) {
            assert_eq!(found, expected, "{name}: {line}");
        }
    }
}

#[test]
fn the_manual_page_is_one() {
    let home = Home::empty();
    let page = shell(
        &home,
        &["sh", "-c"],
        &["man"],
        "mandoc -T lint -W error FILE && mandoc -T ascii FILE",
    );
    let page = page.replace('\u{8}', "");
    assert!(
        page.contains("bantam sessions show KEY") || page.contains("sseessssiioonnss"),
        "{page}"
    );
    assert!(page.contains("provider unreachable"), "{page}");
}
