//! Detects thoughts before a model's answer.

/// Tags around thoughts, as opening and closing bracket.
const TAGS: [(char, char); 3] = [('<', '>'), ('[', ']'), ('◁', '▷')];
/// Words in the name of a tag around thoughts.
const WORDS: [&str; 3] = ["think", "thought", "reason"];
/// Maximum length of a tag's name, in bytes.
const MAX_NAME: usize = 40;
/// Gemma's channel of thoughts, as start and end.
const GEMMA: (&str, &str) = ("<|channel>thought", "<channel|>");
/// Starts of an answer of gpt-oss whose server does not parse its channels.
const HARMONY: [&str; 3] = ["<|channel|>", "<|start|>assistant", "assistant<|channel|>"];
/// Channels of gpt-oss. Any other name is that of a tool.
const CHANNELS: [&str; 3] = ["analysis", "commentary", "final"];
const FINAL: &str = "<|channel|>final<|message|>";
const MESSAGE: &str = "<|message|>";
const LONE_END: &str = "</think>";

/// Classification of the start of a text.
#[derive(Debug, PartialEq)]
pub(super) enum Opening<'a> {
    Answer,
    /// More text decides.
    Undecided,
    /// Thoughts, and the start of the answer if the thoughts have ended.
    Thoughts {
        text: &'a str,
        end: Option<usize>,
    },
}

pub(super) fn opening(text: &str) -> Opening<'_> {
    let begin = text.trim_start();
    if begin.is_empty() {
        return Opening::Undecided;
    }
    if HARMONY.iter().any(|open| begin.starts_with(open)) {
        return harmony(text);
    }
    if let Some(inner) = begin.strip_prefix(GEMMA.0) {
        return thoughts(text, inner, GEMMA.1);
    }
    let mut opens = HARMONY.iter().chain([&GEMMA.0]);
    if opens.any(|open| open.starts_with(begin)) {
        return Opening::Undecided;
    }
    let tag = TAGS.into_iter().find(|(open, _)| begin.starts_with(*open));
    let Some((open, close)) = tag else {
        return Opening::Answer;
    };
    let rest = &begin[open.len_utf8()..];
    let is_name = |name: &str| {
        let is_part = |c: char| c.is_alphanumeric() || "_:-".contains(c);
        name.len() <= MAX_NAME && name.chars().all(is_part)
    };
    match rest.split_once(close) {
        Some((name, inner)) if is_name(name) && is_thought(name) => {
            thoughts(text, inner, &format!("{open}/{name}{close}"))
        }
        None if is_name(rest) => Opening::Undecided,
        _ => Opening::Answer,
    }
}

fn is_thought(name: &str) -> bool {
    let name = name.to_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

/// Reads the channels of gpt-oss: everything before its final message is thoughts, unless it calls a tool.
fn harmony(text: &str) -> Opening<'_> {
    let end = text.find(FINAL).map(|at| at + FINAL.len());
    let before = &text[..end.map_or(text.len(), |end| end - FINAL.len())];
    let calls = |header: &str| {
        let (token, name) = header.split_once("|>").unwrap_or_default();
        let is_channel = || {
            CHANNELS
                .iter()
                .any(|channel| channel.starts_with(name.trim()))
        };
        match token {
            "channel" => !is_channel(),
            "start" => name.contains(" to="),
            _ => false,
        }
    };
    if end.is_none() && before.split("<|").any(calls) {
        return Opening::Answer;
    }
    let (_, message) = before.split_once(MESSAGE).unwrap_or_default();
    let text = message.split("<|").next().unwrap_or_default().trim();
    Opening::Thoughts { text, end }
}

/// Returns the thoughts at the start of `inner`, which is the end of `text`.
fn thoughts<'a>(text: &'a str, inner: &'a str, close: &str) -> Opening<'a> {
    match inner.split_once(close) {
        Some((thoughts, answer)) => Opening::Thoughts {
            text: thoughts.trim(),
            end: Some(text.len() - answer.trim_start().len()),
        },
        None => Opening::Thoughts {
            text: inner.trim(),
            end: None,
        },
    }
}

/// Returns the start of the answer in a whole text, and the thoughts before it. Unfinished thoughts extend to the end. A lone
/// closing tag ends thoughts, because some servers cut off the opening tag.
pub(super) fn split(text: &str) -> (usize, &str) {
    match opening(text) {
        Opening::Thoughts { text: inner, end } => (end.unwrap_or(text.len()), inner),
        Opening::Answer | Opening::Undecided => match text.split_once(LONE_END) {
            Some((thoughts, answer))
                if !thoughts.contains("<think>") && !thoughts.contains("```") =>
            {
                (text.len() - answer.trim_start().len(), thoughts.trim())
            }
            _ => (0, ""),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_are_told_from_the_answer() {
        for (text, thought, answer) in [
            ("<think>hm</think>\n\nFour.", "hm", "Four."),
            ("<thinking>hm</thinking>Four.", "hm", "Four."),
            ("<thought>hm</thought>Four.", "hm", "Four."),
            ("<seed:think>hm</seed:think>Four.", "hm", "Four."),
            ("[THINK]hm[/THINK]Four.", "hm", "Four."),
            ("<reasoning>hm</reasoning>Four.", "hm", "Four."),
            ("◁think▷hm◁/think▷Four.", "hm", "Four."),
            (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Four.",
                "hm",
                "Four.",
            ),
            ("<|channel|>final<|message|>Four.", "", "Four."),
            (
                "<|channel|>commentary<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Four.",
                "hm",
                "Four.",
            ),
            (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f",
                "",
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f",
            ),
            (
                "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}",
                "",
                "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}",
            ),
            (
                "assistant<|channel|>read_file",
                "",
                "assistant<|channel|>read_file",
            ),
            ("<|channel>thought\nhm<channel|>Four.", "hm", "Four."),
            ("hm</think>Four.", "hm", "Four."),
            ("<think>hm", "hm", ""),
            ("Four <think>.", "", "Four <think>."),
            ("<b>Four</b>", "", "<b>Four</b>"),
            ("[1] Four", "", "[1] Four"),
            ("<3", "", "<3"),
            ("Write ```</think>``` so.", "", "Write ```</think>``` so."),
        ] {
            let (start, thoughts) = split(text);
            assert_eq!((thoughts, &text[start..]), (thought, answer), "{text}");
        }
    }
}
