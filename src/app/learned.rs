//! What model hosts were found to refuse, kept between runs in `state/quirks.json`, so that no run pays twice for the same
//! refusal: `{"learned":[{"host","model","quirk","at"}]}`. All of it can be learned again: a file that cannot be read counts
//! as empty, and a failed write is ignored.

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

/// What `rows` know of a model at its host; what it learns is stored.
pub(crate) fn of(model: &Model, rows: &[Row], home: &Home) -> Learned {
    let (home, host, id) = (home.clone(), authority(&model.base).to_owned(), model.id.clone());
    let ours = rows.iter().filter(|row| row.host == host && row.model == id);
    let known = ours.filter_map(|row| Quirk::named(&row.quirk)).collect();
    let save = move |quirks: &[Quirk]| drop(write(&home, &host, &id, quirks, SystemTime::now()));
    Learned::new(known, Box::new(save))
}

/// Makes `quirks` all that is known of the model at this host.
fn write(home: &Home, host: &str, model: &str, quirks: &[Quirk], now: SystemTime) -> Result<()> {
    let _lock = Lock::acquire(&home.state().join("locks").join("quirks.lock"), LOCK_TIMEOUT, &Cancel::new(None))?;
    let is_ours = |row: &Row| row.host == host && row.model == model;
    let (before, mut rows): (Vec<Row>, Vec<Row>) = read(home, now).into_iter().partition(is_ours);
    for quirk in quirks.iter().map(|quirk| quirk.name()) {
        let at = before.iter().find(|row| row.quirk == quirk).map_or(seconds(now), |row| row.at);
        rows.push(Row { host: host.to_owned(), model: model.to_owned(), quirk: quirk.to_owned(), at });
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
        for model in ["a", "b"] {
            write(&home, "h:1", model, &[Quirk::NoStream], now).unwrap();
        }
        write(&home, "h:1", "a", &[Quirk::NoImages], now).unwrap();
        let rows: Vec<_> = read(&home, now).into_iter().map(|row| (row.model, row.quirk)).collect();
        assert_eq!(rows, [("b".into(), "no stream".into()), ("a".into(), "no images".to_owned())]);
        let life = Duration::from_secs(LIFE);
        assert!(read(&home, now + life).is_empty() && !read(&home, now - life / 2).is_empty());
        disk::remove(home.root()).unwrap();
    }
}
