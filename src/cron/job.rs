//! One job, as the file has it: a JSON object whose other fields are somebody else's, and kept.
//!
//! The names are those that other agents of this kind share (`nextRunAtMs`). Their other spelling (`next_run_at_ms`)
//! is read as well; `null` and an empty text count as missing.

use serde_json::{Map, Value, json};

use super::runs::Run;
use super::schedule::{Cron, Millis, Schedule};
use crate::error::{Error, Result};
use crate::zone::Zone;

/// See the module's description.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub(super) fields: Map<String, Value>,
}

/// Whether a job is to run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Not before this; never without it.
    Later(Option<Millis>),
    /// Once, however many times have passed.
    Now,
    /// It should have run then, and every time that has passed since is too long ago.
    Missed(Millis),
}

/// A run that began this long after now was timed by a clock that has been set back since, and tells nothing. Vixie's cron
/// takes the same three hours for the difference between a correction and a change.
pub(super) const CLOCK_SET_BACK: Millis = 3 * 3600 * 1000;

impl Job {
    /// As the file has it.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    pub fn id(&self) -> &str {
        text(&self.fields, "id").unwrap_or_default()
    }

    /// Its name, else its message.
    pub fn name(&self) -> &str {
        text(&self.fields, "name").unwrap_or_else(|| self.message())
    }

    pub fn is_enabled(&self) -> bool {
        get(&self.fields, "enabled").and_then(Value::as_bool).unwrap_or(true)
    }

    /// What is asked.
    pub fn message(&self) -> &str {
        self.part("payload", "message").and_then(Value::as_str).unwrap_or_default()
    }

    /// Where the answer is delivered: channel and chat.
    pub fn to(&self) -> Option<(&str, &str)> {
        let deliver = self.part("payload", "deliver").and_then(Value::as_bool).unwrap_or(false);
        let field = |name| self.part("payload", name).and_then(Value::as_str);
        field("channel").zip(field("to")).filter(|_| deliver)
    }

    /// The conversation that its runs continue; without one, each begins anew.
    pub fn session(&self) -> Option<&str> {
        self.part("payload", "session").and_then(Value::as_str)
    }

    /// The zone that an expression's times of day are meant in; without one, the zone of this machine.
    pub fn tz(&self) -> Option<&str> {
        self.part("schedule", "tz").and_then(Value::as_str)
    }

    /// The stored one. Another program's may be wrong; [`Job::due`] knows.
    pub fn next_run(&self) -> Option<Millis> {
        self.part("state", "nextRunAtMs").and_then(Value::as_i64)
    }

    pub fn last_run(&self) -> Option<Millis> {
        self.part("state", "lastRunAtMs").and_then(Value::as_i64)
    }

    /// `ok`, `error`, ...; empty before the first run.
    pub fn last_status(&self) -> &str {
        self.part("state", "lastStatus").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn last_error(&self) -> &str {
        self.part("state", "lastError").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn is_deleted_after_run(&self) -> bool {
        get(&self.fields, "deleteAfterRun").and_then(Value::as_bool).unwrap_or(false)
    }

    pub fn schedule(&self) -> Result<Schedule> {
        let number = |name| self.part("schedule", name).and_then(Value::as_i64);
        let field = |name| self.part("schedule", name).and_then(Value::as_str).unwrap_or_default();
        let wrong = |what: String| Error::config(format!("the job {}: {what}", crate::text::one_line(self.id(), 40)));
        match field("kind") {
            "at" => number("atMs").map(Schedule::At).ok_or_else(|| wrong("its schedule has no atMs".into())),
            "every" => {
                let interval = number("everyMs").filter(|ms| *ms > 0);
                let interval = interval.ok_or_else(|| wrong("its schedule has no everyMs above 0".into()))?;
                let anchor = get(&self.fields, "createdAtMs").and_then(Value::as_i64).unwrap_or(0);
                Ok(Schedule::Every { interval, anchor })
            }
            "cron" => Cron::parse(field("expr")).map(Schedule::Cron).map_err(|e| wrong(e.message)),
            kind => Err(wrong(format!("its schedule is of the kind \"{}\"", crate::text::one_line(kind, 20)))
                .hint("the kinds are at, every and cron")),
        }
    }

    /// When it runs, for people: `every 60 s`, `30 7 * * * (Europe/Berlin)`.
    pub fn when(&self, zone: &Zone) -> String {
        match self.schedule() {
            Err(_) => "?".to_owned(),
            Ok(Schedule::At(at)) => format!("at {}", zone.stamp(at / 1000)),
            Ok(Schedule::Every { interval, .. }) if interval % 1000 != 0 => format!("every {interval} ms"),
            Ok(Schedule::Every { interval, .. }) => format!("every {} s", interval / 1000),
            Ok(Schedule::Cron(_)) => {
                let expr = self.part("schedule", "expr").and_then(Value::as_str).unwrap_or_default();
                let tz = self.tz().map(|tz| format!(" ({tz})")).unwrap_or_default();
                format!("{expr}{tz}")
            }
        }
    }

    /// Whether it is to run at `now`. `served` is when its last recorded run began: whatever was due then, that run was for.
    /// What was due more than `grace` ago is not made up for.
    pub fn due(&self, now: Millis, grace: Millis, served: Option<Millis>, zone: &Zone) -> Result<Due> {
        if !self.is_enabled() {
            return Ok(Due::Later(None));
        }
        let schedule = self.schedule()?;
        let served = served.filter(|served| tells(&schedule, *served, now, zone));
        let planned = match &schedule {
            Schedule::At(at) => {
                let done = |run: Option<Millis>| run.is_some_and(|run| run >= *at);
                Some(*at).filter(|_| !done(served) && !done(self.last_run()))
            }
            schedule => {
                let upcoming = schedule.next(now, zone);
                // One that is not a time of the schedule's is from before that was changed; one that is later than the next
                // was stored by a clock that has been set back since.
                let stored = self.next_run().filter(|at| schedule.next(at.saturating_sub(1), zone) == Some(*at));
                let planned = stored.map_or(upcoming, |stored| upcoming.map(|upcoming| upcoming.min(stored)));
                match served {
                    Some(served) if planned.is_some_and(|at| at <= served) => schedule.next(served, zone),
                    _ => planned,
                }
            }
        };
        let Some(at) = planned.filter(|at| *at <= now) else { return Ok(Due::Later(planned)) };
        // Whoever runs jobs may wake a little late, with no grace at all, too.
        let oldest = at.max(now.saturating_sub(grace.max(60_000)));
        let recent = match &schedule {
            Schedule::At(_) => oldest == at,
            schedule => schedule.next(oldest - 1, zone).is_some_and(|at| at <= now),
        };
        Ok(if recent { Due::Now } else { Due::Missed(at) })
    }

    /// Stores that it has been served at `now`, and when it runs next. A single time has then passed.
    pub(super) fn advance(&mut self, now: Millis, zone: &Zone) -> Result<()> {
        let schedule = self.schedule()?;
        if matches!(schedule, Schedule::At(_)) {
            self.fields.insert("enabled".to_owned(), false.into());
        }
        let next = schedule.next(now, zone).filter(|_| self.is_enabled());
        self.set_state("nextRunAtMs", json!(next));
        Ok(())
    }

    /// Whether it holds already how this run stands.
    pub(super) fn knows(&self, run: &Run) -> bool {
        self.last_run() == Some(run.at) && self.last_status() == run.status.name()
    }

    /// Stores how its last run ended.
    pub(super) fn set_last(&mut self, run: &Run) {
        self.set_state("lastRunAtMs", run.at.into());
        self.set_state("lastStatus", run.status.name().into());
        let error = Some(run.error.as_str()).filter(|error| !error.is_empty());
        self.set_state("lastError", json!(error));
    }

    pub(super) fn set_state(&mut self, name: &str, value: Value) {
        let state = self.fields.entry("state").or_insert(Value::Null);
        if !state.is_object() {
            *state = json!({});
        }
        if let Value::Object(state) = state {
            state.remove(&snake(name));
            state.insert(name.to_owned(), value);
        }
    }

    fn part(&self, section: &str, name: &str) -> Option<&Value> {
        get(get(&self.fields, section)?.as_object()?, name)
    }
}

/// Whether a run that began at `served` says anything about what is due at `now`. One that begins later than now was timed by
/// a clock that has been set back since. A time of day is not run for twice then; what goes by what elapses runs on by the
/// new time, unless that is nearer than its next but one.
fn tells(schedule: &Schedule, served: Millis, now: Millis, zone: &Zone) -> bool {
    let ahead = served.saturating_sub(now);
    if ahead <= 0 || !schedule.elapses() {
        return ahead <= CLOCK_SET_BACK;
    }
    let next = schedule.next(now, zone);
    let following = next.and_then(|next| schedule.next(next, zone));
    next.zip(following).is_some_and(|(next, following)| ahead < following - next)
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    get(fields, name)?.as_str()
}

/// A field by its name in either spelling.
fn get<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let value = fields.get(name).or_else(|| fields.get(&snake(name)))?;
    (!value.is_null() && value.as_str() != Some("")).then_some(value)
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Millis = 60_000;
    const HOUR: Millis = 60 * MINUTE;
    const DAY: Millis = 24 * HOUR;

    fn job(value: Value) -> Job {
        let Value::Object(fields) = value else { panic!("{value}") };
        Job { fields }
    }

    /// Every day at 8.
    fn daily(next: &Value) -> Job {
        job(
            json!({"id": "a", "enabled": true, "schedule": {"kind": "cron", "expr": "0 8 * * *"}, "state": {"nextRunAtMs": next}}),
        )
    }

    fn due(job: &Job, now: Millis, served: Option<Millis>) -> Due {
        job.due(now, HOUR, served, &Zone::utc()).unwrap()
    }

    #[test]
    fn a_run_that_was_missed_is_made_up_for_once_or_recorded() {
        let eight = 100 * DAY + 8 * HOUR;
        let job = daily(&json!(eight));
        assert_eq!(due(&job, eight - 1, None), Due::Later(Some(eight)));
        assert_eq!(due(&job, eight, None), Due::Now);
        assert_eq!(due(&job, eight + HOUR, None), Due::Now);
        assert_eq!(due(&job, eight + HOUR + MINUTE, None), Due::Missed(eight));
        // Days later, but within the grace of another of its times.
        assert_eq!(due(&job, eight + 5 * DAY + MINUTE, None), Due::Now);
        assert_eq!(due(&job, eight + 5 * DAY - MINUTE, None), Due::Missed(eight));
        assert_eq!(job.due(eight + 30_000, 0, None, &Zone::utc()).unwrap(), Due::Now);
    }

    #[test]
    fn a_clock_that_jumps_runs_a_job_at_most_once() {
        let eight = 100 * DAY + 8 * HOUR;
        // Ran at eight; then the clock went back by two hours.
        let job = daily(&json!(eight + DAY));
        assert_eq!(due(&job, eight - HOUR, Some(eight)), Due::Later(Some(eight + DAY)));
        assert_eq!(due(&job, eight + MINUTE, Some(eight)), Due::Later(Some(eight + DAY)));
        // The clock was a year ahead, and has been corrected.
        let job = daily(&json!(eight + 365 * DAY));
        assert_eq!(due(&job, eight - HOUR, Some(eight + 364 * DAY)), Due::Later(Some(eight)));
        // A crash came between the record of the run and the file.
        assert_eq!(due(&daily(&json!(eight)), eight + MINUTE, Some(eight + 5)), Due::Later(Some(eight + DAY)));
    }

    #[test]
    fn what_goes_by_what_elapses_does_not_sleep_until_an_old_time_comes_again() {
        let ran = 100 * DAY;
        for schedule in
            [json!({"kind": "every", "everyMs": 10 * MINUTE}), json!({"kind": "cron", "expr": "*/10 * * * *"})]
        {
            let next = json!({"nextRunAtMs": ran + 10 * MINUTE});
            let job = job(json!({"id": "a", "schedule": schedule, "createdAtMs": 0, "state": next}));
            // By a hair: it is not run twice for one time.
            assert_eq!(due(&job, ran - 500, Some(ran + 2)), Due::Later(Some(ran + 10 * MINUTE)));
            // By two hours, by a year, to the beginning: it runs within one interval, and not at once.
            for back in [2 * HOUR, 30 * DAY, 100 * DAY] {
                let now = ran + MINUTE - back;
                assert_eq!(due(&job, now, Some(ran)), Due::Later(Some(ran + 10 * MINUTE - back)), "{back}");
            }
        }
    }

    #[test]
    fn a_jump_forwards_of_days_makes_each_job_due_once() {
        let ran = 100 * DAY;
        for schedule in [json!({"kind": "every", "everyMs": MINUTE}), json!({"kind": "cron", "expr": "* * * * *"})] {
            let next = json!({"nextRunAtMs": ran + MINUTE});
            let mut job = job(json!({"id": "a", "schedule": schedule, "createdAtMs": 0, "state": next}));
            let now = ran + 9 * DAY + 30_000;
            assert_eq!(due(&job, now, Some(ran)), Due::Now);
            job.advance(now, &Zone::utc()).unwrap();
            assert_eq!(due(&job, now, Some(now)), Due::Later(Some(ran + 9 * DAY + MINUTE)));
        }
    }

    #[test]
    fn a_stored_time_that_is_none_of_the_schedules_is_forgotten() {
        let eight = 100 * DAY + 8 * HOUR;
        for stored in
            [json!(null), json!(""), json!("soon"), json!(eight - 3 * HOUR), json!(eight + 1), json!(i64::MIN)]
        {
            assert_eq!(due(&daily(&stored), eight - HOUR, None), Due::Later(Some(eight)));
        }
    }

    #[test]
    fn a_single_time_is_served_once() {
        let at = |last: Value| {
            job(json!({"id": "a", "schedule": {"kind": "at", "at_ms": DAY}, "state": {"last_run_at_ms": last}}))
        };
        assert_eq!(due(&at(json!(null)), DAY - 1, None), Due::Later(Some(DAY)));
        assert_eq!(due(&at(json!(null)), DAY, None), Due::Now);
        assert_eq!(due(&at(json!(DAY - 5)), DAY + HOUR, None), Due::Now);
        assert_eq!(due(&at(json!(null)), DAY + HOUR + 1, None), Due::Missed(DAY));
        assert_eq!(due(&at(json!(null)), DAY + 1, Some(DAY)), Due::Later(None));
        assert_eq!(due(&at(json!(DAY)), DAY + 1, None), Due::Later(None));
    }

    #[test]
    fn other_spellings_are_read_and_broken_schedules_named() {
        let other = job(json!({
            "id": "x1", "name": null, "enabled": true, "created_at_ms": 500, "delete_after_run": true,
            "schedule": {"kind": "every", "every_ms": 1000, "expr": "", "tz": null},
            "payload": {"kind": "agent_turn", "message": "hi", "deliver": true, "channel": "telegram", "to": "7"},
        }));
        assert_eq!(other.schedule().unwrap(), Schedule::Every { interval: 1000, anchor: 500 });
        assert_eq!((other.name(), other.to(), other.tz()), ("hi", Some(("telegram", "7")), None));
        assert!(other.is_deleted_after_run());
        for (schedule, says) in [
            (json!(null), "kind \"\""),
            (json!({"kind": "at"}), "atMs"),
            (json!({"kind": "every", "everyMs": 0}), "everyMs"),
            (json!({"kind": "cron"}), "0 fields"),
            (json!({"kind": "moon"}), "\"moon\""),
        ] {
            let error = job(json!({"id": "x1", "schedule": schedule})).schedule().unwrap_err();
            assert!(error.message.contains("x1") && error.message.contains(says), "{error}");
        }
    }
}
