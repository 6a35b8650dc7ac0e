//! What model hosts were found to refuse, kept between runs in `state/quirks.json`, so that no run pays for the same refusal
//! twice: `{"learned":[{"host","model","quirk","at"}]}`, `at` in seconds since 1970. All of it can be found out again: a
//! file that cannot be read is none, and one that cannot be written is no fault of the turn.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::beneath;
use crate::cancel::Cancel;
use crate::config::Model;
use crate::disk::{self, Durability, Lock};
use crate::error::Result;
use crate::http::authority;
use crate::paths::Home;
use crate::provider::{Learned, Quirk};
use crate::text::clip;

/// A server may be upgraded: what it refused this long ago is tried again.
const LIFE: Duration = Duration::from_secs(30 * 86_400);
/// More rows than anybody has models; the oldest make room.
const MOST: usize = 64;
/// The longest name of a host or a model that is kept, in bytes.
const LONGEST: usize = 200;
/// Whoever else writes is done sooner.
const WAIT: Duration = Duration::from_millis(100);

const FILE: &str = "quirks.json";

/// One thing that one host refuses for one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// With its port, if it is written with one.
    pub host: String,
    /// As the host calls it.
    pub model: String,
    pub quirk: Quirk,
    /// When it was learned.
    pub at: SystemTime,
}

/// All that is known, the oldest first.
pub(crate) fn read(home: &Home, now: SystemTime) -> Vec<Row> {
    let Ok(Some(text)) = beneath::read_untrusted(&home.state(), FILE) else { return Vec::new() };
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let rows = value["learned"].as_array().into_iter().flatten().filter_map(row);
    // A clock that was wrong once makes a row forgotten early or late, and nothing worse.
    rows.filter(|row| now.duration_since(row.at).unwrap_or_default() < LIFE).collect()
}

fn row(value: &Value) -> Option<Row> {
    let text = |name: &str| value[name].as_str();
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(value["at"].as_u64()?))?;
    Some(Row {
        host: text("host")?.to_owned(),
        model: text("model")?.to_owned(),
        quirk: Quirk::named(text("quirk")?)?,
        at,
    })
}

/// What `rows` know of a model's host; what it learns is kept.
pub(crate) fn of(model: &Model, rows: &[Row], home: &Home) -> Learned {
    let host = clip(authority(&model.base), LONGEST).to_owned();
    let id = clip(&model.id, LONGEST).to_owned();
    let known = rows.iter().filter(|row| row.host == host && row.model == id).map(|row| row.quirk).collect();
    let home = home.clone();
    let keep = move |quirks: &[Quirk]| {
        // It will be learned again.
        drop(write(&home, &host, &id, quirks, SystemTime::now()));
    };
    Learned::new(known, Box::new(keep))
}

/// Makes `quirks` all that is known of the model at this host.
fn write(home: &Home, host: &str, model: &str, quirks: &[Quirk], now: SystemTime) -> Result<()> {
    let _lock = Lock::acquire(&home.state().join("locks").join("quirks.lock"), WAIT, &Cancel::new(None))?;
    let (before, mut rows): (Vec<Row>, Vec<Row>) =
        read(home, now).into_iter().partition(|row| row.host == host && row.model == model);
    for quirk in quirks {
        let at = before.iter().find(|row| row.quirk == *quirk).map_or(now, |row| row.at);
        rows.push(Row { host: host.to_owned(), model: model.to_owned(), quirk: *quirk, at });
    }
    let rows = rows[rows.len().saturating_sub(MOST)..].iter().map(|row| {
        let at = row.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        json!({"host": row.host, "model": row.model, "quirk": row.quirk.name(), "at": at})
    });
    let text = json!({"learned": rows.collect::<Value>()}).to_string();
    disk::replace(&path(home), text.as_bytes(), Durability::Later)
}

/// Where it is kept; whoever removes it has everything found out anew.
pub(crate) fn path(home: &Home) -> PathBuf {
    home.state().join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_rows_stay_and_old_ones_are_forgotten() {
        let home = Home::new(std::env::temp_dir().join(format!("bantam-learned-{}", std::process::id())));
        let now = SystemTime::now();
        for n in 0..MOST + 3 {
            write(&home, "h:1", &format!("m{n}"), &[Quirk::NoStream], now).unwrap();
        }
        let rows = read(&home, now);
        assert_eq!((rows.len(), rows[0].model.as_str()), (MOST, "m3"));
        write(&home, "h:1", "m3", &[Quirk::NoImages], now).unwrap();
        let rows = read(&home, now);
        let last = rows.last().unwrap();
        assert_eq!((rows.len(), last.model.as_str(), last.quirk), (MOST, "m3", Quirk::NoImages));
        assert!(read(&home, now + LIFE).is_empty() && !read(&home, now - LIFE).is_empty());
        disk::remove(home.root()).unwrap();
    }
}
