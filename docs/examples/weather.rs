//! A tool of your own: tells the weather, from a table, to the model of `$BANTAM_HOME`.
//!
//! ```text
//! cargo run -- "Do I need an umbrella in Bergen?"
//! ```

use std::env::args;

use bantam::{Builder, CallContext, Error, Home, Result, Risk, Tool, ToolOutput, ToolSpec};
use serde_json::Value;

const TABLE: &[(&str, &str)] = &[
    ("Aswan", "39 °C, clear"),
    ("Bergen", "9 °C, rain"),
    ("Quito", "17 °C, clouds"),
];

struct Weather(ToolSpec);

impl Weather {
    fn new() -> Self {
        let schema =
            r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#;
        Self(ToolSpec {
            name: "weather".into(),
            description: "The weather in a city.".into(),
            schema: schema.into(),
            risk: Risk::Safe,
            source: "the weather example".into(),
        })
    }
}

impl Tool for Weather {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    /// The arguments match the schema. An error is for the model, which can try again.
    fn call(&self, args: &Value, _: &CallContext) -> Result<ToolOutput> {
        let city = args["city"].as_str().unwrap_or_default();
        match TABLE
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(city))
        {
            Some((_, weather)) => Ok(ToolOutput::text(*weather)),
            None => Err(Error::failed(format!(
                "there is no weather for {city}: try Aswan, Bergen or Quito"
            ))),
        }
    }
}

/// Asks an agent that has the tool.
pub fn ask(builder: Builder, question: &str) -> Result<String> {
    builder.tool(Weather::new()).build()?.ask(question)
}

fn main() -> Result<()> {
    let question = args()
        .nth(1)
        .unwrap_or_else(|| "Where does it rain: in Aswan, Bergen or Quito?".into());
    println!("{}", ask(Home::user()?.agent()?, &question)?);
    Ok(())
}
