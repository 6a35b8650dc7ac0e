//! Unknown users who wrote to the bot, to tell the owner of, at most once an hour.

use std::time::{Duration, Instant};

const REPORT_INTERVAL: Duration = Duration::from_secs(3600);
/// The most users that one report names.
const MAX_NAMED: usize = 10;

#[derive(Default)]
pub(super) struct UnknownUsers {
    ids: Vec<String>,
    reported: Option<Instant>,
}

impl UnknownUsers {
    /// Adds a user; `false` if the report will not name it.
    pub(super) fn add(&mut self, user: i64) -> bool {
        self.ids.push(user.to_string());
        self.ids.len() <= MAX_NAMED
    }

    /// The text for the owner, if it is time for one.
    pub(super) fn report(&mut self, now: Instant) -> Option<String> {
        let is_early = self.reported.is_some_and(|reported| now.saturating_duration_since(reported) < REPORT_INTERVAL);
        if self.ids.is_empty() || is_early {
            return None;
        }
        self.reported = Some(now);
        let mut ids = std::mem::take(&mut self.ids);
        let more = ids.split_off(ids.len().min(MAX_NAMED)).len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!(
            "Unknown users wrote to this bot and were not answered: {}{more}. To let one in, add the id to \
             `channels.telegram.allow_from`.",
            ids.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_told_of_unknown_users_at_most_once_an_hour() {
        let start = Instant::now();
        let (mut users, later) = (UnknownUsers::default(), |seconds: u64| start + Duration::from_secs(seconds));
        assert_eq!(users.report(start), None);
        assert!(users.add(666));
        assert!(users.report(start).unwrap().contains("not answered: 666. To let"));
        assert_eq!((1..=100).filter(|user| users.add(*user)).count(), 10);
        assert_eq!(users.report(later(3599)), None);
        let report = users.report(later(3600)).unwrap();
        assert!(report.contains(": 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 90 more."), "{report}");
        assert_eq!(users.report(later(7200)), None);
    }
}
