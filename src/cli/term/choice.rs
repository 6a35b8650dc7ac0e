//! Questions that have a few answers: what is none of them is asked again.

use crate::error::Result;

/// How often a question is asked before it counts as answered by no.
const TRIES: u32 = 3;

/// Asks by `ask` until `meaning` knows the answer, and returns `otherwise` if it never does. `None` if nobody answers.
pub(in crate::cli) fn choose<T>(
    question: &str,
    otherwise: T,
    ask: impl Fn(&str) -> Result<Option<String>>,
    meaning: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>> {
    let mut asked = question.to_owned();
    for _ in 0..TRIES {
        let Some(answer) = ask(&asked)? else {
            return Ok(None);
        };
        if let Some(meant) = meaning(answer.trim().to_ascii_lowercase().as_str()) {
            return Ok(Some(meant));
        }
        asked = format!("Not understood. {question}");
    }
    Ok(Some(otherwise))
}

/// Asks whether to do something; Enter means `default`. `None` if nobody answers.
pub(in crate::cli) fn yes_or_no(
    question: &str,
    default: bool,
    ask: impl Fn(&str) -> Result<Option<String>>,
) -> Result<Option<bool>> {
    let answers = if default { "[Y/n]" } else { "[y/N]" };
    choose(
        &format!("{question} {answers} "),
        false,
        ask,
        |answer| match answer {
            "" => Some(default),
            "y" | "yes" => Some(true),
            "n" | "no" => Some(false),
            _ => None,
        },
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// What comes of these answers, and the questions that were asked.
    fn answered(answers: &[&str], default: bool) -> (Option<bool>, Vec<String>) {
        let (mut left, asked) = (answers.iter(), RefCell::new(Vec::new()));
        let left = RefCell::new(&mut left);
        let chosen = yes_or_no("Go on?", default, |question| {
            asked.borrow_mut().push(question.to_owned());
            Ok(left.borrow_mut().next().map(|&answer| answer.to_owned()))
        });
        (chosen.unwrap(), asked.into_inner())
    }

    #[test]
    fn enter_means_what_is_written_large() {
        assert_eq!(
            answered(&[""], true),
            (Some(true), vec!["Go on? [Y/n] ".to_owned()])
        );
        assert_eq!(
            answered(&[""], false),
            (Some(false), vec!["Go on? [y/N] ".to_owned()])
        );
        assert_eq!(answered(&["YES"], false).0, Some(true));
        assert_eq!(answered(&["No"], true).0, Some(false));
    }

    #[test]
    fn what_is_neither_yes_nor_no_is_asked_again_and_in_the_end_no() {
        let again = "Not understood. Go on? [Y/n] ";
        let (chosen, asked) = answered(&["what does it cost?", "y"], true);
        assert_eq!((chosen, asked[1].as_str()), (Some(true), again));
        let (chosen, asked) = answered(&["ja", "si", "oui", "y"], true);
        assert_eq!((chosen, asked.len()), (Some(false), 3));
        assert_eq!(answered(&["ja"], true).0, None);
    }
}
