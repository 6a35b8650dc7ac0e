//! The tools that look at files, each one job for the hands.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::{Error, Result};
use crate::hands::Hands;
use crate::hands::wire::{FileJob, Header, Job, Reply};
use crate::message::Image;
use crate::text::one_line;

/// Lines of a file given at once, at most.
const MOST_LINES: u64 = 2000;

/// Lines that a search gives, unless the call names another number, and at most.
const MATCHES: usize = 100;
const MOST_MATCHES: usize = 1000;

/// What a tool that works on files is. Paths are explained once, here.
pub(super) fn spec(name: &str, description: &str, properties: &Value, required: &[&str], risk: Risk) -> ToolSpec {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    ToolSpec { name: name.into(), description: description.into(), schema, risk, source: "built in".into() }
}

/// The schema of a path.
pub(super) fn path_schema() -> Value {
    json!({"type": "string", "description": "Relative to the workspace, or absolute"})
}

/// The path of a call, for people.
pub(super) fn path_of(args: &Value) -> String {
    one_line(args.get("path").and_then(Value::as_str).unwrap_or("."), 80)
}

/// Has a job done.
pub(super) fn ask(hands: &Hands, job: FileJob, turn: &Turn) -> Result<ToolOutput> {
    let Reply { header, body } = hands.call(&Job::File(job), turn.cancel)?;
    match header {
        Header::Text => Ok(ToolOutput { text: String::from_utf8_lossy(&body).into_owned(), ..ToolOutput::default() }),
        Header::Image { kind } => {
            let image = Image { mime: kind.mime().to_owned(), base64: STANDARD.encode(&body) };
            let text =
                format!("[an image, {}, {} KB: it is shown after the results]", image.mime, body.len().div_ceil(1024));
            Ok(ToolOutput { text, failed: false, images: vec![image] })
        }
        Header::Refused { why } => Err(Error::failed(why)),
        Header::Exited { .. } | Header::Unavailable { .. } => Err(Error::failed("the hands answered another question")),
    }
}

pub struct ListDir {
    spec: ToolSpec,
    hands: Arc<Hands>,
}

impl ListDir {
    #[must_use]
    pub fn new(hands: Arc<Hands>) -> Self {
        let properties = json!({
            "path": {"type": "string", "description": "Relative to the workspace, or absolute; . is the workspace itself"},
            "depth": {"type": "integer", "description": "Levels to go down, from 1 to 10; default 1"},
        });
        let spec = spec("list_dir", "List a directory, 200 entries at most.", &properties, &["path"], Risk::Safe);
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
        ask(&self.hands, FileJob::ListDir { path, depth: depth.unwrap_or(1).clamp(1, 10) }, turn)
    }
}

pub struct ReadFile {
    spec: ToolSpec,
    hands: Arc<Hands>,
}

impl ReadFile {
    #[must_use]
    pub fn new(hands: Arc<Hands>) -> Self {
        let properties = json!({
            "path": path_schema(),
            "offset": {"type": "integer", "description": "The first line to read, from 1; default 1"},
            "limit": {"type": "integer", "description": "How many lines to read; default 2000"},
        });
        let description = "Read a text file, at most 2000 lines at once, or look at an image (PNG, JPEG, GIF, WebP).";
        Self { spec: spec("read_file", description, &properties, &["path"], Risk::Safe), hands }
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
        ask(&self.hands, FileJob::ReadFile { path, offset: offset.unwrap_or(1).max(1), limit }, turn)
    }
}

pub struct Grep {
    spec: ToolSpec,
    hands: Arc<Hands>,
}

impl Grep {
    #[must_use]
    pub fn new(hands: Arc<Hands>) -> Self {
        let properties = json!({
            "pattern": {"type": "string", "description": "A regular expression, without look-around and back-references; (?i) in front ignores case"},
            "path": {"type": "string", "description": "A file, or a directory to search with all below it; default: the workspace"},
            "glob": {"type": "string", "description": "Which files: *.rs by name, src/**/*.rs by path"},
            "max": {"type": "integer", "description": format!("Lines to give, at most {MOST_MATCHES}; default {MATCHES}")},
        });
        let description = "Search files for lines that match. Binary files, links and .git are left out. \
                           Each line is given as path:number:text.";
        Self { spec: spec("grep", description, &properties, &["pattern"], Risk::Safe), hands }
    }
}

#[derive(Deserialize)]
struct GrepArgs {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    max: Option<usize>,
}

impl Tool for Grep {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        one_line(&format!("{} {}", args.get("pattern").and_then(Value::as_str).unwrap_or_default(), path_of(args)), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let GrepArgs { pattern, path, glob, max } = arguments(args)?;
        let (path, glob) = (path.unwrap_or_else(|| ".".to_owned()), glob.unwrap_or_default());
        let max = max.unwrap_or(MATCHES).clamp(1, MOST_MATCHES);
        ask(&self.hands, FileJob::Grep { pattern, path, glob, max }, turn)
    }
}
