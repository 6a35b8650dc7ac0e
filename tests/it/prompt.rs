//! The start of every request: its length, and that it is equal in all conversations of a home.

use serde_json::{Value, json};

use crate::harness::Home;
use crate::model::{Model, Reply};

/// Maximum number of tokens of a plain question with all tools, as counted by o200k.
const MOST: usize = 1700;
/// Number of tokens that a change may use for a tool with a plain description.
const ANOTHER: usize = 30;

/// Estimates the tokens of a text as counted by o200k: one for a word with the space before it, three digits, or four other
/// characters, and two for a long word. For this prompt and the pages of docs/, the error is up to 1.2 %.
fn tokens(text: &str) -> usize {
    const LONG: usize = 11;
    let kind = |c: char| match c {
        c if c.is_ascii_alphabetic() => 0,
        c if c.is_ascii_digit() => 1,
        c if c.is_whitespace() => 2,
        _ => 3,
    };
    let mut tokens = 0;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let body = rest.strip_prefix(' ').unwrap_or(rest);
        let next = body.chars().next().map_or(2, kind);
        let (start, kind_of_run) = match (first, next) {
            (' ', 0 | 3) => (1, next),
            _ => (0, kind(first)),
        };
        let run = rest[start..].find(|c| kind(c) != kind_of_run);
        let end = run.map_or(rest.len(), |run| run + start);
        let length = rest[start..end].chars().count();
        tokens += match kind_of_run {
            0 => 1 + usize::from(end > LONG),
            1 => length.div_ceil(3),
            2 => 1,
            _ => length.div_ceil(4),
        };
        rest = &rest[end..];
    }
    tokens
}

fn asked(home: &Home, args: &[&str]) -> Value {
    let run = home
        .bantam()
        .args(["agent", "--dry-run", "-m", "hi"])
        .args(args)
        .run();
    run.exits(0);
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn a_plain_question_with_all_tools_is_short() {
    let (_model, home) = Home::of(Model::scripted([]));
    let body = asked(&home, &[]);
    let tools = body["tools"].as_array().unwrap().iter();
    let tools: Vec<(&Value, usize)> = tools
        .map(|tool| (&tool["function"]["name"], tokens(&tool.to_string())))
        .collect();
    let messages = body["messages"].as_array().unwrap().iter();
    let messages = messages.map(|message| tokens(message["content"].as_str().unwrap()));
    let counted = tokens(&body["tools"].to_string()) + messages.sum::<usize>();
    let counted = counted + counted / 50;
    assert!(
        counted + ANOTHER <= MOST,
        "{counted} tokens, and {ANOTHER} for one more tool; by tool: {tools:?}"
    );
    assert!(counted > 1000, "{counted} tokens");
}

#[test]
fn folders_that_are_open_to_tools_are_named() {
    let runtime = |tools: Value, args: &[&str]| {
        let home = Home::with(
            &json!({ "agents": { "defaults": { "model_name": "demo/demo" } }, "tools": tools }),
        );
        let run = home
            .bantam()
            .args(["agent", "--dry-run", "-m", "hi"])
            .args(args)
            .run();
        run.exits(0);
        let (_, runtime) = run.stdout.split_once("Workspace: ").unwrap();
        runtime.to_owned()
    };
    let both = json!({ "read_paths": ["/usr/share", ""], "write_paths": ["/usr/local"] });
    for (tools, args, expected) in [
        (json!({}), &[][..], ""),
        (
            both.clone(),
            &[],
            "; you may read and change /usr/local; you may read /usr/share",
        ),
        // A folder of --workspace takes precedence.
        (
            both,
            &["--workspace", "/usr/local/lib"],
            "; you may read /usr/share",
        ),
    ] {
        let runtime = runtime(tools, args);
        let (line, _) = runtime.split_once("\\nChannel").unwrap();
        let open = line.find("; ").map_or("", |at| &line[at..]);
        assert_eq!(open, expected, "{runtime}");
    }
}

#[test]
fn all_conversations_of_a_home_begin_with_the_same_bytes() {
    let model = Model::scripted([Reply::text("Hello."), Reply::text("Hello.")]);
    let home = Home::with(&model.config());
    home.agent(["-s", "one", "-m", "hi"]).exits(0);
    home.agent(["-s", "two", "-m", "something else"]).exits(0);
    let [one, two] = [0, 1].map(|n| model.request(n).body);
    assert_eq!(one["tools"], two["tools"]);
    assert_eq!(one["messages"][0], two["messages"][0]);
    let name = format!("bantam-elsewhere-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let elsewhere = asked(&home, &["--workspace", folder.to_str().unwrap()]);
    std::fs::remove_dir_all(folder).unwrap();
    let [here, there] = [&one, &elsewhere].map(|body| {
        let system = body["messages"][0]["content"].as_str().unwrap();
        let (same, last) = system.split_once("\nWorkspace: ").unwrap();
        assert!(last.lines().count() <= 2, "{last}");
        (same.to_owned(), body["tools"].clone())
    });
    assert_eq!(here.1, there.1);
    // Facts about the user come last; the text before them is equal.
    let before = |text: &str| {
        let own = ["\n\n[USER PREFERENCES]", "\n\n[RUNTIME]"];
        let begin = own.iter().filter_map(|title| text.find(title)).min();
        text[..begin.unwrap()].to_owned()
    };
    assert_eq!(before(&here.0), before(&there.0));
    assert_eq!(tokens("hi there, 2026!"), 7);
}
