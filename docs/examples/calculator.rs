//! A provider of your own: stands in for a model that hands sums to a tool and repeats the result. It needs no network.
//!
//! ```text
//! cargo run -- "What is 6 * 7?"
//! ```

use std::env::args;
use std::sync::Mutex;

use bantam::{
    Agent, CallContext, Error, Event, Function, Message, ModelRequest, Provider, ProviderError,
    Reply, Request, Result, Risk, Sink, ToolCall,
};
use serde_json::{Value, json};

struct SumReader;

impl Provider for SumReader {
    fn model(&self) -> &'static str {
        "example/sum-reader"
    }

    /// One step: what a host would be asked with these messages. The agent calls it again with the result of the call.
    fn chat(&self, request: &ModelRequest, sink: &dyn Sink) -> Result<Reply, ProviderError> {
        let text = match request.messages.last() {
            Some(Message::User(user)) => match sum_in(&user.content) {
                Some(arguments) => {
                    let name = "calculate".to_owned();
                    let call = ToolCall {
                        id: "1".to_owned(),
                        name,
                        arguments,
                        ..ToolCall::default()
                    };
                    return Ok(Reply {
                        calls: vec![call],
                        ..Reply::default()
                    });
                }
                None => "Ask for a sum, like 6 * 7.".to_owned(),
            },
            Some(Message::ToolResult(result)) => format!("That is {}.", result.content),
            _ => {
                return Err(ProviderError::MessageRefused(
                    "there is no question".to_owned(),
                ));
            }
        };
        sink.event(Event::Delta(text.clone()));
        Ok(Reply {
            text,
            ..Reply::default()
        })
    }
}

/// The first sum in a text, as the arguments of the tool.
fn sum_in(text: &str) -> Option<String> {
    let words: Vec<&str> = text
        .split_whitespace()
        .map(|word| word.trim_end_matches(['?', '.', '!']))
        .collect();
    words.windows(3).find_map(|sum| {
        let (a, b) = (sum[0].parse::<f64>().ok()?, sum[2].parse::<f64>().ok()?);
        matches!(sum[1], "+" | "-" | "*" | "/")
            .then(|| json!({"a": a, "operator": sum[1], "b": b}).to_string())
    })
}

fn calculator() -> Function {
    let schema = r#"{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"},
        "operator":{"type":"string","enum":["+","-","*","/"]}},"required":["a","operator","b"]}"#;
    let calculate = |args: Value, _: &CallContext| {
        let number = |name: &str| args[name].as_f64().unwrap_or_default();
        let (a, b) = (number("a"), number("b"));
        let result = match args["operator"].as_str() {
            Some("+") => a + b,
            Some("-") => a - b,
            Some("*") => a * b,
            _ if b == 0.0 => return Err(Error::failed("nothing can be divided by 0")),
            _ => a / b,
        };
        Ok(result.to_string())
    };
    Function::new("calculate", "Calculates.", schema, calculate).risk(Risk::Safe)
}

/// Runs one turn. Returns the answer and the events.
pub fn calculate(question: &str) -> Result<(String, Vec<Event>)> {
    let agent = Agent::builder()
        .provider(SumReader)
        .tool(calculator())
        .build()?;
    let events = Mutex::new(Vec::new());
    let response = agent.run(&Request::new(question, "sums"), &|event| {
        events.lock().unwrap().push(event);
    });
    match response.error {
        Some(e) => Err(e),
        None => Ok((response.output, events.into_inner().unwrap())),
    }
}

fn main() -> Result<()> {
    let (answer, events) = calculate(&args().nth(1).unwrap_or_else(|| "What is 6 * 7?".into()))?;
    for event in events {
        println!("{event:?}");
    }
    println!("{answer}");
    Ok(())
}
