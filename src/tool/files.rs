//! The tools that look at files, each one job for the hands.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::{Error, Result};
use crate::hands::Hands;
use crate::hands::wire::{Header, Job, Reply};
use crate::text::one_line;

/// Lines of a file given at once, at most.
const MOST_LINES: u64 = 2000;

/// Asks the hands for text.
fn text(hands: &Hands, job: &Job, turn: &Turn) -> Result<ToolOutput> {
    let Reply { header, body } = hands.call(job, turn.cancel)?;
    match header {
        Header::Text => Ok(ToolOutput { text: String::from_utf8_lossy(&body).into_owned(), failed: false }),
        Header::Refused { why } => Err(Error::failed(why)),
        Header::Exited { .. } | Header::Unavailable { .. } => Err(Error::failed("the hands answered another question")),
    }
}

fn path_of(args: &Value) -> String {
    one_line(args.get("path").and_then(Value::as_str).unwrap_or("."), 80)
}

pub struct ListDir {
    spec: ToolSpec,
    hands: Arc<Hands>,
}

impl ListDir {
    #[must_use]
    pub fn new(hands: Arc<Hands>) -> Self {
        let spec = ToolSpec {
            name: "list_dir".into(),
            description: "List a directory of the workspace.".into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Relative to the workspace; . is the workspace itself"},
                    "depth": {"type": "integer", "description": "Levels to go down, from 1 to 10; default 1"},
                },
                "required": ["path"],
            }),
            risk: Risk::Safe,
            source: "built in".into(),
        };
        Self { spec, hands }
    }
}

#[derive(Deserialize)]
struct ListDirArgs {
    path: String,
    depth: Option<u32>,
}

impl Tool for ListDir {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        path_of(args)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let ListDirArgs { path, depth } = arguments(args)?;
        text(&self.hands, &Job::ListDir { path, depth: depth.unwrap_or(1).clamp(1, 10) }, turn)
    }
}

pub struct ReadFile {
    spec: ToolSpec,
    hands: Arc<Hands>,
}

impl ReadFile {
    #[must_use]
    pub fn new(hands: Arc<Hands>) -> Self {
        let spec = ToolSpec {
            name: "read_file".into(),
            description: "Read a text file of the workspace, at most 2000 lines at once.".into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Relative to the workspace"},
                    "offset": {"type": "integer", "description": "The first line to read, from 1; default 1"},
                    "limit": {"type": "integer", "description": "How many lines to read; default 2000"},
                },
                "required": ["path"],
            }),
            risk: Risk::Safe,
            source: "built in".into(),
        };
        Self { spec, hands }
    }
}

#[derive(Deserialize)]
struct ReadFileArgs {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

impl Tool for ReadFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        path_of(args)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let ReadFileArgs { path, offset, limit } = arguments(args)?;
        let limit = limit.unwrap_or(MOST_LINES).clamp(1, MOST_LINES);
        text(&self.hands, &Job::ReadFile { path, offset: offset.unwrap_or(1).max(1), limit }, turn)
    }
}
