//! The README's reference says what the program's own tables say.

#![allow(clippy::unwrap_used)]

use std::fs;

use bantam::config::table::{KEYS, Kind, WHOLE, env_name};
use bantam::config::vendors::{Protocol, VENDORS};

/// What stands between the two marks of this name.
fn section(readme: &str, name: &str) -> (usize, usize) {
    let [begin, end] = ["begin", "end"].map(|which| format!("<!-- {name}: {which} -->"));
    let from = readme.find(&begin).unwrap_or_else(|| panic!("README.md has no {begin}")) + begin.len();
    let to = readme[from..].find(&end).unwrap_or_else(|| panic!("README.md has no {end} after {begin}"));
    (from, from + to)
}

/// Compares a section with what it should be, or writes it when `BANTAM_BLESS` is set.
#[track_caller]
fn says(name: &str, lines: &[String]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = fs::read_to_string(path).unwrap();
    let (from, to) = section(&readme, name);
    let want = format!("\n\n{}\n\n", lines.join("\n"));
    if readme[from..to] == want {
        return;
    }
    if std::env::var_os("BANTAM_BLESS").is_some() {
        fs::write(path, format!("{}{want}{}", &readme[..from], &readme[to..])).unwrap();
        return;
    }
    let stands: Vec<&str> = readme[from..to].trim().lines().collect();
    let differs = lines.iter().find(|line| !stands.contains(&line.as_str())).map_or("a line too many", String::as_str);
    panic!(
        "the section \"{name}\" of README.md is not what the program says, first: {differs}\n\
         write it anew with: BANTAM_BLESS=1 cargo test --test readme -- --test-threads 1"
    );
}

fn kind(kind: Kind) -> String {
    match kind {
        Kind::Text => "text".to_owned(),
        Kind::Secret => "secret".to_owned(),
        Kind::Bool => "true or false".to_owned(),
        Kind::Whole(0) => "whole number".to_owned(),
        Kind::Whole(least) => format!("whole number from {least}"),
        Kind::Number(_) => "number".to_owned(),
        Kind::Maybe(_) => "number or null".to_owned(),
        Kind::Choice(words) => words.join(", "),
        Kind::Texts => "list of texts".to_owned(),
        Kind::Secrets => "list of secrets".to_owned(),
        Kind::Map => "names and texts".to_owned(),
        Kind::Any => "object".to_owned(),
    }
}

#[test]
fn the_settings_are_those_of_the_table() {
    let mut lines =
        vec!["| setting | default | kind | what it is | variable |".to_owned(), "|---|---|---|---|---|".to_owned()];
    for key in KEYS {
        let variable = env_name(key.path).map_or(String::new(), |name| format!("`{name}`"));
        let (path, default, kind, help) = (key.path, key.default, kind(key.kind), key.help.replace('|', "\\|"));
        lines.push(format!("| `{path}` | `{default}` | {kind} | {help} | {variable} |"));
    }
    let whole = WHOLE.map(|list| format!("`BANTAM_{}`", list.to_ascii_uppercase())).join(" and ");
    lines.push(String::new());
    lines.push(format!("Lists of entries are given whole, as JSON: {whole}."));
    says("settings", &lines);
}

#[test]
fn the_vendors_are_those_of_the_table() {
    let mut lines = vec![
        "| vendor | variable for the key | model when none is named | address |".to_owned(),
        "|---|---|---|---|".to_owned(),
    ];
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    for vendor in VENDORS {
        let base = match (vendor.protocol, vendor.base) {
            (Protocol::Demo, _) => "built in".to_owned(),
            (_, "") => "your own `api_base`".to_owned(),
            (_, base) => base.to_owned(),
        };
        let (key, model) = (code(vendor.key_env), code(vendor.default_model));
        lines.push(format!("| {} | {key} | {model} | {base} |", vendor.name));
    }
    says("vendors", &lines);
}
