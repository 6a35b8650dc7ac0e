//! The limits that a refusal states: of the reply, and of the whole request.

use regex_lite::Regex;

use super::{HostRefusal, Sent, is_match, says};

/// Minimum length of a conversation for which an unexplained refusal counts as too long.
const SEVERAL_TURNS: usize = 3;

/// Subjects of errors about length.
const SUBJECTS: &str = "token | context | prompt | input | length | messages | n_ctx";
const EXCESS: &str = "exceed | too long | too large | too many | longer | larger | greater | maximum | max length | limit | \
    less than | at most | <= | range | reduce | shorter | overflow";
/// Words of sentences about other limits.
const NOT_LENGTH: &str =
    "byte | mb | pixel | timeout | timed out | per minute | per min | per day | rate limit | quota";
/// Names of the reply's length, and words about the request. An invalid input is any field.
const REPLY: &str = r"\b(max_?(completion_?|output_?|new_?)?tokens|(completion|output) tokens)\b";
const REQUEST: &str =
    r"context|window|prompt|\binputs?\b( (tokens?|length|or|and)|`)|n_ctx|messages";
/// Words that precede the lower end of a range.
const LOWER: &str = "at least|minimum|\\bmin\\b|>=|≥|greater than or equal to|\
    (must|should|has to|needs to) be (greater|more|larger|higher) than|(no|not|not be) (less|lower|smaller) than";
/// Words of a range without its upper end.
const EXCLUSIVE: &str = r"\(exclusive\)|((less|lower|smaller) than|below|under|[^<]<)[\s`'(]*[0-9]";
/// Words that precede a limit.
const LIMIT_WORDS: &str =
    "context length|window|size|limit|maximum|max|allowed|only|less than|at most|n_ctx";
/// Minimum plausible limit; a smaller one is never learned.
const MIN_LIMIT: u64 = 256;
/// Minimum window that holds a question.
pub(super) const MIN_WINDOW: u64 = 2048;
/// Minimum plausible limit in a sentence that does not mention tokens.
const MIN_PLAIN_LIMIT: u64 = 4096;

/// Returns a limit of the reply that is lower than the requested length: the upper end of a range, in any wording.
pub(super) fn of_reply(refusal: &HostRefusal, sent: &Sent) -> Option<u64> {
    let is_named = is_match(REPLY, &refusal.param);
    let texts = refusal.texts.iter().map(|text| text.to_lowercase());
    let limit_in = |sentence: &str| {
        let clause = without_lower_ends(about_reply(sentence, is_named)?);
        // A range that includes the requested length is no reason.
        if numbers(&clause).any(|number| number > sent.max_tokens) {
            return None;
        }
        let ends = numbers(&clause).filter(|end| (MIN_LIMIT..sent.max_tokens).contains(end));
        ends.max()
            .map(|end| end - u64::from(is_match(EXCLUSIVE, &clause)))
    };
    texts.into_iter().find_map(|text| {
        let mut sentences = text.lines().flat_map(|line| line.split(". "));
        sentences.find_map(limit_in)
    })
}

/// Returns the part of a sentence about the length of the reply, up to words about the request.
fn about_reply(sentence: &str, is_named: bool) -> Option<&str> {
    let find = |pattern| Some(Regex::new(pattern).ok()?.find(sentence)?.start());
    let end = find(REQUEST).unwrap_or(sentence.len());
    let is_about = is_named || find(REPLY)? < end;
    is_about.then(|| &sentence[..end])
}

/// Replaces each match of a pattern.
fn rewrite(text: &str, pattern: &str, by: &str) -> String {
    let pattern = Regex::new(pattern).ok();
    pattern.map_or_else(
        || text.to_owned(),
        |pattern| pattern.replace_all(text, by).into_owned(),
    )
}

/// Removes the numbers of a lower-case text that are the lower end of a range.
fn without_lower_ends(text: &str) -> String {
    let brackets = r"\[\s*([0-9]+)\s*,\s*([0-9]+)\s*\]";
    let range = r"(^|[^-.\w])([0-9][0-9,_]*)\s*(\.\.=?|[-–—~…])\s*([0-9][0-9,_]*)($|[^-\w])";
    let lower_end = format!("({LOWER})[\\s:=`'\"(]*((of|is|value|be) )*[0-9][0-9,_]*");
    let text = rewrite(text, brackets, "$1 to $2");
    rewrite(&rewrite(&text, range, "$1$2 to $4$5"), &lower_end, "")
}

/// Whether the request was too long, and the limit if the error states it.
#[allow(clippy::option_option)] // the outer option is whether the rule applies
pub(super) fn of_request(refusal: &HostRefusal, said: &str, sent: &Sent) -> Option<Option<u64>> {
    if matches!(refusal.status, 401..=404) || refusal.is_page && refusal.status != 413 {
        return None;
    }
    if refusal.status == 429 {
        let request =
            Regex::new(r"limit[: ]+(?<limit>\d+)[^;]*requested[: ]+(?<asked>\d+)").ok()?;
        let found = request.captures(said)?;
        let (limit, asked) = (number(&found["limit"])?, number(&found["asked"])?);
        let is_alone = asked > limit && said.contains("token") && limit >= MIN_LIMIT;
        return is_alone.then_some(Some(limit));
    }
    let has_no_reason = refusal.texts.is_empty() && sent.messages > SEVERAL_TURNS;
    if refusal.status == 413 || (matches!(refusal.status, 400 | 422) && has_no_reason) {
        return Some(stated_limit(said).filter(|limit| *limit >= MIN_LIMIT));
    }
    if refusal.names_message() {
        return None;
    }
    let is_long = |sentence: &&str| {
        let plain = without_names(sentence);
        says(&plain, SUBJECTS) && says(&plain, EXCESS) && !has_word(&plain, NOT_LENGTH)
    };
    let sentences: Vec<&str> = sentences(said).collect();
    let long: Vec<&str> = sentences.iter().copied().filter(is_long).collect();
    if long.is_empty() {
        return None;
    }
    // A limit that any sentence states explicitly takes precedence over a plain number.
    let mut named = sentences.iter().filter(|sentence| says(sentence, SUBJECTS));
    let mere = || long.iter().find_map(|sentence| mere_limit(sentence));
    let limit = named.find_map(|sentence| stated_limit(sentence));
    match limit.or_else(mere) {
        Some(limit) if limit < MIN_LIMIT => None,
        limit => Some(limit),
    }
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split(['\n', ';']).flat_map(|line| line.split(". "))
}

/// Removes names such as `max_tokens` from a sentence, except names that mean an excess.
fn without_names(sentence: &str) -> String {
    let words = sentence.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_');
    let is_kept = |word: &&str| {
        !word
            .trim_end_matches(|c: char| !c.is_alphanumeric())
            .contains('_')
            || says(word, "exceed | too_l | overflow | n_ctx")
    };
    words.filter(is_kept).collect()
}

/// Whether a text contains one of the alternatives as a word or its plural.
fn has_word(text: &str, any: &str) -> bool {
    let words = any.replace(" | ", "|");
    is_match(&format!(r"\b({words})s?\b"), text)
}

/// Removes the number after "by", which is the excess.
fn without_excess(sentence: &str) -> String {
    rewrite(sentence, r"\bby (about )?[0-9][0-9,_]*", "by")
}

/// Returns the lowest limit that a sentence states explicitly, after a word for it.
fn stated_limit(sentence: &str) -> Option<u64> {
    let sentence = &without_excess(sentence);
    let pattern = format!(r"\b({LIMIT_WORDS})\b[^0-9.;]{{0,60}}?(?<limit>[0-9][0-9,_]*)");
    let pattern = Regex::new(&pattern).ok()?;
    let limits = pattern.captures_iter(sentence).filter_map(|found| {
        let limit = found.name("limit")?;
        plain_number(sentence, limit.start(), limit.end())
    });
    limits.min().filter(|limit| is_in_tokens(*limit, sentence))
}

/// Returns the smaller of two plausible numbers in a sentence, or the only one.
fn mere_limit(sentence: &str) -> Option<u64> {
    let sentence = &without_excess(sentence);
    let is_plausible = |number: &u64| *number >= MIN_LIMIT && is_in_tokens(*number, sentence);
    let found: Vec<u64> = numbers(sentence).filter(is_plausible).collect();
    if found.len() <= 2 {
        found.into_iter().min()
    } else {
        None
    }
}

/// Whether a number can be a limit in tokens. Codes and other counts may be small.
fn is_in_tokens(limit: u64, sentence: &str) -> bool {
    let names_tokens = sentence.contains("token") || sentence.contains("n_ctx");
    !(MIN_LIMIT..MIN_PLAIN_LIMIT).contains(&limit) || names_tokens
}

/// Parses the number at this position, unless it is a part of a name, a date or a decimal.
fn plain_number(text: &str, start: usize, end: usize) -> Option<u64> {
    let before = text[..start].chars().next_back();
    let mut after = text[end..].chars();
    let next = after.next();
    let is_name = before.is_some_and(|c| c.is_alphanumeric() || "-_.$#".contains(c))
        || next.is_some_and(|c| c.is_alphanumeric() || "_-%".contains(c))
        || next == Some('.') && after.next().is_some_and(|c| c.is_ascii_digit());
    if is_name {
        None
    } else {
        number(&text[start..end])
    }
}

/// Returns the separate integers of a text.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = u64> {
    let pattern = Regex::new(r"[0-9]{1,3}([,_][0-9]{3})+\b|[0-9]+").ok();
    let found: Vec<(usize, usize)> = pattern.map_or_else(Vec::new, |pattern| {
        let all = pattern.find_iter(text);
        all.map(|found| (found.start(), found.end())).collect()
    });
    found
        .into_iter()
        .filter_map(|(start, end)| plain_number(text, start, end))
}

fn number(text: &str) -> Option<u64> {
    text.replace([',', '_'], "").parse().ok()
}

pub(super) fn number_after(word: &str, text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(word)?;
    numbers(rest).next()
}
