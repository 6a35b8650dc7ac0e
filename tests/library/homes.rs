//! Two agents with two homes and two sandboxes in one program.

use std::thread;

use bantam::FileStore;
use bantam::{Agent, Home, OpenAi, Request, Result};
use serde_json::json;

use crate::Test;
use crate::programs::Place;
use crate::support::model::{Model, Reply};

pub const TESTS: &[Test] = tests!(homes, [each_agent_has_a_home_and_a_sandbox_of_its_own]);

/// Reads the files of both, where allowed.
const COMMAND: &str =
    "cat mine.txt; cat ../../ada/workspace/mine.txt ../../ben/workspace/mine.txt 2>/dev/null; pwd";

pub fn main() -> Result<()> {
    bantam::init();
    let api = std::env::var("MODEL_API").unwrap_or_default();
    let mut agents = Vec::new();
    for name in ["ada", "ben"] {
        let home = Home::at(name, &json!({}))?;
        let agent = Agent::builder()
            .provider(OpenAi::new(&api, "", name))
            .tools(home.files()?)
            .tools(home.exec()?)
            .store(FileStore::at(name))
            .build()?;
        agents.push((name, agent));
    }
    thread::scope(|scope| {
        for (name, agent) in &agents {
            scope.spawn(move || {
                let response = agent.run(&Request::new("Go!", "same"), &|_| ());
                assert_eq!(response.model, *name);
                println!("{}", response.output);
            });
        }
    });
    Ok(())
}

fn each_agent_has_a_home_and_a_sandbox_of_its_own() {
    let place = Place::new();
    let model = Model::answering(|request, _| {
        let name = request.body["model"].as_str().unwrap().to_owned();
        match request.texts("tool").len() {
            0 => Reply::call("write_file", &json!({"path": "mine.txt", "content": name})),
            1 => Reply::call("exec", &json!({"command": COMMAND})),
            _ => Reply::text(&format!("{name}: {}", request.last("tool"))),
        }
    });
    let said = place.run("homes", &model);
    for (name, other) in [("ada", "ben"), ("ben", "ada")] {
        let at = said.find(&format!("{name}: ")).unwrap();
        let own = said[at..].split(&format!("{other}: ")).next().unwrap();
        let read = own.trim_start_matches(&format!("{name}: "));
        assert!(read.contains(name) && !read.contains(other), "{said}");
        let written = place.path(&format!("{name}/workspace/mine.txt"));
        assert_eq!(std::fs::read_to_string(written).unwrap(), name);
        assert!(place.path(&format!("{name}/sessions/same.jsonl")).exists());
    }
}
