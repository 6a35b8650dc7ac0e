//! The limit of a result. The rest is left out, with a notice for the model.

use super::exec::EXEC;
use crate::text::{clip, fence_of};

/// Maximum size of a result, in characters: more than a web page has.
const MAX_RESULT: usize = 60_000;
/// Maximum size of both ends of a command's output, in characters. Commands report failures at the end.
const MAX_ENDS: usize = 30_000;
/// Maximum size of a text that is searched for secrets, in bytes. Others may choose its length.
const MAX_TEXT: usize = 1 << 20;
/// Bytes before a cut that are never shown, because half of a secret is not recognized.
const SLACK: usize = 64 << 10;

/// Returns the result of `tool` for the conversation, with up to `room` bytes of it. `strike` removes secrets.
pub(super) fn limited(
    tool: &str,
    mut text: String,
    room: usize,
    strike: impl FnOnce(String) -> String,
) -> String {
    let slack = if text.len() > MAX_TEXT { SLACK } else { 0 };
    text.truncate(clip(&text, MAX_TEXT).len());
    let mut text = strike(text);
    text.truncate(clip(&text, text.len() - slack.min(text.len())).len());
    let most = if tool == EXEC { MAX_ENDS } else { MAX_RESULT };
    let most = clip(&text, room).chars().count().min(most);
    let tail = if tool == EXEC { most / 2 } else { 0 };
    let left_out = text.chars().count().saturating_sub(most);
    if left_out == 0 {
        return text;
    }
    let place = |n| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let head = &text[..place(most - tail)];
    let tail = &text[place(most - tail + left_out)..];
    // Closes the fence of foreign text, whose end is left out.
    let close = if tail.is_empty() { fence_of(head) } else { "" };
    let notice = format!("[{left_out} characters are left out here: ask for less if possible]");
    format!("{head}\n{close}\n{notice}\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_told_behind_the_fence() {
        let fits = "é".repeat(MAX_RESULT);
        assert_eq!(limited("a", fits.clone(), usize::MAX, |text| text), fits);
        let text = format!("[status 200]\n````\n{}\n````", "```\n".repeat(50_000));
        let shown = limited("web_fetch", text, usize::MAX, |text| text);
        let end = "\n````\n[140023 characters are left out here: ask for less if possible]\n";
        assert!(shown.ends_with(end), "{}", &shown[shown.len() - 90..]);
        assert_eq!(shown.matches("````").count(), 2);
    }

    #[test]
    fn of_a_commands_output_both_ends_are_shown() {
        let text = format!("start{}end", "日本".repeat(MAX_ENDS));
        let shown = limited(EXEC, text, usize::MAX, |text| text);
        let (head, tail) = shown.split_once("\n\n[30008 characters").unwrap();
        assert!(head.starts_with("start") && tail.ends_with("end"), "{tail}");
        assert_eq!(head.chars().count(), MAX_ENDS / 2);
        assert_eq!(
            tail.split_once('\n').unwrap().1.chars().count(),
            MAX_ENDS / 2
        );
    }

    #[test]
    fn a_small_window_gets_less() {
        for (tool, text) in [("a", "日本".repeat(90)), (EXEC, "x".repeat(90))] {
            let shown = limited(tool, text, 60, |text| text);
            let left: String = shown.chars().filter(|c| "日本x".contains(*c)).collect();
            assert!((54..=60).contains(&left.len()), "{shown}");
        }
    }

    #[test]
    fn half_a_secret_at_a_cut_is_not_shown() {
        let key = "sk-secret";
        let secrets = key.repeat(MAX_TEXT);
        let shown = limited("a", secrets, usize::MAX, |text| text.replace(key, ""));
        assert!(!shown.contains("sk"), "{shown}");
    }
}
