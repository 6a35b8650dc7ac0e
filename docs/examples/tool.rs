//! A tool of your own: a function, whose arguments are a type.

use bantam::{Agent, Error, Function, OpenAi, Result, Risk};
use serde::Deserialize;

#[derive(Deserialize)]
struct Order {
    number: u32,
}

const SCHEMA: &str =
    r#"{"type":"object","properties":{"number":{"type":"integer"}},"required":["number"]}"#;

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let order = Function::new(
        "order",
        "The state of an order.",
        SCHEMA,
        |order: Order, _| {
            match order.number {
                7 => Ok("It was sent on Monday."),
                _ => Err(Error::failed("there is no such order")), // the model reads it, and tries again
            }
        },
    );
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .tool(order.risk(Risk::Safe))
        .build()?;
    println!("{}", agent.ask("Where is my order 7?")?);
    Ok(())
}
