//! The pages of `docs/`, for `bantam help TOPIC`.

use std::cmp::Reverse;

use super::ui::Ui;
use super::{print, terminal};
use crate::error::Result;
use crate::inflate::inflate;
use crate::markdown::{self, Terminal};

include!(concat!(env!("OUT_DIR"), "/docs.rs"));

const MAX_PAGE: usize = 1 << 20;

/// Returns the names of the pages.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let files = PAGES.iter().map(|(file, _)| file);
    files.filter_map(|file| file.strip_suffix(".md"))
}

/// Returns the page with this name.
pub(super) fn page(name: &str) -> Option<String> {
    let (_, text) = PAGES
        .iter()
        .find(|(file, _)| file.strip_suffix(".md") == Some(name))?;
    let text = inflate(text, MAX_PAGE);
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// A passage that a search can find.
pub(super) struct HelpEntry {
    /// The command that shows it.
    pub page: String,
    pub title: String,
    pub text: String,
}

/// Returns the sections of all pages. The commands that show them end with `words`.
pub(super) fn places(words: &str) -> impl Iterator<Item = HelpEntry> {
    names().flat_map(move |name| {
        let text = format!("\n{}", page(name).unwrap_or_default());
        let section = |section: &str| {
            let (title, text) = section.split_once('\n').unwrap_or((section, ""));
            HelpEntry {
                page: format!("bantam help {name}{words}"),
                title: title.trim_start_matches(['#', ' ']).to_owned(),
                text: text.to_owned(),
            }
        };
        // A line of code may begin with a hash, too.
        let sections = text
            .split("\n#")
            .filter(|section| section.starts_with(['#', ' ']));
        sections.map(section).collect::<Vec<_>>()
    })
}

/// Lines of a word of users, and a word that the pages have for it.
const SYNONYMS: &str = include_str!("texts/words.txt");

/// Returns the places with all the words or their synonyms, the best first. A title counts more than its text.
pub(super) fn search<'p>(places: &'p [HelpEntry], words: &str) -> Vec<&'p HelpEntry> {
    fn tokens(text: &str) -> Vec<String> {
        let text = text.to_lowercase();
        let tokens = text.split(|c: char| !c.is_alphanumeric());
        let tokens = tokens.filter(|token| !token.is_empty());
        tokens.map(str::to_owned).collect()
    }
    // Other forms of a word begin with its stem.
    let is_form = |token: &str, word: &str| {
        let stem = match word.len() {
            0..=3 => word,
            _ => word.trim_end_matches('s').trim_end_matches('e'),
        };
        token.strip_prefix(stem).is_some_and(|rest| rest.len() <= 3)
    };
    let wanted = tokens(words);
    let count = |text: &[String], word: &str| {
        let mut synonyms = SYNONYMS.lines().filter_map(|line| line.split_once(' '));
        let synonym = synonyms.find(|(theirs, _)| *theirs == word);
        let other = synonym.map_or(word, |(_, ours)| ours);
        text.iter()
            .filter(|token| is_form(token, word) || is_form(token, other))
            .count()
    };
    let score = |place: &HelpEntry| {
        let (title, text) = (tokens(&place.title), tokens(&place.text));
        let score = |word: &String| 8 * count(&title, word) + count(&text, word).min(7);
        let scores: Vec<usize> = wanted.iter().map(score).collect();
        let has_all = !scores.contains(&0);
        if has_all { scores.iter().sum() } else { 0 }
    };
    let mut found: Vec<(usize, &HelpEntry)> =
        places.iter().map(|place| (score(place), place)).collect();
    found.retain(|(score, _)| *score > 0);
    found.sort_by_key(|(score, _)| Reverse(*score));
    found.into_iter().map(|(_, place)| place).collect()
}

/// Shows a page after the list of commands with its name: unchanged in a pipe, formatted at a terminal.
pub(super) fn show(list: &str, page: &str, ui: &Ui) -> Result<u8> {
    if !ui.stdout_is_terminal || !ui.has_colors() {
        return print(&(list.to_owned() + page)).map(|()| 0);
    }
    let mut markdown = Terminal::new(terminal::columns());
    let page = list.to_owned() + &markdown::refilled(page);
    print(&(markdown.push(&page) + &markdown.finish())).map(|()| 0)
}
