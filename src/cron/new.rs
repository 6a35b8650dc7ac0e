//! A new job, and its fields in `cron/jobs.json`.

use serde_json::{Value, json};

use super::job::{JobCheck, MODEL};
use super::schedule::{self, Cron, EARLIEST, Millis, Schedule};
use crate::error::{Error, Result};
use crate::paths::{TELEGRAM, session_name, telegram_chat};
use crate::text::{size, to_single_line};
use crate::timezone::Zone;

/// Maximum size of a message, in bytes; it is sent whole with each run.
const MAX_MESSAGE: usize = 64 << 10;

/// A job to add.
#[derive(Default)]
pub(crate) struct NewJob {
    /// Name; if empty, the beginning of the message is used.
    pub name: String,
    pub message: String,
    pub when: When,
    /// Zone of the times of day in `when`; if empty, the zone of this machine.
    pub tz: String,
    /// Destination of answers, `telegram:CHAT`; if empty, the bot's owner at that time. `none` only records them.
    pub to: String,
    /// Conversation to continue; if empty, each run starts a new one.
    pub session: String,
    /// Model that answers; if empty, the configured one.
    pub model: String,
    /// Command that decides about each run; `None` runs always.
    pub check: Option<JobCheck>,
}

pub(crate) enum When {
    /// A time that [`schedule::at`] can parse.
    At(String),
    /// Interval in seconds.
    Every(u64),
    /// A cron expression.
    Cron(String),
}

impl Default for When {
    fn default() -> Self {
        Self::At(String::new())
    }
}

impl NewJob {
    /// Checks the job and returns all its fields except the id. `zone` is the zone of `tz`.
    pub(super) fn fields(&self, zone: &Zone, now: Millis) -> Result<Value> {
        if now < EARLIEST {
            return Err(Error::failed(format!(
                "the clock is not set: it shows {}",
                zone.stamp(now / 1000)
            ))
            .hint("set it first, or let NTP do so"));
        }
        let message = self.checked_message()?;
        let (schedule, stored) = self.schedule(zone, now)?;
        let Some(next) = schedule.next(now, zone) else {
            return Err(match schedule {
                Schedule::At(at) => Error::usage(format!("{} has passed", zone.stamp(at / 1000)))
                    .hint(format!("use a time after {}", zone.stamp(now / 1000))),
                _ => Error::usage("the job would never run: there is no such day")
                    .hint("choose another day or month"),
            });
        };
        let name = self.name.trim();
        let name = to_single_line(if name.is_empty() { message } else { name }, 60);
        let is_one_shot = matches!(schedule, Schedule::At(_));
        Ok(json!({
            "name": name, "enabled": true, "schedule": stored, "payload": self.payload(message)?,
            "state": {"nextRunAtMs": next}, "createdAtMs": now, "updatedAtMs": now, "deleteAfterRun": is_one_shot,
        }))
    }

    fn checked_message(&self) -> Result<&str> {
        let message = self.message.trim();
        if message.len() > MAX_MESSAGE {
            let most = size(MAX_MESSAGE as u64);
            return Err(
                Error::usage(format!("the job's message is longer than {most}"))
                    .hint("put the text into a file of the workspace, and name that"),
            );
        }
        if message.is_empty() {
            return Err(Error::usage("the job has no message")
                .hint("write `bantam cron add -e 1h \"Is the disk filling up?\"`"));
        }
        Ok(message)
    }

    /// Returns the schedule, and its form in the file.
    fn schedule(&self, zone: &Zone, now: Millis) -> Result<(Schedule, Value)> {
        let tz = Some(self.tz.trim()).filter(|tz| !tz.is_empty());
        Ok(match &self.when {
            When::At(text) => {
                let at = schedule::at(text, now, zone)?;
                let stored = json!({"kind": "at", "atMs": at, "tz": tz});
                (Schedule::At(at), stored)
            }
            When::Every(seconds) => {
                let interval = seconds.checked_mul(1000).map(Millis::try_from);
                let Some(Ok(interval @ 1..)) = interval else {
                    let what = format!("an interval of {seconds} s is out of range");
                    return Err(Error::usage(what).hint("use one second or more"));
                };
                let anchor = now;
                let stored = json!({"kind": "every", "everyMs": interval});
                (Schedule::Every { interval, anchor }, stored)
            }
            When::Cron(expr) => {
                let stored = json!({"kind": "cron", "expr": expr.trim(), "tz": tz});
                (Schedule::Cron(Cron::parse(expr)?), stored)
            }
        })
    }

    /// Returns the part of the file that a run reads.
    fn payload(&self, message: &str) -> Result<Value> {
        let is_sent = self.to != "none";
        let mut payload = json!({"kind": "agent_turn", "message": message, "deliver": is_sent});
        if is_sent && !self.to.is_empty() {
            (payload["to"], payload["channel"]) =
                (telegram_chat(&self.to)?.into(), TELEGRAM.into());
        }
        if !self.session.is_empty() {
            session_name("cli", &self.session)?;
            payload["session"] = self.session.as_str().into();
        }
        if !self.model.trim().is_empty() {
            payload["model"] = self.model.trim().into();
        }
        if let Some(check) = &self.check {
            payload["if"] = check.command().into();
            if let JobCheck::OfModel(_) = check {
                payload["ifBy"] = MODEL.into();
            }
        }
        Ok(payload)
    }
}
