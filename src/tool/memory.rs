//! The tool for what should outlast a conversation: notes in the workspace's `memory/`, one file each.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use super::Takes::{OneOf, Text};
use super::function::Function;
use super::meaning::Meaning;
use super::{Parameter, Risk, ToolOutput, ToolSpec, arguments, text};
use crate::error::Result;
use crate::hands::Hands;
use crate::text::LocalTime;
use crate::wire::{FileJob, Job, MemoryAction, MemoryRequest};

/// The fields of [`MemoryRequest`].
const PARAMETERS: [Parameter<'_>; 4] = [
    (
        "action",
        OneOf(&["view", "write", "append", "search", "delete"]),
        "view without key lists all; write replaces; append adds a line",
    ),
    ("key", Text, "A name, or today; default MEMORY"),
    ("content", Text, ""),
    ("query", Text, ""),
];

/// The process that reads and writes the notes.
pub(crate) type NotesHands = dyn Fn() -> Result<Arc<Hands>> + Send + Sync;

/// With `meaning`, a search also compares meanings.
pub(crate) fn memory(
    hands: Box<NotesHands>,
    local_time: LocalTime,
    meaning: Option<Meaning>,
) -> Function {
    let description = "Keep and find notes (memory/KEY.md) that outlast the conversation. You always see MEMORY and \
                       the notes of today and yesterday.";
    let spec = ToolSpec::built_in("memory", Risk::Writes, description, &PARAMETERS, 1);
    let memory = Function::of(spec, &["action", "key", "query"], move |args, turn| {
        let now = local_time(SystemTime::now());
        let request = arguments::<MemoryRequest>(args)?;
        let hands = hands()?;
        let is_search = request.action == MemoryAction::Search;
        let job = Job::File(FileJob::Memory { request, now });
        let by_words = hands.call(&job, turn.cancel)?.into_text()?;
        let Some(meaning) = meaning.as_ref().filter(|_| is_search) else {
            return Ok(ToolOutput::text(by_words));
        };
        let query = Some(text(args, "query"))
            .filter(|query| !query.is_empty())
            .unwrap_or(text(args, "content"));
        let by_meaning = match meaning.search(&hands, query, turn) {
            Ok(found) => format!("Nearest in meaning:\n\n{found}"),
            Err(e) => format!("[not searched by meaning: {}]\n\n", e.message),
        };
        Ok(ToolOutput::text(format!(
            "{by_meaning}By words:\n\n{by_words}"
        )))
    });
    memory.safe_when(only_looks)
}

fn only_looks(args: &Value) -> bool {
    matches!(text(args, "action"), "view" | "search")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::schema::{Unknown, check};
    use crate::tool::schema_of;
    use serde_json::json;

    #[test]
    fn what_is_offered_is_asked_of_the_notes_and_looking_is_safe() {
        let schema: Value = serde_json::from_str(&schema_of(&PARAMETERS, 1)).unwrap();
        let actions = schema["properties"]["action"]["enum"].clone();
        for action in actions.as_array().unwrap() {
            let args = json!({"action": action, "key": "a", "content": "b", "query": "c"});
            assert_eq!(
                check(&schema, args.clone(), Unknown::LeaveOut).unwrap(),
                args
            );
            let request: MemoryRequest = arguments(&args).unwrap();
            assert_eq!(serde_json::to_value(request).unwrap(), args);
            let safe = matches!(action.as_str(), Some("view" | "search"));
            assert_eq!(only_looks(&args), safe, "{action}");
        }
        assert!(arguments::<MemoryRequest>(&json!({"action": "forget"})).is_err());
    }
}
