//! The `cron` tool: a model adds, lists and changes scheduled jobs, which the parent process stores outside the workspace.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use super::{CallContext, Function, JOB, Risk, ToolOutput, ToolSpec, text};
use crate::config::Loaded;
use crate::cron::{Job, JobCheck, Jobs, NewJob, When, schedule};
use crate::error::{Error, Kind, Result};
use crate::paths::TELEGRAM;
use crate::text::foreign_line;

/// Maximum number of jobs while a model adds them, because it is unsupervised.
const MAX_JOBS: usize = 100;

/// Makes `cron`. With `may_check`, it has the parameter `if`, a command that decides whether the message is sent.
pub(crate) fn cron_tool(loaded: &Arc<Loaded>, may_check: bool) -> Function {
    let check = if may_check {
        r#""if":{"type":"string","description":"Command; no output, no message"},"#
    } else {
        ""
    };
    let schema = format!(
        concat!(
            r#"{{"type":"object","properties":{{"action":{{"type":"string","enum":["add","list","remove","enable","disable"]}},"#,
            r#""message":{{"type":"string"}},"#,
            r#""every_seconds":{{"type":"integer","minimum":60}},"#,
            r#""cron_expr":{{"type":"string","description":"5 fields"}},"#,
            r#""at":{{"type":"string","description":"2026-03-29T02:30 or +20m"}},"#,
            r#""tz":{{"type":"string","description":"IANA zone"}},{check}"#,
            r#""job_id":{{"type":"string"}}}},"required":["action"]}}"#
        ),
        check = check
    );
    let spec = ToolSpec::built_in(
        "cron",
        Risk::Writes,
        "Schedule a message to yourself, without this conversation: say all it needs.",
        "",
    );
    let loaded = loaded.clone();
    Function::built_in(
        ToolSpec {
            schema: schema.into(),
            ..spec
        },
        &["action", "job_id", "message"],
        move |args, turn| {
            let jobs = Jobs::new(loaded.home.clone(), &loaded.env);
            change(&jobs, args, turn, schedule::millis(SystemTime::now())).map(ToolOutput::text)
        },
    )
}

fn change(jobs: &Jobs, args: &Value, turn: &CallContext, now: i64) -> Result<String> {
    let (action, id) = (text(args, "action"), text(args, "job_id"));
    if turn.origin.channel == JOB && action != "list" {
        // A job that adds jobs might never stop.
        return Err(Error::failed(
            "a job cannot change jobs: tell your user what should be done",
        ));
    }
    let (done, job) = match action {
        "add" => return add(jobs, args, turn, now),
        "list" => return list(jobs, now),
        _ if id.is_empty() => {
            return Err(Error::failed(
                "job_id is missing; the action list shows the ids",
            ));
        }
        "remove" => ("removed", jobs.remove(id)?),
        "enable" => ("enabled", jobs.set_enabled(id, true, now)?),
        // The schema allows only these actions.
        _ => ("disabled", jobs.set_enabled(id, false, now)?),
    };
    Ok(format!("{done} the job {}", job.id()))
}

fn add(jobs: &Jobs, args: &Value, turn: &CallContext, now: i64) -> Result<String> {
    let every = args["every_seconds"].as_u64();
    let when = match (text(args, "at"), every, text(args, "cron_expr")) {
        (at, None, "") if !at.is_empty() => When::At(at.to_owned()),
        ("", Some(seconds), "") => When::Every(seconds),
        ("", None, expr) if !expr.is_empty() => When::Cron(expr.to_owned()),
        _ => {
            return Err(Error::failed(
                "give exactly one of at, every_seconds and cron_expr",
            ));
        }
    };
    // The answer is sent to the chat that created the job.
    let to = match turn.origin.channel.as_str() {
        TELEGRAM => format!("{TELEGRAM}:{}", turn.origin.chat),
        _ => String::new(),
    };
    let count = jobs.list()?.len();
    if count >= MAX_JOBS {
        let why = format!("there are already {count} jobs: remove some that are no longer needed");
        return Err(Error::new(Kind::Limit, why));
    }
    let check = text(args, "if").trim();
    let new = NewJob {
        message: text(args, "message").to_owned(),
        tz: text(args, "tz").to_owned(),
        to,
        check: (!check.is_empty()).then(|| JobCheck::OfModel(check.to_owned())),
        when,
        ..NewJob::default()
    };
    let job = jobs.add(&new, now)?;
    let (zone, times) = jobs.upcoming(&job, now, 3)?;
    let times: Vec<String> = times.iter().map(|at| zone.rfc3339(at / 1000)).collect();
    Ok(format!(
        "added the job {} (zone {}); it runs at {}\nbantam gateway runs jobs, and bantam cron run ID runs one now.",
        job.id(),
        zone.name(),
        times.join(" ")
    ))
}

fn list(jobs: &Jobs, now: i64) -> Result<String> {
    let row = |job: &Job| {
        let when = match jobs.upcoming(job, now, 1) {
            Err(e) => format!("cannot run: {e}"),
            Ok((zone, times)) => {
                let next = match times.first() {
                    Some(at) if job.is_enabled() => format!("next {}", zone.rfc3339(at / 1000)),
                    _ => "disabled".to_owned(),
                };
                format!("{}, {next}", job.when(&zone))
            }
        };
        let last = Some(job.last_status()).filter(|status| !status.is_empty());
        let (last, message) = (last.unwrap_or("none"), foreign_line(job.message(), 200));
        format!("{}: {when}, last run: {last}: {message}\n", job.id())
    };
    let list: String = jobs.list()?.iter().map(row).collect();
    Ok(if list.is_empty() {
        "there are no jobs".to_owned()
    } else {
        list
    })
}
