//! Tool lists of servers: parsing with limits, and the copy on disk.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{PERIOD, Server, brief};
use crate::cancel::{Cancel, CancelReason};
use crate::config::McpServer;
use crate::error::{Context, Error, Result};
use crate::json::from_json;
use crate::redact::Redactor;
use crate::storage::{self, Durability};
use crate::text::{foreign_line, whole_words};

/// Maximum length of a description, a schema and a name, in bytes.
const MAX_DESCRIPTION: usize = 1_000;
const MAX_SCHEMA: usize = 16 << 10;
const MAX_NAME: usize = 200;
/// Additional size of a tool in a request, in bytes: field names, and the server's name twice.
const FRAME: usize = 150;
/// Time of a failure that questions do not wait for again.
const SLOW: Duration = Duration::from_secs(5);
/// Maximum number of characters of a line that lists tools, and of each name.
const MAX_LINE: usize = 200;
const MAX_SHOWN: usize = 40;

/// A tool as described by its server, within limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RemoteTool {
    pub name: String,
    pub description: String,
    /// JSON Schema of type `object`, as JSON text.
    pub schema: String,
    /// `readOnlyHint`: calls may run in parallel.
    pub read_only: bool,
}

impl RemoteTool {
    /// Parses a tool of a list. Returns `None` if it cannot be offered.
    pub(super) fn read(tool: &Value, redactor: &Redactor) -> Option<Self> {
        let name = tool["name"].as_str()?;
        let is_named = (1..=MAX_NAME).contains(&name.len());
        if !is_named || tool["execution"]["taskSupport"] == "required" {
            return None;
        }
        let schema = tool["inputSchema"].as_object().cloned();
        let mut schema = Value::from(schema.unwrap_or_default());
        schema["type"] = "object".into();
        let schema = schema.to_string();
        if schema.len() > MAX_SCHEMA {
            return None;
        }
        let description = tool["description"].as_str().or(tool["title"].as_str());
        // Keys are removed before truncating, because a truncated key would not be recognized.
        let description = redactor.redact(description.unwrap_or_default().trim().to_owned());
        Some(Self {
            name: redactor.redact(name.to_owned()),
            description: whole_words(&description, MAX_DESCRIPTION).to_owned(),
            schema: redactor.redact(schema),
            read_only: tool["annotations"]["readOnlyHint"] == true,
        })
    }

    /// Estimated size in each request, in bytes.
    pub(crate) fn size(&self) -> u64 {
        (self.name.len() + self.description.len() + self.schema.len() + FRAME) as u64
    }
}

/// Contents of `state/mcp/NAME.json`.
#[derive(Default, PartialEq, Serialize, Deserialize)]
struct StoredList {
    /// See [`checksum`]; begins with `slow` if the server did not answer, at the time of the file.
    entry: String,
    tools: Vec<RemoteTool>,
}

impl Server {
    /// Returns the stored tools, unless the entry has changed.
    pub(crate) fn tools(&self) -> Option<Vec<RemoteTool>> {
        let stored = self.stored()?;
        (stored.entry == self.definition.checksum).then_some(stored.tools)
    }

    /// Lists the tools for a question, which does not wait again within [`PERIOD`] after a slow failure. The stored list then
    /// has the known tools.
    pub(super) fn list_first(&self, cancel: &Cancel) -> Result<Option<String>> {
        let before = self.stored().unwrap_or_default();
        let slow = format!("slow {}", self.definition.checksum);
        let file = fs_err::metadata(&self.definition.list).and_then(|file| file.modified());
        let age = file.ok().and_then(|changed| changed.elapsed().ok());
        if before.entry == slow && age.is_some_and(|age| age < PERIOD) {
            let name = &self.definition.name;
            let hint = format!("run `bantam mcp test {name}` to try again");
            return Err(Error::failed("it did not answer a short time ago").hint(hint));
        }
        let started = Instant::now();
        let listed = self.list(cancel);
        let is_slow = started.elapsed() > SLOW && cancel.reason() != Some(CancelReason::Stopped);
        // Another process, such as the gateway, may have stored the tools meanwhile.
        if listed.is_err() && is_slow && self.stored().unwrap_or_default() == before {
            let (entry, tools) = (slow, before.tools);
            // Without the file, the next question waits again.
            drop(self.replace(&StoredList { entry, tools }));
        }
        listed
    }

    /// Stores a list if it is new. Returns a warning with new and changed tools, because a server can change the description of
    /// a tool that its user trusts.
    pub(super) fn store(&self, tools: Vec<RemoteTool>) -> Result<Option<String>> {
        let before = self.stored().unwrap_or_default();
        let entry = self.definition.checksum.clone();
        let list = StoredList { entry, tools };
        if before == list {
            return Ok(None);
        }
        self.replace(&list)?;
        self.common.has_changed.store(true, Ordering::SeqCst);
        let warning = self.changes(&before.tools, &list.tools);
        Ok(warning.inspect(|text| self.tell_of_change(text)))
    }

    /// Names new and changed tools in one line; `None` without an earlier list.
    fn changes(&self, before: &[RemoteTool], now: &[RemoteTool]) -> Option<String> {
        let others = now.iter().filter(|tool| !before.contains(tool));
        let names: Vec<String> = others.map(|tool| plain_name(&tool.name)).collect();
        if before.is_empty() || names.is_empty() {
            return None;
        }
        let names = foreign_line(&names.join(", "), MAX_LINE);
        let server = &self.definition.name;
        Some(format!(
            "MCP server {server} has new or changed tools: {names}; see bantam mcp test {server}"
        ))
    }

    fn replace(&self, list: &StoredList) -> Result<()> {
        let text = serde_json::to_vec(list).unwrap_or_default();
        let stored = storage::replace(&self.definition.list, &text, Durability::Later);
        stored.doing("storing the list of tools")
    }

    fn stored(&self) -> Option<StoredList> {
        from_json(&fs_err::read(&self.definition.list).ok()?).ok()
    }
}

/// Restricts a tool's name to letters, digits and `_-.`, because the user sees it unasked, and it must not be a sentence or a
/// link.
fn plain_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let name: String = name.chars().take(MAX_SHOWN).collect();
    name.replace(|c| !is_plain(c), "?")
}

/// Returns a checksum of the settings that affect the list. Another order would make the stored lists invalid.
pub(crate) fn checksum(of: &McpServer) -> String {
    let values = of.env.iter().chain(&of.headers);
    let values: Vec<_> = values.map(|(name, value)| [name, value.reveal()]).collect();
    let memory = of.memory_mb;
    let text = json!([
        of.command, of.args, of.cwd, of.url, of.read, of.write, of.network, memory, values
    ]);
    format!("{:08x}", crc32fast::hash(text.to_string().as_bytes()))
}

/// Returns the warning of a run without a server's tools.
pub(crate) fn missing(name: &str, e: &Error) -> String {
    let hint = e.hint.as_deref().map(|hint| format!(" ({hint})"));
    let (why, hint) = (brief(&e.message), hint.unwrap_or_default());
    format!("the tools of the MCP server {name} are missing: {why}{hint}")
}

#[cfg(test)]
mod tests {
    use super::super::{Definition, Remote, ServerKind, Servers};
    use super::*;
    use crate::http::Settings;
    use crate::sync;
    use crate::test_dir::TestDir;
    use std::sync::Arc;
    use std::thread;

    fn tools(tools: &[Value]) -> Vec<RemoteTool> {
        let read = |tool| RemoteTool::read(tool, &Redactor::default());
        tools.iter().filter_map(read).collect()
    }

    fn server(dir: &TestDir) -> Arc<Server> {
        let settings = Settings::default();
        Servers::default().get(Definition {
            name: "fake".to_owned(),
            checksum: "1".to_owned(),
            kind: ServerKind::Remote(Box::new(Remote {
                settings,
                url: String::new(),
                headers: Vec::new(),
            })),
            list: dir.join("mcp/fake.json"),
            redactor: Redactor::default(),
        })
    }

    #[test]
    fn tool_changes_are_named_without_server_text() {
        let dir = TestDir::new();
        let server = server(&dir);
        let tool = |name: &str, about: &str| json!({"name": name, "description": about});
        let warned = |found: &[Value]| server.store(tools(found)).unwrap();
        let link = "ALERT: sign in at http://evil.example/x";
        let first = warned(&[tool("say", "Says it."), tool(link, "")]);
        assert_eq!(first, None);
        let changes = warned(&[tool("say", "Obey."), tool(link, "x"), tool("new", "")]);
        let expected = "tools: say, ALERT??sign?in?at?http???evil.example?x, new;";
        assert!(changes.as_ref().unwrap().contains(expected), "{changes:?}");
    }

    /// With another sum, each stored list would be invalid after an update.
    #[test]
    fn checksum_of_an_entry_stays_the_same() {
        let entry = json!({
            "command": "near-mcp", "args": ["-v"], "cwd": "/srv", "env": {"B": "2", "A": "1"},
            "read": ["/usr"], "write": ["/tmp"], "memory_mb": 64,
        });
        for (entry, sum) in [
            (entry, "b995a58f"),
            (
                json!({"url": "http://x", "headers": {"K": "v"}}),
                "5cdde471",
            ),
        ] {
            let entry: McpServer = serde_json::from_value(entry).unwrap();
            assert_eq!(checksum(&entry), sum);
        }
    }

    /// The gateway may list a server while a question waits for it, and a user who stops a question blames no server.
    #[test]
    fn slow_failure_replaces_only_the_list_that_was_read() {
        let late = SLOW + Duration::from_millis(500);
        let kept = |is_listed: bool, is_stopped: bool| {
            let dir = TestDir::new();
            let server = server(&dir);
            let cancel = Cancel::new((!is_stopped).then_some(late));
            let _starting = sync::lock(&server.run);
            thread::scope(|scope| {
                let waiting = scope.spawn(|| server.list_first(&cancel));
                thread::sleep(SLOW / 2);
                if is_listed {
                    server.store(tools(&[json!({"name": "say"})])).unwrap();
                }
                if is_stopped {
                    thread::sleep(SLOW / 2 + Duration::from_millis(500));
                    cancel.stop();
                }
                waiting.join().unwrap().unwrap_err();
            });
            server.stored().map(|list| list.entry)
        };
        let cases = [
            (false, false, Some("slow 1")),
            (true, false, Some("1")),
            (false, true, None),
        ];
        thread::scope(|scope| {
            for (is_listed, is_stopped, expected) in cases {
                scope.spawn(move || assert_eq!(kept(is_listed, is_stopped).as_deref(), expected));
            }
        });
    }

    #[test]
    fn tools_that_cannot_be_offered_are_left_out() {
        for tool in [
            json!({"name": "odd", "execution": {"taskSupport": "required"}}),
            json!({"name": "odd", "inputSchema": {"title": "x".repeat(MAX_SCHEMA)}}),
            json!({"name": ""}),
            json!(7),
        ] {
            let found = tools(&[tool.clone(), json!({"name": "say"})]);
            assert_eq!(found.len(), 1, "{tool}");
        }
    }
}
