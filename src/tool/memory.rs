//! The tool for what should outlast a conversation: notes in the workspace's `memory/`, one file each.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::Result;
use crate::hands::Hands;
use crate::hands::wire::{FileJob, Header, Job, Reply};
use crate::text::{LocalTime, one_line};

pub struct Memory {
    spec: ToolSpec,
    hands: Arc<Hands>,
    local_time: LocalTime,
}

impl Memory {
    #[must_use]
    pub fn new(hands: Arc<Hands>, local_time: LocalTime) -> Self {
        let text = |about: &str| json!({"type": "string", "description": about});
        let spec = ToolSpec {
            name: "memory".into(),
            description:
                "Keep and find notes that outlast the conversation. Each is memory/KEY.md; MEMORY is in every \
                          prompt, and the notes of today and yesterday go with every message."
                    .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "action": {
                        "type": "string",
                        "enum": ["view", "write", "append", "search", "delete"],
                        "description": "view without key lists all notes; write replaces a note; append adds a line",
                    },
                    "key": text("A plain name; today is the note of the day; default MEMORY"),
                    "content": text("What to write or append"),
                    "query": text("Words to search all notes for"),
                },
                "required": ["action"],
            }),
            risk: Risk::Writes,
            source: "built in".into(),
        };
        Self { spec, hands, local_time }
    }
}

impl Tool for Memory {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn risk(&self, args: &Value) -> Risk {
        if matches!(args["action"].as_str(), Some("view" | "search")) { Risk::Safe } else { self.spec.risk }
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
        let job = Job::File(FileJob::Memory { ask: arguments(args)?, now });
        let Reply { header, body } = self.hands.call(&job, turn.cancel)?;
        match header {
            Header::Text => Ok(ToolOutput::text(String::from_utf8_lossy(&body))),
            other => Err(other.refusal()),
        }
    }
}
