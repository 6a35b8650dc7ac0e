//! Answers of real models, as they wrote them (`tests/corpus/answers`).

use std::collections::BTreeMap;

use serde::Deserialize;
use unicode_width::UnicodeWidthChar;

use super::{checked, render_pieces};
use crate::json::from_json;
use crate::markdown::wrap::{RESET, STYLES};

const ANSWERS: [&str; 2] = [
    include_str!("../../../tests/corpus/answers/gemma.jsonl"),
    include_str!("../../../tests/corpus/answers/smollm2.jsonl"),
];

#[derive(Deserialize)]
struct Answer {
    text: String,
}

/// Counts the words of a text. Each East Asian letter is a word, because lines end between them.
fn words(text: &str) -> BTreeMap<String, usize> {
    let is_word = |c: char| c.is_alphanumeric() && c.width() == Some(2);
    let letter = |c: char| match c {
        c if is_word(c) => format!(" {c} "),
        c if c.is_alphanumeric() => c.to_string(),
        _ => " ".to_owned(),
    };
    let mut counts = BTreeMap::new();
    for word in text
        .chars()
        .map(letter)
        .collect::<String>()
        .split_whitespace()
    {
        *counts.entry(word.to_owned()).or_default() += 1;
    }
    counts
}

/// Checks that the output contains each word of a text, as often or more often.
#[track_caller]
fn has_words(shown: &str, text: &str) {
    let counts = words(shown);
    for (word, count) in words(text) {
        let seen = counts.get(&word).copied().unwrap_or(0);
        assert!(
            seen >= count,
            "{word:?} {seen} of {count} times\n{shown}\n== of ==\n{text}"
        );
    }
}

fn without_styles(shown: &str) -> String {
    let styles = STYLES.iter().map(|(_, style)| *style);
    let without = |text: String, style| text.replace(style, " ");
    styles.chain([RESET]).fold(shown.to_owned(), without)
}

#[test]
fn answers_of_models_are_shown_with_all_their_words() {
    let lines = ANSWERS.iter().flat_map(|answers| answers.lines());
    let answers: Vec<Answer> = lines.map(|line| from_json(line).unwrap()).collect();
    let mut texts: Vec<String> = answers.into_iter().map(|answer| answer.text).collect();
    assert!(texts.len() >= 200, "{} answers", texts.len());
    // They are short, so some together make texts of several messages.
    let long: Vec<String> = texts.chunks(20).map(|some| some.join("\n\n")).collect();
    texts.extend(long);
    for text in texts {
        // Also addresses and the languages of code, which are in the tags.
        let messages: Vec<String> = checked(&text).into_iter().map(|piece| piece.html).collect();
        has_words(&messages.join("\n"), &text);
        for columns in [80, 40] {
            let shown = render_pieces(&text, columns, usize::MAX);
            has_words(&without_styles(&shown), &text);
            for size in [1, 2, 7, 60] {
                let cut = render_pieces(&text, columns, size);
                assert!(
                    cut == shown,
                    "in pieces of {size} at {columns} columns:\n{cut}\n{shown}"
                );
            }
        }
    }
}
