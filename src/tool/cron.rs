//! The tool that schedules: a model makes, lists and changes jobs. Jobs are no files of the workspace; the parent writes them.

use std::time::SystemTime;

use serde_json::Value;

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn};
use crate::cron::{Author, Draft, Jobs, When, schedule};
use crate::error::{Error, Result};
use crate::text::one_line;

const SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"#,
    r#""action":{"type":"string","enum":["add","list","remove","enable","disable"]},"#,
    r#""message":{"type":"string","description":"What to do then"},"#,
    r#""every_seconds":{"type":"integer","minimum":60},"#,
    r#""cron_expr":{"type":"string","description":"Five fields: minute hour day month weekday"},"#,
    r#""at":{"type":"string","description":"Once: 2026-03-29T02:30 (local), RFC 3339, or from now: +20m, +2h"},"#,
    r#""tz":{"type":"string","description":"IANA zone of cron_expr and at; default: the user's"},"#,
    r#""job_id":{"type":"string","description":"For remove, enable and disable"}},"required":["action"]}"#
);

pub struct Cron {
    spec: ToolSpec,
    jobs: Jobs,
}

impl Cron {
    pub fn new(jobs: Jobs) -> Self {
        let spec = ToolSpec {
            name: "cron".into(),
            description:
                "Schedule a message to yourself: at its time you are asked it anew, without this conversation, so \
                          it must say all there is to know. Also lists, removes, enables and disables such jobs."
                    .into(),
            schema: SCHEMA.into(),
            risk: Risk::Writes,
            source: "built in".into(),
        };
        Self { spec, jobs }
    }

    fn add(&self, args: &Value, turn: &Turn, now: i64) -> Result<String> {
        let given = (text(args, "at"), args.get("every_seconds").and_then(Value::as_u64), text(args, "cron_expr"));
        let when = match given {
            (at, None, "") if !at.is_empty() => When::At(at.to_owned()),
            ("", Some(seconds), "") => When::Every(seconds),
            ("", None, expr) if !expr.is_empty() => When::Cron(expr.to_owned()),
            _ => return Err(Error::failed("give exactly one of at, every_seconds and cron_expr")),
        };
        // Where it was asked for is where its answer goes.
        let to = match turn.origin.channel.as_str() {
            "telegram" => format!("telegram:{}", turn.origin.chat),
            _ => String::new(),
        };
        let (message, tz) = (text(args, "message").to_owned(), text(args, "tz").to_owned());
        let draft = Draft { message, when: Some(when), tz, to, ..Draft::default() };
        let job = self.jobs.add(&draft, Author::Model, now)?;
        let (zone, times) = self.jobs.upcoming(&job, now, 3)?;
        let mut told = format!("added the job {} (zone {}); it runs at", job.id(), zone.name());
        for at in times {
            told.push(' ');
            told.push_str(&zone.rfc3339(at / 1000));
        }
        told.push_str("\nJobs are run by bantam gateway, or one at a time by bantam cron run ID.");
        Ok(told)
    }

    fn list(&self, now: i64) -> Result<String> {
        let mut told = String::new();
        for job in self.jobs.list()? {
            told.push_str(job.id());
            match self.jobs.upcoming(&job, now, 1) {
                Err(e) => told.push_str(&format!(": cannot run: {e}")),
                Ok((zone, times)) => {
                    told.push_str(&format!(": {}", job.when(&zone)));
                    match times.first() {
                        Some(at) if job.is_enabled() => told.push_str(&format!(", next {}", zone.rfc3339(at / 1000))),
                        _ => told.push_str(", disabled"),
                    }
                }
            }
            if !job.last_status().is_empty() {
                told.push_str(&format!(", last run: {}", job.last_status()));
            }
            told.push_str(&format!(": {}\n", one_line(job.message(), 200)));
        }
        if told.is_empty() {
            told.push_str("there are no jobs");
        }
        Ok(told)
    }
}

/// A parameter; empty when it is not given.
fn text<'a>(args: &'a Value, name: &str) -> &'a str {
    args.get(name).and_then(Value::as_str).unwrap_or_default()
}

impl Tool for Cron {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        one_line(&format!("{} {}{}", text(args, "action"), text(args, "job_id"), text(args, "message")), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let now = schedule::millis(SystemTime::now());
        let (action, id) = (text(args, "action"), text(args, "job_id"));
        if turn.origin.channel == "cron" && action != "list" {
            // Jobs that make jobs could go on for ever.
            return Err(Error::failed("a job cannot change jobs: tell your user what should be done"));
        }
        let (done, job) = match action {
            "add" => return self.add(args, turn, now).map(ToolOutput::text),
            "list" => return self.list(now).map(ToolOutput::text),
            _ if id.is_empty() => return Err(Error::failed("job_id is missing; the action list shows the ids")),
            "remove" => ("removed", self.jobs.remove(id)?),
            "enable" => ("enabled", self.jobs.enable(id, now)?),
            // The schema lets nothing else in.
            _ => ("disabled", self.jobs.disable(id, now)?),
        };
        Ok(ToolOutput::text(format!("{done} the job {}", job.id())))
    }
}
