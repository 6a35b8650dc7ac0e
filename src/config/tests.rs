//! The reference in docs/settings.md says what the tables say.

use super::load::SECTIONS;
use super::settings::SETTINGS;
use super::vendors::{Protocol, VENDORS};

/// Compares a section of the page with what it should be, or writes it when `BANTAM_BLESS` is set.
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

#[test]
fn the_settings_are_those_of_the_table() {
    let mut lines = vec![
        "| setting | default | kind | meaning | variable |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    for setting in SETTINGS {
        let variable = setting
            .env_name()
            .map_or(String::new(), |name| format!("`{name}`"));
        let (path, default, kind) = (
            setting.path,
            setting.default(),
            setting.expected().replace('|', "\\|"),
        );
        lines.push(format!(
            "| `{path}` | `{default}` | {kind} | {} | {variable} |",
            setting.help.replace('|', "\\|")
        ));
    }
    let sections = SECTIONS
        .map(|name| format!("`BANTAM_{}`", name.to_ascii_uppercase()))
        .join(" and ");
    lines.push(format!("\n{sections} each set a whole section, as JSON."));
    section_is("settings", &lines);
}

#[test]
fn the_vendors_are_those_of_the_table() {
    let mut lines = vec![
        "| vendor | variable for the key | default model, the first that exists | address |"
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
