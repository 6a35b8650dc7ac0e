//! The tools that change files, each one job for the hands.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::files::{ask, path_of, path_schema, spec};
use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::Result;
use crate::hands::Hands;
use crate::hands::wire::FileJob;

pub struct WriteFile {
    spec: ToolSpec,
    hands: Arc<Hands>,
}

impl WriteFile {
    #[must_use]
    pub fn new(hands: Arc<Hands>) -> Self {
        let properties = json!({"path": path_schema(), "content": {"type": "string"}});
        let description = "Write a text file: a new one, with the directories it needs, or all of an old one anew.";
        Self { spec: spec("write_file", description, &properties, &["path", "content"], Risk::Writes), hands }
    }
}

#[derive(Deserialize)]
struct WriteArgs {
    path: String,
    content: String,
}

impl Tool for WriteFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        path_of(args)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let WriteArgs { path, content } = arguments(args)?;
        ask(&self.hands, FileJob::WriteFile { path, content }, turn)
    }
}

pub struct AppendFile {
    spec: ToolSpec,
    hands: Arc<Hands>,
}

impl AppendFile {
    #[must_use]
    pub fn new(hands: Arc<Hands>) -> Self {
        let properties = json!({"path": path_schema(), "content": {"type": "string"}});
        let description =
            "Add text to the end of a file, as it is: put a line feed at its end. Makes the file if need be.";
        Self { spec: spec("append_file", description, &properties, &["path", "content"], Risk::Writes), hands }
    }
}

impl Tool for AppendFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        path_of(args)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let WriteArgs { path, content } = arguments(args)?;
        ask(&self.hands, FileJob::AppendFile { path, content }, turn)
    }
}

pub struct EditFile {
    spec: ToolSpec,
    hands: Arc<Hands>,
}

impl EditFile {
    #[must_use]
    pub fn new(hands: Arc<Hands>) -> Self {
        let properties = json!({
            "path": path_schema(),
            "old_text": {"type": "string", "description": "Exactly as it is in the file, and there only once"},
            "new_text": {"type": "string", "description": "What is to stand there instead"},
            "replace_all": {"type": "boolean", "description": "Replace it wherever it is; default false"},
        });
        let description = "Replace a part of a text file.";
        let required = ["path", "old_text", "new_text"];
        Self { spec: spec("edit_file", description, &properties, &required, Risk::Writes), hands }
    }
}

#[derive(Deserialize)]
struct EditArgs {
    path: String,
    old_text: String,
    new_text: String,
    replace_all: Option<bool>,
}

impl Tool for EditFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        path_of(args)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let EditArgs { path, old_text, new_text, replace_all } = arguments(args)?;
        let replace_all = replace_all.unwrap_or(false);
        ask(&self.hands, FileJob::EditFile { path, old_text, new_text, replace_all }, turn)
    }
}
