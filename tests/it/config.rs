//! Origins of settings, and errors about invalid ones.

use serde_json::json;

use crate::harness::{CANARY, Home, config_for, merged};
use crate::model::{Model, Reply};

/// Returns the error of a question in a home with this configuration, which must exit with 3.
#[track_caller]
fn refused(text: &str) -> String {
    let home = Home::empty();
    home.config(text);
    let run = home.agent(["-m", "hi"]);
    run.exits(3).prints("").fails_with_a_hint();
    run.stderr.clone()
}

/// Whether `text` names this line, as `config.json:2:9` or as `line 2 column 9`, with a column.
fn names_line(text: &str, line: usize) -> bool {
    [
        format!("config.json:{line}:"),
        format!("line {line}, column "),
        format!("line {line} column "),
    ]
    .iter()
    .filter_map(|start| text.split(start.as_str()).nth(1))
    .any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[test]
fn a_model_without_its_key_exits_3_and_names_the_variable() {
    let error = refused(
        r#"{ "agents": { "defaults": { "model_name": "m" } },
             "model_list": [ { "model_name": "m", "model": "deepseek/deepseek-chat" } ] }"#,
    );
    assert!(error.contains("DEEPSEEK_API_KEY"), "{error}");
}

#[test]
fn a_configuration_that_is_not_json_is_located() {
    let error = refused("{\n  \"agents\": {\n    \"defaults\": nope\n  }\n}\n");
    assert!(names_line(&error, 3), "line 3 and a column: {error}");
    let error = refused("{\n  \"agents\": {},\n}\n");
    assert!(
        names_line(&error, 3) || names_line(&error, 2),
        "the comma too many: {error}"
    );
    let error = refused("");
    assert!(error.contains("config.json is empty"), "{error}");
}

#[test]
fn a_value_of_the_wrong_kind_is_located_and_named() {
    let error =
        refused("{\n  \"agents\": {\n    \"defaults\": { \"max_tokens\": \"many\" }\n  }\n}\n");
    assert!(error.contains("max_tokens"), "{error}");
    let error = refused(r#"{ "agents": { "defaults": { "max_retries": -1 } } }"#);
    assert!(error.contains("max_retries"), "{error}");
    let error = refused(r#"{ "model_list": { "model_name": "test" } }"#);
    assert!(error.contains("model_list"), "{error}");
}

#[test]
fn unknown_key_warns_with_a_suggestion() {
    let model = Model::scripted([
        Reply::text("One."),
        Reply::text("Two."),
        Reply::text("Three."),
    ]);
    let extra = json!({ "agents": { "defaults": { "max_tokns": 5 } }, "chanels": {}, "tools": { "exec": { "sandbx": "off" } } });
    let home = Home::with(&merged(model.config(), &extra));
    let run = home.agent(["-m", "hi"]);
    run.exits(0).prints("One.\n");
    for (unknown, known) in [
        ("max_tokns", "max_tokens"),
        ("chanels", "channels"),
        ("sandbx", "sandbox"),
    ] {
        let lines = run.stderr.lines();
        let warned = lines
            .filter(|line| line.contains(unknown) && line.contains(known))
            .count();
        assert_eq!(
            warned, 1,
            "one line with {unknown} and {known}: {}",
            run.stderr
        );
    }
    home.agent(["-q", "-m", "hi"])
        .exits(0)
        .prints("Two.\n")
        .is_quiet();
    let run = home.agent(["--json", "-q", "-m", "hi"]);
    assert_eq!(run.json()["output"], "Three.");
}

#[test]
fn camel_case_reads_as_snake_case() {
    let model = Model::scripted([Reply::text("One.")]);
    let config = json!({
        "agents": { "defaults": { "modelName": "test", "maxTokens": 77 } },
        "modelList": [ { "modelName": "test", "model": "openai/test-model", "apiBase": model.base(), "apiKey": CANARY } ]
    });
    let home = Home::with(&config);
    home.agent(["-m", "hi"])
        .exits(0)
        .prints("One.\n")
        .is_quiet();
    let body = model.request(0).body;
    assert!(
        [&body["max_tokens"], &body["max_completion_tokens"]].contains(&&json!(77)),
        "{body}"
    );
}

#[test]
fn the_environment_beats_the_file_and_a_flag_beats_the_environment() {
    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let mut config = model.config();
    for name in ["second", "third"] {
        let entry = merged(
            config["model_list"][0].clone(),
            &json!({ "model_name": name, "model": format!("openai/{name}") }),
        );
        config["model_list"].as_array_mut().unwrap().push(entry);
    }
    let home = Home::with(&config);
    let ask = || {
        home.bantam()
            .env("BANTAM_AGENTS_DEFAULTS_MODEL_NAME", "second")
            .args(["agent", "-m", "hi"])
    };
    ask().run().exits(0);
    assert_eq!(model.request(0).body["model"], "second");
    ask().args(["--model", "third"]).run().exits(0);
    assert_eq!(model.request(1).body["model"], "third");
}

#[test]
fn invalid_model_or_address_gets_a_hint() {
    let config = config_for("127.0.0.1:1/v1");
    let home = Home::with(&config);
    home.agent(["-m", "hi"])
        .exits(3)
        .says("has no scheme")
        .says("hint: write http://127.0.0.1:1/v1");
    home.agent(["--model", "gpt-5", "-m", "hi"])
        .exits(2)
        .says("no model named \"gpt-5\"");
}

#[test]
fn key_falls_back_to_vendor_variable() {
    let model = Model::scripted([Reply::text("One.")]);
    let home = Home::with(&merged(
        model.config(),
        &json!({ "model_list": [ { "api_key": "" } ] }),
    ));
    home.bantam()
        .env("OPENAI_API_KEY", CANARY)
        .args(["agent", "-m", "hi"])
        .run()
        .exits(0);
    assert_eq!(
        model.request(0).header("authorization"),
        Some(format!("Bearer {CANARY}").as_str())
    );
}

#[test]
fn model_headers_and_extra_fields_are_sent() {
    let model = Model::scripted([Reply::text("One.")]);
    let extra = json!({
        "model_list": [ { "headers": { "X-Test": "yes" }, "extra_body": { "top_k": 7 }, "temperature": 0.5, "max_tokens": 99 } ]
    });
    let home = Home::with(&merged(model.config(), &extra));
    home.agent(["-m", "hi"]).exits(0);
    let request = model.request(0);
    assert_eq!(request.header("x-test"), Some("yes"));
    assert_eq!(request.body["top_k"], 7);
    assert_eq!(request.body["temperature"], 0.5);
    assert!(
        [
            &request.body["max_tokens"],
            &request.body["max_completion_tokens"]
        ]
        .contains(&&json!(99))
    );
}

#[test]
fn unset_options_are_not_sent() {
    let model = Model::scripted([Reply::text("One.")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0);
    let body = model.request(0).body;
    let sent: Vec<&String> = body.as_object().unwrap().keys().collect();
    let known = [
        "model",
        "messages",
        "tools",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
    ];
    assert!(
        sent.iter().all(|field| known.contains(&field.as_str())),
        "sent {sent:?}"
    );
}

/// Makes a home at `place` in the test's home, and asks a question that finds it only by `variable`. The key comes from the
/// environment, because the harness allows it only in the usual `config.json`.
#[track_caller]
fn is_found(variable: &str, value: &str, place: &str) {
    let model = Model::scripted([Reply::text("One.")]);
    let home = Home::empty();
    let config = merged(
        model.config(),
        &json!({ "model_list": [ { "api_key": "" } ] }),
    );
    home.write(&format!("{place}/config.json"), config.to_string());
    let asked = home
        .bantam()
        .without("BANTAM_HOME")
        .env(variable, home.path(value));
    asked
        .env("OPENAI_API_KEY", CANARY)
        .args(["agent", "-m", "hi"])
        .run()
        .exits(0)
        .prints("One.\n");
    assert!(
        home.path(&format!("{place}/sessions/cli_default.jsonl"))
            .is_file(),
        "{:?}",
        home.files()
    );
    assert!(!home.path("sessions").exists());
}

#[test]
fn home_is_found_by_variable_or_default() {
    is_found("BANTAM_HOME", "elsewhere", "elsewhere");
    is_found("STATE_DIRECTORY", "service", "service");
    is_found("HOME", "user", "user/.bantam");
}

#[test]
fn a_home_is_made_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let model = Model::scripted([Reply::text("One.")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0);
    let open: Vec<String> = crate::harness::walk(&home.path(""))
        .into_iter()
        .filter(|path| !path.starts_with(home.path("workspace")))
        .filter(|path| path.metadata().unwrap().permissions().mode() & 0o077 != 0)
        .map(|path| path.display().to_string())
        .collect();
    assert!(open.is_empty(), "readable by others: {open:?}");
}

#[test]
fn a_setting_is_changed_and_the_rest_keeps_its_order() {
    let home = Home::empty();
    home.config(concat!(
        r#"{"model_list":[{"model":"demo/demo","extra_body":{"hens":[1,{"b":null}],"a":2}}],"#,
        r#""agents":{"defaults":{"timeout":5}}}"#
    ));
    let set = |path: &str, value: &str| home.bantam().args(["config", "set", path, value]).run();
    let written = || std::fs::read_to_string(home.path("config.json")).unwrap();
    let run = set("agents.defaults.timeout", "60");
    run.exits(0).prints("").is_quiet();
    let run = set("channels.telegram.allowFrom", "12, 34");
    run.exits(0).is_quiet();
    set("model_list[0].headers.X-Title", "hens")
        .exits(0)
        .is_quiet();
    let made = r#"{
  "model_list": [
    {
      "model": "demo/demo",
      "extra_body": {
        "hens": [
          1,
          {
            "b": null
          }
        ],
        "a": 2
      },
      "headers": {
        "X-Title": "hens"
      }
    }
  ],
  "agents": {
    "defaults": {
      "timeout": 60
    }
  },
  "channels": {
    "telegram": {
      "allow_from": [
        "12",
        "34"
      ]
    }
  }
}
"#;
    assert_eq!(written(), made);

    for (path, value, says) in [
        ("agents.defaults.timeout", "soon", "use an integer"),
        (
            "agents.defaults.timeot",
            "5",
            "did you mean `agents.defaults.timeout`?",
        ),
        ("timeout", "5", "did you mean `agents.defaults.timeout`?"),
        ("mcpServers.time", "uvx", "use an object"),
        ("tools.exec.network", "some", "use one of: none"),
        ("model_list.0.api_key", "", ""),
    ] {
        let run = set(path, value);
        match says {
            "" => run.exits(0),
            says if says.starts_with("did you mean") => run.exits(2).fails_with_a_hint().says(says),
            says => run.exits(2).prints("").fails_with_a_hint().says(says),
        };
    }
    set("model_list.7.model", "a/b")
        .exits(3)
        .fails_with_a_hint()
        .says("model_list[7].model");

    let get = |path: &str| home.bantam().args(["config", "get", path]).run();
    get("agents.defaults.timeout")
        .exits(0)
        .prints("60\n")
        .is_quiet();
    get("agents.defaults.max_tokens").exits(0).prints("8192\n");
    get("model_list.0.model").exits(0).prints("demo/demo\n");
    let run = get("agents.defaults");
    let section: serde_json::Value = serde_json::from_str(&run.exits(0).stdout).unwrap();
    assert_eq!(section["timeout"], 60);
    get("model_list.7")
        .exits(2)
        .prints("")
        .says("no entry named \"model_list[7]\"");
    let run = home.bantam().args(["config", "get"]).run();
    let shown = &run.exits(0).stdout;
    assert!(
        shown.contains("agents.defaults.timeout") && shown.contains("config.json"),
        "{shown}"
    );
    home.bantam()
        .args(["config", "set", "channels.telegram.token", "-"])
        .stdin(CANARY)
        .run()
        .exits(0)
        .is_quiet();
    assert!(written().contains(CANARY));
    get("channels.telegram.token").exits(0).prints("(set)\n");
    let run = home.bantam().args(["config", "get"]).run();
    assert!(!run.exits(0).stdout.contains(CANARY), "{}", run.stdout);
}

#[test]
fn a_value_that_can_never_work_is_not_saved() {
    let home = Home::empty();
    home.config(r#"{"model_list":[{"model":"openai/x"}],"hens":1}"#);
    let written = || std::fs::read_to_string(home.path("config.json")).unwrap();
    let set = |path: &str, value: &str| home.bantam().args(["config", "set", path, value]).run();
    let before = written();
    for (path, value, says) in [
        ("agents.defaults.model_name", "nosuch", "no model named"),
        (
            "agents.defaults.model_fallbacks",
            "nosuch",
            "no model named",
        ),
        ("tools.transcribe.model", "nosuch", "no model named"),
        ("agents.defaults.timeout", "-5", "1 or more"),
        ("agents.defaults.workspace", "/etc/passwd", "is a file"),
        (
            "agents.defaults.workspace",
            "/etc/passwd/mine/work",
            "/etc/passwd is a file",
        ),
        (
            "agents.defaults.workspace",
            "/",
            "agents.defaults.workspace",
        ),
        ("tools.read_paths", "/no/such/tree", "does not exist"),
        ("tools.read_paths", "[\"/usr", "use a list"),
        ("tools.write_paths", "{\"/usr\"", "use a list"),
        ("tools.read_paths", "\"/usr", "use a list"),
        ("tools.read_paths", "{\"a\":1}", "use a list"),
        ("session.compact_at", "7", "0.1 to 1"),
        ("model_list.0.api_base", "127.0.0.1:1/v1", "has no scheme"),
        (
            "model_list.0.api_base",
            "http://models.example.com/v1",
            "public host",
        ),
        ("model_list.0.api_key", "$NOPE", "looks like a variable"),
        ("channels.telegram.allow_from", "@me", "not a numeric id"),
        (
            "channels.telegram.api_base",
            "api.example.com",
            "must begin with",
        ),
        (
            "tools.web.search.base_url",
            "searx.example.com",
            "must begin with",
        ),
        ("heartbeat.to", "me", "invalid destination"),
    ] {
        let run = set(path, value);
        run.exits(2).prints("").fails_with_a_hint().says(says);
        assert_eq!(written(), before, "{path}");
    }

    // An earlier problem remains.
    home.config(r#"{"agents":{"defaults":{"model_name":"nosuch"}}}"#);
    let run = set("agents.defaults.timeout", "60");
    run.exits(0).says("warning: ").says("no model named");
}

#[test]
fn an_incomplete_value_is_saved_with_a_warning() {
    let home = Home::empty();
    home.config(r#"{"model_list":[{"model":"demo/demo"}]}"#);
    let set = |path: &str, value: &str| home.bantam().args(["config", "set", path, value]).run();
    for (entry, model) in ["x", "acme/x", "y", "azure/x"].into_iter().enumerate() {
        let run = set(&format!("model_list.{entry}.model"), model);
        run.exits(0)
            .prints("")
            .says("warning: saved, but")
            .says("api_base");
        assert!(!run.stderr.contains("error:"), "{}", run.stderr);
        let run = set(
            &format!("model_list.{entry}.api_base"),
            "http://127.0.0.1:1/v1",
        );
        run.exits(0).is_quiet();
    }
}

#[test]
fn relative_path_setting_reports_its_target() {
    let home = Home::empty();
    home.config(r#"{"model_list":[{"model":"demo/demo"}]}"#);
    let here = std::fs::canonicalize(home.dir("../here")).unwrap();
    let at = |path: &str| here.join(path).display().to_string();
    let set = |path: &str, value: &str| {
        let run = home
            .bantam()
            .args(["config", "set", path, value])
            .cwd(&here);
        let run = run.run();
        run.exits(0).prints("");
        run.stderr.clone()
    };
    let get = |path: &str| home.bantam().args(["config", "get", path]).run();
    let told = set("agents.defaults.workspace", &at("later"));
    assert_eq!(
        told,
        format!(
            "bantam: agents.defaults.workspace: {} does not exist yet; bantam creates it when it is first needed\n",
            at("later")
        )
    );
    std::fs::create_dir(here.join("work")).unwrap();
    let told = set("agents.defaults.workspace", "work");
    assert_eq!(told, format!("bantam: work is taken as {}\n", at("work")));
    get("agents.defaults.workspace").prints(&format!("{}\n", at("work")));
    std::fs::create_dir(here.join("books")).unwrap();
    let told = set("tools.read_paths", "[\"books\"]");
    assert_eq!(told, format!("bantam: books is taken as {}\n", at("books")));
    for (setting, path) in [
        ("agents.defaults.workspace", "/etc"),
        ("tools.write_paths", "/usr/share/doc"),
    ] {
        let told = set(setting, path);
        assert_eq!(
            told,
            format!(
                "bantam: {setting}: {path} belongs to the system, and the agent's tools can now change and delete what is in it\n"
            )
        );
    }
    get("tools.read_paths").prints(&format!("[\"{}\"]\n", at("books")));
}

#[test]
fn a_setting_is_taken_out_again() {
    let home = Home::empty();
    home.config(concat!(
        r#"{"agents":{"defaults":{"timeout":5,"maxTokens":7}},"hens":1,"#,
        r#""model_list":[{"model":"demo/demo"},{"model":"demo/other"}]}"#
    ));
    let unset = |path: &str| home.bantam().args(["config", "unset", path]).run();
    let written = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(home.path("config.json")).unwrap()).unwrap()
    };
    unset("hens").exits(0).prints("").is_quiet();
    unset("agents.defaults.max_tokens").exits(0).is_quiet();
    unset("model_list[1]").exits(0).is_quiet();
    let left = json!({
        "agents": { "defaults": { "timeout": 5 } },
        "model_list": [{ "model": "demo/demo" }]
    });
    assert_eq!(written(), left);
    for path in ["hens", "agents.defaults.max_tokens", "model_list.1", "log"] {
        unset(path)
            .exits(2)
            .prints("")
            .fails_with_a_hint()
            .says("no entry named");
    }
    assert_eq!(written(), left);
}

#[test]
fn broken_config_is_not_overwritten() {
    let home = Home::empty();
    home.bantam()
        .args(["config", "set", "model_list.0.model", "demo/demo"])
        .run()
        .exits(0)
        .is_quiet();
    home.agent(["-n", "list files"]).exits(0);
    home.config("{ \"agents\": }");
    home.bantam()
        .args(["config", "set", "log.json", "true"])
        .run()
        .exits(3)
        .prints("")
        .says("line 1, column 13");
    assert_eq!(
        std::fs::read_to_string(home.path("config.json")).unwrap(),
        "{ \"agents\": }"
    );
}

#[test]
fn invalid_config_edit_is_kept_as_draft() {
    let home = Home::empty();
    home.config("{ \"agents\": { \"defaults\": { \"timeout\": 5 } } }");
    let written = || std::fs::read_to_string(home.path("config.json")).unwrap();
    let edit = |editor: &str| {
        let mut running = home
            .bantam()
            .args(["config", "edit"])
            .env("EDITOR", editor)
            .on_a_terminal()
            .silent_stdin()
            .spawn();
        if editor.ends_with("soon/") {
            running.wait_for_stdout("[Y/n]");
            running.types("n\n");
        }
        running.finish()
    };
    edit("sed -i s/5/70/").exits(0);
    assert!(written().contains(": 70 "), "{}", written());
    let run = edit("sed -i s/70/soon/");
    run.exits(2);
    assert!(written().contains(": 70 "), "{}", written());
    assert!(
        std::fs::read_to_string(home.path("config.json.draft"))
            .unwrap()
            .contains("soon")
    );
    edit("sed -i s/soon/80/").exits(0);
    assert!(
        written().contains(": 80 ") && !home.path("config.json.draft").exists(),
        "{}",
        written()
    );
    let run = edit("no-such-editor");
    assert!(
        run.exits(1)
            .stdout
            .contains("cannot start the editor \"no-such-editor\""),
        "{}",
        run.stdout
    );
    assert!(
        !home.path("config.json.draft").exists(),
        "nothing was edited"
    );
    // A draft older than the file would restore old settings.
    edit("sed -i s/80/soon/").exits(2);
    home.bantam()
        .args(["config", "set", "agents.defaults.timeout", "90"])
        .run()
        .exits(0);
    let mut running = home
        .bantam()
        .args(["config", "edit"])
        .env("EDITOR", "true")
        .on_a_terminal()
        .silent_stdin()
        .spawn();
    running.wait_for_stdout("[y/N]");
    running.types("\n");
    running.finish().exits(0);
    assert!(written().contains("90"), "{}", written());
    assert!(!home.path("config.json.draft").exists());
}

/// A directory named for this run takes precedence.
#[test]
fn a_workspace_of_a_flag_wins_over_directories_of_the_settings() {
    let model = Model::scripted([
        Reply::call("write_file", &json!({ "path": "new.txt", "content": "x" })),
        Reply::text("Done."),
    ]);
    let (home, elsewhere) = (Home::empty(), Home::empty());
    let project = elsewhere.dir("proj/below");
    let tools = json!({ "tools": { "read_paths": [elsewhere.path("proj")], "exec": { "sandbox": "off" } } });
    home.config(&merged(model.config(), &tools).to_string());
    home.bantam()
        .args(["agent", "--workspace"])
        .arg(&project)
        .args(["-m", "write"])
        .run()
        .exits(0);
    assert!(project.join("new.txt").exists());
    let file = elsewhere.write("m.c", "");
    home.bantam()
        .args(["agent", "-m", "hi", "--workspace"])
        .arg(file)
        .run()
        .exits(2)
        .says("is not a directory");
}

#[test]
fn unknown_setting_warns_once_per_change() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let home = Home::with(&merged(model.config(), &json!({ "hooks": 1 })));
    home.agent(["-q", "-m", "hi"]).exits(0).is_quiet();
    home.agent(["-m", "hi"])
        .exits(0)
        .says("unknown setting hooks");
    home.agent(["-m", "hi"]).exits(0).is_quiet();
    home.config(&merged(model.config(), &json!({ "hooks": 2 })).to_string());
    home.agent(["-m", "hi"])
        .exits(0)
        .says("unknown setting hooks");
    home.agent(["-m", "hi"]).exits(0).is_quiet();
}

#[test]
fn unused_files_are_reported() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let home = Home::with(&model.config());
    home.write("workspace/SOUL.md", "Be a pirate.");
    home.write("workspace/IDENTITY.md", "You are a parrot.");
    home.write("workspace/memory/MEMORY.md", "Ann likes tea.");
    let told = "IDENTITY.md, SOUL.md, memory/MEMORY.md in ";
    let doctor = home.bantam().arg("doctor").run();
    assert!(
        doctor.stdout.contains(told) && doctor.stdout.contains("not used: "),
        "{}",
        doctor.stdout
    );
    home.agent(["-m", "hi"]).exits(0).says(told);
    home.agent(["-m", "hi"]).exits(0).is_quiet();
    std::fs::remove_file(home.path("workspace/SOUL.md")).unwrap();
    home.agent(["-m", "hi"])
        .exits(0)
        .says("bantam's instructions are in ");
}
