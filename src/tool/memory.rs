//! The tool for what should outlast a conversation: notes in the workspace's `memory/`, one file each.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, arguments, text};
use crate::error::Result;
use crate::hands::Hands;
use crate::text::{LocalTime, one_line};
use crate::wire::{FileJob, Job, MemoryRequest};

pub(crate) struct Memory {
    spec: ToolSpec,
    hands: Arc<Hands>,
    local_time: LocalTime,
}

/// The fields of [`MemoryRequest`].
const SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"action":{"type":"string","enum":["view","write","append","search","delete"],"#,
    r#""description":"view without key lists all notes; write replaces a note; append adds a line"},"#,
    r#""key":{"type":"string","description":"A plain name, or today for the day's note; default MEMORY"},"#,
    r#""content":{"type":"string","description":"Text to write or append"},"#,
    r#""query":{"type":"string","description":"Words to search for"}},"required":["action"]}"#
);

impl Memory {
    pub(crate) fn new(hands: Arc<Hands>, local_time: LocalTime) -> Self {
        let description = "Keep and find notes that outlast the conversation. Each is memory/KEY.md. Every prompt \
                           includes MEMORY, and every message the notes of today and yesterday.";
        Self { spec: ToolSpec::built_in("memory", Risk::Writes, description, SCHEMA), hands, local_time }
    }
}

fn risk(args: &Value) -> Risk {
    if matches!(text(args, "action"), "view" | "search") { Risk::Safe } else { Risk::Writes }
}

impl Tool for Memory {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn risk(&self, args: &Value) -> Risk {
        risk(args)
    }

    fn summary(&self, args: &Value) -> String {
        let (action, key) = (text(args, "action"), text(args, "key"));
        let about = match action {
            "search" if text(args, "query").is_empty() => text(args, "content"),
            "search" => text(args, "query"),
            "write" | "append" if key.is_empty() => "MEMORY",
            _ => key,
        };
        one_line(&format!("{action} {about}"), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let now = (self.local_time)(SystemTime::now());
        let job = Job::File(FileJob::Memory { request: arguments::<MemoryRequest>(args)?, now });
        self.hands.call(&job, turn.cancel)?.into_text().map(ToolOutput::text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::schema::check;
    use serde_json::json;

    #[test]
    fn what_is_offered_is_asked_of_the_notes_and_looking_is_safe() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let actions = schema["properties"]["action"]["enum"].clone();
        for action in actions.as_array().unwrap() {
            let args = json!({"action": action, "key": "a", "content": "b", "query": "c"});
            assert_eq!(check(&schema, args.clone()).unwrap(), args);
            let request: MemoryRequest = arguments(&args).unwrap();
            assert_eq!(serde_json::to_value(request).unwrap(), args);
            let safe = matches!(action.as_str(), Some("view" | "search"));
            assert_eq!(risk(&args) == Risk::Safe, safe, "{action}");
        }
        assert!(arguments::<MemoryRequest>(&json!({"action": "forget"})).is_err());
    }
}
