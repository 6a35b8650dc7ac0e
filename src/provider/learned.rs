//! What is known about models at their hosts, kept in `state/quirks.json`, so that no run pays for the same refusal again:
//! `{"learned":[{"host","model","quirk","at"}]}`. All of it can be learned again: a file that cannot be read counts as empty,
//! and a failed write is ignored.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::quirks::{self, Quirks, SHORT_IDS};
use crate::access;
use crate::cancel::Cancel;
use crate::config::Model;
use crate::error::Result;
use crate::http::authority;
use crate::paths::Home;
use crate::storage::{self, Durability, Lock};
use crate::text::parse_json;

/// In seconds. A host may be upgraded: what it refused this long ago is tried again.
const LIFE: u64 = 30 * 86_400;
/// Other writers hold the lock for less.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

const FILE: &str = "quirks.json";

/// One thing that is known of one model at one host.
#[derive(Clone, Default, Deserialize, Serialize)]
pub(crate) struct Row {
    /// With its port, if it is written with one.
    pub host: String,
    /// As the host calls it.
    pub model: String,
    pub quirk: String,
    /// When it was learned, in seconds since 1970.
    pub at: u64,
    /// Of the model's entry then: see [`fingerprint`].
    #[serde(default)]
    entry: u64,
}

impl Row {
    /// It says of a host: "takes no images".
    pub(crate) fn words(&self) -> String {
        quirks::words(&self.quirk)
    }

    fn is_of(&self, model: &Self) -> bool {
        (&self.host, &self.model, self.entry) == (&model.host, &model.model, model.entry)
    }
}

/// All that is known, the oldest first.
pub(crate) fn read(home: &Home) -> Vec<Row> {
    let Ok(Some(text)) = access::read_untrusted(&home.state(), FILE) else {
        return Vec::new();
    };
    let value: Value = parse_json(&text).unwrap_or_default();
    let rows = value["learned"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|row| Row::deserialize(row).ok());
    rows.filter(|row| row.at.abs_diff(now()) < LIFE).collect()
}

/// The file; removing it makes everything be learned again.
pub(crate) fn path(home: &Home) -> PathBuf {
    home.state().join(FILE)
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Changes when the model's entry changes, so that what was refused is tried again. Limits do not count.
fn fingerprint(model: &Model) -> u64 {
    let mut hasher = DefaultHasher::new();
    let entry = &model.entry;
    let headers: Vec<&String> = entry.headers.keys().collect();
    (
        &model.base,
        entry.extra_body.len(),
        json!(entry.extra_body).to_string(),
        headers,
    )
        .hash(&mut hasher);
    entry.reasoning_effort.hash(&mut hasher);
    hasher.finish()
}

/// What is known of one model at its host.
#[derive(Clone, Default)]
pub(crate) struct Learned {
    /// Where it is kept; `None` forgets it.
    home: Option<Home>,
    model: Row,
    known: Vec<String>,
}

impl Learned {
    pub(crate) fn of(model: &Model, home: &Home) -> Self {
        Self::among(&read(home), model, Some(home))
    }

    /// What these rows, which [`read`] has returned, say of a model. What is learned further is kept in the home, if there is one.
    pub(crate) fn among(rows: &[Row], model: &Model, home: Option<&Home>) -> Self {
        let (host, id) = (authority(&model.base).to_owned(), model.id.clone());
        let key = Row {
            host,
            model: id,
            entry: fingerprint(model),
            ..Row::default()
        };
        let mut known: Vec<String> = rows
            .iter()
            .filter(|row| row.is_of(&key))
            .map(|row| row.quirk.clone())
            .collect();
        if model.name.starts_with("mistral/") && !known.iter().any(|quirk| quirk == SHORT_IDS) {
            known.push(SHORT_IDS.to_owned());
        }
        Self {
            home: home.cloned(),
            model: key,
            known,
        }
    }

    pub(super) fn known(&self) -> &[String] {
        &self.known
    }

    pub(super) fn quirks(&self) -> Quirks<'_> {
        Quirks(&self.known)
    }

    /// It says of the host: "takes no images".
    pub(crate) fn words(&self) -> Vec<String> {
        self.known
            .iter()
            .map(|quirk| quirks::words(quirk))
            .collect()
    }

    pub(super) fn knows(&self, quirk: &str) -> bool {
        self.known.iter().any(|known| known == quirk)
    }

    /// What the model reads at once, as its host told it, in tokens.
    pub(crate) fn window(&self) -> Option<u64> {
        self.known.iter().find_map(|quirk| quirks::tokens(quirk))
    }

    /// [`Learned::save`] makes it last.
    pub(super) fn add(&mut self, quirk: String) {
        self.known.retain(|known| !quirks::excludes(known, &quirk));
        self.known.push(quirk);
    }

    pub(super) fn add_new(&mut self, quirk: &str) {
        if !self.knows(quirk) {
            self.add(quirk.to_owned());
        }
    }

    /// Forgets a quirk to test it again.
    pub(super) fn forget(&mut self, quirk: &str) {
        self.known.retain(|known| known != quirk);
    }

    /// Stores a window that a host has told.
    pub(crate) fn keep_window(&mut self, tokens: u64) {
        if self.window() != Some(tokens) {
            self.add(quirks::window(tokens));
            self.save();
        }
    }

    pub(super) fn save(&self) {
        drop(self.home.as_ref().map(|home| self.write(home)));
    }

    fn write(&self, home: &Home) -> Result<()> {
        let _lock = Lock::acquire(&home.lock("quirks"), LOCK_TIMEOUT, &Cancel::new(None))?;
        let (before, mut rows): (Vec<Row>, Vec<Row>) = read(home)
            .into_iter()
            .partition(|row| row.is_of(&self.model));
        for quirk in &self.known {
            let at = before
                .iter()
                .find(|row| row.quirk == *quirk)
                .map_or_else(now, |row| row.at);
            rows.push(Row {
                quirk: quirk.clone(),
                at,
                ..self.model.clone()
            });
        }
        storage::replace(
            &path(home),
            json!({"learned": rows}).to_string().as_bytes(),
            Durability::Later,
        )
    }
}
