//! Detects thoughts before a model's answer.

/// Tags around thoughts, as opening and closing bracket.
const TAGS: [(char, char); 3] = [('<', '>'), ('[', ']'), ('◁', '▷')];
/// Words in the name of a tag around thoughts.
const WORDS: [&str; 3] = ["think", "thought", "reason"];
/// Maximum length of a tag's name, in bytes.
const MAX_NAME: usize = 40;
/// Channels of thoughts, as start and end.
const CHANNELS: [(&str, &str); 2] = [
    ("<|channel|>analysis", FINAL),
    ("<|channel>thought", "<channel|>"),
];
/// Start of an answer, with or without thoughts before it.
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
    if let Some(answer) = begin.strip_prefix(FINAL) {
        let end = Some(text.len() - answer.len());
        return Opening::Thoughts { text: "", end };
    }
    for (open, close) in CHANNELS {
        if let Some(inner) = begin.strip_prefix(open) {
            return thoughts(text, inner, close);
        }
    }
    let channels = CHANNELS.map(|(open, _)| open);
    if channels
        .iter()
        .chain([&FINAL])
        .any(|open| open.starts_with(begin))
    {
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

/// Returns the thoughts at the start of `inner`, which is the end of `text`.
fn thoughts<'a>(text: &'a str, inner: &'a str, close: &str) -> Opening<'a> {
    let inner = inner.strip_prefix(MESSAGE).unwrap_or(inner);
    match inner.split_once(close) {
        Some((thoughts, answer)) => Opening::Thoughts {
            text: thoughts.split("<|end|>").next().unwrap_or_default().trim(),
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

    #[test]
    fn opening_is_undecided_until_it_is_known() {
        for text in ["", " ", "<", "<th", "[THI", "◁", "<|chan", "<|channel|>fin"] {
            assert_eq!(opening(text), Opening::Undecided, "{text}");
        }
        for text in ["H", "<3 you", "[a](b)", "<b>", "<|x"] {
            assert_eq!(opening(text), Opening::Answer, "{text}");
        }
    }
}
