//! The pages of `docs/`, for `bantam help TOPIC`.

use super::table;
use crate::config::settings::{SETTINGS, Setting};
use crate::config::vendors::VENDORS;
use crate::packed::inflate;

include!(concat!(env!("OUT_DIR"), "/docs.rs"));

const MAX_PAGE: usize = 1 << 20;

/// The names of the pages.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PAGES
        .iter()
        .filter_map(|(file, _)| file.strip_suffix(".md"))
}

/// The page of this name, with its tables.
pub(super) fn page(name: &str) -> Option<String> {
    let (_, text) = PAGES
        .iter()
        .find(|(file, _)| file.strip_suffix(".md") == Some(name))?;
    let text = inflate(text, MAX_PAGE);
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(|line| match line {
        "<!-- vendors: begin -->" => vendors(),
        "<!-- settings: begin -->" => settings(),
        line => format!("{line}\n"),
    });
    Some(lines.collect())
}

fn vendors() -> String {
    table(
        &VENDORS
            .iter()
            .map(|v| [v.name, v.key_env, v.default_model, v.base].map(str::to_owned))
            .collect::<Vec<_>>(),
    )
}

fn settings() -> String {
    let entry = |s: &Setting| {
        format!(
            "{} ({}, default {})\n    {}\n",
            s.path,
            s.expected(),
            s.default(),
            s.help
        )
    };
    SETTINGS.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_tables_that_the_program_has_itself() {
        let page = page("settings").unwrap();
        assert!(
            page.contains("agents.defaults.max_tokens (a whole number of at least 1, default 8192)\n    longest reply")
        );
        assert!(
            page.contains("OPENROUTER_API_KEY") && page.contains("## Every setting"),
            "{page}"
        );
        assert!(
            !page.contains("<!--") && !page.contains("| setting |"),
            "{page}"
        );
    }
}
