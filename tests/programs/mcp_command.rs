//! `bantam mcp`: adding servers that start, removing, disabling and enabling them, and the offered tools.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Home, has_all, merged};
use crate::model::{Model, Reply, Request};

const SERVER: &str = include_str!("../support/mcp_server.py");

fn config(home: &Home) -> Value {
    serde_json::from_slice(&fs::read(home.path("config.json")).unwrap()).unwrap()
}

fn offered(request: &Request) -> Vec<String> {
    let names = request.tools().into_iter();
    names
        .filter(|name| name.contains("__"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn server_failing_to_start_is_not_added() {
    let home = Home::empty();
    home.config("{}");
    let add = |more: &[&str]| {
        let args = [&["mcp", "add", "bad"], more].concat();
        home.run(args)
    };
    let script = "import sys; [print('line', n, file=sys.stderr) for n in range(30)]";
    let run = add(&["--", "python3", "-c", script]);
    run.exits(1)
        .says("bad is not added: ")
        .says("line 29")
        .fails_with_a_hint();
    assert_eq!(config(&home), json!({}));
    assert!(!home.path("state/mcp/bad").exists());
    // It may have lacked a directory.
    run.says("bantam mcp add bad --read DIR -- python3 -c ");
    let run = add(&["--", "no-such-program"]);
    run.exits(2)
        .says("no program named \"no-such-program\"")
        .fails_with_a_hint();
    assert_eq!(config(&home), json!({}));
}

#[test]
fn servers_are_removed_disabled_and_checked_by_doctor() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let entry = json!({ "command": "python3", "args": ["server.py"], "network": false });
    let home = Home::asking(&model, &json!({ "mcpServers": { "fake": entry } }));
    home.write("state/mcp/fake/server.py", SERVER);
    let mcp = |args: &[&str]| home.bantam().arg("mcp").args(args).run();
    let doctor = || home.run(["doctor"]).stdout.clone();
    let last = || {
        home.agent(["-m", "hello"]).exits(0);
        offered(&model.requests().pop().unwrap())
    };
    assert_eq!(last(), ["fake__say"]);
    let set = |value: &str| {
        let args = ["config", "set", "mcpServers.fake.disabled", value];
        home.run(args).exits(0);
    };
    set("true");
    assert!(last().is_empty());
    assert!(doctor().contains("fake: disabled"));
    set("false");
    assert_eq!(last(), ["fake__say"]);
    assert!(doctor().contains("fake: 1 tool"));
    home.write("state/mcp/fake/server.py", "raise SystemExit('no more')");
    let told = doctor();
    has_all(
        &told,
        ["fake: starting MCP server fake: it ended and said: no more"],
    );
    for command in ["remove", "test"] {
        mcp(&[command, "fak"]).exits(2).says("did you mean `fake`");
    }
    mcp(&["remove", "--yes", "fake"]).answers("Removed fake\n");
    assert_eq!(config(&home)["mcpServers"], json!({}));
    assert!(!home.path("state/mcp/fake").exists());
    assert!(!home.path("state/mcp/fake.json").exists());
}

#[test]
fn server_reads_the_script_on_its_command_line() {
    let (home, mine) = (Home::empty(), Home::empty());
    home.config("{}");
    let script = mine.write("garden.py", SERVER);
    let mcp = |args: &[&str]| home.bantam().arg("mcp").args(args).cwd(mine.path(""));
    let add = mcp(&["add", "garden", "--", "python3", "garden.py", "${MODE}"]);
    add.env("MODE", "good")
        .run()
        .answers("Added garden: 1 tool\n");
    let entry = &config(&home)["mcpServers"]["garden"];
    assert_eq!(entry["read"], json!([script]));
    assert_eq!(entry["args"], json!([script, "${MODE}"]));
    mcp(&["test", "garden"])
        .run()
        .exits(3)
        .says("MODE is not set");
    let inline = mcp(&[
        "add",
        "other",
        "--",
        "python3",
        "garden.py",
        "${MODE:-good}",
    ]);
    inline.run().exits(0);
    // Alone, and with a directory that contains it.
    let script = mine.write("lib/garden.py", SERVER);
    for (name, read) in [("a", "."), ("b", "lib"), ("c", "lib/garden.py")] {
        let script = script.to_str().unwrap();
        let add = mcp(&["add", name, "--read", read, "--", "python3", script, "good"]);
        add.run().answers(&format!("Added {name}: 1 tool\n"));
    }
    let read = std::path::absolute(mine.path("lib")).unwrap();
    assert_eq!(config(&home)["mcpServers"]["b"]["read"], json!([read]));
}

/// 500 tools add 8.7 MB to every request.
#[test]
fn mcp_tools_per_request_are_limited() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let entry =
        |mode: &str| json!({ "command": "python3", "args": ["server.py", mode], "network": false });
    let servers = json!({ "big": entry("many"), "small": entry("good") });
    let config = |more: &Value| {
        merged(
            merged(model.config(), &json!({ "mcpServers": servers })),
            more,
        )
    };
    let home = Home::with(&config(&json!({})));
    home.write("state/mcp/big/server.py", SERVER);
    home.write("state/mcp/small/server.py", SERVER);
    let run = home.agent(["-m", "hello"]);
    run.exits(0)
        .says("the MCP server big offers 500 tools")
        .says("mcpServers.big.tools")
        .says("tools.mcp_kb");
    let request = model.requests().pop().unwrap();
    let names = offered(&request);
    assert!(names.contains(&"small__say".to_owned()), "{names:?}");
    let tools = request.body["tools"].as_array().unwrap();
    let of_servers = tools
        .iter()
        .filter(|tool| tool["function"]["name"].as_str().unwrap().contains("__"));
    let bytes: usize = of_servers.map(|tool| tool.to_string().len()).sum();
    assert!((32 << 10..64 << 10).contains(&bytes), "{bytes}");
    // Only the chosen tools are offered.
    home.config(
        &config(&json!({ "mcpServers": { "big": { "tools": ["tool7", "none"] } } })).to_string(),
    );
    let run = home.agent(["-m", "hello"]);
    run.exits(0)
        .says("mcpServers.big.tools names tools that the server does not offer");
    let names = offered(&model.requests().pop().unwrap());
    assert_eq!(names, ["big__tool7", "small__say"]);
}
