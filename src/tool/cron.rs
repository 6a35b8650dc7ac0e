//! The tool that schedules: a model makes, lists and changes jobs. Jobs are no files of the workspace; the parent writes them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::cron::{Author, Draft, Job, Jobs, When};
use crate::error::{Error, Result};
use crate::text::one_line;

pub struct Cron {
    spec: ToolSpec,
    jobs: Jobs,
}

impl Cron {
    #[must_use]
    pub fn new(jobs: Jobs) -> Self {
        let text = |about: &str| json!({"type": "string", "description": about});
        let spec = ToolSpec {
            name: "cron".into(),
            description:
                "Schedule a message to yourself: at its time you are asked it anew, without this conversation, so \
                          it must say all there is to know. Also lists, removes, enables and disables such jobs."
                    .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "action": {"type": "string", "enum": ["add", "list", "remove", "enable", "disable"]},
                    "message": text("What to do then"),
                    "every_seconds": {"type": "integer", "minimum": 60},
                    "cron_expr": text("Five fields: minute hour day month weekday"),
                    "at": text("Once: 2026-03-29T02:30 (local), RFC 3339, or from now: +20m, +2h"),
                    "tz": text("IANA zone of cron_expr and at; default: the user's"),
                    "job_id": text("For remove, enable and disable"),
                },
                "required": ["action"],
            }),
            risk: Risk::Writes,
            source: "built in".into(),
        };
        Self { spec, jobs }
    }

    fn add(&self, args: Args, turn: &Turn, now: i64) -> Result<String> {
        let when = match (args.at, args.every_seconds, args.cron_expr) {
            (Some(at), None, None) => When::At(at),
            (None, Some(seconds), None) => When::Every(seconds),
            (None, None, Some(expr)) => When::Cron(expr),
            _ => return Err(Error::failed("give exactly one of at, every_seconds and cron_expr")),
        };
        // Where it was asked for is where its answer goes.
        let to = match turn.origin.channel.as_str() {
            "telegram" => format!("telegram:{}", turn.origin.chat),
            _ => String::new(),
        };
        let (message, tz) = (args.message.unwrap_or_default(), args.tz.unwrap_or_default());
        let draft = Draft { message, when: Some(when), tz, to, ..Draft::default() };
        let job = self.jobs.add(&draft, Author::Model, now)?;
        let (zone, times) = self.jobs.upcoming(&job, now, 3)?;
        let times: Vec<String> = times.iter().map(|at| zone.rfc3339(at / 1000)).collect();
        Ok(format!(
            "added the job {}; it runs next at {} ({}). Jobs are run by bantam gateway, or one at a time by bantam cron run ID.",
            job.id(),
            times.join(", "),
            zone.name()
        ))
    }

    fn list(&self, now: i64) -> Result<String> {
        let jobs = self.jobs.list()?;
        if jobs.is_empty() {
            return Ok("there are no jobs".to_owned());
        }
        let line = |job: &Job| {
            let (when, next) = match self.jobs.upcoming(job, now, 1) {
                Err(e) => (format!("cannot run: {e}"), String::new()),
                Ok((zone, _)) if !job.is_enabled() => (job.when(&zone), ", disabled".to_owned()),
                Ok((zone, times)) => {
                    let next = times.first().map(|at| format!(", next {}", zone.rfc3339(at / 1000)));
                    (job.when(&zone), next.unwrap_or_default())
                }
            };
            let last = Some(job.last_status()).filter(|status| !status.is_empty());
            let last = last.map(|status| format!(", last run: {status}")).unwrap_or_default();
            format!("{}: {when}{next}{last}: {}", job.id(), one_line(job.message(), 200))
        };
        Ok(jobs.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

#[derive(Deserialize)]
struct Args {
    action: String,
    message: Option<String>,
    every_seconds: Option<u64>,
    cron_expr: Option<String>,
    at: Option<String>,
    tz: Option<String>,
    job_id: Option<String>,
}

impl Tool for Cron {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        let text = |name: &str| args.get(name).and_then(Value::as_str).unwrap_or_default();
        one_line(&format!("{} {}{}", text("action"), text("job_id"), text("message")), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let args: Args = arguments(args)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(since.as_millis()).unwrap_or_default();
        let id =
            || args.job_id.as_deref().ok_or_else(|| Error::failed("job_id is missing; the action list shows the ids"));
        let text = match args.action.as_str() {
            "add" => self.add(args, turn, now)?,
            "list" => self.list(now)?,
            "remove" => format!("removed the job {}", self.jobs.remove(id()?)?.id()),
            "enable" => format!("enabled the job {}", self.jobs.enable(id()?, now)?.id()),
            "disable" => format!("disabled the job {}", self.jobs.disable(id()?, now)?.id()),
            other => return Err(Error::failed(format!("there is no action \"{}\"", one_line(other, 20)))),
        };
        Ok(ToolOutput::text(text))
    }
}
