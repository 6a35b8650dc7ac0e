//! Unknown users who wrote to the bot, to tell the owner of, at most once an hour.

use std::time::{Duration, Instant};

const REPORT_INTERVAL: Duration = Duration::from_secs(3600);
/// The most users that one report names.
const MAX_NAMED: usize = 10;

#[derive(Default)]
pub(super) struct UnknownUsers {
    ids: Vec<i64>,
    /// How many there are beyond `ids`.
    more: usize,
    reported: Option<Instant>,
}

impl UnknownUsers {
    /// Adds a user; `false` if there are so many that this one is only counted.
    pub(super) fn add(&mut self, user: i64) -> bool {
        let is_named = self.ids.len() < MAX_NAMED;
        if is_named {
            self.ids.push(user);
        } else {
            self.more += 1;
        }
        is_named
    }

    /// The text for the owner, if it is time for one.
    pub(super) fn report(&mut self, now: Instant) -> Option<String> {
        let is_early = self.reported.is_some_and(|reported| now.saturating_duration_since(reported) < REPORT_INTERVAL);
        if self.ids.is_empty() || is_early {
            return None;
        }
        let (ids, more) = (std::mem::take(&mut self.ids), std::mem::take(&mut self.more));
        self.reported = Some(now);
        if let ([user], 0) = (&ids[..], more) {
            let who = format!("Somebody with the id {user} wrote to this bot and was not answered.");
            return Some(format!("{who} To let them in, add the id to `channels.telegram.allow_from`."));
        }
        let count = ids.len() + more;
        let named: Vec<String> = ids.iter().map(i64::to_string).collect();
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let who =
            format!("{count} people wrote to this bot and were not answered. Their ids: {}{more}.", named.join(", "));
        Some(format!("{who} To let one of them in, add the id to `channels.telegram.allow_from`."))
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
        assert!(users.report(start).unwrap().starts_with("Somebody with the id 666 wrote"));
        assert_eq!((1..=100).filter(|user| users.add(*user)).count(), 10);
        assert_eq!(users.report(later(3599)), None);
        let report = users.report(later(3600)).unwrap();
        assert!(
            report.starts_with("100 people wrote") && report.contains(": 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, and 90 more.")
        );
        assert_eq!(users.report(later(7200)), None);
    }
}
