//! The tool for what should outlast a conversation: notes in the workspace's `memory/`, one file each.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::Result;
use crate::hands::Hands;
use crate::text::{LocalTime, one_line};
use crate::wire::{FileJob, Header, Job, MemoryRequest, Reply};

pub struct Memory {
    spec: ToolSpec,
    hands: Arc<Hands>,
    local_time: LocalTime,
}

impl Memory {
    pub fn new(hands: Arc<Hands>, local_time: LocalTime) -> Self {
        let spec = ToolSpec {
            name: "memory".into(),
            description:
                "Keep and find notes that outlast the conversation. Each is memory/KEY.md; MEMORY is in every \
                          prompt, and the notes of today and yesterday go with every message."
                    .into(),
            schema: SCHEMA.into(),
            risk: Risk::Writes,
            source: "built in".into(),
        };
        Self { spec, hands, local_time }
    }
}

/// What a call is made of: [`MemoryRequest`], as JSON Schema.
const SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"action":{"type":"string","enum":["view","write","append","search","delete"],"#,
    r#""description":"view without key lists all notes; write replaces a note; append adds a line"},"#,
    r#""key":{"type":"string","description":"A plain name; today is the note of the day; default MEMORY"},"#,
    r#""content":{"type":"string","description":"What to write or append"},"#,
    r#""query":{"type":"string","description":"Words to search all notes for"}},"required":["action"]}"#
);

fn risk(args: &Value) -> Risk {
    if matches!(args["action"].as_str(), Some("view" | "search")) { Risk::Safe } else { Risk::Writes }
}

impl Tool for Memory {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn risk(&self, args: &Value) -> Risk {
        risk(args)
    }

    fn summary(&self, args: &Value) -> String {
        let said = |name: &str| args.get(name).and_then(Value::as_str).unwrap_or_default();
        let about = match said("action") {
            "search" if said("query").is_empty() => said("content"),
            "search" => said("query"),
            "write" | "append" if said("key").is_empty() => "MEMORY",
            _ => said("key"),
        };
        one_line(&format!("{} {about}", said("action")), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let now = (self.local_time)(SystemTime::now());
        let job = Job::File(FileJob::Memory { request: arguments::<MemoryRequest>(args)?, now });
        let Reply { header, body } = self.hands.call(&job, turn.cancel)?;
        match header {
            Header::Text => Ok(ToolOutput::text(String::from_utf8_lossy(&body))),
            other => Err(other.into_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::schema;
    use serde_json::json;

    #[test]
    fn what_is_offered_is_asked_of_the_notes_and_looking_is_safe() {
        let offer: Value = serde_json::from_str(SCHEMA).unwrap();
        let actions = offer["properties"]["action"]["enum"].clone();
        for action in actions.as_array().unwrap() {
            let args = json!({"action": action, "key": "a", "content": "b", "query": "c"});
            assert_eq!(schema::fit(&offer, args.clone()).unwrap().args, args);
            let ask: MemoryRequest = arguments(&args).unwrap();
            assert_eq!(serde_json::to_value(ask).unwrap(), args);
            let safe = matches!(action.as_str(), Some("view" | "search"));
            assert_eq!(risk(&args) == Risk::Safe, safe, "{action}");
        }
        assert!(arguments::<MemoryRequest>(&json!({"action": "forget"})).is_err());
    }
}
