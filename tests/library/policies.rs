//! Results of policies, in a separate program whose `main` starts with workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bantam::{
    Agent, CallContext, Decision, ErrorKind, Function, Home, OpenAi, PendingCall, Request, Result,
};
use serde_json::{Value, json};

use crate::Test;
use crate::programs::Place;
use crate::support::harness::has_all;
use crate::support::model::{Model, Reply};

pub const TESTS: &[Test] = tests!(
    policies,
    [
        a_policy_goes_with_a_model_named_in_code,
        a_program_asks_before_a_call
    ]
);

pub fn main() -> Result<()> {
    bantam::init();
    let home = Home::at("agent-home", &json!({"cron": {"enabled": true}}))?;
    let api = std::env::var("MODEL_API").unwrap_or_default();
    std::fs::create_dir_all("agent-home/agent/skills/tea")?;
    let skill = "---\nname: tea\ndescription: Makes tea.\n---\nBoil water.\n";
    std::fs::write("agent-home/agent/skills/tea/SKILL.md", skill)?;
    let agent = home.agent()?.tools(home.memory()?);
    let agent = agent.tools(home.skills()?);
    let agent = agent.provider(OpenAi::new(&api, "", "x")).build()?;
    let skill = agent.call("skill", &json!({"name": "tea"}))?;
    let tools = home.skills()?;
    let description = &tools.specs().next().unwrap().description;
    assert!(description.contains("tea: Makes tea."), "{description}");
    assert!(skill.text.contains("Boil water."), "{}", skill.text);
    println!("{}", agent.ask("Who are you?")?);
    assert!(home.agent()?.build().is_err());

    let (all, notices) = home.all()?;
    let names: Vec<&str> = all.specs().map(|spec| &*spec.name).collect();
    assert!(names.contains(&"exec") && names.contains(&"subagent"));
    assert!(!names.contains(&"cron"));
    assert!(notices.is_empty(), "{notices:?}");

    let refused = |entry: &Value| home.mcp("bricks", entry).err().unwrap().message;
    let dead = json!({"command": "/nowhere/server"});
    // The second time, the failure is known.
    for _ in 0..2 {
        let why = refused(&dead);
        assert!(why.contains("/nowhere/server"), "{why}");
    }
    let slip = refused(&json!({"cmd": "python3"}));
    has_all(&slip, ["did you mean mcpServers.bricks.command?"]);
    let off = refused(&json!({"command": "python3", "enabled": false}));
    assert!(off.contains("offers no tools"), "{off}");

    for (settings, why) in [
        (
            json!({"tools": {"exec": {"timeout": "20"}}}),
            "the settings: tools.exec.timeout has the wrong type",
        ),
        (
            json!({"toolz": 1}),
            "the settings: unknown setting toolz; did you mean tools?",
        ),
        (json!([]), "the settings are not a JSON object"),
    ] {
        let e = Home::at("agent-home", &settings).err().unwrap();
        assert_eq!((e.kind, e.message.as_str()), (ErrorKind::Config, why));
    }
    assert!(
        Home::user().is_ok(),
        "it warns of a setting that it does not know"
    );
    Ok(())
}

fn a_policy_goes_with_a_model_named_in_code() {
    let place = Place::new();
    let home = place.path("home");
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join("config.json"), r#"{"toolz": 1}"#).unwrap();
    let model = Model::scripted([Reply::text("Yours.")]);
    assert_eq!(place.run("policies", &model), "Yours.\n");
    assert!(model.request(0).texts("system")[0].contains("Makes tea."));
}

fn a_program_asks_before_a_call() {
    let model = Model::scripted([
        Reply::call("pay", &json!({})),
        Reply::text("It was refused."),
    ]);
    let paid = Arc::new(AtomicUsize::new(0));
    let pay = {
        let paid = paid.clone();
        let schema = r#"{"type":"object","properties":{}}"#;
        Function::new("pay", "Pays.", schema, move |_: Value, _: &CallContext| {
            paid.fetch_add(1, Ordering::SeqCst);
            Ok("paid")
        })
    };
    let agent = Agent::builder().provider(OpenAi::new(&model.base(), "", "x"));
    let agent = agent.tool(pay).confirm(["pay"]).build().unwrap();
    let request = Request {
        confirm: Some(Arc::new(|pending: &PendingCall| {
            assert_eq!(pending.tool, "pay");
            Decision::No
        })),
        ..Request::new("Pay!", "notes")
    };
    assert_eq!(agent.run(&request, &|_| ()).output, "It was refused.");
    assert_eq!(paid.load(Ordering::SeqCst), 0);
}
