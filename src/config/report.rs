//! Works out what each layer says: where every value came from, which names are unknown, and what is wrong with a value.
//!
//! It walks a tree of the layer's JSON with the table of settings. Reading the settings does not need that.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::load::{Layer, Origin};
use super::settings::{self, Config, Place, Setting, same_name};
use super::{IN_CODE, locate};
use crate::error::{Error, Result};
use crate::json::parse_json;

#[derive(Default)]
pub(crate) struct Report {
    /// What is set, by path. Anything else has its default.
    pub values: BTreeMap<String, (Value, Origin)>,
    /// One sentence for each unknown setting.
    pub warnings: Vec<String>,
}

impl Report {
    /// Fails for the first value that is not what its setting takes.
    pub(super) fn of(layers: &[Layer]) -> Result<Self> {
        let mut report = Self::default();
        for (n, layer) in layers.iter().enumerate() {
            let mut members = layer.parse()?;
            refuse_foreign(layer, &members)?;
            let replaced = layers[n + 1..].iter().filter_map(|later| later.section);
            for section in replaced {
                members.retain(|name, _| !same_name(name, section));
            }
            report.add_members(layer, &members, &mut Vec::new())?;
        }
        Ok(report)
    }

    /// The value at a path that is known; `None` if it leads to an entry that is not there, or to a section.
    pub(crate) fn value(&self, config: &Config, names: &[&str]) -> Option<Value> {
        let value_of = |setting: &'static Setting, names: &[&str]| {
            let path = join(settings::named(setting, names));
            let is_there = match names {
                [list, n, _, ..] if same_name(list, "model_list") => n
                    .parse()
                    .is_ok_and(|n| config.model_list.get::<usize>(n).is_some()),
                [map, name, _, ..] if same_name(map, "mcp_servers") => {
                    config.mcp_servers.contains_key(*name)
                }
                _ => true,
            };
            let set = self.values.get(&path).map(|(value, _)| value.clone());
            is_there.then(|| set.unwrap_or_else(|| setting.default()))
        };
        if let Some(setting) = settings::find(names) {
            return value_of(setting, names);
        }
        let (last, map) = names.split_last()?;
        let map = value_of(settings::find(map)?, map)?;
        settings::value_at(&map, &[last]).cloned()
    }

    fn add_members(
        &mut self,
        layer: &Layer,
        members: &Map<String, Value>,
        path: &mut Vec<String>,
    ) -> Result<()> {
        for (name, value) in members {
            self.add_below(layer, name, value, path)?;
        }
        Ok(())
    }

    fn add_below(
        &mut self,
        layer: &Layer,
        name: &str,
        value: &Value,
        path: &mut Vec<String>,
    ) -> Result<()> {
        path.push(name.to_owned());
        let added = self.add(layer, value, path);
        path.pop();
        added
    }

    /// Adds `value`, which stands at `path` in the layer.
    fn add(&mut self, layer: &Layer, value: &Value, path: &mut Vec<String>) -> Result<()> {
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        if !settings::is_known(&names, Place::Anywhere) {
            let meant = settings::meant(&names)
                .map_or(String::new(), |meant| format!("; did you mean {meant}?"));
            self.warnings.push(format!(
                "{}: unknown setting {}{meant}",
                layer.name,
                names.join(".")
            ));
            return Ok(());
        }
        // As if it were not there.
        if value.is_null() {
            return Ok(());
        }
        if let Some(setting) = settings::find(&names) {
            let checked = setting
                .check(value)
                .ok_or_else(|| layer.wrong(value, setting, &names))?;
            let path = join(settings::named(setting, &names));
            self.values.insert(path, (checked, layer.origin.clone()));
            return Ok(());
        }
        let is_list = settings::is_list(&names);
        match value {
            Value::Array(items) if is_list => {
                for (n, item) in items.iter().enumerate() {
                    self.add_below(layer, &n.to_string(), item, path)?;
                }
                Ok(())
            }
            Value::Object(members) if !is_list => self.add_members(layer, members, path),
            value => {
                let expected = if is_list {
                    "a list in brackets"
                } else {
                    "an object in braces"
                };
                Err(layer
                    .error(&names, &describe(value, false))
                    .hint(format!("it must be {expected}")))
            }
        }
    }
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(".")
}

impl Layer {
    /// Fails if it is no JSON object.
    pub(super) fn parse(&self) -> Result<Map<String, Value>> {
        let (name, text) = (&self.name, &self.text);
        if text.trim().is_empty() {
            return Err(
                Error::config(format!("{name} is empty")).hint("delete it and run bantam onboard")
            );
        }
        match parse_json(text) {
            Ok(Value::Object(members)) => Ok(members),
            Ok(_) => Err(Error::config(format!("{name} is not a JSON object"))
                .hint("it should begin with { and end with }")),
            Err(e) => {
                let near = locate::key_before(text, e.line(), e.column());
                let near = near.map_or(String::new(), |key| format!(", near \"{key}\""));
                let what = e.to_string();
                let what = syntax_error(what.split(" at line ").next().unwrap_or_default());
                Err(Error::config(format!(
                    "{name}, line {}, column {}{near}: {what}",
                    e.line(),
                    e.column()
                ))
                .hint(
                    "correct that line; JSON wants double quotes, and no comma after the last entry",
                ))
            }
        }
    }

    fn wrong(&self, value: &Value, setting: &Setting, path: &[&str]) -> Error {
        let unquoted = value
            .as_str()
            .filter(|text| setting.check(&setting.parse(text)).is_some());
        self.error(path, &describe(value, setting.is_secret()))
            .hint(match unquoted {
                Some(text) => format!("write {text} without quotes"),
                None => format!("it must be {}", setting.expected()),
            })
    }

    fn error(&self, path: &[&str], value: &str) -> Error {
        let position = locate::position(&self.text, path).filter(|_| self.name != IN_CODE);
        let place = position.map_or(String::new(), |(line, column)| {
            format!(", line {line}, column {column}")
        });
        Error::config(format!(
            "{}{place}: {} is {value}",
            self.name,
            path.join(".")
        ))
    }
}

/// What is wrong with JSON, in plain words.
fn syntax_error(what: &str) -> String {
    match what {
        what if what.starts_with("EOF") => {
            "the file ends too early: a bracket, a brace or a quote is not closed".to_owned()
        }
        "key must be a string" => "a name in double quotes should be here".to_owned(),
        "expected value" => "a value should be here".to_owned(),
        "trailing comma" => "there is a comma after the last entry".to_owned(),
        "trailing characters" => "there is more text after the end".to_owned(),
        what if what.starts_with("control character") => {
            "a text is not closed before the end of its line".to_owned()
        }
        what => what.replace('`', "\""),
    }
}

/// A value for an error message. A long text may be a key in the wrong place, and a list or an object may hold one.
pub(super) fn describe(value: &Value, is_secret: bool) -> String {
    match value {
        Value::String(text) if text.len() < 12 && !is_secret => format!("\"{text}\" (a string)"),
        Value::Bool(_) | Value::Number(_) if !is_secret => value.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Bool(_) | Value::Null => value.to_string(),
    }
}

/// Top-level names that only the configurations of picoclaw, nanobot and `SmartBot` have.
const FOREIGN: [&str; 3] = ["providers", "channel_list", "gateway_host"];

/// Fails if the file was written for another program.
pub(super) fn refuse_foreign(layer: &Layer, members: &Map<String, Value>) -> Result<()> {
    let is_foreign = |name: &&String| FOREIGN.iter().any(|theirs| same_name(name, theirs));
    let Some(name) = members.keys().find(is_foreign) else {
        return Ok(());
    };
    let file = &layer.name;
    let error = format!("{file} is the configuration of another program: it has \"{name}\"");
    Err(Error::config(error).hint("bantam help coming-from"))
}
