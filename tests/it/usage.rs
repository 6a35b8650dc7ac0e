//! Usage: a line for each call, the command that adds them up, and the daily budget.

use serde_json::{Value, json};

use crate::harness::{Home, has_fields, merged};
use crate::model::{Model, Reply, USAGE};

/// Per million tokens. One reply of the scripted model has 11 prompt tokens, 3 of them cached, and 7 reply tokens.
const PRICE: [f64; 3] = [100.0, 1000.0, 10.0];
/// Cost of one reply at that price.
const ONE: f64 = 0.007_83;

fn priced(model: &Model, extra: &Value) -> Value {
    let [input, output, cached] = PRICE;
    let price = json!({ "model_list": [ { "price": { "input": input, "output": output, "cached": cached } } ] });
    merged(merged(model.config(), &price), extra)
}

/// Returns the lines of all months, complete and torn.
fn lines(home: &Home) -> Vec<String> {
    let files = home
        .files()
        .into_iter()
        .filter(|file| file.starts_with("usage/"));
    let texts = files.map(|file| home.read(&file));
    texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        // Two processes that write at the same time may leave an empty line.
        .filter(|line| !line.is_empty())
        .collect()
}

#[track_caller]
fn usage(home: &Home) -> Value {
    home.run(["usage", "--json"]).exits(0).json()
}

#[test]
fn every_call_has_its_line_and_the_answer_tells_the_cost() {
    let model = Model::scripted([
        Reply::call("think", &json!({ "thought": "so" })),
        Reply::text("Done."),
    ]);
    let home = Home::with(&priced(&model, &json!({})));
    let answer = home
        .agent(["--json", "-s", "garden", "-m", "go"])
        .exits(0)
        .json();
    assert_eq!(answer["cost"], json!(2.0 * ONE));
    let lines: Vec<Value> = lines(&home)
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "one for each call");
    for line in &lines {
        for (key, value) in [
            ("model", json!("openai/test-model")),
            ("session", json!("cli_garden")),
            ("channel", json!("cli")),
            ("prompt_tokens", json!(USAGE.0)),
            ("completion_tokens", json!(USAGE.1)),
            ("cached_tokens", json!(3)),
            ("cost", json!(ONE)),
        ] {
            assert_eq!(line[key], value, "{key}");
        }
        let [time, date] = ["time", "date"].map(|key| line[key].as_str().unwrap());
        assert!(time.ends_with('Z') && date.len() == 10, "{line}");
        assert!(
            !line.to_string().contains("go"),
            "nothing of what was said: {line}"
        );
    }
    let file = home
        .files()
        .into_iter()
        .find(|file| file.starts_with("usage/"))
        .unwrap();
    let month = file
        .strip_prefix("usage/")
        .unwrap()
        .strip_suffix(".jsonl")
        .unwrap();
    assert!(
        lines[0]["date"].as_str().unwrap().starts_with(month),
        "{file}"
    );
}

#[test]
fn usage_is_added_up_by_day_and_model() {
    let model = Model::answering(|_, _| Reply::text("Done."));
    let other = json!({ "model_name": "other", "model": "openai/other", "api_base": model.base(), "api_key": "k" });
    let config = merged(priced(&model, &json!({})), &json!({}));
    let mut list = config["model_list"].as_array().unwrap().clone();
    list.push(other);
    let home = Home::with(&merged(config, &json!({ "model_list": list })));
    home.run(["usage"])
        .answers("")
        .says("no requests to models since ");
    for args in [
        &["-m", "one"][..],
        &["-m", "two"],
        &["--model", "other", "-m", "three"],
    ] {
        home.bantam().arg("agent").args(args).run().exits(0);
    }
    let told = usage(&home);
    let rows = told["rows"].as_array().unwrap();
    let row = |model: &str| rows.iter().find(|row| row["model"] == model).unwrap();
    let (tested, other) = (row("openai/test-model"), row("openai/other"));
    assert!(
        rows.len() == 2 || rows.len() == 3,
        "a night may have passed: {told}"
    );
    if rows.len() == 2 {
        assert_eq!(
            (&tested["calls"], &tested["cost"], &other["cost"]),
            (&json!(2), &json!(2.0 * ONE), &Value::Null)
        );
        assert_eq!(tested["prompt_tokens"], 2 * USAGE.0);
    }
    let total = json!({
        "calls": 3, "prompt_tokens": 3 * USAGE.0, "completion_tokens": 3 * USAGE.1, "total_tokens": 3 * USAGE.2,
        "cached_tokens": 9, "cost": 2.0 * ONE,
    });
    assert_eq!(told["total"], total);
    let table = home.run(["usage", "--days", "2"]);
    table.exits(0).is_quiet();
    let sums: Vec<&str> = table
        .stdout
        .lines()
        .last()
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(sums, ["total", "3", "33", "9", "21", "0.0157"]);
    home.run(["usage", "--days", "none"]).fails(2);
}

#[test]
fn the_model_that_answered_is_the_one_that_is_charged() {
    let (down, up) = (
        Model::answering(|_, _| Reply::error(400, "no such model")),
        Model::scripted([Reply::text("Done.")]),
    );
    let config = priced(
        &down,
        &json!({ "agents": { "defaults": { "model_fallbacks": ["second"], "max_retries": 0 } } }),
    );
    let mut list = config["model_list"].as_array().unwrap().clone();
    // For the same name at another address, the entry's price is used.
    list.push(merged(
        list[0].clone(),
        &json!({ "model_name": "second", "api_base": up.base(), "price": { "output": 1.0 } }),
    ));
    list[1]["price"] = json!({ "output": 1.0 });
    let home = Home::with(&merged(config, &json!({ "model_list": list })));
    let answer = home.agent(["--json", "-m", "go"]).exits(0).json();
    assert_eq!(answer["cost"], json!(0.000_007));
    let told = usage(&home);
    has_fields(
        &told,
        &json!({ "total": { "calls": 1, "cost": 0.000_007 } }),
    );
}

#[test]
fn budget_holds_across_runs_with_hint() {
    let counted = json!({
        "choices": [ { "message": { "content": "Done." }, "finish_reason": "stop" } ],
        "usage": { "prompt_tokens": 2900, "completion_tokens": 100 },
    });
    let model = Model::scripted([Reply::json(200, &counted), Reply::json(200, &counted)]);
    let home = Home::asking(&model, &json!({ "budget": { "daily_tokens": 6000 } }));
    home.agent(["-m", "one"]).exits(0);
    home.agent(["-m", "two", "-s", "other"]).exits(0);
    let refused = home.agent(["-m", "three"]);
    refused.fails(6).prints("");
    refused
        .says("daily budget reached: 6000 of 6000 tokens")
        .says("budget.daily_tokens");
    let answer = home.agent(["--json", "-m", "three"]).exits(6).json();
    has_fields(
        &answer,
        &json!({ "error": { "kind": "limit" }, "stop": "limit", "steps": 0 }),
    );
    assert_eq!(model.requests().len(), 2);
    // An unsent question is not part of the conversation.
    assert_eq!(home.session("cli_default").texts("user"), ["one"]);
    let raised = home
        .bantam()
        .env("BANTAM_BUDGET_DAILY_TOKENS", "0")
        .args(["agent", "--dry-run", "-m", "three"])
        .run();
    raised.exits(0);
}

#[test]
fn a_budget_ends_a_turn_between_its_steps() {
    let model = Model::scripted([Reply::call("think", &json!({ "thought": "so" }))]);
    let home = Home::with(&priced(&model, &json!({ "budget": { "daily_cost": ONE } })));
    let run = home.agent(["-m", "go"]);
    run.exits(6)
        .says("0.0078 of 0.00783 in cost")
        .says("budget.daily_cost");
    home.session("cli_default").has_one_result_per_call();
}

#[test]
fn a_server_that_counts_nothing_is_counted_by_the_bytes() {
    let silent = json!({ "choices": [ { "message": { "role": "assistant", "content": "Done." }, "finish_reason": "stop" } ] });
    let model = Model::scripted([Reply::json(200, &silent)]);
    let home = Home::asking(&model, &json!({ "budget": { "daily_tokens": 2500 } }));
    let answer = home
        .agent(["--no-stream", "--json", "-m", "go"])
        .exits(0)
        .json();
    assert_eq!(answer["usage"]["total_tokens"], 0);
    let line: Value = serde_json::from_str(&lines(&home)[0]).unwrap();
    assert!(
        line["estimated"] == true && line["prompt_tokens"].as_u64().unwrap() > 100,
        "{line}"
    );
    home.agent(["-m", "again"]).exits(6);
}

#[test]
fn cut_reply_is_counted_as_an_estimate() {
    let (_model, home) = Home::of(Model::scripted([Reply::text(
        "This is going to be a longer answer.",
    )
    .cut_after(3)]));
    home.agent(["--events", "-m", "go"]).exits(5);
    let counted = |home: &Home| {
        let line: Value = serde_json::from_str(&lines(home)[0]).unwrap();
        assert!(
            line["estimated"] == true && line["prompt_tokens"].as_u64().unwrap() > 100,
            "{line}"
        );
    };
    counted(&home);
    // A discarded reply is also counted.
    let cut = Reply::text("This is going to be a longer answer.").cut_after(3);
    let (_model, home) = Home::of(Model::scripted([cut, Reply::text("Done.")]));
    home.agent(["-m", "go"]).answers("Done.\n");
    counted(&home);
    assert_eq!(lines(&home).len(), 2);
}
