//! Checks that docs/settings.md has every setting and vendor, and that each setting has its variable.

use std::sync::Arc;

use serde_json::{Value, json};

use super::check::LEAST;
use super::path::{get, list_settings, shape};
use super::vendors::{Protocol, VENDORS};
use super::{Config, Env, Loaded, Override};
use crate::error::Result;
use crate::paths::Home;

impl Config {
    /// Loads the settings of a home in the directory for temporary files.
    pub(crate) fn load(
        file: Option<(&str, &str)>,
        env: &Env,
        flags: Vec<Override>,
    ) -> Result<Loaded> {
        let home = Home::new(std::env::temp_dir());
        Loaded::read(&home, &Arc::new(env.clone()), file, flags)
    }
}

/// Compares a section of the page with the expected lines, or writes it if `BANTAM_BLESS` is set.
#[track_caller]
fn section_is(name: &str, lines: &[String]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/settings.md");
    let page = fs_err::read_to_string(path).unwrap();
    let [begin, end] = ["begin", "end"].map(|which| format!("<!-- {name}: {which} -->"));
    let from = page.find(&begin).expect("the page has the section") + begin.len();
    let to = from + page[from..].find(&end).expect("the section ends");
    let want = format!("\n\n{}\n\n", lines.join("\n"));
    if page[from..to] == want {
        return;
    }
    if std::env::var_os("BANTAM_BLESS").is_some() {
        fs_err::write(path, format!("{}{want}{}", &page[..from], &page[to..])).unwrap();
        return;
    }
    let differs = lines.iter().find(|line| !page[from..to].contains(*line));
    panic!(
        "the section \"{name}\" of docs/settings.md differs from the table, first: {differs:?}\n\
         update it: BANTAM_BLESS=1 cargo test --lib config::tests -- --test-threads 1"
    );
}

/// Returns the settings of a struct in settings.rs: name, type and doc comment.
fn fields(section: &str) -> Vec<[String; 3]> {
    let source = include_str!("settings.rs");
    let start = source.find(&format!("    {section} {{\n")).expect(section);
    let (mut fields, mut help) = (Vec::new(), String::new());
    for line in source[start..]
        .lines()
        .skip(1)
        .map(str::trim)
        .take_while(|line| *line != "}")
        .filter(|line| !line.starts_with('#'))
    {
        if let Some(text) = line.strip_prefix("/// ") {
            help.push_str(text);
        } else if let Some((name, rest)) = line.split_once(": ") {
            let kind = rest.trim_end_matches(',').split(" = ").next().unwrap();
            fields.push(
                [
                    name.trim_start_matches("r#"),
                    kind,
                    &std::mem::take(&mut help),
                ]
                .map(str::to_owned),
            );
        }
    }
    fields
}

/// Returns the type of a setting, with its minimum.
fn kind_for_people(path: &str, kind: &str) -> String {
    let least = LEAST.iter().find(|(setting, _)| *setting == path);
    let least = least.map_or(0.0, |(_, least)| *least);
    let kind = match kind {
        "String" => "string",
        "bool" | "Option<bool>" => "true or false",
        "u64" | "u32" | "usize" => return format!("integer, {least} or more"),
        "f64" | "Option<f64>" => "number",
        "Vec<String>" => "array of strings",
        "Secret" => "secret",
        "Vec<Secret>" => "array of secrets",
        kind if kind.contains("Secret>") => "object of strings",
        kind if kind.contains("Map<") || kind == "Price" => "object",
        _ => "word",
    };
    kind.to_owned()
}

/// Adds the settings of a section with its heading, and of the sections in it.
fn describe(section: &str, path: &str, values: &Value, lines: &mut Vec<String>) {
    let (mut settings, mut inner) = (Vec::new(), Vec::new());
    for [name, kind, help] in fields(section) {
        let value = &values[&name];
        if kind == "bool" && name == "has_file" {
            continue;
        }
        if !help.is_empty() {
            let kind = kind_for_people(&format!("{path}.{name}"), &kind);
            let is_said = value.is_boolean()
                || value.is_number()
                || value.as_str().is_some_and(|text| !text.is_empty());
            let default = if is_said && !kind.contains("secret") {
                format!(", default `{value}`").replace('"', "")
            } else {
                String::new()
            };
            settings.push(format!("- `{name}` ({kind}{default}): {help}"));
            continue;
        }
        let dot = if path.is_empty() { "" } else { "." };
        let (inside, path, value) = match kind.split_once('<') {
            None => (kind.clone(), format!("{path}{dot}{name}"), value),
            Some(("Vec", rest)) => (
                rest.trim_end_matches('>').to_owned(),
                format!("{path}{dot}{name}[]"),
                &value[0],
            ),
            Some((_, rest)) => (
                rest.split_once(", ")
                    .unwrap()
                    .1
                    .trim_end_matches('>')
                    .to_owned(),
                "mcpServers.NAME".to_owned(),
                &values["mcpServers"]["*"],
            ),
        };
        inner.push((inside, path, value));
    }
    if !settings.is_empty() {
        lines.extend([format!("### {path}"), String::new()]);
        lines.extend(settings);
        lines.push(String::new());
    }
    for (section, path, value) in inner {
        describe(&section, &path, value, lines);
    }
}

#[test]
fn the_page_has_every_setting() {
    let mut lines = Vec::new();
    describe("Config", "", &shape(), &mut lines);
    lines.pop();
    section_is("settings", &lines);
    for path in list_settings(&shape()) {
        let name = path.last().unwrap();
        let is_there = lines.iter().any(|line| {
            line.contains(&format!("`{name}`")) || line.contains(&format!("### {name}"))
        });
        assert!(is_there, "{path:?}");
    }
}

#[test]
fn every_setting_has_a_variable_that_works() {
    let shape = shape();
    let mut variables = std::collections::BTreeSet::new();
    for path in list_settings(&shape) {
        let name = format!("BANTAM_{}", path.join("_").to_ascii_uppercase());
        assert!(
            variables.insert(name.clone()),
            "{name} stands for two settings"
        );
        let (text, value) = match get(&shape, &path).unwrap() {
            Value::Bool(is) => ((!is).to_string(), json!(!is)),
            Value::Number(number) if number.is_u64() => ("1025".to_owned(), json!(1025)),
            Value::Number(_) => ("0.5".to_owned(), json!(0.5)),
            Value::Null if path.ends_with(&["enabled".to_owned()]) => {
                ("true".to_owned(), json!(true))
            }
            Value::Null => ("0.5".to_owned(), json!(0.5)),
            Value::Array(entries) if !entries.is_empty() => {
                (r#"[{"model":"a/b"}]"#.to_owned(), json!([{"model": "a/b"}]))
            }
            Value::Array(_) => ("a, b".to_owned(), json!(["a", "b"])),
            Value::Object(_) => (
                r#"{"a":{"command":"b"}}"#.to_owned(),
                json!({"a": {"command": "b"}}),
            ),
            Value::String(_) => {
                let words = [
                    ("redact", "off"),
                    ("group_trigger", "all"),
                    ("network", "full"),
                    ("sandbox", "off"),
                    ("level", "warn"),
                    ("provider", "brave"),
                ];
                let word = words.iter().find(|(name, _)| path.last().unwrap() == name);
                let text = word.map_or("x y", |(_, word)| word);
                (text.to_owned(), json!(text))
            }
        };
        let env = Env::from([(name.clone(), text)]);
        let loaded = Config::load(Some(("c", "{}")), &env, Vec::new()).unwrap();
        let set = loaded.override_of(&path).expect(&name);
        assert_eq!((&set.value, set.name.as_str()), (&value, name.as_str()));
        let config = serde_json::to_value(&*loaded.config).unwrap();
        let is_hidden = get(&config, &path) == Some(&json!("(set)"));
        assert!(
            is_hidden || get(&config, &path) != get(&shape, &path),
            "{name} changes nothing"
        );
    }
}

#[test]
fn a_serialized_configuration_has_no_secret() {
    let text = json!({
        "model_list": [{
            "api_key": "sk-hush", "api_keys": ["sk-hush"], "headers": {"x": "hush"}, "extra_body": {"x": "hush"},
            "api_base": "https://me:hush@h/v1?key=hush", "proxy": "socks5://me:hush@h:1"
        }],
        "channels": {
            "telegram": {"token": "hush", "api_base": "https://me:hush@h", "proxy": "http://me:hush@h:1"},
            "http": {"token": "hush"}
        },
        "tools": {"web": {"search": {"api_key": "hush", "base_url": "http://me:hush@h"}}},
        "mcpServers": {"x": {"url": "https://h/hush", "env": {"X": "hush"}, "headers": {"x": "hush"}}}
    });
    let loaded = Config::load(Some(("c", &text.to_string())), &Env::new(), Vec::new()).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let written = serde_json::to_string(&*loaded.config).unwrap();
    assert!(!written.contains("hush"), "{written}");
}

#[test]
fn the_vendors_are_those_of_the_table() {
    let mut lines = vec![
        "| provider | variable for the key | default model, the newest of this family | address |"
            .to_owned(),
        "|---|---|---|---|".to_owned(),
    ];
    let code = |names: &[&str]| {
        let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        quoted.join(" ")
    };
    for vendor in VENDORS {
        let base = match (vendor.protocol, vendor.base) {
            (Protocol::Demo, _) => "built in".to_owned(),
            (_, "") => "your own `api_base`".to_owned(),
            (_, base) => base.to_owned(),
        };
        let (key, model) = (code(vendor.keys), code(vendor.prefer));
        lines.push(format!("| {} | {key} | {model} | {base} |", vendor.name));
    }
    section_is("vendors", &lines);
}
