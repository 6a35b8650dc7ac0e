//! Completions in their shells, and the manual page as displayed.

use crate::harness::Home;
use crate::support::program::directory;

/// Returns the output of `program` for a script that uses the output of `bantam ARGS`.
fn shell(home: &Home, program: &[&str], args: &[&str], script: &str) -> String {
    let made = home.run(args);
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
fn the_shells_complete_commands_flags_and_names() {
    let home = Home::empty();
    let demo = r#"{"agents":{"defaults":{"model_name":"demo/demo"}}}"#;
    home.write("config.json", demo);
    home.agent(["-s", "garden", "hi"]).exits(0);
    let complete = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let list = words
            .iter()
            .map(|word| format!("'{word}'"))
            .collect::<Vec<_>>()
            .join(" ");
        let last = words.len() - 1;
        let bash = format!(
            ". FILE; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _bantam bantam; printf '%s\\n' \"${{COMPREPLY[@]}}\""
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
        ("bantam se", &["send", "service", "sessions"][..]),
        ("bantam sessions re", &["reset"]),
        ("bantam sessions show --a", &["--after"]),
        ("bantam agent --no-se", &["--no-session"]),
        ("bantam cron add --to x --na", &["--name"]),
        ("bantam agent -q -s ga", &["garden"]),
        (
            "bantam config get agents.defaults.ti",
            &["agents.defaults.timeout"],
        ),
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
        page.contains("bantam sessions show [OPTIONS] KEY") || page.contains("sseessssiioonnss"),
        "{page}"
    );
    assert!(page.contains("provider unreachable"), "{page}");
}
