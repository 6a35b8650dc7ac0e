//! `--schema FILE`: standard output is valid JSON, or empty.

use serde_json::{Value, json};

use crate::harness::{Home, Run};
use crate::model::{Model, Reply};

const SCHEMA: &str = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;

fn ask(model: &Model, flags: &[&str]) -> Run {
    let home = Home::with(&model.config());
    home.write("form.json", SCHEMA);
    let schema = home.path("form.json");
    let schema = schema.to_str().unwrap();
    let question = ["agent", "--schema", schema, "-m", "How many?"];
    home.bantam().args(question).args(flags).run()
}

#[test]
fn answer_of_the_schema_is_printed_on_one_line() {
    let model = Model::scripted([Reply::text("```json\n{\n  \"n\": 1\n}\n```")]);
    ask(&model, &[]).exits(0).prints("{\"n\":1}\n");
    let request = model.request(0);
    let format = &request.body["response_format"];
    assert_eq!(format["type"], "json_schema");
    assert_eq!(format["json_schema"]["schema"]["required"], json!(["n"]));
    assert!(request.last("system").contains("\"required\":[\"n\"]"));
    assert_ne!(request.body["stream"], true);
}

#[test]
fn other_answer_is_asked_for_again_once() {
    let model = Model::scripted([Reply::text("{}"), Reply::text("{\"n\": 1}")]);
    ask(&model, &["--no-session"])
        .exits(0)
        .prints("{\"n\":1}\n");
    let again = model.request(1).last("user").clone();
    assert!(again.contains("\"n\" is missing"), "{again}");

    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let run = ask(&model, &["--json"]);
    let object: Value = serde_json::from_str(&run.exits(1).stdout).unwrap();
    assert_eq!(object["output"], "");
    assert_eq!(model.asked(), 2);
}

#[test]
fn host_that_refuses_the_form_is_asked_without_it() {
    let model = Model::answering(|request, _| {
        if request.body.get("response_format").is_some() {
            return Reply::error(400, "Unrecognized request argument: response_format");
        }
        Reply::text("{\"n\": 2}")
    });
    ask(&model, &[]).exits(0).prints("{\"n\":2}\n");
}

#[test]
fn schema_that_cannot_be_read_is_wrong_usage() {
    let model = Model::never_asked();
    let home = Home::with(&model.config());
    for (file, content, word) in [
        ("none.json", None, "no file named"),
        ("list.json", Some("[]"), "not a JSON object"),
        ("half.json", Some("{"), "half.json"),
        ("loose.json", Some("{\"if\": {}}"), "cannot be checked"),
    ] {
        if let Some(content) = content {
            home.write(file, content);
        }
        let path = home.path(file);
        home.agent(["--schema", path.to_str().unwrap(), "-m", "hi"])
            .exits(2)
            .prints("")
            .says(word);
    }
}

#[test]
fn schema_is_read_from_a_pipe_and_must_be_text() {
    let model = Model::scripted([Reply::text("{\"n\": 1}")]);
    let home = Home::with(&model.config());
    let question = ["agent", "-n", "--schema", "/dev/stdin", "-m", "hi"];
    let piped = home.bantam().args(question).stdin(SCHEMA).run();
    piped.exits(0).prints("{\"n\":1}\n");
    let latin = home.path("latin.json");
    fs_err::write(&latin, b"{\"title\": \"\xe4\"}").unwrap();
    let refused = home.agent(["--schema", latin.to_str().unwrap(), "-m", "hi"]);
    refused.exits(2).prints("").says("UTF-8");
}

#[test]
fn reference_choice_and_constant_are_checked() {
    let form = r##"{"$defs":{"n":{"const":1}},"anyOf":[{"$ref":"#/$defs/n"}]}"##;
    let model = Model::scripted([Reply::text("2"), Reply::text("1")]);
    let home = Home::with(&model.config());
    home.write("form.json", form);
    let path = home.path("form.json");
    home.agent(["--schema", path.to_str().unwrap(), "-m", "hi"])
        .exits(0)
        .prints("1\n");
    assert_eq!(model.asked(), 2);
}
