//! Tools must be unable to change what runs with an MCP server's keys and network.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};

use crate::harness::{Home, merged};
use crate::model::{Model, Reply};

const SERVER: &str = include_str!("../support/mcp_server.py");

/// Returns a model that calls this tool, and then repeats the result.
fn calling(tool: &'static str) -> Model {
    Model::answering(move |request, _| match request.texts("tool").pop() {
        None => Reply::call(tool, &json!({ "text": "hello" })),
        Some(result) => Reply::text(&result),
    })
}

fn home(model: &Model, entry: &Value) -> Home {
    Home::asking(model, &json!({ "mcpServers": { "fake": entry } }))
}

/// `python3 -m` and `npx` search the working directory first.
#[test]
fn server_starts_in_its_own_directory() {
    let model = calling("fake__say");
    let outside = Home::empty();
    outside.write("lib/server.py", SERVER);
    let lib = outside.path("lib");
    let home = home(
        &model,
        &json!({
            "command": "python3", "args": ["-m", "server", "environment"], "network": false,
            "env": { "PYTHONPATH": lib }, "read": [lib]
        }),
    );
    home.write(
        "workspace/json.py",
        "open('/proc/self/cwd/owned', 'w').write('by the workspace')\n",
    );
    let run = home.agent(["-m", "call it"]);
    let text = &run.exits(0).stdout;
    let own = home.path("state/mcp/fake");
    assert!(!home.path("workspace/owned").exists(), "{text}");
    for name in ["HOME", "CWD"] {
        let expected = format!("\"{name}\": \"{}\"", own.display());
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    let mode = fs::metadata(&own).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn tool_writable_program_is_refused_as_server() {
    let model = Model::scripted([]);
    let elsewhere = Home::empty();
    let apart = elsewhere.write("server.py", SERVER);
    let shared = elsewhere.dir("shared");
    elsewhere.write("shared/server.py", SERVER);
    let link = elsewhere.path("link.py");
    symlink(elsewhere.path("shared/server.py"), &link).unwrap();
    let home = Home::with(&model.config());
    let workspace = home.dir("workspace/bin");
    let workspace = workspace.parent().unwrap();
    let script = home.write("workspace/server.py", SERVER);
    let program = home.write("workspace/bin/python3", "#!/bin/sh\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let path = format!("{}:/usr/bin", workspace.join("bin").display());
    let flag = format!("--require={}", script.display());
    for (entry, says) in [
        (json!({ "command": program }), "mcpServers.fake.command"),
        (
            json!({ "command": "python3", "env": { "PATH": path } }),
            "mcpServers.fake.command",
        ),
        (
            json!({ "command": "python3", "args": [script] }),
            "mcpServers.fake.args",
        ),
        (
            json!({ "command": "python3", "args": [flag] }),
            "mcpServers.fake.args",
        ),
        (
            json!({ "command": "python3", "args": [link] }),
            "mcpServers.fake.args",
        ),
        (
            json!({ "command": "python3", "args": ["x"], "cwd": workspace }),
            "mcpServers.fake.cwd",
        ),
    ] {
        home.reconfigure(
            &model,
            &json!({
                "mcpServers": { "fake": entry }, "tools": { "write_paths": [shared] }
            }),
        );
        let run = home.run(["mcp", "test", "fake"]);
        run.exits(3)
            .says(says)
            .says("which tools can change")
            .says("state/mcp/fake");
    }
    // A server works with a directory of the workspace, but does not run it.
    let entry = json!({
        "command": "python3", "args": [apart, "good", workspace], "read": [apart], "network": false
    });
    home.reconfigure(
        &model,
        &json!({ "mcpServers": { "fake": entry }, "tools": { "write_paths": [shared] } }),
    );
    home.run(["mcp", "test", "fake"]).exits(0);
}

/// Programs find code in more ways than can be listed, so servers with keys or network cannot see the workspace.
#[test]
fn server_with_keys_runs_no_workspace_code() {
    let (model, home) = Home::of(Model::scripted([]));
    let outside = Home::empty();
    let workspace = home.dir("workspace");
    let python = "import os\nopen(os.environ['HOME'] + '/owned', 'w').write(os.environ['KEY'])\n";
    home.write("workspace/pkg/__main__.py", python);
    home.write("workspace/evil.py", python);
    home.write("workspace/evil.sh", "echo \"$KEY\" >\"$HOME/owned\"\n");
    let perl = "open(my $f, '>', \"$ENV{HOME}/owned\"); print $f $ENV{KEY}; 1;\n";
    home.write("workspace/Evil.pm", perl);
    let interpreter = home.write(
        "workspace/sh",
        "#!/bin/sh\necho \"$KEY\" >\"$HOME/owned\"\n",
    );
    let script = outside.write("server.sh", format!("#!{}\n", interpreter.display()));
    for program in [&interpreter, &script] {
        fs::set_permissions(program, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let link = outside.path("pkg");
    symlink(workspace.join("pkg"), &link).unwrap();
    let shown = workspace.display();
    let package = json!({ "command": "python3", "args": [format!("{shown}/pkg")] });
    let entries = [
        package.clone(),
        json!({ "command": "python3", "args": [link] }),
        json!({ "command": "env", "args": ["-C", workspace, "python3", "-m", "evil"] }),
        json!({ "command": "env", "args": [format!("PYTHONPATH={shown}"), "python3", "-m", "evil"] }),
        json!({ "command": "sh", "args": ["-c", format!("exec python3 {shown}/evil.py")] }),
        json!({ "command": "perl", "args": [format!("-I{shown}"), "-MEvil", "-e", "1"] }),
        json!({ "command": "bash", "args": ["-c", ":"], "env": { "BASH_ENV": format!("{shown}/evil.sh") } }),
        json!({ "command": script }),
    ];
    let owned = home.path("state/mcp/fake/owned");
    let run = |entry: &Value, more: &Value| {
        let entry = merged(
            merged(
                entry.clone(),
                &json!({ "env": { "KEY": "of-the-server" }, "read": [outside.path("")] }),
            ),
            more,
        );
        let servers = json!({ "mcpServers": { "fake": entry } });
        home.reconfigure(&model, &servers);
        home.run(["mcp", "test", "fake"])
    };
    for entry in &entries {
        for network in [false, true] {
            let run = run(entry, &json!({ "network": network }));
            assert!(!owned.exists(), "{entry} {}", run.stderr);
        }
    }
    run(&package, &json!({})).exits(1).says("--write DIR");
    // Naming the workspace means trusting its content.
    run(&package, &json!({ "write": [workspace] })).exits(1);
    assert_eq!(fs::read_to_string(&owned).unwrap(), "of-the-server");
}

#[test]
fn server_network_access_is_shown() {
    let model = Model::scripted([]);
    let home = home(
        &model,
        &json!({ "command": "python3", "args": ["server.py"], "network": true }),
    );
    home.write("state/mcp/fake/server.py", SERVER);
    home.write("state/mcp/closed/server.py", SERVER);
    let open = "the internet, this machine's ports and your local network";
    let list = home.run(["mcp", "list"]);
    list.exits(0).shows("  full  ");
    let add = |more: &[&str]| {
        let name = if more.is_empty() { "open" } else { "closed" };
        home.write(&format!("state/mcp/{name}/server.py"), SERVER);
        let args = [&["mcp", "add", name], more, &["--", "python3", "server.py"]].concat();
        home.run(args)
    };
    add(&[]).exits(0).says(open);
    add(&["--no-network"]).exits(0).does_not_say(open);
}
