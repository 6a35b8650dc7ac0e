//! Changes config.json. What it does not mean to change keeps its value, its order and its spelling; the layout may change.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::settings::{Place, is_known, is_list, same_name};
use super::{Config, Env, Loaded, load_for};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::storage::{self, Durability, Lock};

/// Finds what can never work in a configuration that can be loaded.
pub(crate) type Check<'a> = &'a dyn Fn(&Arc<Config>) -> Vec<Error>;

/// What to do with the value at a path.
pub(crate) enum Change<'a> {
    /// What is missing on the way is made.
    Set(&'a Value),
    Unset,
}

/// Sets the value at `path`, for example `["mcpServers", "time"]`.
pub(crate) fn set(home: &Home, env: &Env, path: &[&str], value: &Value) -> Result<Loaded> {
    change(home, env, path, &Change::Set(value), &|_| Vec::new())
}

/// Changes the value at `path`.
pub(crate) fn change(
    home: &Home,
    env: &Env,
    path: &[&str],
    change: &Change,
    check: Check,
) -> Result<Loaded> {
    save(home, env, check, |text| {
        let text = text.unwrap_or("{}");
        // What is wrong with the file already is not the fault of this change.
        load_for(home, Some(text), env, Vec::new())?;
        let mut tree = parse(text).doing("reading config.json")?;
        let path_text = || path.join(".");
        match change {
            Change::Set(value) => tree.set(path, 0, value).ok_or_else(|| {
                Error::config(format!("config.json has no place for {}", path_text()))
                    .hint("bantam config edit")
            })?,
            Change::Unset => tree.unset(path, 0).ok_or_else(|| {
                Error::failed(format!("config.json does not set {}", path_text()))
                    .hint("bantam status shows what is set")
            })?,
        }
        Ok(tree.written())
    })
}

/// Replaces config.json with what `change` makes of its text, if that is a configuration that can be loaded and brings nothing
/// that can never work. The problems of the old one may stay.
pub(crate) fn save(
    home: &Home,
    env: &Env,
    check: Check,
    change: impl FnOnce(Option<&str>) -> Result<String>,
) -> Result<Loaded> {
    let lock = Lock::acquire(
        &home.lock("config"),
        Duration::from_secs(5),
        &Cancel::new(None),
    )
    .doing("changing config.json");
    let _lock = lock.map_err(|e| home.hinted(e))?;
    let old = super::read(home)?;
    let new = change(old.as_deref())?;
    let loaded = load_for(home, Some(&new), env, Vec::new())?;
    let problems = |config: &Arc<Config>| {
        let mut problems = config.problems();
        problems.extend(check(config));
        problems
    };
    let had = load_for(home, old.as_deref(), env, Vec::new())
        .map_or(Vec::new(), |old| problems(&old.config));
    let is_new = |problem: &Error| had.iter().all(|old| old.message != problem.message);
    if let Some(problem) = problems(&loaded.config).into_iter().find(is_new) {
        return Err(problem);
    }
    if old.as_ref() != Some(&new) {
        // A link to the file stays a link.
        let path = fs_err::canonicalize(home.config()).unwrap_or_else(|_| home.config());
        let written =
            storage::replace(&path, new.as_bytes(), Durability::Now).doing("writing config.json");
        written.map_err(|e| home.hinted(e))?;
    }
    Ok(loaded)
}

fn parse(text: &str) -> serde_json::Result<Tree> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    serde_json::from_slice(text.as_bytes())
}

/// JSON that keeps the order of its names.
#[derive(Debug)]
enum Tree {
    /// Neither a list nor an object.
    Leaf(Value),
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    /// Sets the value at `path`, of which the first `at` names lead here. `None` if a list has no such place.
    fn set(&mut self, path: &[&str], at: usize, value: &Value) -> Option<()> {
        let Some(name) = path.get(at) else {
            *self = Self::of(value);
            return Some(());
        };
        if matches!(self, Self::Leaf(_)) {
            *self = if is_list(&path[..at]) {
                Self::List(Vec::new())
            } else {
                Self::Object(Vec::new())
            };
        }
        if self.member(path, at).is_none() {
            match self {
                Self::List(items) if *name == items.len().to_string() => {
                    items.push(Self::Leaf(Value::Null));
                }
                Self::Object(members) => {
                    members.push(((*name).to_owned(), Self::Leaf(Value::Null)));
                }
                _ => return None,
            }
        }
        self.member(path, at)?.set(path, at + 1, value)
    }

    /// Removes the value at `path`, of which the first `at` names lead here, with the objects that held nothing else. `None` if
    /// there is none.
    fn unset(&mut self, path: &[&str], at: usize) -> Option<()> {
        let n = self.position(path, at)?;
        if at + 1 < path.len() {
            let member = self.member(path, at)?;
            member.unset(path, at + 1)?;
            if !matches!(member, Self::Object(left) if left.is_empty()) {
                return Some(());
            }
        }
        match self {
            Self::Leaf(_) => {}
            Self::List(items) => drop(items.remove(n)),
            Self::Object(members) => drop(members.remove(n)),
        }
        Some(())
    }

    /// The member that the name number `at` of `path` leads to.
    fn member(&mut self, path: &[&str], at: usize) -> Option<&mut Self> {
        let n = self.position(path, at)?;
        match self {
            Self::Leaf(_) => None,
            Self::List(items) => items.get_mut(n),
            Self::Object(members) => members.get_mut(n).map(|(_, value)| value),
        }
    }

    fn position(&self, path: &[&str], at: usize) -> Option<usize> {
        let name = path[at];
        match self {
            Self::Leaf(_) => None,
            Self::List(items) => name.parse().ok().filter(|n| *n < items.len()),
            Self::Object(members) => {
                // Names that the user has chosen are told apart by every letter.
                let is_setting = is_known(&path[..=at], Place::Setting);
                let is_it = |key: &str| key == name || (is_setting && same_name(key, name));
                members.iter().position(|(key, _)| is_it(key))
            }
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Array(items) => Self::List(items.iter().map(Self::of).collect()),
            Value::Object(members) => Self::Object(
                members
                    .iter()
                    .map(|(name, value)| (name.clone(), Self::of(value)))
                    .collect(),
            ),
            leaf => Self::Leaf(leaf.clone()),
        }
    }

    /// The text of a file.
    fn written(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, "\n");
        text.push('\n');
        text
    }

    /// Appends the text. `line` is a line feed and the indent of the line that the value begins on.
    fn write(&self, text: &mut String, line: &str) {
        let inner = format!("{line}  ");
        match self {
            Self::Leaf(value) => text.push_str(&value.to_string()),
            Self::List(items) if items.iter().all(|item| matches!(item, Self::Leaf(_))) => {
                text.push('[');
                for (n, item) in items.iter().enumerate() {
                    text.push_str(if n > 0 { ", " } else { "" });
                    item.write(text, line);
                }
                text.push(']');
            }
            Self::List(items) => {
                text.push('[');
                for (n, item) in items.iter().enumerate() {
                    text.push_str(if n > 0 { "," } else { "" });
                    text.push_str(&inner);
                    item.write(text, &inner);
                }
                text.push_str(line);
                text.push(']');
            }
            Self::Object(members) if members.is_empty() => text.push_str("{}"),
            Self::Object(members) => {
                text.push('{');
                for (n, (name, value)) in members.iter().enumerate() {
                    text.push_str(if n > 0 { "," } else { "" });
                    text.push_str(&format!("{inner}{}: ", json!(name)));
                    value.write(text, &inner);
                }
                text.push_str(line);
                text.push('}');
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut json: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = json.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut json: A) -> Result<Tree, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = json.next_entry()? {
            members.push(member);
        }
        Ok(Tree::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `text` with `value` at `path`.
    fn with(text: &str, path: &[&str], value: &Value) -> Option<String> {
        let mut tree = parse(text).unwrap();
        tree.set(path, 0, value)?;
        Some(tree.written())
    }

    #[test]
    fn order_spelling_and_what_is_unknown_stay() {
        let text = r#"{"zoo":[1,{"b":null,"a":-2.5}],"agents":{"defaults":{"timeout":5,"maxTokens":7}},"x":[]}"#;
        let laid_out = r#"{
  "zoo": [
    1,
    {
      "b": null,
      "a": -2.5
    }
  ],
  "agents": {
    "defaults": {
      "timeout": 5,
      "maxTokens": 7
    }
  },
  "x": []
}
"#;
        for (path, value, from, to) in [
            (
                &["agents", "defaults", "timeout"][..],
                json!(60),
                "\"timeout\": 5",
                "\"timeout\": 60",
            ),
            (
                &["agents", "defaults", "max_tokens"],
                json!(8),
                "\"maxTokens\": 7",
                "\"maxTokens\": 8",
            ),
            (
                &["agents", "defaults", "temperature"],
                json!(0.5),
                ": 7\n",
                ": 7,\n      \"temperature\": 0.5\n",
            ),
            (
                &["log", "json"],
                json!(true),
                "[]\n",
                "[],\n  \"log\": {\n    \"json\": true\n  }\n",
            ),
        ] {
            assert_eq!(
                with(text, path, &value).unwrap(),
                laid_out.replace(from, to),
                "{path:?}"
            );
        }
    }

    #[test]
    fn objects_that_held_nothing_else_go_too() {
        let text = r#"{"session":{"keep_days":3},"tools":{"web":{"search":{"provider":"brave"}},"redact":"on"},"empty":{}}"#;
        let mut tree = parse(text).unwrap();
        tree.unset(&["session", "keep_days"], 0).unwrap();
        tree.unset(&["tools", "web", "search", "provider"], 0)
            .unwrap();
        assert_eq!(tree.unset(&["tools", "web", "search", "provider"], 0), None);
        assert_eq!(
            crate::json::parse_json(tree.written()).unwrap(),
            json!({"tools": {"redact": "on"}, "empty": {}})
        );
    }

    #[test]
    fn lists_grow_by_one() {
        let text = r#"{"model_list":[{"model":"a/b"}]}"#;
        let grown = with(text, &["model_list", "1", "model"], &json!("c/d")).unwrap();
        let listed = |text: &str| crate::json::parse_json(text).unwrap()["model_list"].clone();
        assert_eq!(listed(&grown), json!([{"model": "a/b"}, {"model": "c/d"}]));
        for text in [text, "{}"] {
            assert_eq!(
                with(text, &["model_list", "2", "model"], &json!("c/d")),
                None
            );
        }
        let made = with("{}", &["model_list", "0", "model"], &json!("a/b")).unwrap();
        assert_eq!(listed(&made), json!([{"model": "a/b"}]));
    }

    #[test]
    fn what_is_null_or_empty_becomes_a_section() {
        for text in ["{\"log\":null}", "{\"log\":{}}", "{}", "\u{feff}{}"] {
            assert_eq!(
                with(text, &["log", "json"], &json!(true)).unwrap(),
                "{\n  \"log\": {\n    \"json\": true\n  }\n}\n"
            );
        }
    }

    #[test]
    fn names_of_the_user_are_told_apart_by_every_letter() {
        let text = r#"{"mcpServers":{"my_server":{"url":"http://a"}}}"#;
        let changed = with(
            text,
            &["mcp_servers", "myServer", "url"],
            &json!("http://b"),
        )
        .unwrap();
        let servers = &crate::json::parse_json(changed).unwrap()["mcpServers"];
        assert_eq!(
            *servers,
            json!({"my_server": {"url": "http://a"}, "myServer": {"url": "http://b"}})
        );
    }
}
