//! The gateway's part of `bantam status`, from what it left on disk.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::local_time;
use crate::config::Env;
use crate::cron::{Due, Jobs, schedule};
use crate::gateway::status;
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::session::archive;
use crate::telegram::inbox;
use crate::text::{one_line, rfc3339};
use crate::zone::Zone;

/// Jobs on the page.
const MAX_JOBS: usize = 5;

/// What `bantam status --json` shows; times as RFC 3339, null where there is none. What cannot be read becomes a warning.
pub(super) fn object(
    home: &Home,
    env: &Env,
    sessions: &[archive::Summary],
    allowed: &[i64],
    warnings: &mut Vec<String>,
) -> Value {
    let mut inbox = or_warn(inbox::status(&home.state()), warnings);
    inbox.unknown_users.retain(|user| !allowed.contains(user));
    let pending = or_warn(Outbox::new(home.clone()).pending(), warnings);
    // An id begins with the time of posting, in hexadecimal milliseconds.
    let posted = |id: &str| i64::from_str_radix(id.split('-').next()?, 16).ok();
    let oldest = pending.first().and_then(|pending| posted(&pending.id)).map(time);
    let heartbeat = sessions.iter().find(|session| session.key == "cron_heartbeat").map(|session| &session.last);
    let mut object = status::read(home).unwrap_or_else(|| json!({}));
    object["running"] = status::is_running(home).into();
    object["waiting"] = inbox.waiting.into();
    object["undelivered"] = json!({"count": pending.len(), "oldest": oldest});
    object["heartbeat"] = json!(heartbeat);
    object["jobs"] = jobs(home, env, warnings).into();
    object["strangers"] = inbox.unknown_users.into();
    object
}

/// The same for people: labels and texts of lines. One without a label continues the line above.
pub(super) fn lines(object: &Value, zone: &Zone) -> Vec<(&'static str, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let at = |value: &Value| local_time(&text(value), zone);
    let (started, polling) = (at(&object["started"]), &object["polling"]);
    let mut lines = Vec::new();
    let is_running = object["running"] == true;
    let state = match (is_running, object["started"].is_string(), object["ended"].is_string()) {
        (true, false, _) => "running".to_owned(),
        (true, true, _) => {
            let bot = text(&object["bot"]);
            let bot = if bot.is_empty() { String::new() } else { format!(", as {bot}") };
            format!("running since {started}{bot} (process {})", object["pid"])
        }
        (false, false, _) => "not running; bantam gateway starts it".to_owned(),
        (false, true, false) => format!("not running: the one started at {started} died"),
        (false, true, true) => format!("not running: it ended at {}", at(&object["ended"])),
    };
    lines.push(("gateway", state));
    if is_running && polling["ok"] == false {
        lines.push(("", format!("polling fails since {}: {}", at(&polling["since"]), text(&polling["why"]))));
    }
    if object["waiting"] != 0 {
        lines.push(("", format!("messages waiting for an answer: {}", object["waiting"])));
    }
    let undelivered = &object["undelivered"];
    if undelivered["count"] != 0 {
        let oldest = &undelivered["oldest"];
        let oldest = if oldest.is_null() { String::new() } else { format!(", the oldest from {}", at(oldest)) };
        lines.push(("", format!("answers not delivered yet: {}{oldest}", undelivered["count"])));
    }
    if let Some(strangers) = object["strangers"].as_array().filter(|strangers| !strangers.is_empty()) {
        let ids: Vec<String> = strangers.iter().map(Value::to_string).collect();
        lines.push(("strangers", format!("{} wrote and got no answer: {}", ids.len(), ids.join(", "))));
        lines.push(("", "to let one in, add the id to channels.telegram.allow_from".to_owned()));
    }
    let jobs = object["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let shown = jobs.iter().take(MAX_JOBS).map(|job| job_line(job, &at));
    lines.extend(shown.enumerate().map(|(n, line)| (if n == 0 { "jobs" } else { "" }, line)));
    if jobs.len() > MAX_JOBS {
        lines.push(("", format!("and {} more: bantam cron list", jobs.len() - MAX_JOBS)));
    }
    if object["heartbeat"].is_string() {
        lines.push(("heartbeat", format!("the last was at {}", at(&object["heartbeat"]))));
    }
    lines
}

fn job_line(job: &Value, at: &dyn Fn(&Value) -> String) -> String {
    let [name, status] = [&job["name"], &job["status"]].map(|value| value.as_str().unwrap_or_default());
    let last = match &job["last"] {
        _ if status.is_empty() => String::new(),
        Value::Null => format!(" (last: {status})"),
        last => format!(" (last: {status} at {})", at(last)),
    };
    format!("{} {name}{last}", at(&job["next"]))
}

/// The jobs that will run, the next one first.
fn jobs(home: &Home, env: &Env, warnings: &mut Vec<String>) -> Vec<Value> {
    let all = Jobs::new(home.clone(), env);
    let now = schedule::millis(SystemTime::now());
    let mut jobs: Vec<(i64, Value)> = Vec::new();
    for job in or_warn(all.list(), warnings) {
        let next = match all.zone(job.tz()).and_then(|zone| job.due(now, 0, &zone)) {
            Ok(Due::Later(Some(next)) | Due::Missed(next)) => next,
            Ok(Due::Now) => now,
            // It will not run; `cron list` says why.
            Ok(Due::Later(None)) | Err(_) => continue,
        };
        let last = job.last_run().map(time);
        let status = Some(one_line(job.last_status(), 20)).filter(|status| !status.is_empty());
        let name = one_line(job.name(), 60);
        let shown = json!({"id": job.id(), "name": name, "next": time(next), "last": last, "status": status});
        jobs.push((next, shown));
    }
    jobs.sort_by_key(|(next, _)| *next);
    jobs.into_iter().map(|(_, job)| job).collect()
}

fn or_warn<T: Default>(result: crate::error::Result<T>, warnings: &mut Vec<String>) -> T {
    result.unwrap_or_else(|e| {
        warnings.push(e.message);
        T::default()
    })
}

fn time(millis: i64) -> String {
    rfc3339(UNIX_EPOCH + Duration::from_millis(millis.try_into().unwrap_or(0)))
}
