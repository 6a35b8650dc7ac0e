//! The heartbeat: a built-in job that regularly asks the agent to work through `agent/HEARTBEAT.md`.

use std::time::Duration;

use serde_json::json;

use super::job::{Job, NOTHING_TO_REPORT};
use crate::error::Result;
use crate::paths::{TELEGRAM, telegram_chat};
use crate::test_speed::paced;

/// Id of its conversation and its runs.
pub(crate) const ID: &str = "heartbeat";

/// Creates the job, whose answers go to the chat `to` unless that is empty. Its intervals count from 1970, so that a restart
/// does not move them.
pub(crate) fn job(minutes: u64, to: &str) -> Result<Job> {
    let chat = if to.is_empty() {
        to
    } else {
        telegram_chat(to)?
    };
    let interval = paced(Duration::from_secs(minutes.saturating_mul(60))).as_millis();
    let interval = u64::try_from(interval).unwrap_or(u64::MAX);
    Ok(Job(json!({
        "id": ID, "name": ID, "schedule": {"kind": "every", "everyMs": interval},
        "payload": {"deliver": !chat.is_empty(), "channel": TELEGRAM, "to": chat},
    })))
}

/// Returns the prompt for this file; `None` if it has only comments (`<!-- -->`), headings and empty lines.
pub(crate) fn question(file: &str) -> Option<String> {
    let mut tasks = String::new();
    let mut left = file;
    while let Some((before, comment)) = left.split_once("<!--") {
        tasks.push_str(before);
        // An unclosed comment extends to the end.
        left = comment.split_once("-->").map_or("", |(_, after)| after);
    }
    tasks.push_str(left);
    let says_nothing = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if tasks.lines().all(says_nothing) {
        return None;
    }
    Some(format!(
        "This is your heartbeat, not a message from your user. Check the tasks below and do what is due now. If there is \
         nothing to report, answer {NOTHING_TO_REPORT} and nothing else.\n\n{}",
        tasks.trim()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_task_asks_nothing() {
        let template = include_str!("../../workspace-template/agent/HEARTBEAT.md");
        for empty in [
            "",
            " \n\n",
            template,
            "# Heartbeat\n<!-- a\n- b\n-->\n",
            "<!-- never closed\n- task",
        ] {
            assert_eq!(question(empty), None, "{empty}");
        }
        let asked = question("# Tasks\n<!-- old -->- water the plants\n").unwrap();
        assert!(
            asked.contains("- water the plants") && !asked.contains("old"),
            "{asked}"
        );
    }
}
