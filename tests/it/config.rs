//! Origins of settings, and errors about invalid ones.

use serde_json::json;

use crate::harness::{CANARY, Home, has_all, has_none, merged};
use crate::model::{Model, Reply};

#[test]
fn camel_case_reads_as_snake_case() {
    let model = Model::scripted([Reply::text("One.")]);
    let config = json!({
        "agents": { "defaults": { "modelName": "test", "maxTokens": 77 } },
        "modelList": [ { "modelName": "test", "model": "openai/test-model", "apiBase": model.base(), "apiKey": CANARY } ]
    });
    let home = Home::with(&config);
    home.agent(["-m", "hi"]).answers("One.\n").is_quiet();
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
fn model_headers_and_extra_fields_are_sent() {
    let model = Model::scripted([Reply::text("One.")]);
    let extra = json!({
        "model_list": [ { "headers": { "X-Test": "yes" }, "extra_body": { "top_k": 7 }, "temperature": 0.5, "max_tokens": 99 } ]
    });
    let home = Home::asking(&model, &extra);
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
        .answers("One.\n");
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
fn a_config_that_links_to_nothing_is_an_error() {
    let home = Home::empty();
    home.config("{}");
    std::fs::remove_file(home.path("config.json")).unwrap();
    std::os::unix::fs::symlink("/no/such/file", home.path("config.json")).unwrap();
    let run = home.agent(["-m", "hi"]);
    run.fails(3).prints("").says("is a link to a missing file");
}

#[test]
fn a_home_is_made_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let (_model, home) = Home::of(Model::scripted([Reply::text("One.")]));
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
        r#""hens":1,"agents":{"defaults":{"timeout":5,"maxTokens":7}}}"#
    ));
    let run = |words: &[&str]| home.bantam().arg("config").args(words).run();
    let written = || home.read("config.json");
    for words in [
        &["unset", "hens"][..],
        &["set", "agents.defaults.timeout", "60"],
        &["set", "channels.telegram.allowFrom", "12, 34"],
        &["set", "model_list[0].headers.X-Title", "hens"],
        &["unset", "agents.defaults.maxTokens"],
    ] {
        run(words).answers("").is_quiet();
    }
    let compact: String = written().split_whitespace().collect();
    let left = concat!(
        r#"{"model_list":[{"model":"demo/demo","extra_body":{"hens":[1,{"b":null}],"a":2},"#,
        r#""headers":{"X-Title":"hens"}}],"agents":{"defaults":{"timeout":60}},"#,
        r#""channels":{"telegram":{"allow_from":["12","34"]}}}"#
    );
    assert_eq!(compact, left);

    let get = |path: &str| run(&["get", path]);
    get("agents.defaults.timeout").answers("60\n");
    get("agents.defaults.max_tokens").answers("8192\n");
    get("model_list.0.model").answers("demo/demo\n");
    let section: serde_json::Value =
        serde_json::from_str(&get("agents.defaults").exits(0).stdout).unwrap();
    assert_eq!(section["timeout"], 60);
    get("model_list.7").exits(2).says("no entry named");
    run(&["unset", "hens"]).exits(2).says("no entry named");

    let token = home
        .bantam()
        .args(["config", "set", "channels.telegram.token", "-"]);
    token.stdin(CANARY).run().exits(0).is_quiet();
    assert!(written().contains(CANARY));
    get("channels.telegram.token").answers("(set)\n");
    let shown = run(&["get"]).exits(0).stdout.clone();
    assert!(!shown.contains(CANARY), "{shown}");
    has_all(&shown, ["agents.defaults.timeout", "config.json"]);
}

/// Settings, values that are refused, and a word of the error or its hint.
const REFUSED: &str = r#"
agents.defaults.timeout         | soon                         | use an integer
agents.defaults.timeot          | 5                            | `agents.defaults.timeout`
mcpServers.time                 | uvx                          | use an object
tools.exec.network              | some                         | use one of `none`
tools.confirm                   | ["write"]                    | did you mean `writes`
tools.confirm                   | ["run"]                      | did you mean `runs`
tools.read_paths                | ["/usr                       | use a list
tools.read_paths                | /no/such/tree                | does not exist
agents.defaults.model_name      | nosuch                       | no model named
agents.defaults.model_fallbacks | nosuch                       | no model named
agents.defaults.workspace       | /etc/passwd/mine             | /etc/passwd is a file
agents.defaults.workspace       | /                            | agents.defaults.workspace
session.compact_at              | 7                            | 0.1 to 1
model_list.0.api_base           | 127.0.0.1:1/v1               | has no scheme
model_list.0.api_base           | http://models.example.com/v1 | public host
model_list.0.api_key            | two words                    | model_list[0].api_key has a space
model_list.0.proxy              | no proxy                     | model_list[0].proxy is not
channels.telegram.allow_from    | @me                          | not a numeric id
channels.telegram.api_base      | api.example.com              | has no scheme
heartbeat.to                    | me                           | invalid destination
channels.telegram.proxy         | nonsense                     | not the address of a proxy
model_list.0.proxy              | 8080                         | not the address of a proxy
channels.http.allow_origin      | *                            | not the origin of web pages
channels.http.allow_origin      | page.example                 | not the origin of web pages
channels.http.allow_origin      | https://page.example/x       | not the origin of web pages
tools.web.fetch.timeout         | 0                            | use 1 or more
mcpServers.far.url              | far.example                  | mcpServers.far has an invalid url
mcpServers.far                  | {"command":"x","url":"http://x"} | and no command
mcpServers.a b.url              | http://x                     | not a valid name for an MCP server
"#;

#[test]
fn a_value_that_can_never_work_is_not_saved() {
    let home = Home::empty();
    home.config(r#"{"model_list":[{"model":"openai/x"}],"hens":1}"#);
    let written = || home.read("config.json");
    let set = |path: &str, value: &str| home.run(["config", "set", path, value]);
    let before = written();
    for row in REFUSED.trim().lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let run = set(cells[0], cells[1]);
        run.fails(2).prints("").says(cells[2]);
        assert_eq!(written(), before, "{row}");
    }
    // The list that the default model needs cannot be replaced by one without it.
    home.config(
        r#"{"agents":{"defaults":{"model_name":"server/mini"}},
            "model_list":[{"model":"server/mini","api_base":"http://127.0.0.1:1/v1"}]}"#,
    );
    let run = set("model_list", r#"[{"model":"openai/gpt-5-mini"}]"#);
    run.exits(2)
        .says("agents.defaults.model_name: no model named");
    run.does_not_say("did you mean");
    // An earlier problem remains, and an incomplete entry is saved.
    home.config(r#"{"agents":{"defaults":{"model_name":"nosuch"}}}"#);
    let run = set("agents.defaults.timeout", "60");
    run.exits(0)
        .says("warning: saved, but")
        .says("no model named");
    home.config(r#"{"model_list":[{"model":"demo/demo"}]}"#);
    let run = set("model_list.1.model", "x");
    run.exits(0)
        .says("warning: saved, but")
        .says("needs a provider (openai/x) or an api_base");
    set("model_list.1.api_base", "http://127.0.0.1:1/v1")
        .exits(0)
        .is_quiet();
    let run = set("model_list.1.price", r#"{"input":1}"#);
    run.exits(0).says("model_list[1].price.output is not set");

    home.config("{ \"agents\": }");
    set("log.json", "true").exits(3).says("line 1, column 13");
    assert_eq!(written(), "{ \"agents\": }");
}

#[test]
fn a_value_of_the_wrong_type_can_be_replaced() {
    let home = Home::empty();
    for wrong in [
        r#"{"agents":[]}"#,
        r#"{"agents":{"defaults":{"timeout":"x"}}}"#,
    ] {
        for words in ["set agents {}", "unset agents"] {
            home.write("config.json", wrong);
            let run = home.bantam().arg("config").args(words.split(' ')).run();
            run.exits(0);
            home.run(["config", "get"]).exits(0);
        }
    }
    home.run(["config", "set", "agents", "[]"]).exits(2);
}

#[test]
fn an_edit_is_checked_before_it_is_saved() {
    let home = Home::empty();
    home.config(r#"{ "agents": { "defaults": { "timeout": 5 } } }"#);
    let written = || home.read("config.json");
    let edit = |editor: &str| {
        let bantam = home.bantam().args(["config", "edit"]);
        let bantam = bantam.env("EDITOR", editor).on_a_terminal();
        bantam.silent_stdin().run()
    };
    edit("sed -i s/5/70/").exits(0);
    assert!(written().contains(": 70 "), "{}", written());
    edit("sed -i s/70/soon/").exits(2);
    assert!(written().contains(": 70 "), "{}", written());
    // The refused text is a draft, with which the next edit continues.
    edit("sed -i s/soon/80/").exits(0);
    assert!(written().contains(": 80 "), "{}", written());
    let run = edit("no-such-editor");
    has_all(&run.exits(1).stdout, ["no-such-editor\" cannot be started"]);
    assert!(
        !home.path("config.json.draft").exists(),
        "nothing was edited"
    );
}

/// A job in a crontab would repeat it forever.
#[test]
fn unused_settings_and_files_are_reported() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let home = Home::asking(&model, &json!({ "hooks": 1 }));
    home.write("workspace/SOUL.md", "Be a pirate.");
    home.write("workspace/memory/MEMORY.md", "Ann likes tea.");
    let told = ["unknown setting hooks", "SOUL.md, memory/MEMORY.md in"];
    let doctor = home.run(["doctor"]).stdout;
    let asked = home.agent(["-m", "hi"]).exits(0).stderr.clone();
    for told in told {
        assert!(doctor.contains(told), "{doctor}");
        assert!(asked.contains(told), "{asked}");
    }
    home.agent(["-q", "-m", "hi"]).exits(0).is_quiet();
}

#[test]
fn relative_directory_is_stored_as_an_absolute_path() {
    let home = Home::empty();
    home.config(r#"{"model_list":[{"model":"demo/demo"},{"model":"demo/other"}]}"#);
    let here = std::fs::canonicalize(home.dir("../here")).unwrap();
    std::fs::create_dir(here.join("books")).unwrap();
    std::fs::create_dir(here.join("work")).unwrap();
    let at = here.clone();
    let config = |words: &[&str]| home.bantam().arg("config").args(words).cwd(&at).run();
    config(&["set", "tools.read_paths", "[\"books\"]"]).exits(0);
    config(&["set", "agents.defaults.workspace", "work"]).exits(0);
    let here = here.display();
    config(&["get", "tools.read_paths"]).prints(&format!("[\"{here}/books\"]\n"));
    config(&["get", "agents.defaults.workspace"]).prints(&format!("{here}/work\n"));
    // An entry and a section are removed like a setting.
    config(&["unset", "model_list[1]"]).exits(0);
    config(&["unset", "tools"]).exits(0);
    let left = home.read("config.json");
    has_none(&left, ["other", "read_paths"]);
}
