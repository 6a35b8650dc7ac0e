//! `-t` and `-p`: frequent questions.

use crate::harness::Home;
use crate::model::{Model, Reply};

const TRANSLATE: &str = "Translate into {{language}}, {{ tone }}:\n\n{{input}}\n";

#[test]
fn a_template_is_filled_with_its_parameters_and_the_text() {
    let model = Model::scripted([Reply::text("Hallo.")]);
    let home = Home::with(&model.config());
    home.write("agent/prompts/translate.md", TRANSLATE);
    let asked = home.bantam().args([
        "agent",
        "-t",
        "translate",
        "-p",
        "language=German",
        "-p",
        "tone={{input}}=x",
    ]);
    asked
        .stdin("Hello {{language}}\n")
        .run()
        .exits(0)
        .prints("Hallo.\n");
    let user = model.request(0).last("user");
    assert!(
        user.contains("Translate into German, {{input}}=x:\n\nHello {{language}}"),
        "{user}"
    );
}

#[test]
fn the_templates_of_a_new_home_are_there_from_the_start() {
    let model = Model::scripted([Reply::text("A disk fails."), Reply::text("Short.")]);
    let home = Home::with(&model.config());
    let asked = home
        .bantam()
        .args(["agent", "-t", "explain-log", "-p", "program=smartd"]);
    asked
        .stdin("sda: I/O error\n")
        .run()
        .exits(0)
        .prints("A disk fails.\n");
    let user = model.request(0).last("user");
    assert!(
        user.contains("a log of smartd.") && user.contains("\n\nsda: I/O error"),
        "{user}"
    );
    home.bantam()
        .args(["agent", "-t", "summarize"])
        .stdin("A long text.")
        .run()
        .exits(0)
        .prints("Short.\n");
}

#[test]
fn new_conversation_reports_its_own_key() {
    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let home = Home::with(&model.config());
    let answer = home.agent(["--new", "--json", "-m", "first"]).json();
    let session = answer["session"].as_str().unwrap();
    assert!(session.starts_with('+'), "{session}");
    let file = format!("sessions/cli_{session}.jsonl");
    assert!(home.path(&file).is_file());
    home.agent(["--new", "-v", "-m", "second"])
        .exits(0)
        .says("bantam: session +");
    assert_eq!(model.request(1).texts("user").len(), 1);
    home.agent(["--new", "-s", "x", "-m", "hi"])
        .exits(2)
        .fails_with_a_hint();
}
