//! One job of the file: a JSON object, whose unknown fields are preserved.
//!
//! Field names are shared with several other agents (`nextRunAtMs`); `null` and empty strings count as missing.

use serde_json::{Value, json};

use super::runs::Run;
use super::schedule::{Cron, Millis, Schedule};
use crate::error::{Error, Result};
use crate::text::to_single_line;
use crate::timezone::Zone;

/// Answer of a job without anything to send.
pub(super) const NOTHING_TO_REPORT: &str = "NOTHING_TO_REPORT";

/// Maximum length, in characters, of a text that is not delivered because [`NOTHING_TO_REPORT`] is beside it.
const MAX_REMARK: usize = 300;

/// Returns what an answer reports, which is nothing if [`NOTHING_TO_REPORT`] is alone on its first or last line, in any case or
/// formatting, unless a long text is beside it.
pub(crate) fn report(answer: &str) -> &str {
    let is_mark = |c: char| !c.is_alphanumeric();
    // Markdown may number a line, and escape the underscores.
    let is_digit = |c: char| c.is_ascii_digit();
    let text = |line: &str| {
        line.trim_start_matches(is_digit)
            .trim_matches(is_mark)
            .to_uppercase()
    };
    let bare = |line: &str| text(line).replace('\\', "");
    let start = answer.trim_start_matches(is_mark);
    let end = answer.trim_end_matches(is_mark);
    let (first, after) = start.split_once('\n').unwrap_or((start, ""));
    let (before, last) = end.rsplit_once('\n').unwrap_or(("", end));
    let rest = match NOTHING_TO_REPORT {
        word if bare(first) == word => after.trim(),
        word if bare(last) == word => before.trim(),
        _ => return answer,
    };
    match rest.chars().count() {
        ..=MAX_REMARK => "",
        _ => report(rest),
    }
}

/// A command that decides whether a job's message is sent to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobCheck {
    /// A user's command, with the network of the tool `exec`.
    OfUser(String),
    /// A model's command, without network, which `tools.confirm` can stop.
    OfModel(String),
}

/// The value of `ifBy` in jobs.json for [`JobCheck::OfModel`].
pub(super) const MODEL: &str = "model";

impl JobCheck {
    pub(crate) fn command(&self) -> &str {
        match self {
            Self::OfUser(command) | Self::OfModel(command) => command,
        }
    }
}

/// A JSON object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job(pub(super) Value);

/// Maximum step back of the clock that counts as a correction; Vixie cron has the same limit of three hours.
const CLOCK_CORRECTION: Millis = 3 * 3600 * 1000;

impl Job {
    pub(crate) fn fields(&self) -> &Value {
        &self.0
    }

    pub(crate) fn id(&self) -> &str {
        self.text("/id").unwrap_or_default()
    }

    /// Returns the name, or else the message.
    pub(crate) fn name(&self) -> &str {
        self.text("/name").unwrap_or_else(|| self.message())
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.0["enabled"] != false
    }

    pub(crate) fn message(&self) -> &str {
        self.text("/payload/message").unwrap_or_default()
    }

    /// Returns the destination of the answer, as `telegram:CHAT`; `owner` is that of a job without one.
    pub(crate) fn to(&self, owner: Option<String>) -> Option<String> {
        let named = self.text("/payload/channel").zip(self.text("/payload/to"));
        let named = named.map(|(channel, chat)| format!("{channel}:{chat}"));
        (self.0["payload"]["deliver"] == true).then_some(named.or(owner))?
    }

    /// Returns the message for the model of a job that answers to a chat, which may also report that there is nothing to send.
    pub(crate) fn question(&self) -> String {
        let message = self.message();
        format!(
            "{message}\n\n[If there is nothing worth reporting, answer {NOTHING_TO_REPORT} and nothing else: then nothing is sent.]"
        )
    }

    /// Returns the model that answers, if it is not the configured one.
    pub(crate) fn model(&self) -> Option<&str> {
        self.text("/payload/model")
    }

    /// Returns the command that decides whether the model is asked.
    pub(crate) fn check(&self) -> Option<JobCheck> {
        let command = self.text("/payload/if")?.to_owned();
        Some(match self.text("/payload/ifBy") {
            Some(MODEL) => JobCheck::OfModel(command),
            _ => JobCheck::OfUser(command),
        })
    }

    /// Returns the conversation that the runs continue; if `None`, each run starts a new one.
    pub(crate) fn session(&self) -> Option<&str> {
        self.text("/payload/session")
    }

    /// Returns the zone of the schedule's times of day; if `None`, the zone of this machine.
    pub(crate) fn tz(&self) -> Option<&str> {
        self.text("/schedule/tz")
    }

    /// Returns the stored time, which another program may have written wrong; [`Job::due`] checks it.
    pub(super) fn next_run(&self) -> Option<Millis> {
        self.0["state"]["nextRunAtMs"].as_i64()
    }

    pub(crate) fn last_run(&self) -> Option<Millis> {
        self.0["state"]["lastRunAtMs"].as_i64()
    }

    /// Returns `ok`, `error` and so on; empty before the first run.
    pub(crate) fn last_status(&self) -> &str {
        self.text("/state/lastStatus").unwrap_or_default()
    }

    pub(super) fn schedule(&self) -> Result<Schedule> {
        let schedule = &self.0["schedule"];
        let read = match schedule["kind"].as_str().unwrap_or_default() {
            "at" => schedule["atMs"]
                .as_i64()
                .map(Schedule::At)
                .ok_or_else(|| "its schedule has no atMs".to_owned()),
            "every" => match schedule["everyMs"].as_i64().filter(|ms| *ms > 0) {
                Some(interval) => Ok(Schedule::Every {
                    interval,
                    anchor: self.0["createdAtMs"].as_i64().unwrap_or(0),
                }),
                None => Err("its schedule has no everyMs above 0".to_owned()),
            },
            "cron" => Cron::parse(schedule["expr"].as_str().unwrap_or_default())
                .map(Schedule::Cron)
                .map_err(|e| e.message),
            kind => Err(format!(
                "unknown kind of schedule \"{}\": at, every or cron",
                to_single_line(kind, 20)
            )),
        };
        read.map_err(|what| {
            Error::config(format!("the job {}: {what}", to_single_line(self.id(), 40)))
        })
    }

    /// Formats the schedule for people: `every 5 minutes`, `30 7 * * * (Europe/Berlin)`.
    pub(crate) fn when(&self, zone: &Zone) -> String {
        match self.schedule() {
            Err(_) => "?".to_owned(),
            Ok(Schedule::At(at)) => format!("at {}", zone.stamp(at / 1000)),
            Ok(Schedule::Every { interval, .. }) => every(interval / 1000),
            Ok(Schedule::Cron(_)) => {
                let tz = self.tz().map(|tz| format!(" ({tz})")).unwrap_or_default();
                format!("{}{tz}", self.text("/schedule/expr").unwrap_or_default())
            }
        }
    }

    /// Returns when the job is due next, or since when: of several times that have passed, the first in the last `grace`
    /// milliseconds, or else the first.
    pub(crate) fn due(&self, now: Millis, grace: Millis, zone: &Zone) -> Result<Option<Millis>> {
        if !self.is_enabled() {
            return Ok(None);
        }
        let schedule = self.schedule()?;
        let planned = match &schedule {
            Schedule::At(at) => Some(*at).filter(|at| self.last_run().is_none_or(|run| run < *at)),
            schedule => {
                let upcoming = schedule.next(now, zone);
                // A stored time that does not fit the schedule is from before a change of the schedule; a later one than the
                // next was stored before the clock was set back.
                let stored = self
                    .next_run()
                    .filter(|at| schedule.next(at.saturating_sub(1), zone) == Some(*at));
                let planned = stored.map_or(upcoming, |stored| {
                    upcoming.map(|upcoming| upcoming.min(stored))
                });
                match self
                    .last_run()
                    .filter(|run| counts(schedule, *run, now, zone))
                {
                    Some(run) if planned.is_some_and(|at| at <= run) => schedule.next(run, zone),
                    _ => planned,
                }
            }
        };
        let oldest = now.saturating_sub(grace);
        let Some(missed) = planned.filter(|at| *at < oldest) else {
            return Ok(planned);
        };
        let recent = schedule.next(oldest - 1, zone).filter(|at| *at <= now);
        Ok(recent.or(Some(missed)))
    }

    /// Stores and returns the next run after `now`. A one-time job in the past is disabled.
    pub(super) fn advance(&mut self, now: Millis, zone: &Zone) -> Result<Option<Millis>> {
        let schedule = self.schedule()?;
        let next = schedule.next(now, zone);
        if matches!(schedule, Schedule::At(_)) && next.is_none() {
            self.0["enabled"] = false.into();
        }
        self.set_next(next);
        Ok(next)
    }

    pub(super) fn set_next(&mut self, next: Option<Millis>) {
        if self.next_run() != next {
            self.set_state("nextRunAtMs", next.into());
        }
    }

    /// Stores the status of the last run.
    pub(super) fn set_last(&mut self, run: &Run) {
        self.set_state("lastRunAtMs", run.at.into());
        self.set_state("lastStatus", run.status.name().into());
        let error = Some(run.error.as_str()).filter(|error| !error.is_empty());
        self.set_state("lastError", error.into());
    }

    pub(super) fn set_state(&mut self, name: &str, value: Value) {
        let state = &mut self.0["state"];
        if !state.is_object() {
            *state = json!({});
        }
        state[name] = value;
    }

    fn text(&self, pointer: &str) -> Option<&str> {
        self.0
            .pointer(pointer)?
            .as_str()
            .filter(|text| !text.is_empty())
    }
}

/// Whether times up to the last run count as done at `now`. This matters only if the clock was set back, so that the run seems
/// to be in the future. A time of day is not repeated, unless the step exceeds a correction. A schedule by elapsed time
/// continues by the new time, unless the run is less than an interval ahead.
fn counts(schedule: &Schedule, run: Millis, now: Millis, zone: &Zone) -> bool {
    let ahead = run.saturating_sub(now);
    if ahead <= 0 || !schedule.is_elapsing() {
        return ahead <= CLOCK_CORRECTION;
    }
    let next = schedule.next(now, zone);
    let following = next.and_then(|next| schedule.next(next, zone));
    next.zip(following)
        .is_some_and(|(next, following)| ahead < following - next)
}

/// Formats an interval in the largest unit that divides it.
fn every(seconds: Millis) -> String {
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute")];
    let unit = units.into_iter().find(|(long, _)| seconds % long == 0);
    let (long, name) = unit.unwrap_or((1, "second"));
    match seconds / long {
        1 => format!("every {name}"),
        count => format!("every {count} {name}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::report;

    #[test]
    fn the_word_alone_on_a_line_reports_nothing() {
        for quiet in [
            "NOTHING_TO_REPORT",
            " **NOTHING_TO_REPORT**.\n",
            "```\nnothing_to_report\n```",
            "I checked everything.\n\n“Nothing_To_Report.”",
            "> `NOTHING_TO_REPORT`\n\nAll is well.",
            "# Nothing\\_to\\_report",
            "- NOTHING_TO_REPORT!\n\nAll is well.",
            "1. NOTHING_TO_REPORT",
            "12) **nothing_to_report**.\n\nAll is well.",
        ] {
            assert_eq!(report(quiet), "", "{quiet}");
        }
        for told in ["NOTHING_TO_REPORT, but the plants are dry", "A leak!", ""] {
            assert_eq!(report(told), told);
        }
        let long = "The **pump** has stopped. ".repeat(20);
        let long = long.trim();
        for answer in [
            format!("{long}\n\n**NOTHING_TO_REPORT**"),
            format!("NOTHING_TO_REPORT\n\n{long}"),
            format!("NOTHING_TO_REPORT\n{long}\nNOTHING_TO_REPORT\n"),
        ] {
            assert_eq!(report(&answer), long, "{answer}");
        }
    }
}
