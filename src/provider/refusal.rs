//! Classifies an error response: the error for the user, and the changes of the request that it asks for.
//!
//! Hosts agree only on the status, so the body is parsed in all known formats, and matched by its words.

mod details;

use std::time::{Duration, SystemTime};

use details::Details;
use regex_lite::{Regex, escape};
use serde_json::Value;

use super::waits::{retry_after, spoken_wait};
use super::{ProviderError, ToolOffer, says};
use crate::config::proxy::redact_url;
use crate::http::Head;
use crate::json::{from_json, parse_json};
use crate::text::to_single_line;

/// An error response, or an error inside a successful response.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    pub status: u16,
    /// Error texts: messages first, then types and codes.
    pub texts: Vec<String>,
    /// Field or location that the host reports as wrong.
    pub param: String,
    /// Whether the body is a web page, or the response is a redirect.
    pub is_page: bool,
    pub retry_after: Option<Duration>,
    /// Whether the response has `x-should-retry: true`.
    pub should_retry: bool,
}

/// Contents of a rejected request that the error may refer to.
#[derive(Default)]
pub(super) struct Sent<'a> {
    /// Names of the top-level fields of the body.
    pub fields: &'a [String],
    pub tools: &'a [&'a ToolOffer],
    pub max_tokens: u64,
    /// Number of messages.
    pub messages: usize,
    pub has_key: bool,
    /// Whether the host is on this machine or a private network.
    pub is_private: bool,
}

/// A change of the request that a refusal asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Omit a field or a part.
    Without(String),
    /// Add a part.
    With(String),
    /// Send a field with this value.
    Set(String, Value),
    /// Limit the reply.
    MaxTokens(u64),
    /// Limit the whole request and its reply.
    Window(u64),
    /// Offer only the first tools.
    MaxTools(usize),
    /// Do not offer this tool.
    WithoutTool(String),
}

/// Omits the thoughts from one request; never stored.
pub(super) const STALE_REASONING: &str = "stale reasoning";

/// Minimum length of a conversation for which an unexplained refusal counts as too long.
const SEVERAL_TURNS: usize = 3;

/// A sample of the model that the host itself calls bad, such as Groq's. Another sample may be good.
const BAD_SAMPLE: &str = "tool_use_failed | json_validate_failed | failed_generation";
const INVALID_KEY: &str = "api key not valid | invalid api key | invalid x-api-key";
const NO_CREDIT: &str = "insufficient_quota | exceeded_current_quota | billing_not_active | billing_hard_limit | \
    insufficient balance | insufficient credit | credit balance | payment required";
const NO_MODEL: &str = "model_not_found | not a valid model | invalid model name | unknown model | no such model | \
    model & not exist | model & not found | model & retired | model & deprecated | model & decommissioned | \
    model & no longer";

/// Parts that some models reject, and patterns of the errors (see [`says`]).
const WITHOUT: [(&str, &str); 8] = [
    (
        "files",
        "unknown variant `file` | part type: file | 'file' | support & file content | support & file input | \
        support & pdf | support & document | unsupported content[].type | content blocks are expected",
    ),
    (
        "audio",
        "input_audio | audio input | support & audio | unsupported content[].type | content blocks are expected",
    ),
    // The error for a single bad image mentions its format, size or encoding.
    (
        "images",
        "support image input | image input is not | unknown variant & image_url | image_url is only supported | \
        not support images | not support vision | not a multimodal model | content must be a string | \
        content should be a string",
    ),
    (
        "tools",
        "not support tools | support tool use | not support function calling | enable-auto-tool-choice",
    ),
    ("stream", "stream & not support"),
    (
        "reasoning",
        "reasoning_content | reasoning_details | 'reasoning' & unsupported | thinking_blocks | extra_content",
    ),
    (
        "system_role",
        "system & role | system message & support | developer instruction",
    ),
    (
        "null",
        "content & null | content & nil | content & none | content & string | content & required",
    ),
];
/// Parts that some models require.
const WITH: [(&str, &str); 3] = [
    ("adaptive", "thinking & adaptive"),
    (
        "reasoning",
        "reasoning_content & must be passed | reasoning_content & missing",
    ),
    ("signatures", "thought_signature"),
];

/// Fields that are always required, or that have separate rules.
const NEEDED: [&str; 7] = [
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "tools",
    "system",
];
/// Fields that a host may reject because of their value; the error need only name them.
const TUNING: [&str; 3] = ["temperature", "top_p", "reasoning_effort"];
/// Patterns of errors about a field.
const REFUSING: &str = "extra inputs | extra_forbidden | unknown | unrecognized | unrecognised | unsupported | not support | \
    not permitted | not allowed | unexpected | additional propert | invalid parameter | deprecated | not enabled";

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
pub(super) const MIN_LIMIT: u64 = 256;
/// Minimum plausible limit in a sentence that does not mention tokens.
const MIN_PLAIN_LIMIT: u64 = 4096;

impl Refusal {
    pub(super) fn read(status: u16, head: Option<&Head>, body: &str, now: SystemTime) -> Self {
        let is_html = looks_like_html(body);
        let mut details = Details::default();
        match parse_json(body) {
            Ok(body) => details.collect(&body),
            Err(_) if is_html => {}
            Err(_) => details.texts.push(body.trim().to_owned()),
        }
        details.texts.retain(|text| !text.is_empty());
        let header = |name| head.and_then(|head| head.header(name));
        let is_redirect = (300..400).contains(&status);
        if is_redirect {
            if let Some(location) = header("location") {
                let address = redact_url(location);
                details.texts.insert(0, format!("it leads to {address}"));
            }
        }
        let headers = head.map_or(&[][..], |head| &head.headers);
        let headers: Vec<_> = headers.iter().chain(&details.headers).collect();
        let spoken = || spoken_wait(&body.to_lowercase());
        Self {
            status: match details.status {
                Some(inner) if status < 400 => inner,
                _ => status,
            },
            texts: details.texts,
            param: details.param,
            is_page: is_html || is_redirect,
            retry_after: retry_after(&headers, now).or_else(spoken),
            should_retry: header("x-should-retry") == Some("true"),
        }
    }

    /// Returns all texts in lower case, joined.
    fn said(&self) -> String {
        self.texts.join("; ").to_lowercase()
    }

    /// Returns the message for the user.
    fn message(&self) -> String {
        let (status, said) = (self.status, to_single_line(&self.texts.join("; "), 300));
        match status {
            300..400 => format!("the server answered {status}, a redirect: {said}"),
            _ if self.is_page => {
                format!("the server answered {status} with a web page: is api_base right?")
            }
            200..300 => format!("the server sent an error: {said}"),
            _ if said.is_empty() => format!("the server answered {status}"),
            _ => format!("the server answered {status}: {said}"),
        }
    }

    /// Whether the error refers to a message of the conversation.
    fn names_message(&self) -> bool {
        is_match(
            r"\bmessages?[\[.]\d",
            &format!("{} {}", self.param, self.said()),
        )
    }
}

fn is_match(pattern: &str, text: &str) -> bool {
    Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
}

/// Returns the error and the requested changes, the most likely one first. The first matching rule determines the error.
pub(super) fn classify(refusal: &Refusal, sent: &Sent) -> (ProviderError, Vec<Change>) {
    let (status, said, message) = (refusal.status, refusal.said(), refusal.message());
    if let Some(refused) = account_error(refusal, &said, sent) {
        return refused;
    }
    let is_retryable = refusal.should_retry || says(&said, BAD_SAMPLE);
    if is_retryable && status != 429 {
        return (transient(message, refusal.retry_after), Vec::new());
    }
    let can_adapt = !refusal.is_page && !matches!(status, 408 | 409 | 425 | 429);
    let change = || {
        tool_change(refusal, &said, sent)
            .or_else(|| value_change(&said))
            .or_else(|| reply_limit(refusal, sent).map(Change::MaxTokens))
    };
    if let Some(change) = can_adapt.then(change).flatten() {
        return (rejected(message), vec![change]);
    }
    if let Some(limit) = length(refusal, &said, sent) {
        let changes = match limit {
            Some(limit) if status != 429 => vec![Change::Window(limit)],
            _ => Vec::new(),
        };
        return (ProviderError::TooLong { message, limit }, changes);
    }
    let changes = if can_adapt {
        part_changes(refusal, &said, sent)
    } else {
        Vec::new()
    };
    let error = other_error(refusal, &said, sent, changes.is_empty());
    let is_open = matches!(error, ProviderError::Rejected { .. }) && changes.is_empty();
    let is_refused = is_open && !refusal.is_page && matches!(status, 400 | 413 | 422);
    if is_refused && is_of_message(refusal, &said, sent) {
        return (ProviderError::MessageRefused(message), changes);
    }
    (error, changes)
}

/// Detects a rejected key or a lack of credit. The remaining credit limits the reply.
fn account_error(
    refusal: &Refusal,
    said: &str,
    sent: &Sent,
) -> Option<(ProviderError, Vec<Change>)> {
    let (status, message) = (refusal.status, refusal.message());
    let is_rate_limit = status == 429 && refusal.retry_after.is_some();
    let has_no_credit = match status {
        402 => true,
        403 => says(said, NO_CREDIT) || said.contains("billing"),
        429 => says(said, NO_CREDIT) && !is_rate_limit,
        400 => said.contains("credit balance is too low"),
        _ => false,
    };
    if has_no_credit {
        let covered = number_after("afford", said).filter(|covered| *covered < sent.max_tokens);
        let change = covered.map(Change::MaxTokens);
        return Some((ProviderError::Quota(message), change.into_iter().collect()));
    }
    let is_invalid_key = status == 400 && says(said, INVALID_KEY);
    let is_refused = status == 401 || is_invalid_key || (status == 403 && !refusal.is_page);
    let no_key = !sent.has_key;
    is_refused.then(|| (ProviderError::AuthFailed { message, no_key }, Vec::new()))
}

/// Classifies errors that concern neither the account nor the conversation.
fn other_error(refusal: &Refusal, said: &str, sent: &Sent, is_plain: bool) -> ProviderError {
    let (status, message, retry_after) = (refusal.status, refusal.message(), refusal.retry_after);
    let is_no_model = matches!(status, 200 | 400 | 410 | 422) && says(said, NO_MODEL);
    match status {
        404 if !refusal.is_page => ProviderError::NotFound(message),
        _ if is_no_model && is_plain => ProviderError::NotFound(message),
        503 if sent.is_private && said.contains("loading") => ProviderError::Loading(message),
        429 if !refusal.is_page => ProviderError::RateLimited {
            message,
            retry_after,
        },
        300..400 => wrong_address(message),
        200..300 if refusal.is_page => wrong_address(message),
        408 | 409 | 425 | 429 | 500.. | 200..300 => transient(message, retry_after),
        _ if refusal.is_page => wrong_address(message),
        _ => rejected(message),
    }
}

pub(super) fn transient(
    message: impl Into<String>,
    retry_after: Option<Duration>,
) -> ProviderError {
    ProviderError::Transient {
        message: message.into(),
        retry_after,
    }
}

pub(crate) fn rejected(message: impl Into<String>) -> ProviderError {
    ProviderError::Rejected {
        message: message.into(),
        hint: "use another model (--model, /model), or check its entry in config.json",
    }
}

fn wrong_address(message: String) -> ProviderError {
    ProviderError::Rejected {
        message,
        hint: "correct api_base in config.json",
    }
}

/// Whether a refusal is about the conversation: it refers to a message, or to no field of the request.
fn is_of_message(refusal: &Refusal, said: &str, sent: &Sent) -> bool {
    if !said.contains(char::is_alphabetic) {
        // A refusal without words, such as that of a port for TLS, says nothing of the message.
        return false;
    }
    // Azure names the prompt as the parameter of a text that its filter refuses.
    if refusal.names_message() || refusal.param == "prompt" {
        return true;
    }
    let is_named = |field: &&String| {
        let is_word =
            field.contains('_') || ["tools", "stream", "temperature"].contains(&field.as_str());
        is_word && place_of(field, said).is_some()
    };
    refusal.param.is_empty() && !sent.fields.iter().any(|field| is_named(&field))
}

/// Finds a name as a whole word in a lower-case text.
fn place_of(name: &str, text: &str) -> Option<usize> {
    let word = Regex::new(&format!(r"\b{}\b", escape(&name.to_lowercase()))).ok()?;
    word.find(text).map(|found| found.start())
}

/// Detects a refusal of one tool or of the number of tools.
fn tool_change(refusal: &Refusal, said: &str, sent: &Sent) -> Option<Change> {
    if sent.tools.is_empty() || matches!(refusal.status, 404 | 429) {
        return None;
    }
    let named = format!("{} {said}", refusal.param.to_lowercase());
    let place = Regex::new(r"(function_declarations|tools)[\[.](?<at>\d+)").ok()?;
    // Gemini's locations include the function within the tools.
    let place = place
        .captures_iter(&named)
        .max_by_key(|found| found[1].len());
    if let Some(at) = place.and_then(|found| found["at"].parse::<usize>().ok()) {
        return Some(Change::WithoutTool(sent.tools.get(at)?.name.to_string()));
    }
    if says(said, "function | tool | schema") && refusal.status < 500 {
        let is_quoted = |tool: &&&ToolOffer| {
            let name = tool.name.to_lowercase();
            ['\'', '"', '`']
                .iter()
                .any(|quote| said.contains(&format!("{quote}{name}{quote}")))
        };
        if let Some(tool) = sent.tools.iter().find(is_quoted) {
            return Some(Change::WithoutTool(tool.name.to_string()));
        }
    }
    let is_count = place_of("tools", &named).is_some()
        && says(
            said,
            "too long | too many | maximum | at most | limit | exceed | up to",
        )
        && !says(said, "token | max_tokens");
    if !is_count {
        return None;
    }
    let ours = sent.tools.len() as u64;
    let below = numbers(said)
        .filter(|number| *number > 0 && *number < ours)
        .max()?;
    usize::try_from(below).ok().map(Change::MaxTools)
}

/// Detects a field that requires another value or another name.
fn value_change(said: &str) -> Option<Change> {
    let set = Regex::new(r#"set `?'?"?(?<name>[a-z_]+)[`'"]? to ['"`](?<value>[a-z0-9_.-]+)['"`]"#)
        .ok()?;
    if let Some(found) = set.captures(said) {
        let value = &found["value"];
        let value = from_json(value).unwrap_or_else(|_| value.into());
        return Some(Change::Set(found["name"].to_owned(), value));
    }
    let is_window = says(said, "context | window | n_ctx");
    let is_new_name = said.contains("max_tokens") && said.contains("max_completion_tokens");
    if is_new_name && !is_window && !is_match("max_tokens['`\" ]* (is too large|must)", said) {
        return Some(Change::Without("max_tokens".to_owned()));
    }
    let is_unknown = said.contains("max_completion_tokens") && says(said, REFUSING) && !is_window;
    is_unknown.then(|| Change::Without("max_completion_tokens".to_owned()))
}

/// Returns a limit of the reply that is lower than the requested length: the upper end of a range, in any wording.
fn reply_limit(refusal: &Refusal, sent: &Sent) -> Option<u64> {
    let is_named = is_match(REPLY, &refusal.param);
    let texts = refusal.texts.iter().map(|text| text.to_lowercase());
    let limit_in = |sentence: &str| {
        let clause = without_lower_ends(about_reply(sentence, is_named)?);
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

/// Removes the numbers of a lower-case text that are the lower end of a range.
fn without_lower_ends(text: &str) -> String {
    let rewrite = |text: String, pattern: &str, by: &str| match Regex::new(pattern) {
        Ok(pattern) => pattern.replace_all(&text, by).into_owned(),
        Err(_) => text,
    };
    let text = rewrite(
        text.to_owned(),
        r"\[\s*([0-9]+)\s*,\s*([0-9]+)\s*\]",
        "$1 to $2",
    );
    let text = rewrite(
        text,
        r"(^|[^-.\w])([0-9][0-9,_]*)\s*(\.\.=?|[-–—~…])\s*([0-9][0-9,_]*)($|[^-\w])",
        "$1$2 to $4$5",
    );
    let after_word = format!("({LOWER})[\\s:=`'\"(]*((of|is|value|be) )*[0-9][0-9,_]*");
    let text = rewrite(text, &after_word, "");
    let before_word = r#"[0-9][0-9,_]*[\s`'"]*(<=?|≤|(to|and|through)[\s`'"]*([0-9]))"#;
    rewrite(text, before_word, " $3")
}

/// Whether the request was too long, and the limit if the error states it.
#[allow(clippy::option_option)] // the outer option is whether the rule applies
fn length(refusal: &Refusal, said: &str, sent: &Sent) -> Option<Option<u64>> {
    if matches!(refusal.status, 401..=404) || refusal.is_page {
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
    let pattern = Regex::new(r"\bby (about )?[0-9][0-9,_]*");
    pattern.map_or_else(
        |_| sentence.to_owned(),
        |pattern| pattern.replace_all(sentence, "by").into_owned(),
    )
}

/// Returns a limit that a sentence states explicitly: the upper end of a range, else after a sign, else after a word.
fn stated_limit(sentence: &str) -> Option<u64> {
    let sentence = &without_excess(sentence);
    let range = Regex::new(r"\[\s*[0-9]+\s*,\s*(?<limit>[0-9]+)\s*\]").ok()?;
    let after_sign = Regex::new(r"(>|<=|≤)\s*(?<limit>[0-9][0-9,_]*)").ok()?;
    let after_word = format!(r"\b({LIMIT_WORDS})\b[^0-9.;]{{0,60}}?(?<limit>[0-9][0-9,_]*)");
    let after_word = Regex::new(&after_word).ok()?;
    let lowest = |pattern: &Regex| {
        let all = pattern.captures_iter(sentence);
        let limits = all.filter_map(|found| {
            let limit = found.name("limit")?;
            plain_number(sentence, limit.start(), limit.end())
        });
        limits.min()
    };
    let limit = lowest(&range)
        .or_else(|| lowest(&after_sign))
        .or_else(|| lowest(&after_word));
    limit.filter(|limit| is_in_tokens(*limit, sentence))
}

/// Returns the smaller of two numbers in a sentence, or the only number.
fn mere_limit(sentence: &str) -> Option<u64> {
    let sentence = &without_excess(sentence);
    let found: Vec<u64> = numbers(sentence).filter(|number| *number > 0).collect();
    let limit = match found[..] {
        [one] => one,
        [one, other] => one.min(other),
        _ => return None,
    };
    is_in_tokens(limit, sentence).then_some(limit)
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
fn numbers(text: &str) -> impl Iterator<Item = u64> {
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

fn number_after(word: &str, text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(word)?;
    numbers(rest).next()
}

/// Returns the parts and fields that the host rejects or requires.
fn part_changes(refusal: &Refusal, said: &str, sent: &Sent) -> Vec<Change> {
    let with = WITH.iter().filter(|(_, words)| says(said, words));
    let mut changes: Vec<Change> = with
        .map(|(part, _)| Change::With((*part).to_owned()))
        .collect();
    let fits = |(part, words): &&(&str, &str)| {
        says(said, words) || *part == "stream" && refusal.param == "stream"
    };
    let without = WITHOUT.iter().filter(fits);
    let without = without.map(|(part, _)| Change::Without((*part).to_owned()));
    let (media, others): (Vec<Change>, Vec<Change>) = without.partition(|change| {
        matches!(change, Change::Without(part) if ["files", "audio", "images", "tools"].contains(&part.as_str()))
    });
    changes.extend(media);
    changes.extend(refused_field(refusal, said, sent).map(Change::Without));
    changes.extend(others);
    if said.contains("signature") && !said.contains("thought_signature") {
        changes.push(Change::Without(STALE_REASONING.to_owned()));
    }
    changes
}

/// Returns the first top-level field of the body that a refusal mentions.
fn refused_field(refusal: &Refusal, said: &str, sent: &Sent) -> Option<String> {
    let is_refusing = says(said, REFUSING);
    let names = sent
        .fields
        .iter()
        .filter(|name| !NEEDED.contains(&name.as_str()));
    let names = names.filter(|name| is_refusing || TUNING.contains(&name.as_str()));
    let named = format!("{} {said}", refusal.param.to_lowercase());
    names
        .filter_map(|name| Some((place_of(name, &named)?, name)))
        .min()
        .map(|(_, name)| name.clone())
}

pub(super) fn looks_like_html(text: &str) -> bool {
    let start = text
        .trim_start()
        .get(..15)
        .unwrap_or(text.trim_start())
        .to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html") || start.starts_with("<head")
}

#[cfg(test)]
mod tests;
