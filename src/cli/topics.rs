//! The pages of `docs/`, for `bantam help TOPIC`.

use std::io::{self, IsTerminal, Write};
use std::process::Stdio;

use super::screen::Style;
use super::{print, table, tty};
use crate::child;
use crate::config::Env;
use crate::config::settings::{SETTINGS, Setting};
use crate::config::vendors::VENDORS;
use crate::error::Result;
use crate::inflate::inflate;
use crate::markdown::{self, Look, Terminal};
use crate::sys;

include!(concat!(env!("OUT_DIR"), "/docs.rs"));

const MAX_PAGE: usize = 1 << 20;

/// The names of the pages.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PAGES
        .iter()
        .filter_map(|(file, _)| file.strip_suffix(".md"))
}

/// The page of this name, without its tables.
pub(super) fn page(name: &str) -> Option<String> {
    let (_, text) = PAGES
        .iter()
        .find(|(file, _)| file.strip_suffix(".md") == Some(name))?;
    let text = inflate(text, MAX_PAGE);
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn with_tables(page: &str) -> String {
    let lines = page.lines().map(|line| match line {
        "<!-- vendors: begin -->" => vendors(),
        "<!-- settings: begin -->" => settings(),
        line => format!("{line}\n"),
    });
    lines.collect()
}

/// Shows a page, below the list of commands that have its name: as it is in a pipe; at a terminal made readable, and in a pager
/// where it is longer than the screen.
pub(super) fn show(list: &str, page: &str, env: &Env) -> Result<u8> {
    let style = Style::of(env);
    if !io::stdout().is_terminal() || !style.ansi {
        return print(&(list.to_owned() + &with_tables(page))).map(|()| 0);
    }
    let (columns, rows) = tty::size();
    let mut markdown = Terminal::new(Look {
        links: false,
        columns,
    });
    let page = list.to_owned() + &with_tables(&markdown::refilled(page));
    let shown = markdown.push(&page) + &markdown.finish();
    if shown.lines().count() < rows || !page_through(&shown, env) {
        print(&shown)?;
    }
    Ok(0)
}

/// Whether the user's pager has shown the text.
fn page_through(text: &str, env: &Env) -> bool {
    let pager = env.get("PAGER").map_or("less -R", String::as_str);
    let words = shell_words::split(pager).unwrap_or_default();
    let Some((program, args)) = words.split_first() else {
        return false;
    };
    // Ctrl-C belongs to the pager.
    sys::block_signals(&[libc::SIGINT]);
    let Ok(mut pager) = child::by_user(program)
        .args(args)
        .stdin(Stdio::piped())
        .spawn()
    else {
        return false;
    };
    if let Some(mut stdin) = pager.stdin.take() {
        // The user may leave before the end.
        stdin.write_all(text.as_bytes()).ok();
    }
    pager.wait().is_ok_and(|status| status.code() != Some(127))
}

fn vendors() -> String {
    table(
        &VENDORS
            .iter()
            .map(|v| {
                let (keys, prefer) = (v.keys.join(", "), v.prefer.join(", "));
                [v.name.to_owned(), keys, prefer, v.base.to_owned()]
            })
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
        let page = with_tables(&page("settings").unwrap());
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
