//! Changes config.json. Other values and their order are unchanged; layout and spelling may change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Env, Loaded, load_for, path};
use crate::error::{Context, Error, Kind, Result};
use crate::paths::Home;
use crate::storage::{self, Durability, Lock};

/// Finds errors in a loaded configuration that no further setting can fix.
pub(crate) type CheckEdit<'a> = &'a dyn Fn(&Loaded) -> Vec<Error>;

/// Sets the value at `path`, for example `["mcpServers", "time"]`.
pub(crate) fn set(home: &Home, env: &Arc<Env>, path: &[&str], value: &Value) -> Result<Loaded> {
    edit(home, env, &|_| Vec::new(), |file| {
        path::set(file, path, value.clone())
    })
}

/// Changes config.json. Existing errors in the file do not prevent a change.
pub(crate) fn edit(
    home: &Home,
    env: &Arc<Env>,
    check: CheckEdit,
    change: impl FnOnce(&mut Value) -> Result<()>,
) -> Result<Loaded> {
    save(home, env, check, |text| {
        let text = text.unwrap_or("{}").trim_start_matches('\u{feff}');
        let loaded = load_for(home, Some(text), env, Vec::new()).map(|loaded| loaded.file);
        // The change may replace a value of the wrong type.
        let mut file = loaded.or_else(|e| serde_json::from_str(text).map_err(|_| e))?;
        change(&mut file)?;
        let old = serde_json::from_str(text).ok();
        let ordered = InOrder { value: &file, old };
        let written = serde_json::to_string_pretty(&ordered).doing("writing config.json")?;
        Ok(written + "\n")
    })
}

/// A value that is written in the order of an older text, followed by new members.
struct InOrder<'a> {
    value: &'a Value,
    old: Option<&'a RawValue>,
}

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, json: S) -> std::result::Result<S::Ok, S::Error> {
        let old = self.old.map_or("", RawValue::get);
        match self.value {
            Value::Object(members) => {
                let old: BTreeMap<String, &RawValue> =
                    serde_json::from_str(old).unwrap_or_default();
                let members = members.iter().map(|(name, value)| {
                    let mut old = old.iter();
                    let old = old.find(|(written, _)| path::is_same_name(written, name));
                    let old = old.map(|(_, raw)| *raw);
                    (name, InOrder { value, old })
                });
                let mut members: Vec<_> = members.collect();
                // A raw value is a slice of the text, so its address gives the order.
                members.sort_by_key(|(_, member)| {
                    let old = member.old.map(|old| old.get().as_ptr() as usize);
                    old.unwrap_or(usize::MAX)
                });
                json.collect_map(members)
            }
            Value::Array(items) => {
                let old: Vec<&RawValue> = serde_json::from_str(old).unwrap_or_default();
                let old = old.into_iter().map(Some).chain(std::iter::repeat(None));
                let items = items.iter().zip(old);
                json.collect_seq(items.map(|(value, old)| InOrder { value, old }))
            }
            value => value.serialize(json),
        }
    }
}

/// Replaces config.json with the result of `change` on its text, if that can be loaded and has no new errors.
pub(crate) fn save(
    home: &Home,
    env: &Arc<Env>,
    check: CheckEdit,
    change: impl FnOnce(Option<&str>) -> Result<String>,
) -> Result<Loaded> {
    let lock = Lock::acquire(&home.lock("config"), Duration::from_secs(5));
    let lock = lock.doing("changing config.json");
    let _lock = lock.map_err(|e| home.hinted(e))?;
    let old = super::read(home)?;
    let new = change(old.as_deref())?;
    // What was typed is wrong, not the file in force.
    let refused = |mut e: Error| {
        if e.kind == Kind::Config {
            e.kind = Kind::Usage;
        }
        e
    };
    let loaded = load_for(home, Some(&new), env, Vec::new()).map_err(refused)?;
    let problems = |loaded: &Loaded| [loaded.config.problems(), check(loaded)].concat();
    let had =
        load_for(home, old.as_deref(), env, Vec::new()).map_or(Vec::new(), |old| problems(&old));
    let is_new = |problem: &Error| had.iter().all(|old| old.message != problem.message);
    if let Some(problem) = problems(&loaded).into_iter().find(is_new) {
        return Err(refused(problem));
    }
    if old.as_ref() != Some(&new) {
        // Writes through a symbolic link instead of replacing it.
        let path = fs_err::canonicalize(home.config()).unwrap_or_else(|_| home.config());
        let written = storage::replace(&path, new.as_bytes(), Durability::Now);
        let written = written.doing("writing config.json");
        written.map_err(|e| home.hinted(e))?;
        crate::notify::signal(home);
    }
    Ok(loaded)
}
