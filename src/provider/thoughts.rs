//! Detects thoughts before a model's answer.

/// Marks before and after thoughts; the last are Gemma's.
const MARKS: [(&str, &str); 8] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|channel>thought", "<channel|>"),
];
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
    for (open, close) in MARKS {
        if let Some(inner) = begin.strip_prefix(open) {
            return thoughts(text, inner, close);
        }
    }
    let mut opens = MARKS.iter().map(|(open, _)| open).chain(&HARMONY);
    if opens.any(|open| open.starts_with(begin)) {
        Opening::Undecided
    } else {
        Opening::Answer
    }
}

/// Reads the channels of gpt-oss: everything before its final message is thoughts, unless it calls a tool.
fn harmony(text: &str) -> Opening<'_> {
    let end = text.find(FINAL).map(|at| at + FINAL.len());
    let before = &text[..end.map_or(text.len(), |end| end - FINAL.len())];
    let calls = |header: &str| {
        let (token, name) = header.split_once("|>").unwrap_or_default();
        let mut channels = CHANNELS.iter();
        match token {
            "channel" => !channels.any(|channel| channel.starts_with(name.trim())),
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
    let closed = inner.split_once(close);
    Opening::Thoughts {
        text: closed.map_or(inner, |(thoughts, _)| thoughts).trim(),
        end: closed.map(|(_, answer)| text.len() - answer.trim_start().len()),
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
        let table = include_str!("../../tests/corpus/wire/thoughts.jsonl");
        for row in table.lines() {
            let [text, thought, answer]: [String; 3] = serde_json::from_str(row).unwrap();
            let (start, thoughts) = split(&text);
            assert_eq!((thoughts, &text[start..]), (&*thought, &*answer), "{text}");
        }
    }
}
