//! One job of the file: a JSON object, whose unknown fields are kept.
//!
//! The names are those that several agents share (`nextRunAtMs`); `null` and an empty text count as missing.

use serde_json::{Map, Value, json};

use super::runs::{Run, Status};
use super::schedule::{Cron, Millis, Schedule};
use crate::error::{Error, Result};
use crate::text::one_line;
use crate::zone::Zone;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    pub(super) fields: Map<String, Value>,
}

/// Whether a job is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Not before this time; never with `None`.
    Later(Option<Millis>),
    /// Once, however many of its times have passed.
    Now,
    /// It should have run at this time, and all its times since are too long ago.
    Missed(Millis),
}

/// The most by which setting the clock back is a correction. Vixie cron draws the line at the same three hours.
const CLOCK_CORRECTION: Millis = 3 * 3600 * 1000;

impl Job {
    pub(crate) fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    pub(crate) fn id(&self) -> &str {
        get(&self.fields, "id").and_then(Value::as_str).unwrap_or_default()
    }

    /// The name, else the message.
    pub(crate) fn name(&self) -> &str {
        get(&self.fields, "name").and_then(Value::as_str).unwrap_or_else(|| self.message())
    }

    pub(crate) fn is_enabled(&self) -> bool {
        get(&self.fields, "enabled").and_then(Value::as_bool).unwrap_or(true)
    }

    pub(crate) fn message(&self) -> &str {
        self.text("payload", "message").unwrap_or_default()
    }

    /// Where the answer goes, as `telegram:CHAT`.
    pub(crate) fn to(&self) -> Option<String> {
        let deliver = self.part("payload", "deliver").and_then(Value::as_bool).unwrap_or(false);
        let (channel, chat) = self.text("payload", "channel").zip(self.text("payload", "to")).filter(|_| deliver)?;
        Some(format!("{channel}:{chat}"))
    }

    /// The conversation that the runs continue; without one, each starts its own.
    pub(crate) fn session(&self) -> Option<&str> {
        self.text("payload", "session")
    }

    /// The zone of the schedule's times of day; without one, the zone of this machine.
    pub(crate) fn tz(&self) -> Option<&str> {
        self.text("schedule", "tz")
    }

    /// As stored. Another program's may be wrong; [`Job::due`] checks it.
    pub(crate) fn next_run(&self) -> Option<Millis> {
        self.number("state", "nextRunAtMs")
    }

    pub(crate) fn last_run(&self) -> Option<Millis> {
        self.number("state", "lastRunAtMs")
    }

    /// `ok`, `error`, ...; empty before the first run.
    pub(crate) fn last_status(&self) -> &str {
        self.text("state", "lastStatus").unwrap_or_default()
    }

    /// Whether the last run has this status.
    pub(crate) fn is(&self, status: Status) -> bool {
        self.last_status() == status.name()
    }

    #[cfg(test)]
    pub(crate) fn last_error(&self) -> &str {
        self.text("state", "lastError").unwrap_or_default()
    }

    pub(crate) fn is_deleted_after_run(&self) -> bool {
        get(&self.fields, "deleteAfterRun").and_then(Value::as_bool).unwrap_or(false)
    }

    pub(crate) fn schedule(&self) -> Result<Schedule> {
        let wrong = |what: String| Error::config(format!("the job {}: {what}", one_line(self.id(), 40)));
        match self.text("schedule", "kind").unwrap_or_default() {
            "at" => self
                .number("schedule", "atMs")
                .map(Schedule::At)
                .ok_or_else(|| wrong("its schedule has no atMs".into())),
            "every" => {
                let interval = self.number("schedule", "everyMs").filter(|ms| *ms > 0);
                let interval = interval.ok_or_else(|| wrong("its schedule has no everyMs above 0".into()))?;
                let anchor = get(&self.fields, "createdAtMs").and_then(Value::as_i64).unwrap_or(0);
                Ok(Schedule::Every { interval, anchor })
            }
            "cron" => Cron::parse(self.text("schedule", "expr").unwrap_or_default())
                .map(Schedule::Cron)
                .map_err(|e| wrong(e.message)),
            kind => Err(wrong(format!("unknown kind of schedule \"{}\"", one_line(kind, 20)))
                .hint("the kinds are at, every and cron")),
        }
    }

    /// The schedule for people: `every 60 s`, `30 7 * * * (Europe/Berlin)`.
    pub(crate) fn when(&self, zone: &Zone) -> String {
        match self.schedule() {
            Err(_) => "?".to_owned(),
            Ok(Schedule::At(at)) => format!("at {}", zone.stamp(at / 1000)),
            Ok(Schedule::Every { interval, .. }) if interval % 1000 != 0 => format!("every {interval} ms"),
            Ok(Schedule::Every { interval, .. }) => format!("every {} s", interval / 1000),
            Ok(Schedule::Cron(_)) => {
                let expr = self.text("schedule", "expr").unwrap_or_default();
                let tz = self.tz().map(|tz| format!(" ({tz})")).unwrap_or_default();
                format!("{expr}{tz}")
            }
        }
    }

    /// Whether the job is due at `now`. What should have run more than `grace` ago is missed.
    pub(crate) fn due(&self, now: Millis, grace: Millis, zone: &Zone) -> Result<Due> {
        if !self.is_enabled() {
            return Ok(Due::Later(None));
        }
        let schedule = self.schedule()?;
        let planned = match &schedule {
            Schedule::At(at) => Some(*at).filter(|at| self.last_run().is_none_or(|run| run < *at)),
            schedule => {
                let upcoming = schedule.next(now, zone);
                // A stored time that is not one of the schedule's is from before the schedule was changed; one that is later
                // than the next was stored before the clock was set back.
                let stored = self.next_run().filter(|at| schedule.next(at.saturating_sub(1), zone) == Some(*at));
                let planned = stored.map_or(upcoming, |stored| upcoming.map(|upcoming| upcoming.min(stored)));
                match self.last_run().filter(|run| counts(schedule, *run, now, zone)) {
                    Some(run) if planned.is_some_and(|at| at <= run) => schedule.next(run, zone),
                    _ => planned,
                }
            }
        };
        let Some(at) = planned.filter(|at| *at <= now) else { return Ok(Due::Later(planned)) };
        // Even without any grace, a gateway may wake up a little late.
        let oldest = at.max(now.saturating_sub(grace.max(60_000)));
        let is_recent = match &schedule {
            Schedule::At(_) => oldest == at,
            schedule => schedule.next(oldest - 1, zone).is_some_and(|at| at <= now),
        };
        Ok(if is_recent { Due::Now } else { Due::Missed(at) })
    }

    /// Stores when the job runs next after `now`. One for a single time that has passed is disabled.
    pub(super) fn advance(&mut self, now: Millis, zone: &Zone) -> Result<()> {
        let schedule = self.schedule()?;
        let next = schedule.next(now, zone);
        if matches!(schedule, Schedule::At(_)) && next.is_none() {
            self.fields.insert("enabled".to_owned(), false.into());
        }
        self.set_next(next.filter(|_| self.is_enabled()));
        Ok(())
    }

    pub(super) fn set_next(&mut self, next: Option<Millis>) {
        if self.next_run() != next {
            self.set_state("nextRunAtMs", next.into());
        }
    }

    pub(super) fn set_enabled(&mut self, enabled: bool, now: Millis) {
        self.fields.insert("enabled".to_owned(), enabled.into());
        self.fields.insert("updatedAtMs".to_owned(), now.into());
    }

    /// Stores how the last run stands.
    pub(super) fn set_last(&mut self, run: &Run) {
        self.set_state("lastRunAtMs", run.at.into());
        self.set_state("lastStatus", run.status.name().into());
        self.set_state("lastError", Some(run.error.clone()).filter(|error| !error.is_empty()).into());
    }

    pub(super) fn set_state(&mut self, name: &str, value: Value) {
        let state = self.fields.entry("state").or_insert(Value::Null);
        if !state.is_object() {
            *state = json!({});
        }
        if let Value::Object(state) = state {
            state.insert(name.to_owned(), value);
        }
    }

    fn part(&self, section: &str, name: &str) -> Option<&Value> {
        get(get(&self.fields, section)?.as_object()?, name)
    }

    fn text(&self, section: &str, name: &str) -> Option<&str> {
        self.part(section, name)?.as_str()
    }

    fn number(&self, section: &str, name: &str) -> Option<i64> {
        self.part(section, name)?.as_i64()
    }
}

/// Whether what was due up to the time of the last run counts as done at `now`. Of interest only for a run that seems to lie
/// ahead, because the clock was set back since: a time of day is not repeated, unless the clock was off by more than a
/// correction. What goes by elapsed time goes on by the new time, unless the run is nearer than its next time but one.
fn counts(schedule: &Schedule, run: Millis, now: Millis, zone: &Zone) -> bool {
    let ahead = run.saturating_sub(now);
    if ahead <= 0 || !schedule.is_elapsing() {
        return ahead <= CLOCK_CORRECTION;
    }
    let next = schedule.next(now, zone);
    let following = next.and_then(|next| schedule.next(next, zone));
    next.zip(following).is_some_and(|(next, following)| ahead < following - next)
}

fn get<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null() && value.as_str() != Some(""))
}
