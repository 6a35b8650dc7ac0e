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
    ask(&model, &[]).answers("{\"n\":1}\n");
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
    ask(&model, &["--no-session"]).answers("{\"n\":1}\n");
    let again = model.request(1).last("user").clone();
    assert!(again.contains("\"n\" is missing"), "{again}");

    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let run = ask(&model, &["--json"]);
    let object: Value = serde_json::from_str(&run.exits(1).stdout).unwrap();
    assert_eq!(object["output"], "");
    assert_eq!(model.asked(), 2);
}

#[test]
fn schema_that_cannot_be_read_is_wrong_usage() {
    let (_model, home) = Home::of(Model::never_asked());
    home.write("list.json", "[]");
    home.write("half.json", "{\n");
    home.write("latin.json", b"{\"title\": \"\xe4\"}");
    let path = |file: &str| home.path(file).to_str().unwrap().to_owned();
    for (schema, word) in [
        (path("none.json"), "no file named"),
        (path(""), "directory"),
        (path("list.json"), "not a JSON object"),
        (path("half.json"), "half.json: line 2"),
        (path("latin.json"), "UTF-8"),
        ("{\"if\": {}}".to_owned(), "cannot be checked"),
        (" {\"type\": }".to_owned(), "--schema: line 1, column 11"),
        ("{\"required\": [\"n\"]".to_owned(), "line 1, column 18"),
        ("{type: object}".to_owned(), "line 1, column 2"),
    ] {
        let run = home.agent(["--schema", &schema, "-m", "hi"]);
        run.exits(2).prints("").says(word).fails_with_a_hint();
    }
}

#[test]
fn schema_is_read_from_a_pipe_or_the_argument() {
    let model = Model::scripted([Reply::text("{\"n\": 1}"), Reply::text("{\"n\": 2}")]);
    let home = Home::with(&model.config());
    let question = ["agent", "-n", "--schema", "/dev/stdin", "-m", "hi"];
    let piped = home.bantam().args(question).stdin(SCHEMA).run();
    piped.answers("{\"n\":1}\n");
    let inline = format!("\n {SCHEMA}");
    let run = home.agent(["--schema", &inline, "-m", "hi"]);
    run.answers("{\"n\":2}\n");
}
