//! The heartbeat: a built-in job that asks the agent at intervals to do what `agent/HEARTBEAT.md` says.

use super::schedule::Schedule;

/// The id of its conversation and its runs.
pub(crate) const ID: &str = "heartbeat";

/// The agent's answer when there is nothing to report.
pub(crate) const QUIET: &str = "HEARTBEAT_OK";

/// Counts from 1970, so that a restart does not move it.
pub(crate) fn schedule(minutes: u64) -> Schedule {
    Schedule::Every { interval: i64::try_from(minutes).unwrap_or(i64::MAX).saturating_mul(60_000), anchor: 0 }
}

/// The prompt for this file; `None` when it has only comments (`<!-- -->`), headings and empty lines.
pub(crate) fn question(file: &str) -> Option<String> {
    let mut tasks = String::new();
    let mut left = file;
    while let Some((before, comment)) = left.split_once("<!--") {
        tasks.push_str(before);
        // An unclosed comment runs to the end.
        left = comment.split_once("-->").map_or("", |(_, after)| after);
    }
    tasks.push_str(left);
    let says_nothing = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if tasks.lines().all(says_nothing) {
        return None;
    }
    Some(format!(
        "This is your heartbeat, not a message from your user. Check the tasks below and do what is due now. If there is \
         nothing to report, answer {QUIET} and nothing else.\n\n{}",
        tasks.trim()
    ))
}

/// Whether an answer says that there is nothing to report.
pub(crate) fn is_quiet(answer: &str) -> bool {
    answer.trim_matches(|c: char| c.is_whitespace() || "*_`.\"".contains(c)) == QUIET
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::Zone;

    #[test]
    fn a_file_without_a_task_asks_nothing() {
        let template = include_str!("../../workspace-template/agent/HEARTBEAT.md");
        for empty in ["", " \n\n", template, "# Heartbeat\n<!-- a\n- b\n-->\n", "<!-- never closed\n- task"] {
            assert_eq!(question(empty), None, "{empty}");
        }
        let asked = question("# Tasks\n<!-- old -->- water the plants\n").unwrap();
        assert!(asked.contains("- water the plants") && !asked.contains("old"), "{asked}");
    }

    #[test]
    fn quiet_is_quiet_in_any_dress() {
        assert!(is_quiet("HEARTBEAT_OK") && is_quiet(" **HEARTBEAT_OK**.\n"));
        assert!(!is_quiet("HEARTBEAT_OK, but the plants are dry") && !is_quiet(""));
    }

    #[test]
    fn it_beats_on_the_hour_and_the_half() {
        let next = |after| schedule(30).next(after, &Zone::utc()).unwrap();
        assert_eq!((next(0), next(1_799_999), next(1_800_000)), (1_800_000, 1_800_000, 3_600_000));
    }
}
