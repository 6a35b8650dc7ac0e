//! What model hosts were found to refuse, kept between runs in `state/quirks.json`, so that no run pays twice for the same
//! refusal: `{"learned":[{"host","model","quirk","at"}]}`. All of it can be learned again: a file that cannot be read counts
//! as empty, and a failed write is ignored.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::beneath;
use crate::cancel::Cancel;
use crate::config::Model;
use crate::disk::{self, Durability, Lock};
use crate::error::Result;
use crate::http::authority;
use crate::paths::Home;
use crate::provider::{Learned, Quirk};

/// In seconds. A host may be upgraded: what it refused this long ago is tried again.
const LIFE: u64 = 30 * 86_400;
/// Other writers hold the lock for less.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

const FILE: &str = "quirks.json";

/// One thing that one host refuses for one model.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    /// With its port, if it is written with one.
    pub host: String,
    /// As the host calls it.
    pub model: String,
    /// The name of a [`Quirk`].
    pub quirk: String,
    /// When it was learned, in seconds since 1970.
    pub at: u64,
    /// Of the model's entry then: see [`fingerprint`].
    #[serde(default)]
    entry: u64,
}

/// All that is known, the oldest first.
pub(crate) fn read(home: &Home, now: SystemTime) -> Vec<Row> {
    let Ok(Some(text)) = beneath::read_untrusted(&home.state(), FILE) else { return Vec::new() };
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let rows = value["learned"].as_array().into_iter().flatten().filter_map(|row| Row::deserialize(row).ok());
    rows.filter(|row| row.at.abs_diff(seconds(now)) < LIFE).collect()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Row {
    /// It says of a host: "takes no images".
    pub(crate) fn words(&self) -> String {
        Quirk::named(&self.quirk).map_or_else(|| self.quirk.clone(), |quirk| quirk.words())
    }
}

/// A model at a host, as one entry of the configuration describes it.
struct Key {
    host: String,
    model: String,
    entry: u64,
}

impl Key {
    fn of(model: &Model) -> Self {
        Self { host: authority(&model.base).to_owned(), model: model.id.clone(), entry: fingerprint(model) }
    }

    fn has(&self, row: &Row) -> bool {
        row.host == self.host && row.model == self.model && row.entry == self.entry
    }
}

/// Differs when the entry asks for something else: then what was refused is tried again. Limits do not count.
fn fingerprint(model: &Model) -> u64 {
    let mut hasher = DefaultHasher::new();
    let entry = &model.entry;
    let headers: Vec<&String> = entry.headers.keys().collect();
    (&model.base, entry.extra_body.len(), json!(entry.extra_body).to_string(), headers).hash(&mut hasher);
    entry.reasoning_effort.hash(&mut hasher);
    hasher.finish()
}

/// What `rows` know of a model at its host; what it learns is stored.
pub(crate) fn of(model: &Model, rows: &[Row], home: &Home) -> Learned {
    let (home, key) = (home.clone(), Key::of(model));
    let mut known: Vec<Quirk> =
        rows.iter().filter(|row| key.has(row)).filter_map(|row| Quirk::named(&row.quirk)).collect();
    if model.name.starts_with("mistral/") && !known.contains(&Quirk::ShortIds) {
        known.push(Quirk::ShortIds);
    }
    let save = move |quirks: &[Quirk]| drop(write(&home, &key, quirks, SystemTime::now()));
    Learned::new(known, Box::new(save))
}

/// The window of a model as its host tells it, in tokens.
pub(crate) fn window(model: &Model, rows: &[Row]) -> Option<u64> {
    let key = Key::of(model);
    rows.iter().filter(|row| key.has(row)).find_map(|row| match Quirk::named(&row.quirk) {
        Some(Quirk::Window(tokens)) => Some(tokens),
        _ => None,
    })
}

/// What is known of a model: "takes no images".
pub(crate) fn words(home: &Home, model: &Model) -> Vec<String> {
    let key = Key::of(model);
    read(home, SystemTime::now()).iter().filter(|row| key.has(row)).map(Row::words).collect()
}

/// Stores one thing that a host has told of a model.
pub(crate) fn keep(home: &Home, model: &Model, quirk: Quirk) {
    let mut learned = of(model, &read(home, SystemTime::now()), home);
    learned.add(quirk);
    learned.save();
}

/// Makes `quirks` all that is known of a model.
fn write(home: &Home, key: &Key, quirks: &[Quirk], now: SystemTime) -> Result<()> {
    let _lock = Lock::acquire(&home.state().join("locks").join("quirks.lock"), LOCK_TIMEOUT, &Cancel::new(None))?;
    let (before, mut rows): (Vec<Row>, Vec<Row>) = read(home, now).into_iter().partition(|row| key.has(row));
    for quirk in quirks.iter().map(Quirk::name) {
        let at = before.iter().find(|row| row.quirk == quirk).map_or(seconds(now), |row| row.at);
        let (host, model) = (key.host.clone(), key.model.clone());
        rows.push(Row { host, model, quirk: quirk.into_owned(), at, entry: key.entry });
    }
    disk::replace(&path(home), json!({"learned": rows}).to_string().as_bytes(), Durability::Later)
}

/// The file; removing it makes everything be learned again.
pub(crate) fn path(home: &Home) -> PathBuf {
    home.state().join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_has_its_rows_and_old_ones_expire() {
        let home = Home::new(std::env::temp_dir().join(format!("bantam-learned-{}", std::process::id())));
        let now = SystemTime::now();
        let key = |model: &str| Key { host: "h:1".to_owned(), model: model.to_owned(), entry: 7 };
        for model in ["a", "b"] {
            write(&home, &key(model), &[Quirk::NoStream], now).unwrap();
        }
        write(&home, &key("a"), &[Quirk::NoImages], now).unwrap();
        let rows: Vec<_> = read(&home, now).into_iter().map(|row| (row.model, row.quirk)).collect();
        assert_eq!(rows, [("b".into(), "no stream".into()), ("a".into(), "no images".to_owned())]);
        let life = Duration::from_secs(LIFE);
        assert!(read(&home, now + life).is_empty() && !read(&home, now - life / 2).is_empty());
        disk::remove(home.root()).unwrap();
    }
}
