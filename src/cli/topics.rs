//! The pages of `docs/`, for `bantam help TOPIC`.

use std::io::Write;
use std::process::Stdio;

use super::ui::Ui;
use super::{print, terminal};
use crate::child;
use crate::config::Env;
use crate::error::Result;
use crate::inflate::inflate;
use crate::markdown::{self, Look, Terminal};
use crate::sys;

include!(concat!(env!("OUT_DIR"), "/docs.rs"));

const MAX_PAGE: usize = 1 << 20;

/// Returns the names of the pages.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PAGES
        .iter()
        .filter_map(|(file, _)| file.strip_suffix(".md"))
}

/// Returns the page with this name.
pub(super) fn page(name: &str) -> Option<String> {
    let (_, text) = PAGES
        .iter()
        .find(|(file, _)| file.strip_suffix(".md") == Some(name))?;
    let text = inflate(text, MAX_PAGE);
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Shows a page after the list of commands with its name: unchanged in a pipe; formatted at a terminal, in a pager if it is
/// longer than the screen.
pub(super) fn show(list: &str, page: &str, ui: &Ui) -> Result<u8> {
    if !ui.stdout_is_terminal || !ui.has_colors() {
        return print(&(list.to_owned() + page)).map(|()| 0);
    }
    let (columns, rows) = terminal::size();
    let mut markdown = Terminal::new(Look { columns });
    let page = list.to_owned() + &markdown::refilled(page);
    let shown = markdown.push(&page) + &markdown.finish();
    if shown.lines().count() < rows || !page_through(&shown, &ui.env) {
        print(&shown)?;
    }
    Ok(0)
}

/// Shows the text in the user's pager, and returns whether that worked.
fn page_through(text: &str, env: &Env) -> bool {
    let pager = env.get("PAGER").map_or("less -R", String::as_str);
    let words = shell_words::split(pager).unwrap_or_default();
    let Some((program, args)) = words.split_first() else {
        return false;
    };
    // Leaves Ctrl-C to the pager.
    sys::block_signals(&[libc::SIGINT]);
    let Ok(mut pager) = child::by_user(program)
        .args(args)
        .stdin(Stdio::piped())
        .spawn()
    else {
        return false;
    };
    if let Some(mut stdin) = pager.stdin.take() {
        // The user may quit before the end.
        stdin.write_all(text.as_bytes()).ok();
    }
    pager.wait().is_ok_and(|status| status.code() != Some(127))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_settings_has_those_of_the_program() {
        let page = page("settings").unwrap();
        assert!(page.contains("- `max_tokens` (integer, default `8192`): longest reply"));
        assert!(
            page.contains("OPENROUTER_API_KEY") && page.contains("## Every setting"),
            "{page}"
        );
        assert!(!page.contains("<!--"), "{page}");
    }
}
