//! A test of a tool of your own, without a model and a network: it is called as a model would call it.

use bantam::{Agent, CallContext, Demo, Error, Function, Result};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Order {
    number: u32,
}

const SCHEMA: &str =
    r#"{"type":"object","properties":{"number":{"type":"integer"}},"required":["number"]}"#;

fn order() -> Function {
    Function::new(
        "order",
        "The state of an order.",
        SCHEMA,
        |order: Order, turn: &CallContext| {
            turn.values.set("last", order.number);
            match order.number {
                7 => Ok("It was sent on Monday."),
                _ => Err(Error::failed("there is no such order")),
            }
        },
    )
}

/// In your program this is a `#[test]`.
pub fn main() -> Result<()> {
    let agent = Agent::builder().provider(Demo).tool(order()).build()?;
    assert_eq!(
        agent.call("order", &json!({"number": 7}))?.text,
        "It was sent on Monday."
    );
    let unknown = agent.call("order", &json!({"number": 8}))?;
    assert!(unknown.failed);
    assert_eq!(unknown.text, "error: there is no such order");
    let invalid = agent.call("order", &json!({"number": "seven"}))?;
    assert!(
        invalid.text.contains("\"number\" must be an integer"),
        "{}",
        invalid.text
    );
    assert_eq!(agent.get("library_default", "last")?, Some(json!(8)));
    println!("ok");
    Ok(())
}
