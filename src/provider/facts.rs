//! Facts about models at their hosts, stored in `state/hosts.json` to avoid repeated refusals: unsupported and required
//! features, limits, and the default model of each host. All of it can be found again, so an unreadable file counts as empty,
//! and a failed write is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::ToolOffer;
use super::refusal::{Change, REPLY_AFTER, RESPONSES};
use crate::access;
use crate::config::Model;
use crate::error::Result;
use crate::http::authority;
use crate::json::from_json;
use crate::message::{MediaKind, Price};
use crate::paths::Home;
use crate::storage::{self, Durability, Lock};

/// Lifetime of facts, in seconds. A host may be upgraded, so old facts are discarded.
const LIFE: u64 = 30 * 86_400;
/// Lock timeout; other writers release the lock sooner.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
const FILE: &str = "hosts.json";

/// Known facts about one model at one host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct HostFacts {
    /// Host name, with its port if the address includes one.
    pub host: String,
    /// Id of the model at the host.
    pub model: String,
    /// Maximum tokens of a request and its reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Maximum tokens of a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tools: Option<usize>,
    /// Omitted fields and parts.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub without: BTreeSet<String>,
    /// Required parts.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<String>,
    /// The price in the host's list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// Time of the last change, in seconds since 1970.
    pub at: u64,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct FactsFile {
    models: Vec<HostFacts>,
    /// Map from a host's address to the id of its default model.
    defaults: BTreeMap<String, String>,
}

/// Path of the file; deleting it resets all facts.
pub(crate) fn path(home: &Home) -> PathBuf {
    home.state().join(FILE)
}

fn read(home: &Home) -> FactsFile {
    let text = access::read_untrusted(&home.state(), FILE);
    let text = text.ok().flatten().unwrap_or_default();
    let mut store: FactsFile = from_json(&text).unwrap_or_default();
    let now = now();
    store.models.retain(|row| row.at.abs_diff(now) < LIFE);
    store
}

/// Returns all models with known facts.
pub(crate) fn rows(home: &Home) -> Vec<HostFacts> {
    read(home).models
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Returns the default model of the host with this address.
pub(super) fn default_id(home: &Home, base: &str) -> Option<String> {
    read(home).defaults.remove(base)
}

/// Stores the default model of a host.
pub(super) fn keep_default(home: &Home, base: &str, id: &str) {
    let change = |store: &mut FactsFile| {
        store.defaults.insert(base.to_owned(), id.to_owned());
    };
    update(home, change).ok();
}

fn update(home: &Home, change: impl FnOnce(&mut FactsFile)) -> Result<()> {
    let _lock = Lock::acquire(&home.lock("hosts"), LOCK_TIMEOUT)?;
    let mut store = read(home);
    change(&mut store);
    storage::replace(&path(home), &serde_json::to_vec(&store)?, Durability::Later)
}

/// Returns the facts of a model from rows that [`rows`] has returned.
pub(crate) fn among(rows: &[HostFacts], model: &Model) -> HostFacts {
    let row = rows.iter().find(|row| is_of(row, model));
    row.cloned().unwrap_or_default()
}

fn is_of(row: &HostFacts, model: &Model) -> bool {
    row.host == authority(&model.base) && row.model == model.id
}

/// Stores the facts of a model; `change` updates the stored facts.
pub(super) fn keep(home: &Home, model: &Model, change: impl FnOnce(&mut HostFacts)) {
    let change = |store: &mut FactsFile| {
        let known = store.models.iter().position(|row| is_of(row, model));
        let mut row = known.map_or_else(HostFacts::default, |at| store.models.remove(at));
        let before = row.clone();
        change(&mut row);
        if row != before || before.at == 0 {
            row.at = now();
        }
        authority(&model.base).clone_into(&mut row.host);
        row.model.clone_from(&model.id);
        store.models.push(row);
    };
    update(home, change).ok();
}

/// Name of media of this kind, as a part of a request.
pub(super) fn part_of(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "images",
        MediaKind::Pdf => "files",
        MediaKind::Audio => "audio",
    }
}

/// Describes that a host does not take a part.
pub(super) fn lack(part: &str) -> String {
    match part {
        "max_tokens" => "requires max_completion_tokens instead of max_tokens".to_owned(),
        "files" => "does not support PDF files".to_owned(),
        "system_role" => "does not support the system role".to_owned(),
        "reasoning" => "does not take reasoning back".to_owned(),
        "null" => "does not take messages without text".to_owned(),
        part => format!("does not support {part}"),
    }
}

impl HostFacts {
    pub(super) fn lacks(&self, part: &str) -> bool {
        self.without.contains(part)
    }

    pub(super) fn demands(&self, part: &str) -> bool {
        self.with.contains(part)
    }

    /// Returns the name under which to send a field; `None` if it is omitted.
    pub(super) fn field<'a>(&self, name: &'a str) -> Option<&'a str> {
        let is_refused = match name {
            "max_tokens" | "max_completion_tokens" if self.lacks("max_tokens") => {
                return Some("max_completion_tokens");
            }
            "max_completion_tokens" => return Some("max_tokens"),
            "tool_choice" => self.lacks("tools") || self.lacks(name),
            "stream_options" => self.lacks("stream") || self.lacks(name),
            // Anthropic demands the tools of earlier calls; else `tools` returns none.
            "tools" | "max_tokens" => false,
            _ => self.lacks(name),
        };
        (!is_refused).then_some(name)
    }

    /// Returns the tools to offer.
    pub(super) fn tools<'a>(&self, tools: &'a [ToolOffer]) -> Vec<&'a ToolOffer> {
        if self.lacks("tools") {
            return Vec::new();
        }
        let is_taken = |tool: &&ToolOffer| {
            self.without.is_empty() || !self.lacks(&format!("the tool {}", tool.name))
        };
        let most = self.max_tools.unwrap_or(usize::MAX);
        tools.iter().filter(is_taken).take(most).collect()
    }

    /// Applies a change.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Without(part) => {
                self.with.remove(part);
                self.without.insert(part.clone());
            }
            Change::With(part) => {
                self.without.remove(part);
                self.with.insert(part.clone());
            }
            Change::MaxTokens(limit) | Change::Credit(limit) => self.max_tokens = Some(*limit),
            Change::Window(limit, room) => {
                self.window = Some(*limit);
                self.max_tokens = room.or(self.max_tokens);
            }
            Change::MaxTools(limit) => self.max_tools = Some(*limit),
            Change::WithoutTool(name) => drop(self.without.insert(format!("the tool {name}"))),
        }
    }

    /// Describes the host's behavior for people, such as "does not support images".
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        words.extend(self.window.map(|n| format!("context window {n} tokens")));
        words.extend(self.max_tokens.map(|n| format!("maximum reply {n} tokens")));
        words.extend(self.max_tools.map(|n| format!("maximum {n} tools")));
        words.extend(self.without.iter().map(|part| lack(part)));
        let with = self.with.iter().map(|part| match part.as_str() {
            "adaptive" => "takes an effort in place of a budget for thoughts",
            "signatures" => "requires a signature with every call",
            RESPONSES => "uses the Responses API",
            REPLY_AFTER => "requires a reply after results",
            _ => "requires reasoning_content in every reply",
        });
        words.extend(with.map(str::to_owned));
        words
    }
}
