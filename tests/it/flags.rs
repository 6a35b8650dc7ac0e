//! Flags of `bantam agent` that change the request: each is a promise of the documentation.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, has_all, has_fields};
use crate::model::{Model, Reply};

/// An obvious fake of a known format, which is not configured in bantam.
const OTHER_KEY: &str = "sk-proj-0123456789fakefakefakefake";

#[test]
fn dry_run_output_equals_the_request() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let extra = json!({ "model_list": [ { "extra_body": { "user": OTHER_KEY, "seed": 7 } } ] });
    let home = Home::asking(&model, &extra);
    // Otherwise the first turn would create it, with files that are read into the prompt.
    home.dir("workspace");
    let before = home.files();
    let run = home.agent(["--dry-run", "--no-stream", "-m", "hi"]);
    let mut shown: Value = serde_json::from_str(&run.exits(0).is_quiet().stdout).unwrap();
    assert!(!run.stdout.contains(CANARY), "{}", run.stdout);
    assert_eq!((home.files(), model.requests().len()), (before, 0));
    home.agent(["--no-stream", "-m", "hi"]).exits(0);
    let mut sent = model.request(0).body;
    assert_ne!(
        shown["user"], sent["user"],
        "a key is redacted wherever it stands"
    );
    // The time differs, and the key is hidden.
    for body in [&mut shown, &mut sent] {
        body["user"] = Value::Null;
        let content = &mut body["messages"][1]["content"];
        *content = content.as_str().unwrap().split_once('\n').unwrap().1.into();
    }
    assert_eq!(shown, sent);
}

/// It sends nothing.
#[test]
fn dry_run_needs_no_key() {
    let named = json!({ "agents": { "defaults": { "model_name": "groq/small" } } });
    let listed = json!({ "model_list": [ { "model_name": "fast", "model": "groq/small" } ] });
    for config in [named, listed] {
        let home = Home::with(&config);
        home.agent(["-m", "hi"]).exits(3).says("GROQ_API_KEY");
        let run = home.bantam().env("GROQ_API_KEY", "");
        let run = run.args(["agent", "--dry-run", "-m", "hi"]).run();
        let shown: Value = serde_json::from_str(&run.exits(0).stdout).unwrap();
        assert_eq!(shown["model"], "small");
    }
}

#[test]
fn flags_choose_tools_instructions_and_limits_of_a_request() {
    let model = Model::answering(|_, _| Reply::text("Arr."));
    let settings = json!({ "model_list": [ { "temperature": 1.0, "max_tokens": 5000 } ] });
    let home = Home::asking(&model, &settings);
    home.agent(["--tools", "read_file, list_dir", "hi"])
        .exits(0);
    home.agent(["--no-tools", "hi"]).exits(0);
    let flags = [
        "--system",
        "Speak like a pirate.",
        "--temperature",
        "0.5",
        "--max-tokens",
        "33",
    ];
    home.bantam()
        .arg("agent")
        .args(flags)
        .arg("hi")
        .run()
        .exits(0);
    let [chosen, none, set] = [0, 1, 2].map(|n| model.request(n));
    assert!(chosen.tools().contains(&"read_file") && !chosen.tools().contains(&"exec"));
    assert_eq!(none.body.get("tools"), None);
    has_all(&set.last("system"), ["Speak like a pirate."]);
    // A flag overrides the model's entry.
    has_fields(&set.body, &json!({ "temperature": 0.5, "max_tokens": 33 }));
    for flags in [
        ["--tools=exec", "--no-tools"],
        ["--temperature", "hot"],
        ["--max-tokens", "0"],
        ["--budget-tokens", "none"],
    ] {
        home.bantam()
            .arg("agent")
            .args(flags)
            .arg("hi")
            .run()
            .fails(2)
            .prints("");
    }
}

#[test]
fn the_agent_works_in_the_directory_that_the_flag_names() {
    let calls = || {
        let write = Reply::call(
            "write_file",
            &json!({ "path": "new.txt", "content": "there" }),
        );
        [
            write,
            Reply::call("exec", &json!({ "command": "cat old.txt new.txt" })),
            Reply::text("Done."),
        ]
    };
    let (model, home) = Home::of(Model::scripted(calls().into_iter().chain(calls())));
    let elsewhere = home.path("").parent().unwrap().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("old.txt"), "was ").unwrap();
    home.agent(["--workspace", elsewhere.to_str().unwrap(), "-m", "go"])
        .answers("Done.\n");
    assert_eq!(
        fs::read_to_string(elsewhere.join("new.txt")).unwrap(),
        "there"
    );
    has_all(&model.request(2).last("tool"), ["was there"]);
    assert!(
        !home.path("workspace").exists(),
        "the other one is not needed"
    );

    // Relative to the working directory.
    fs::remove_file(elsewhere.join("new.txt")).unwrap();
    home.run(["agent", "--workspace", "../elsewhere", "-m", "go"])
        .exits(0);
    assert!(elsewhere.join("new.txt").exists());
    // The agent's own files cannot be a workspace.
    let own = home.path("sessions");
    home.agent(["--workspace", own.to_str().unwrap(), "-m", "go"])
        .fails(3);
}

const TRANSLATE: &str = "Translate into {{language}}, {{ tone }}:\n\n{{input}}\n";

#[test]
fn a_template_is_filled_with_its_parameters_and_the_text() {
    let (model, home) = Home::of(Model::scripted([Reply::text("Hallo.")]));
    home.write("agent/prompts/translate.md", TRANSLATE);
    let asked = home
        .bantam()
        .args("agent -t translate -p language=German -p tone={{input}}=x".split(' '));
    asked
        .stdin("Hello {{language}}\n")
        .run()
        .answers("Hallo.\n");
    let user = model.request(0).last("user");
    has_all(
        &user,
        ["Translate into German, {{input}}=x:\n\nHello {{language}}"],
    );
}
