//! The change of a request that a refusal asks for.

use regex_lite::{Regex, escape};

use super::{
    Change, HostRefusal, ORDER, RESPONSES, RESULTS, STALE_REASONING, Sent, is_match, limits, says,
};

/// Words about the types of a message's parts, of which a file is the rarest, and an image the most common.
const TYPES: &str = include_str!("../wordings/types.txt");
/// Media that some models reject, each with a pattern of the errors (see [`says`]). The error for a single bad image mentions
/// its format, size or encoding.
const MEDIA: &str = include_str!("../wordings/media.txt");
/// Other parts that some models reject.
const WITHOUT: &str = include_str!("../wordings/without.txt");
/// Expressions for errors about all tools, and for none about a field such as `tool_choice`.
const NO_TOOLS: &str = include_str!("../wordings/no_tools.txt");
/// What the Responses API says of thoughts that it cannot read, or that it misses the successor of.
const STALE: &str = include_str!("../wordings/stale.txt");
/// Parts that some models require.
const WITH: &str = include_str!("../wordings/with.txt");

/// Fields that are always required, or that have separate rules.
const NEEDED: &str = "model messages input system instructions stream tools max_tokens max_completion_tokens max_output_tokens";
/// Fields that a host may reject because of their value; the error need only name them.
const TUNING: [&str; 3] = ["temperature", "top_p", "reasoning_effort"];
/// Patterns of errors about a field.
const REFUSING: &str = include_str!("../wordings/refusing.txt");

/// Words of a host that has a model only at its Responses API.
const NEWER_API: &str =
    "v1/responses | responses api | not accessible via the & chat/completions endpoint";

/// Returns changes of the API, of the tools, of a field's name, and of the length of the reply.
pub(super) fn of_value(refusal: &HostRefusal, said: &str, sent: &Sent) -> Vec<Change> {
    let responses = Change::With(RESPONSES.to_owned());
    let chat = Change::Without(RESPONSES.to_owned());
    let changes = [
        says(said, NEWER_API).then_some(responses),
        said.contains("v1/chat/completions").then_some(chat),
        tool_change(refusal, said, sent),
        name_change(said),
        limits::of_reply(refusal, said, sent).map(Change::MaxTokens),
    ];
    changes.into_iter().flatten().collect()
}

/// Returns omissions of parts and fields that the host rejects, and additions of those that it requires.
pub(super) fn of_part(refusal: &HostRefusal, said: &str, sent: &Sent) -> Vec<Change> {
    let without = |part: &str| Change::Without(part.to_owned());
    let mut changes = Vec::new();
    changes.extend(parts_said(WITH, said).map(|part| Change::With(part.to_owned())));
    changes.extend(parts_said(MEDIA, said).map(without));
    if says(said, TYPES) {
        changes.extend(rows(MEDIA).map(|(part, _)| without(part)));
    }
    let is_of_tools = NO_TOOLS.lines().any(|words| is_match(words, said));
    changes.extend(is_of_tools.then(|| without("tools")));
    changes.extend(refused_field(refusal, said, sent).map(Change::Without));
    changes.extend((refusal.param == "stream").then(|| without("stream")));
    changes.extend(says(said, ORDER).then(|| without(RESULTS)));
    changes.extend(parts_said(WITHOUT, said).map(without));
    let is_signature = said.contains("signature") && !said.contains("thought_signature");
    if is_signature || says(said, STALE) {
        changes.push(without(STALE_REASONING));
    }
    changes
}

/// Returns the rows of a table, each a name with its pattern or value.
fn rows(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.lines().filter_map(|row| row.split_once(": "))
}

/// Returns the parts of a table whose pattern fits a text.
fn parts_said(table: &'static str, said: &str) -> impl Iterator<Item = &'static str> {
    let rows = rows(table).filter(|(_, words)| says(said, words));
    rows.map(|(part, _)| part)
}

/// Finds a name as a whole word in a lower-case text.
pub(super) fn place_of(name: &str, text: &str) -> Option<usize> {
    let word = Regex::new(&format!(r"\b{}\b", escape(&name.to_lowercase()))).ok()?;
    word.find(text).map(|found| found.start())
}

/// Detects a refusal of one tool, by its place or its name.
fn tool_change(refusal: &HostRefusal, said: &str, sent: &Sent) -> Option<Change> {
    if sent.tools.is_empty() || matches!(refusal.status, 404 | 429) {
        return None;
    }
    let named = format!("{} {said}", refusal.param.to_lowercase());
    let place = Regex::new(r"(function_declarations|tools)[\[.](?<at>\d+)").ok()?;
    // Gemini's locations include the function within the tools.
    let places = place.captures_iter(&named);
    let place = places.max_by_key(|found| found[1].len());
    if let Some(at) = place.and_then(|found| found["at"].parse::<usize>().ok()) {
        return Some(Change::WithoutTool(sent.tools.get(at)?.clone()));
    }
    let most = Regex::new(r"\btools\b.*(maximum length|at most) (?<most>\d+)").ok()?;
    let found = most.captures(&named);
    let most = found.and_then(|found| found["most"].parse().ok());
    if let Some(most) = most.filter(|most| (1..sent.tools.len()).contains(most)) {
        return Some(Change::MaxTools(most));
    }
    if refusal.status >= 500 || !says(said, "function | tool | schema") {
        return None;
    }
    let is_quoted = |tool: &&String| {
        let name = tool.to_lowercase();
        let mut quotes = ['\'', '"', '`'].iter();
        quotes.any(|quote| said.contains(&format!("{quote}{name}{quote}")))
    };
    let tool = sent.tools.iter().find(is_quoted)?;
    Some(Change::WithoutTool(tool.clone()))
}

/// Detects a host that takes the length of the reply under its newer name.
fn name_change(said: &str) -> Option<Change> {
    let is_named = says(said, "max_tokens & max_completion_tokens");
    let is_of_value = says(said, "context | window | n_ctx")
        || is_match("max_tokens['`\" ]* (is too large|must)", said);
    (is_named && !is_of_value).then(|| Change::Without("max_tokens".to_owned()))
}

/// Returns the first top-level field of the body that a refusal mentions.
fn refused_field(refusal: &HostRefusal, said: &str, sent: &Sent) -> Option<String> {
    let is_refusing = says(said, REFUSING);
    let names = sent.fields.iter();
    let names = names.filter(|name| !NEEDED.split(' ').any(|needed| needed == *name));
    let names = names.filter(|name| is_refusing || TUNING.contains(&name.as_str()));
    let named = format!("{} {said}", refusal.param.to_lowercase());
    let places = names.filter_map(|name| Some((place_of(name, &named)?, name)));
    places.min().map(|(_, name)| name.clone())
}
