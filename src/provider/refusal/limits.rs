//! The limits that a refusal states: of the reply, and of the whole request.

use regex_lite::{Captures, Regex};

use super::{HostRefusal, Sent, is_match, says};

/// Minimum length of a conversation for which an unexplained refusal counts as too long.
const SEVERAL_TURNS: usize = 3;

/// Subjects of errors about length.
const SUBJECTS: &str = "token | context | prompt | input | length | messages | n_ctx";
const EXCESS: &str = include_str!("../wordings/excess.txt");
/// Words of sentences about other limits.
const NOT_LENGTH: &str = r"\b(array|byte|mb|pixel|timeout|timed out|per minute|per min|per day|rate limit|quota)s?\b|at most [0-9]+ (image|audio|video)";
/// Names of the reply's length, and words about the request. An invalid input is any field.
const REPLY: &str =
    r"\b(max[_ ]?((completion|output|new)[_ ]?)?tokens|(completion|output) tokens)\b";
const REQUEST: &str =
    r"context|window|prompt|\binputs?\b( (tokens?|length|or|and)|`)|n_ctx|messages";
/// A limit after a word for it.
const STATED: &str = concat!(
    r"(context length|window|size|limit|maximum|max|allowed|only|less than|larger than|",
    r"model with|at most|<=|>|\[1,|n_ctx)([^0-9.;]{0,60}?[^\w.;-])??(?<limit>[0-9]+)(\.?[^\w.-]|\.?$)"
);
/// Numbers that are no limits: the excess of a request, and the sum of a request and its reply.
const EXCEEDING: &str =
    r"\bby (about )?[0-9]+|(?<request>[0-9]+)[^0-9.;>]{0,20}\+[^0-9.;>]{0,20}[0-9]+";
/// Minimum plausible limit; a smaller one is never learned.
const MIN_LIMIT: u64 = 256;
/// Minimum window that holds a question.
pub(super) const MIN_WINDOW: u64 = 2048;
/// Minimum plausible limit in a sentence that does not mention tokens.
const MIN_PLAIN_LIMIT: u64 = 4096;

/// Returns a limit of the reply that is lower than the requested length: the largest number of a sentence about that length.
pub(super) fn of_reply(refusal: &HostRefusal, said: &str, sent: &Sent) -> Option<u64> {
    let is_named = is_match(REPLY, &refusal.param);
    let limit_in = |sentence| {
        let clause = about_reply(sentence, is_named)?;
        // A range that includes the requested length is no reason.
        if numbers(clause).any(|number| number > sent.max_tokens) {
            return None;
        }
        let ends = numbers(clause).filter(|end| (MIN_LIMIT..sent.max_tokens).contains(end));
        let end = ends.max()?;
        let beyond = format!(r"\(exclusive\)|(less than|below)[^0-9]*{end}\b");
        let is_beyond = is_match(&beyond, clause) && !clause.contains("or equal");
        Some(end - u64::from(is_beyond))
    };
    sentences(said).find_map(limit_in)
}

/// Returns the part of a sentence about the length of the reply, up to words about the request.
fn about_reply(sentence: &str, is_named: bool) -> Option<&str> {
    let find = |pattern| Some(Regex::new(pattern).ok()?.find(sentence)?.start());
    let end = find(REQUEST).unwrap_or(sentence.len());
    let is_about = is_named || find(REPLY)? < end;
    is_about.then(|| &sentence[..end])
}

/// Whether the request was too long, and the limit if the error states it.
#[allow(clippy::option_option)] // the outer option is whether the rule applies
pub(super) fn of_request(refusal: &HostRefusal, said: &str, sent: &Sent) -> Option<Option<u64>> {
    if matches!(refusal.status, 401..=404) || refusal.is_page && refusal.status != 413 {
        return None;
    }
    if refusal.status == 429 {
        let limit = number_after("limit ", said)?;
        let asked = number_after("requested ", said)?;
        return (asked > limit && said.contains("token")).then_some(Some(limit));
    }
    let has_no_reason = refusal.texts.is_empty() && sent.messages > SEVERAL_TURNS;
    let is_too_large = refusal.status == 413 || says(said, "entity too large | payload too large");
    if is_too_large || (matches!(refusal.status, 400 | 422) && has_no_reason) {
        return Some(stated_limit(said));
    }
    if refusal.names_message() {
        return None;
    }
    let is_long = |sentence: &str| {
        let plain = without_names(sentence);
        says(&plain, SUBJECTS) && says(&plain, EXCESS) && !is_match(NOT_LENGTH, &plain)
    };
    let mut named = sentences(said).filter(|sentence| says(sentence, SUBJECTS));
    let is_too_long = sentences(said).any(is_long);
    is_too_long.then(|| named.find_map(stated_limit))
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split(['\n', ';']).flat_map(|line| line.split(". "))
}

/// Removes names such as `max_tokens` from a sentence, except names that mean an excess.
fn without_names(sentence: &str) -> String {
    let words = sentence.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_');
    let is_kept = |word: &&str| {
        !word.trim_end_matches('_').contains('_') || says(word, "exceed | too_l | overflow | n_ctx")
    };
    words.filter(is_kept).collect()
}

/// Returns the lowest plausible limit of the request that a sentence states after a word for it.
fn stated_limit(sentence: &str) -> Option<u64> {
    let sentence = Regex::new(EXCEEDING).ok()?.replace_all(sentence, "by");
    let pattern = Regex::new(STATED).ok()?;
    let least = if says(&sentence, "token | n_ctx") {
        MIN_LIMIT
    } else {
        MIN_PLAIN_LIMIT
    };
    let limits = pattern.captures_iter(&sentence);
    let limits = limits.filter_map(|found| found["limit"].parse().ok());
    limits.min().filter(|limit| *limit >= least)
}

/// Returns what a request leaves of its limit for the reply, if the host states the request's length in a sum.
pub(super) fn room_within(limit: u64, said: &str) -> Option<u64> {
    let sum = Regex::new(EXCEEDING).ok()?.captures(said)?;
    limit.checked_sub(sum.name("request")?.as_str().parse().ok()?)
}

/// Writes the numbers of a text without separators of thousands.
pub(super) fn without_separators(text: &str) -> String {
    let join = |found: &Captures| found[0].replace([',', '_'], "");
    let number = Regex::new(r"\b[0-9]{1,3}([,_][0-9]{3})+\b");
    number.map_or_else(
        |_| text.to_owned(),
        |number| number.replace_all(text, join).into_owned(),
    )
}

/// Returns the separate integers of a text, which are no part of a name, a date or a decimal.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    let words = text.split(|c: char| !c.is_alphanumeric() && !"-_.".contains(c));
    words.filter_map(|word| word.trim_matches('.').parse().ok())
}

pub(super) fn number_after(word: &str, text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(word)?;
    numbers(rest).next()
}
