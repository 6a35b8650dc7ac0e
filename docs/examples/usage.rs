//! A conversation with several tools, and what each answer took.

use bantam::{Agent, CallContext, Function, ModelOptions, OpenAi, Price, Request, Result, Risk};
use serde_json::{Value, json};

const NONE: &str = r#"{"type":"object","properties":{}}"#;
const ITEM: &str =
    r#"{"type":"object","properties":{"item":{"type":"string"}},"required":["item"]}"#;

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let stock = Function::new("stock", "What there is.", NONE, |_: Value, _| {
        Ok("3 boxes of eggs, 1 loaf of bread")
    });
    let buy = Function::new(
        "buy",
        "Puts one item on the list.",
        ITEM,
        |item: Value, turn: &CallContext| {
            let mut list = turn.values.get("list").unwrap_or(json!([])); // kept with the conversation
            list.as_array_mut()
                .expect("a list")
                .push(item["item"].clone());
            turn.values.set("list", list);
            Ok("It is on the list.")
        },
    );
    let price = Price {
        // dollars for a million tokens
        input: Some(0.2),
        output: Some(0.8),
        cached: None,
    };
    let options = ModelOptions {
        price,
        ..ModelOptions::default()
    };
    let agent = Agent::builder()
        .provider(OpenAi::with(&api, "", "qwen3:4b", options))
        .tool(stock.risk(Risk::Safe))
        .tool(buy)
        .build()?;
    for question in ["What is there to eat?", "Buy milk and bread.", "Thank you!"] {
        let response = agent.run(&Request::new(question, "kitchen"), &|_| ());
        let (tokens, dollars) = (response.usage.total(), response.cost.unwrap_or(0.0));
        let calls: Vec<&str> = response.tool_calls.iter().map(|call| &*call.name).collect();
        println!(
            "{}\n  {tokens} tokens, {dollars:.6} dollars, {calls:?}",
            response.output
        );
    }
    println!("{}", agent.get("kitchen", "list")?.unwrap_or_default());
    Ok(())
}
