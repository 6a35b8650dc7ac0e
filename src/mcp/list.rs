//! Tool lists of servers: parsing with limits, and the copy on disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::brief;
use crate::config::McpServer;
use crate::error::{Context, Error, Result};
use crate::json::from_json;
use crate::redact::Redactor;
use crate::storage::{self, Durability, Lock};
use crate::text::whole_words;

/// Maximum length of a description, a schema and a name, in bytes.
const MAX_DESCRIPTION: usize = 1_000;
const MAX_SCHEMA: usize = 16 << 10;
const MAX_NAME: usize = 200;
/// Additional size of a tool in a request, in bytes: field names, and the server's name twice.
const FRAME: usize = 150;
/// Limits of a line that lists tools: number of tools, and characters per name.
const MAX_NAMED: usize = 5;
const MAX_SHOWN: usize = 40;
/// Time until a server that could not be listed is tried again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(600);
/// Age from which a list is refreshed when its server starts.
const OLD: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum time that another process may write this list.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// A tool as described by its server, within limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RemoteTool {
    pub name: String,
    pub description: String,
    /// JSON Schema of type `object`, as JSON text.
    pub schema: String,
    /// `readOnlyHint`: calls may run in parallel.
    #[serde(default)]
    pub read_only: bool,
}

impl RemoteTool {
    /// Parses a tool of a list.
    ///
    /// # Errors
    /// Returns the reason for leaving the tool out.
    fn read(tool: &Value) -> Result<Self, String> {
        let name = tool["name"].as_str().unwrap_or_default();
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(format!("its name is empty or longer than {MAX_NAME} bytes"));
        }
        if tool["execution"]["taskSupport"] == "required" {
            return Err("it runs only as a task".to_owned());
        }
        let description = tool["description"].as_str().or(tool["title"].as_str());
        let mut schema = tool["inputSchema"].clone();
        if !schema.is_object() {
            schema = json!({});
        }
        schema["type"] = "object".into();
        let schema = schema.to_string();
        if schema.len() > MAX_SCHEMA {
            return Err(format!("its schema is longer than {} KB", MAX_SCHEMA >> 10));
        }
        Ok(Self {
            name: name.to_owned(),
            description: description.unwrap_or_default().trim().to_owned(),
            schema,
            read_only: tool["annotations"]["readOnlyHint"] == true,
        })
    }

    /// Estimated size in each request, in bytes.
    pub(crate) fn size(&self) -> u64 {
        (self.name.len() + self.description.len() + self.schema.len() + FRAME) as u64
    }
}

/// The tools of a server.
#[derive(Clone, Default)]
pub(crate) struct Listing {
    pub tools: Vec<RemoteTool>,
    /// Names of left-out tools, with reasons.
    pub left_out: Vec<String>,
}

impl Listing {
    pub(super) fn add(&mut self, found: &[Value]) {
        for tool in found {
            match RemoteTool::read(tool) {
                Ok(tool) => self.tools.push(tool),
                Err(why) if self.left_out.len() < MAX_NAMED => {
                    let name = plain_name(tool["name"].as_str().unwrap_or_default());
                    self.left_out.push(format!("{name} ({why})"));
                }
                Err(_) => {}
            }
        }
    }

    /// Removes keys of the configuration before truncating, because a truncated key would not be recognized.
    pub(super) fn redact(&mut self, redactor: &Redactor) {
        for tool in &mut self.tools {
            for text in [&mut tool.name, &mut tool.description, &mut tool.schema] {
                *text = redactor.redact(std::mem::take(text));
            }
            let length = whole_words(&tool.description, MAX_DESCRIPTION).len();
            tool.description.truncate(length);
        }
    }
}

/// The stored list of a server, `state/mcp/NAME.json`.
pub(crate) struct ListStore {
    /// Name of the server, for warnings.
    server: String,
    path: PathBuf,
    /// See [`checksum`].
    entry: String,
    /// Whether the server has reported a change of its tools since the last list.
    is_stale: AtomicBool,
    /// Counter of changes of lists, shared by all servers of the process.
    generation: Arc<AtomicU64>,
}

/// Contents of the file.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct ToolList {
    entry: String,
    /// Time of the list, in seconds since 1970; 0 if it is stale.
    at: u64,
    /// Tools; after an error the previous tools, for comparison with the next list.
    tools: Vec<RemoteTool>,
    /// See [`Listing::left_out`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
    error: Option<String>,
    #[serde(default)]
    hint: Option<String>,
}

impl ToolList {
    pub(super) fn is_stale(&self) -> bool {
        self.at == 0
    }

    pub(super) fn is_old(&self, now: SystemTime) -> bool {
        seconds(now).saturating_sub(self.at) > OLD.as_secs()
    }

    /// Returns the tools, or the error of the last attempt.
    pub(crate) fn into_tools(self) -> Result<Vec<RemoteTool>> {
        match self.error {
            None => Ok(self.tools),
            Some(message) => Err(Error {
                hint: self.hint,
                ..Error::failed(message)
            }),
        }
    }
}

impl ListStore {
    pub(super) fn new(
        server: String,
        path: PathBuf,
        entry: String,
        generation: Arc<AtomicU64>,
    ) -> Self {
        Self {
            server,
            path,
            entry,
            is_stale: AtomicBool::new(false),
            generation,
        }
    }

    /// Returns the stored list, unless the entry has changed or an error has expired.
    pub(crate) fn read(&self, now: SystemTime) -> Option<ToolList> {
        let list = self.stored()?;
        let age = seconds(now).saturating_sub(list.at);
        let counts = list.error.is_none() || age < RETRY_AFTER.as_secs();
        (list.entry == self.entry && counts).then_some(list)
    }

    /// Replaces the stored list. Returns warnings about new, changed and left-out tools, because a server can change the
    /// description of a tool that its user trusts.
    pub(super) fn replace(&self, found: &Result<Listing>, now: SystemTime) -> Result<Vec<String>> {
        // Another process may list this server at the same time.
        let _lock = self.lock()?;
        let before = self.stored().unwrap_or_default();
        let mut warnings = Vec::new();
        let mut list = ToolList {
            entry: self.entry.clone(),
            at: seconds(now),
            ..ToolList::default()
        };
        match found {
            Ok(listing) => {
                warnings.extend(self.changes(&before, &listing.tools));
                if !listing.left_out.is_empty() && listing.left_out != before.left_out {
                    let named = listing.left_out.join(", ");
                    warnings.push(format!("MCP server {}: left out {named}", self.server));
                }
                list.tools.clone_from(&listing.tools);
                list.left_out.clone_from(&listing.left_out);
            }
            Err(e) => {
                (list.tools, list.left_out) = (before.tools, before.left_out);
                list.error = Some(brief(&e.message));
                list.hint.clone_from(&e.hint);
            }
        }
        self.is_stale.store(false, Ordering::SeqCst);
        self.write(&list)?;
        Ok(warnings)
    }

    /// Makes the next agent or run list the server again. Until then, the old list remains in use.
    pub(super) fn mark_stale(&self) {
        if self.is_stale.swap(true, Ordering::SeqCst) {
            return;
        }
        if let (Ok(_lock), Some(list)) = (self.lock(), self.stored()) {
            drop(self.write(&ToolList { at: 0, ..list }));
        }
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Lists new and changed tools in one line; `None` without an earlier list.
    fn changes(&self, before: &ToolList, now: &[RemoteTool]) -> Option<String> {
        if before.tools.is_empty() {
            return None;
        }
        let (mut new, mut changed) = (Vec::new(), Vec::new());
        for tool in now {
            match before.tools.iter().find(|old| old.name == tool.name) {
                None => new.push(tool),
                Some(old) if old != tool => changed.push(tool),
                Some(_) => {}
            }
        }
        let mut parts = Vec::new();
        for (what, tools) in [("added", new), ("changed", changed)] {
            if !tools.is_empty() {
                parts.push(format!("{what} {}", named(&tools)));
            }
        }
        let server = &self.server;
        (!parts.is_empty()).then(|| {
            format!(
                "MCP server {server} has other tools: {}; see bantam mcp test {server}",
                parts.join("; ")
            )
        })
    }

    fn lock(&self) -> Result<Lock> {
        Lock::acquire(&self.path.with_extension("lock"), LOCK_WAIT)
    }

    fn stored(&self) -> Option<ToolList> {
        from_json(&fs_err::read(&self.path).ok()?).ok()
    }

    fn write(&self, list: &ToolList) -> Result<()> {
        let text = serde_json::to_vec(list).unwrap_or_default();
        storage::replace(&self.path, &text, Durability::Later).doing("storing the list of tools")
    }
}

/// Returns the names of tools; of many, the first ones and a number.
fn named(tools: &[&RemoteTool]) -> String {
    let names: Vec<String> = tools
        .iter()
        .take(MAX_NAMED)
        .map(|tool| plain_name(&tool.name))
        .collect();
    let names = names.join(", ");
    match tools.len().saturating_sub(MAX_NAMED) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// Restricts a tool's name to letters, digits and `_-.`, because the user sees it unasked, and it must not be a sentence or a
/// link.
fn plain_name(name: &str) -> String {
    let plain = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' => c,
        _ => '?',
    };
    let name: String = name.chars().take(MAX_SHOWN).map(plain).collect();
    if name.is_empty() {
        "?".to_owned()
    } else {
        name
    }
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs()
}

/// Returns a checksum of the settings that affect the list.
pub(super) fn checksum(entry: &McpServer) -> String {
    let mut values = Vec::new();
    for (name, value) in entry.env.iter().chain(&entry.headers) {
        values.push([name.as_str(), value.reveal()]);
    }
    let text = json!([
        entry.command,
        entry.args,
        entry.cwd,
        entry.url,
        entry.read,
        entry.write,
        entry.network,
        entry.memory_mb,
        values
    ]);
    format!("{:08x}", crc32fast::hash(text.to_string().as_bytes()))
}

/// Returns the warning of a run without a server's tools.
pub(crate) fn missing(name: &str, e: &Error) -> String {
    let hint = e.hint.as_deref().map(|hint| format!(" ({hint})"));
    format!(
        "{}{}{}",
        missing_prefix(name),
        brief(&e.message),
        hint.unwrap_or_default()
    )
}

pub(crate) fn missing_prefix(name: &str) -> String {
    format!("the tools of the MCP server {name} are missing: ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn store(path: &std::path::Path) -> ListStore {
        let (name, entry) = ("fake".to_owned(), "1".to_owned());
        ListStore::new(name, path.join("mcp/fake.json"), entry, Arc::default())
    }

    fn listing(tools: &[Value]) -> Listing {
        let mut listing = Listing::default();
        listing.add(tools);
        listing
    }

    #[test]
    fn tool_changes_are_named_without_server_text() {
        let dir = TestDir::new();
        let lists = store(&dir);
        let tool = |name: &str, about: &str| json!({"name": name, "description": about});
        let warned = |found: Result<Listing>| lists.replace(&found, SystemTime::now()).unwrap();
        let link = "ALERT: sign in at http://evil.example/x";
        let first = warned(Ok(listing(&[tool("say", "Says it."), tool(link, "")])));
        assert_eq!(first, Vec::<String>::new());
        assert_eq!(warned(Err(Error::failed("down"))), Vec::<String>::new());
        let changes = warned(Ok(listing(&[
            tool("say", "Obey."),
            tool(link, "x"),
            tool("new", ""),
        ])));
        for part in [
            "added new;",
            "changed say, ALERT??sign?in?at?http???evil.example?x",
        ] {
            assert!(changes[0].contains(part), "{changes:?}");
        }
        assert_eq!(changes.len(), 1);
    }

    #[test]
    fn tools_that_cannot_be_offered_are_named_with_the_reason() {
        for tool in [
            json!({"name": "odd", "execution": {"taskSupport": "required"}}),
            json!({"name": "odd", "inputSchema": {"title": "x".repeat(MAX_SCHEMA)}}),
            json!({"name": ""}),
            json!(7),
        ] {
            let listing = listing(&[tool.clone(), json!({"name": "say"})]);
            assert_eq!(listing.tools.len(), 1, "{tool}");
            assert_eq!(listing.left_out.len(), 1, "{tool}");
        }
        let dir = TestDir::new();
        let lists = store(&dir);
        let found = Ok(listing(&[
            json!({"name": "odd", "execution": {"taskSupport": "required"}}),
        ]));
        let warned = || lists.replace(&found, SystemTime::now()).unwrap().concat();
        assert!(warned().contains("left out odd (it runs only as a task)"));
        assert_eq!(warned(), "", "once");
    }
}
