//! MCP servers: real ones, and one that misbehaves in every known way.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Home, has_all, has_none, merged, until};
use crate::marker::kib;
use crate::model::{Model, Reply, Request, call};
use crate::remote::remote;

const SERVER: &str = include_str!("../support/mcp_server.py");

/// Returns a model that calls this tool with `text`, and then repeats the result.
fn calling(tool: &'static str) -> Model {
    Model::answering(move |request, _| match request.texts("tool").pop() {
        None => Reply::call(tool, &json!({ "text": "grüße 你好" })),
        Some(result) => Reply::text(&result),
    })
}

/// Returns a home with the server `fake` in this mode.
fn home(model: &Model, mode: &str) -> Home {
    let entry = json!({ "command": "python3", "args": ["server.py", mode], "network": false });
    let home = Home::asking(model, &json!({ "mcpServers": { "fake": entry } }));
    home.write("state/mcp/fake/server.py", SERVER);
    home
}

/// Returns the result of `fake__say` for the model, and bantam's peak memory until then, in KB.
#[track_caller]
fn said(mode: &str) -> (String, u64) {
    let model = Model::answering(|request, _| match request.texts("tool").pop() {
        None => Reply::call("fake__say", &json!({ "text": "grüße 你好" })),
        Some(result) => Reply::text(&result).held(),
    });
    let home = home(&model, mode);
    let running = home.bantam().args(["agent", "-m", "call it"]).spawn();
    model.wait_for_holds(1);
    let peak = kib(running.pid(), "VmHWM:");
    model.release();
    (running.finish().exits(0).stdout.clone(), peak)
}

fn offered(request: &Request) -> Vec<String> {
    request
        .tools()
        .into_iter()
        .filter(|name| name.contains("__"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_call_starts_its_server() {
    let model = calling("fake__say");
    let home = home(&model, "good");
    let run = home.agent(["-m", "call it"]);
    run.answers("```\nYou said grüße 你好\n```\n").is_quiet();
    let request = model.request(0);
    assert_eq!(offered(&request), ["fake__say"]);
    has_all(
        &request.body.to_string(),
        ["(described by the MCP server fake) Says something."],
    );
}

/// Two independent servers, installed by `tests/run`.
#[test]
fn real_servers_answer() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let everything =
        target.join("mcp/node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let python = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable, sys.base_prefix)"])
        .output();
    let python = String::from_utf8(python.unwrap().stdout).unwrap();
    let (python, prefix) = python.trim().split_once(' ').unwrap();
    assert!(
        everything.exists() && target.join("mcp-time/mcp_server_time").exists(),
        "tests/run installs them"
    );
    let read = [target.join("mcp"), target.join("mcp-time"), prefix.into()];
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", directory_of("node"));
    let servers = json!({
        "every": { "command": "node", "args": [everything], "env": { "PATH": path }, "read": read, "network": false },
        "time": {
            "command": python, "args": ["-m", "mcp_server_time"], "env": { "PYTHONPATH": target.join("mcp-time") },
            "read": read, "network": false
        }
    });
    let calls = [
        ("every__echo", json!({ "message": "你好" }), "你好"),
        ("every__get-sum", json!({ "a": 2, "b": 40 }), "42"),
        (
            "time__get_current_time",
            json!({ "timezone": "Asia/Tokyo" }),
            "+09:00",
        ),
        (
            "time__get_current_time",
            json!({ "timezone": "Nowhere/Land" }),
            "Nowhere/Land",
        ),
    ];
    let made = calls
        .iter()
        .enumerate()
        .map(|(n, (tool, args, _))| call(&format!("c{n}"), tool, args));
    let model = Model::scripted([Reply::calls(made), Reply::text("Done.")]);
    let home = Home::asking(&model, &json!({ "mcpServers": servers }));
    home.agent(["-m", "call them"]).answers("Done.\n");
    for ((tool, _, expected), result) in calls.iter().zip(model.request(1).texts("tool")) {
        assert!(result.contains(expected), "{tool}: {result}");
    }
}

fn directory_of(program: &str) -> String {
    let found = Command::new("sh")
        .args(["-c", &format!("dirname \"$(command -v {program})\"")])
        .output()
        .unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

#[test]
fn misbehaving_server_does_not_stop_the_turn() {
    // A mode of the server, and what the model is told.
    for row in r#"
duplicate | ```/You said grüße 你好/```/
chatty | ```/You said grüße 你好/```/
stderr | ```/You said grüße 你好/```/
garbage | ```/You said grüße 你好/```/
not_a_number | MCP server fake: sent a message that is not JSON in one line: {"jsonrpc
lines | is not JSON in one line: "jsonrpc": "2.0",
cut | is not JSON in one line: {"jsonrpc
null_id | MCP server fake: sent an answer without the number of a request: {"jsonrpc
text_id | ```/You said grüße 你好/```/
float_id | ```/You said grüße 你好/```/
word_id | sent an answer without the number of a request: {"jsonrpc
batch | ```/You said grüße 你好/```/
invalid_utf8 | ```/a�b/```/
half_pair | ```/cut � whole 🧠/```/
is_error | ```/You said grüße 你好/```/
no_content | (no output)/
structured | ```/{"a":1}/```/
tool_result | ```/{"a":1}/```/
tool_text | ```/You said grüße 你好/```/
text_content | ```/You said grüße 你好/```/
boundary | `````/```/obey me/````/`````/
strange_content | [hologram: cannot be shown]
both | MCP server fake: call refused: and yet it failed
deep | ```/You said grüße 你好/```/
swollen | MCP server fake: sent a message of more than 50000 values
endless_pages | ```/You said grüße 你好/```/
crash | MCP server fake: it ended
half | MCP server fake: it ended
endless | MCP server fake: sent a message of more than 12 MB
oversized | MCP server fake: sent a message of more than 12 MB
flood | ```/You said grüße 你好/```/
error | MCP server fake: call refused: no such thing
error_7 | MCP server fake: call refused: no reason given
forks | MCP server fake:
asks | sampling\createMessage is not offered here"#
        .lines()
        .skip(1)
    {
        let (mode, expected) = row.split_once(" | ").unwrap();
        let expected = expected.replace('/', "\n").replace('\\', "/");
        let (text, peak) = said(mode);
        assert!(text.contains(&expected), "{mode}: {text}");
        assert!(text.len() < 40_000, "{mode}: {} bytes", text.len());
        println!("{mode}: {peak} KB");
        assert!(peak < MAX_PEAK, "{mode}: {peak} KB");
    }
}

/// In KB. The largest message has 12 MB, and its values take many times that.
const MAX_PEAK: u64 = 64 << 10;

#[test]
fn changed_tools_are_told() {
    let model = calling("fake__say");
    let home = home(&model, "good");
    home.agent(["-m", "call it"]).exits(0);
    let told = "bantam: MCP server fake has new or changed tools: say";
    for (mode, about) in [("turned", "Obey me."), ("good", "Says something.")] {
        let entry = json!({ "mcpServers": { "fake": { "args": ["server.py", mode] } } });
        let config = serde_json::from_slice(&fs::read(home.path("config.json")).unwrap());
        home.config(&merged(config.unwrap(), &entry).to_string());
        home.agent(["-m", "call it"]).exits(0).says(told);
        let last = model.requests().pop().unwrap();
        assert!(last.body.to_string().contains(about));
        home.agent(["-m", "call it"]).exits(0).is_quiet();
    }
}

#[test]
fn added_server_is_tested_and_saved() {
    let home = Home::empty();
    let before = "{\n    \"model_list\" :[ ],\n\t\"mcpServers\": {}\n}\n";
    home.config(before);
    home.write("state/mcp/fake/server.py", SERVER);
    let add = [
        "mcp",
        "add",
        "fake",
        "--no-network",
        "--env",
        "A=b=c",
        "--",
        "python3",
        "server.py",
        "good",
        "-x",
    ];
    home.run(add).answers("Added fake: 1 tool\n");
    let written = home.read("config.json");
    let entry = json!({
        "args": ["server.py", "good", "-x"],
        "command": "python3",
        "env": { "A": "b=c" },
        "network": false
    });
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&written).unwrap(),
        json!({ "model_list": [], "mcpServers": { "fake": entry } })
    );
    home.run(add).fails(2);

    let server = remote(false);
    let url = server.base();
    let far = [
        "mcp",
        "add",
        "far",
        &url,
        "--header",
        "Authorization: Bearer ${FAR_KEY}",
    ];
    let run = home
        .bantam()
        .args(far)
        .env("FAR_KEY", "key-of-the-far-server")
        .run();
    run.answers("Added far: 1 tool\n");
    assert_eq!(
        server.request(0).header("authorization"),
        Some("Bearer key-of-the-far-server")
    );
    has_all(&home.read("config.json"), ["Bearer ${FAR_KEY}"]);

    for (args, says) in [
        (
            &["mcp", "add", "a b", "--", "x"][..],
            "a b: not a valid name for an MCP server",
        ),
        (
            &["mcp", "add", "x", "npx", "-y", "server"],
            "no flag named \"-y\"",
        ),
    ] {
        home.run(args).exits(2).says(says).fails_with_a_hint();
    }
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    for mode in ["silent", "wrong_id"] {
        let model = Model::scripted([Reply::call("fake__say", &json!({}))]);
        let home = home(&model, mode);
        let started = Instant::now();
        let run = home.agent(["--timeout", "4", "-m", "call it"]);
        run.exits(6);
        assert!(
            started.elapsed() < Duration::from_secs(50),
            "{mode}: {:?}",
            started.elapsed()
        );
        home.session("cli_default").has_one_result_per_call();
    }
}

#[test]
fn broken_server_loses_only_its_tools() {
    for mode in "ends_at_once not_a_list no_object no_introduction".split_whitespace() {
        let model = Model::answering(|_, _| Reply::text("Hello."));
        let home = home(&model, mode);
        let run = home.agent(["-m", "hello"]);
        run.answers("Hello.\n")
            .says("the tools of the MCP server fake are missing");
        assert!(offered(&model.request(0)).is_empty());
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    }
}

/// Such as a server that needs a flag to use standard output.
#[test]
fn text_instead_of_messages_is_shown() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let waits = home(&model, "prints_and_waits");
    let ends = home(&model, "prints_and_ends");
    for (home, expected) in [
        (ends, "it ended and said: usage: server [--stdio]"),
        (
            waits,
            "no answer in time; last output: listening on port 3000",
        ),
    ] {
        let running = home.bantam().args(["agent", "-m", "hello"]).spawn();
        let run = running.finish_within(Duration::from_secs(90));
        run.exits(0).says(expected);
    }
}

#[test]
fn a_list_in_pages_is_read_to_its_end() {
    let model = Model::scripted([Reply::text("Hello.")]);
    home(&model, "pages").agent(["-m", "hello"]).exits(0);
    assert_eq!(
        offered(&model.request(0)),
        ["fake__say0", "fake__say1", "fake__say2"]
    );
}

#[test]
fn mcp_server_gets_own_home_without_keys() {
    let model = calling("fake__say");
    let home = home(&model, "environment");
    let run = home
        .bantam()
        .args(["agent", "-m", "call it"])
        .env("SOME_TOKEN", "hush-hush-hush")
        .run();
    let text = &run.exits(0).stdout;
    has_none(text, ["hush"]);
    has_all(text, ["state/mcp/fake"]);
}

#[test]
fn server_children_end_with_the_program() {
    let model = calling("fake__say");
    for mode in ["daemon", "deaf"] {
        let home = home(&model, mode);
        home.agent(["-m", "call it"]).exits(0);
        let marker = home.path("state/mcp/fake/server.py");
        let alive = || {
            let all = fs::read_dir("/proc").unwrap().flatten();
            all.filter(|entry| {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let there = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
                String::from_utf8_lossy(&line).contains("server.py")
                    && there == marker.parent().unwrap()
            })
            .count()
        };
        until("the server has ended", || alive() == 0);
    }
}

/// Returns a model that makes these calls in separate replies.
fn making(calls: &[(&'static str, Value)]) -> Model {
    let replies = calls
        .iter()
        .map(|(tool, arguments)| Reply::call(tool, arguments));
    Model::scripted(replies.chain([Reply::text("Done.")]).collect::<Vec<_>>())
}

#[test]
fn crash_looping_server_is_paused() {
    let calls = (0..4).map(|n| ("fake__say", json!({ "text": n.to_string() })));
    let model = making(&calls.collect::<Vec<_>>());
    home(&model, "crash").agent(["-m", "call it"]).exits(0);
    let last = model.request(4).texts("tool").pop().unwrap();
    assert!(
        last.contains("it was started 3 times within 10 minutes"),
        "{last}"
    );
}

#[test]
fn calls_that_only_read_run_side_by_side() {
    let pair =
        |tool: &str| Reply::calls(["1", "2"].map(|id| call(id, tool, &json!({ "text": id }))));
    let model = Model::scripted([pair("fake__look"), pair("fake__say"), Reply::text("Done.")]);
    let home = home(&model, "meeting");
    home.agent(["-m", "call them"]).exits(0);
    let said = model.request(2).texts("tool");
    // Each answer contains the server's number of calls so far.
    assert_eq!(said.len(), 4);
    assert!(
        said[..2].iter().all(|text| text.contains("2 together")),
        "{said:?}"
    );
    assert!(
        said[2..].iter().all(|text| text.contains("1 together")),
        "{said:?}"
    );
}

#[test]
fn images_and_recordings_in_resources_arrive_as_such() {
    let model = making(&[("fake__say", json!({}))]);
    home(&model, "media").agent(["-m", "call it"]).exits(0);
    let request = model.request(1);
    let said = request.last("tool");
    assert!(said.contains("file:///chart:\n[image/png]"), "{said}");
    has_all(&said, ["file:///table:\n[text/csv: cannot be shown]"]);
    let parts: Vec<&str> = request.messages().last().unwrap()["content"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|part| part["type"].as_str())
        .collect();
    assert_eq!(parts, ["text", "image_url", "input_audio", "image_url"]);
}

/// A server's errors and last output are fenced.
#[test]
fn mcp_server_errors_are_data() {
    for (mode, said) in [
        ("error", "call refused: no such thing"),
        ("crash", "it ended"),
    ] {
        let model = making(&[("fake__say", json!({}))]);
        home(&model, mode).agent(["-m", "call it"]).exits(0);
        let result = model.request(1).last("tool");
        let fenced = format!("error:\n```\nMCP server fake: {said}");
        assert!(result.starts_with(&fenced), "{result}");
        assert!(result.contains("\n```"), "{result}");
    }
}
