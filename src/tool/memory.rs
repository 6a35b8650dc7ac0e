//! The tool for what should outlast a conversation: notes in the workspace's `memory/`, one file each.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use super::{
    CallContext, Function, Risk, SUBAGENT, ToolOutput, ToolSpec, Workshop, arguments, text,
};
use crate::error::{Error, Result};
use crate::session::search::{Found, search_past};
use crate::template;
use crate::text::{clip, fenced, one_line};
use crate::worker::protocol::{FileJob, Job, MemoryAction, MemoryRequest};

/// The most characters of a line from a conversation.
const MAX_LINE: usize = 300;

/// The arguments are the fields of [`MemoryRequest`].
const SPEC: ToolSpec = ToolSpec::built_in(
    "memory",
    Risk::Writes,
    "Notes (memory/KEY.md) that outlast the conversation. You always see MEMORY, today's and yesterday's.",
    concat!(
        r#"{"type":"object","properties":{"action":{"type":"string","enum":["view","write","append","search","delete"],"description":"view without key lists all; write replaces; append adds a line"},"#,
        r#""key":{"type":"string","description":"A name, MEMORY or today"},"#,
        r#""content":{"type":"string"},"#,
        r#""query":{"type":"string"}},"required":["action"]}"#
    ),
);

pub(crate) fn memory_tool(workshop: &Arc<Workshop>) -> Function {
    workshop
        .tool(SPEC, &["action", "key", "query"], run)
        .safe_if(only_looks)
}

/// With a model for it, a search also compares meanings.
fn run(workshop: &Workshop, args: &Value, turn: &CallContext) -> Result<ToolOutput> {
    let now = (workshop.local_time)(SystemTime::now());
    let mut request = arguments::<MemoryRequest>(args)?;
    let key = text(args, "key").trim();
    let key = key.strip_prefix("memory/").unwrap_or(key);
    let key = key.strip_suffix(".md").unwrap_or(key);
    request.key = Some(key.to_owned()).filter(|key| !key.is_empty());
    let replaces = matches!(request.action, MemoryAction::Write | MemoryAction::Delete);
    if replaces && request.key.is_none() {
        let what =
            "write and delete need a key, for example garden; MEMORY is the key of MEMORY.md";
        return Err(Error::failed(what));
    }
    let workers = &workshop.workers;
    template::make_notes(&workshop.home.notes())?;
    let is_search = request.action == MemoryAction::Search;
    let job = Job::File(FileJob::Memory { request, now });
    let mut by_words = workers.call(&job, turn.cancel)?.into_text()?;
    if is_search {
        by_words.push_str(&past_conversations(workshop, args, turn)?);
    }
    let Some(meaning) = workshop.meaning.as_ref().filter(|_| is_search) else {
        return Ok(ToolOutput::text(by_words));
    };
    let query = Some(text(args, "query"))
        .filter(|query| !query.is_empty())
        .unwrap_or(text(args, "content"));
    let by_meaning = match meaning.search(workers, query, turn) {
        Ok(found) => format!("Nearest in meaning:\n\n{found}"),
        Err(e) => format!("[not searched by meaning: {}]\n\n", e.message),
    };
    Ok(ToolOutput::text(format!(
        "{by_meaning}By words:\n\n{by_words}"
    )))
}

/// What was said of it in earlier conversations, fenced: others may have said it. Empty if nothing was.
fn past_conversations(workshop: &Workshop, args: &Value, turn: &CallContext) -> Result<String> {
    let words: Vec<String> = text(args, "query")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    if words.is_empty() || turn.origin.channel == SUBAGENT {
        return Ok(String::new());
    }
    let found = search_past(&workshop.home, &words, turn.origin)?;
    if found.is_empty() {
        return Ok(String::new());
    }
    let line = |found: &Found| {
        let line = one_line(&found.line, MAX_LINE);
        format!("{} ({}): {line}", found.key, clip(&found.last, 10))
    };
    let lines: Vec<String> = found.iter().map(line).collect();
    Ok(format!(
        "\n\nIn earlier conversations:\n\n{}",
        fenced(&lines.join("\n"))
    ))
}

fn only_looks(args: &Value) -> bool {
    matches!(text(args, "action"), "view" | "search")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::Owner;
    use crate::tool::schema::check;
    use serde_json::json;

    #[test]
    fn what_is_offered_is_asked_of_the_notes_and_looking_is_safe() {
        let schema: Value = serde_json::from_str(&SPEC.schema).unwrap();
        let actions = schema["properties"]["action"]["enum"].clone();
        for action in actions.as_array().unwrap() {
            let args = json!({"action": action, "key": "a", "content": "b", "query": "c"});
            assert_eq!(check(&schema, args.clone(), Owner::BuiltIn).unwrap(), args);
            let request: MemoryRequest = arguments(&args).unwrap();
            assert_eq!(serde_json::to_value(request).unwrap(), args);
            let safe = matches!(action.as_str(), Some("view" | "search"));
            assert_eq!(only_looks(&args), safe, "{action}");
        }
        assert!(arguments::<MemoryRequest>(&json!({"action": "forget"})).is_err());
    }
}
