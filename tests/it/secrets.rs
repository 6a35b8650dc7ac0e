//! The key is only in `config.json` and on the wire. The harness checks this after every run of every test; these tests cover
//! the possible leaks, and prove that the check works.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;

use crate::harness::{CANARY, Home, has_all, has_none, merged};
use crate::model::{Model, Reply, call, written_call};

#[test]
fn key_is_only_in_config_and_request() {
    let (model, home) = Home::of(Model::scripted([Reply::text("Hello.")]));
    home.agent(["-v", "--json", "-m", "hi"]).exits(0);
    assert_eq!(
        model.request(0).header("authorization"),
        Some(format!("Bearer {CANARY}").as_str())
    );
}

#[test]
fn a_key_that_cannot_be_used_is_not_shown() {
    let home = Home::empty();
    home.config(&format!(
        "{{ \"model_list\": [ {{ \"model_name\": \"a\", \"api_key\": \"{CANARY}\", }} ] }}"
    ));
    home.agent(["-m", "hi"]).exits(3);
    home.config(&format!(
        "{{ \"model_list\": [ {{ \"model_name\": \"a\", \"max_tokens\": \"{CANARY}\" }} ] }}"
    ));
    home.agent(["-m", "hi"]).exits(3);
    home.config(
        &json!({ "model_list": [ { "model_name": "a", "api_key": { "value": CANARY } } ] })
            .to_string(),
    );
    home.agent(["-m", "hi"]).exits(3);
}

/// People paste the output of these commands into reports.
#[test]
fn a_key_in_the_place_of_another_setting_is_not_shown() {
    let demo = |more| {
        merged(
            json!({ "agents": { "defaults": { "model_name": "demo/demo" } } }),
            &more,
        )
    };
    for settings in [
        json!({ "agents": { "defaults": { "model_name": CANARY } } }),
        json!({ "agents": { "defaults": { "model_name": format!("openai:{CANARY}") } } }),
        json!({ "model_list": [ { "model": CANARY, "api_key": "openai/gpt-5" } ] }),
        demo(json!({ "agents": { "defaults": { "model_fallbacks": [CANARY] } } })),
        demo(json!({ CANARY: 1 })),
        demo(json!({ "tools": { "confirm": [CANARY] } })),
        json!({ "agents": { "defaults": { "model_name": format!("server/{CANARY}") } },
            "model_list": [ { "model": "server/*", "api_base": "http://127.0.0.1:1/v1" } ] }),
        demo(json!({ "channels": { "telegram": { "token": "1:a", "allow_from": [CANARY] } } })),
        demo(json!({ "channels": { "http": { "enabled": true, "listen": CANARY } } })),
    ] {
        let home = Home::with(&settings);
        for args in [
            &["status"][..],
            &["status", "--json"],
            &["doctor"],
            &["agent", "-m", "hi"],
            &["config", "get"],
            &["config", "set", "log.level", "warn"],
            &["onboard", "--yes"],
            &["gateway"],
        ] {
            // The gateway would serve with some of them.
            let is_served = args == ["gateway"] && settings["channels"]["http"].is_null();
            if !is_served {
                let run = home.run(args);
                assert!(!run.stdout.contains(CANARY), "{args:?}");
            }
        }
    }
}

#[test]
fn a_base_address_with_a_key_in_it_is_not_shown() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config =
        crate::harness::config_for(&format!("http://user:{CANARY}@{nobody}/v1?key={CANARY}"));
    Home::with(&config).agent(["-v", "-m", "hi"]);
}

#[test]
fn a_key_for_a_tools_name_is_redacted() {
    let model = Model::scripted([Reply::call(CANARY, &json!({})), Reply::text("Hello.")]);
    let home = Home::with(&model.config());
    home.agent(["-v", "--events", "-m", "hi"]).exits(0);
    assert!(!model.request(1).body.to_string().contains(CANARY));
}

#[test]
fn a_key_the_model_says_aloud_is_found_by_the_harness() {
    // Proves that a printed key would be detected, because answers are not redacted.
    let found = catch_unwind(AssertUnwindSafe(|| {
        let home = Home::empty();
        home.write("state/leak.txt", format!("key={CANARY}"));
        home.run(["--version"]);
    }));
    let message = *found.unwrap_err().downcast::<String>().unwrap();
    has_all(&message, ["the API key is in", "leak.txt"]);
}

/// The harness looks for the key in both streams and in every file of the home, and the model's server in each request.
#[test]
fn model_written_key_is_removed_from_reply() {
    let escaped: Vec<String> = CANARY.bytes().map(|b| format!("\\u{b:04x}")).collect();
    let escaped = escaped.concat();
    let write = |id: &str, content: &str| {
        let arguments = format!(r#"{{"path":"{id}.txt","content":"{content}"}}"#);
        written_call(id, "write_file", &arguments)
    };
    let (_model, home) = Home::of(Model::scripted([
        Reply::calls([
            write("a", CANARY),
            write("b", &escaped),
            call(
                "c",
                "memory",
                &json!({ "action": "append", "content": CANARY }),
            ),
            call(
                "d",
                "cron",
                &json!({ "action": "add", "message": CANARY, "every_seconds": 3600 }),
            ),
            call("e", "read_file", &json!({ "path": { CANARY: 1 } })),
            written_call("f", "grep", &format!("{{\"pattern\": {CANARY}")),
        ])
        .saying(&format!("The key is {CANARY}.")),
        // Each event has eight characters.
        Reply::text(&format!("A {CANARY}, and {CANARY}{CANARY}")),
        Reply::text(&format!("Before it: {}", &CANARY[..9])),
    ]));
    let mark = "[secret removed]";
    let first = home.agent(["-v", "--events", "-m", "say it"]);
    first.exits(0);
    let words: String = first
        .json_lines()
        .iter()
        .filter_map(|event| event["delta"].as_str().or(event["text"].as_str()))
        .collect();
    has_all(&words, [&format!("A {mark}, and {mark}{mark}")]);
    // A word that only begins like the key is whole.
    let second = home.agent(["-m", "and now?"]);
    second.answers(&format!("Before it: {}\n", &CANARY[..9]));
    let jobs = home.read("cron/jobs.json");
    assert!(jobs.contains(mark), "{jobs}");
}

#[test]
fn key_anywhere_in_reply_is_removed() {
    let reply = |message: &serde_json::Value| {
        Reply::json(
            200,
            &json!({ "choices": [{ "message": message, "finish_reason": "stop" }] }),
        )
    };
    let detail = json!([{ "type": "reasoning.text", "text": CANARY, "signature": "x" }]);
    for message in [
        json!({ "content": CANARY }),
        json!({ "content": "a", "reasoning_content": CANARY }),
        json!({ "content": "a", "reasoning_details": detail }),
        json!({ "content": null, "refusal": CANARY }),
    ] {
        let model = Model::scripted([reply(&message)]);
        Home::with(&model.config()).agent(["-v", "-m", "hi"]);
    }
}

#[test]
fn model_input_has_no_api_key() {
    // The model's server checks every body for the key.
    let model = Model::scripted([
        Reply::call("read_file", &json!({ "path": "../config.json" })),
        Reply::call("list_dir", &json!({ "path": ".." })),
        Reply::text("Nothing."),
    ]);
    let home = Home::asking(&model, &json!({}));
    home.agent(["-m", "what is the key?"]).answers("Nothing.\n");
}

#[test]
fn printed_key_is_removed_from_output() {
    // Without a sandbox, a command can read the user's files; the key is redacted in its output.
    for level in ["secrets", "off"] {
        let command = json!({ "command": "echo it says: && cat ../config.json" });
        let model = Model::scripted([Reply::call("exec", &command), Reply::text("Nothing.")]);
        let tools = json!({ "tools": { "redact": level, "exec": { "sandbox": "off" } } });
        let home = Home::asking(&model, &tools);
        home.agent(["-v", "-m", "what is the key?"])
            .answers("Nothing.\n");
        has_all(&model.request(1).last("tool"), ["it says:"]);
    }
}

/// Messages about calls are cut, and a cut key would not be recognized.
#[test]
fn key_in_a_wrong_call_is_removed_before_the_call_is_cut() {
    let long = |before: usize| format!("{}{CANARY}{}", "x".repeat(before), "y".repeat(600));
    let calls = [0, 33, 57, 73, 190, 290, 480, 495].map(long).into_iter();
    let calls = calls.flat_map(|text| {
        [
            call("a", "read_file", &json!({ "path": [text] })),
            call("b", "read_file", &json!({ "path": "a", text.clone(): 1 })),
            call("c", "list_dir", &json!({ "depth": text })),
            written_call("d", "grep", &format!("{{\"{text}")),
            call(&text, &text, &json!({})),
        ]
    });
    let model = Model::scripted([Reply::calls(calls), Reply::text("Hello.")]);
    let run = Home::with(&model.config()).agent(["-v", "-m", "hi"]);
    run.exits(0).does_not_say(&CANARY[..8]);
    for told in model.request(1).texts("tool") {
        has_none(&told, [&CANARY[..8]]);
    }
}

#[test]
fn agent_process_is_closed_to_same_user() {
    use std::os::unix::fs::{MetadataExt, chown};
    use std::os::unix::process::CommandExt;

    let (model, home) = Home::of(Model::scripted([Reply::text("Later.").held()]));
    let root = home.path("");
    let mut command = std::process::Command::new(crate::program::program());
    command
        .env_clear()
        .env("BANTAM_HOME", &root)
        .args(["agent", "-n", "-m", "hi"])
        .stdout(std::process::Stdio::null());
    if rustix::process::geteuid().is_root() {
        // Root owns everything, so only an ordinary owner is significant.
        let ordinary = 61_998;
        for path in crate::harness::walk(&root)
            .into_iter()
            .chain([root.clone()])
        {
            chown(path, Some(ordinary), Some(ordinary)).unwrap();
        }
        command.uid(ordinary).gid(ordinary);
    }
    let mut bantam = command.spawn().unwrap();
    model.wait_for_requests(1);
    let owner = std::fs::metadata(format!("/proc/{}/environ", bantam.id()))
        .unwrap()
        .uid();
    model.release();
    assert!(bantam.wait().unwrap().success());
    assert_eq!(
        owner, 0,
        "its environment and memory are open to the user's other processes"
    );
}

#[test]
fn named_secret_is_redacted_and_survives_edits() {
    let env = "DEBUG=0\nDB_PASSWORD=hunter2-obvious-fake\nPORT=80\n";
    let edit = |old: &str, new: &str| {
        let args = json!({ "path": ".env", "old_text": old, "new_text": new });
        Reply::call("edit_file", &args)
    };
    let mark = "DB_PASSWORD=[secret removed]";
    let (model, home) = Home::of(Model::scripted([
        Reply::call("read_file", &json!({ "path": ".env" })),
        Reply::call("exec", &json!({ "command": "grep --color=always = .env" })),
        edit("DEBUG=0\n", &format!("DEBUG=1\n{mark}\n")),
        edit(&format!("{mark}\nPORT=80"), &format!("{mark}\nPORT=81")),
        Reply::call(
            "write_file",
            &json!({ "path": ".env", "content": format!("{mark}\nDEBUG=1\n") }),
        ),
        Reply::call(
            "exec",
            &json!({ "command": format!("echo '{mark}' > .env") }),
        ),
        Reply::call(
            "memory",
            &json!({ "action": "write", "content": format!("The server: {mark}") }),
        ),
        edit("DEBUG=0", "DEBUG=1"),
        Reply::text("Done."),
    ]));
    home.write("workspace/.env", env);
    home.agent(["-v", "-m", "turn debugging on"]).exits(0);
    for request in [1, 2] {
        let told = model.request(request).last("tool");
        assert!(told.contains(mark) && told.contains("PORT=80"), "{told}");
    }
    for request in [3, 5, 6, 7] {
        let told = model.request(request).last("tool");
        assert!(told.contains("stands for a secret"), "{request}: {told}");
    }
    let told = model.request(4).last("tool");
    assert!(told.contains("choose an old_text without it"), "{told}");
    let left = home.read("workspace/.env");
    assert_eq!(left, env.replace("DEBUG=0", "DEBUG=1"));
    // /undo restores the file itself.
    let kept = crate::harness::walk(&home.path("")).into_iter();
    let apart = ["workspace", "state/undo"].map(|dir| home.path(dir));
    for file in kept.filter(|file| !apart.iter().any(|dir| file.starts_with(dir))) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("hunter2"), "{}", file.display());
    }
}

#[test]
fn the_endpoints_token_from_a_file_is_struck_from_results() {
    let token = "obviously-a-fake-word";
    let (model, home) = Home::of(Model::scripted([
        Reply::call("read_file", &json!({ "path": "note.txt" })),
        Reply::text("Done."),
    ]));
    let file = home.write("token", format!("{token}\n"));
    let http = json!({ "enabled": true, "listen": "127.0.0.1:0", "token": format!("file:{}", file.display()) });
    home.reconfigure(&model, &json!({ "channels": { "http": http } }));
    home.write("workspace/note.txt", format!("they say {token} here\n"));
    let gateway = home.bantam().arg("gateway").spawn();
    let door = crate::door::Door {
        address: crate::door::address(&gateway.stderr_line("http://127.0.0.1:")),
    };
    let body = json!({ "messages": [{ "role": "user", "content": "read it" }] });
    let authorization = format!("Authorization: Bearer {token}");
    door.post(&body, &[&authorization]).is(200);
    gateway.signal(rustix::process::Signal::TERM);
    gateway.finish().exits(0);
    let told = model.request(1).last("tool");
    assert!(told.contains("they say [secret removed] here"), "{told}");
}

#[test]
fn user_written_value_is_not_redacted() {
    let read = || Reply::call("read_file", &json!({ "path": ".env" }));
    let env = "DB_PASSWORD=hunter2-obvious-fake\nAPI_TOKEN=1a2b3c4d5e\n";
    for (redact, question, shown) in [
        ("secrets", "set it", [false, false]),
        ("secrets", "set it to hunter2-obvious-fake", [true, false]),
        ("keys", "set it", [true, true]),
        ("off", "set it", [true, true]),
    ] {
        let model = Model::scripted([read(), Reply::text("Done.")]);
        let config = merged(model.config(), &json!({ "tools": { "redact": redact } }));
        let home = Home::with(&config);
        home.write("workspace/.env", env);
        home.agent(["-m", question]).exits(0);
        let told = model.request(1).last("tool");
        let found = ["hunter2-obvious-fake", "1a2b3c4d5e"].map(|value| told.contains(value));
        assert_eq!(found, shown, "{redact}, {question}: {told}");
    }
}

/// The text is fenced and redacted before NUL, which hosts refuse, is removed.
#[test]
fn nul_does_not_defeat_redaction_or_fences() {
    let command = format!("printf '{}\\0{}\n'", &CANARY[..12], &CANARY[12..]);
    let (model, home) = Home::of(Model::scripted([
        Reply::call("exec", &json!({ "command": command })),
        Reply::text("Done."),
    ]));
    home.agent(["-m", "go"]).exits(0);
    let told = model.request(1).last("tool");
    assert!(!told.contains(CANARY) && !told.contains('\0'), "{told:?}");
    assert!(told.contains(&CANARY[12..]), "{told:?}");
}
