//! The gateway's part of `bantam status`, from its files.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::status::Status;
use crate::bus::MessageStore;
use crate::cron::{Due, Jobs, schedule};
use crate::gateway::status;
use crate::notify;
use crate::outbox::Outbox;
use crate::session::archive;
use crate::telegram::strangers;
use crate::text::{rfc3339, to_single_line};

/// Maximum number of jobs on the page.
const MAX_JOBS: usize = 5;

/// Adds `gateway`. Read errors become warnings.
pub(super) fn add(to: &mut Status, sessions: &[archive::SessionInfo], allowed: &[i64]) {
    let home = to.home;
    let outbox = Outbox::new(home.clone());
    let store = MessageStore::new(outbox.queue().clone());
    let waiting = to.or_warn(store.all()).len();
    let mut unknown_users = to.or_warn(strangers::all(outbox.queue()));
    unknown_users.retain(|user| !allowed.contains(user));
    let pending = to.or_warn(outbox.pending());
    // An id begins with the time of posting, in hexadecimal milliseconds.
    let posted = |id: &str| i64::from_str_radix(id.split('-').next()?, 16).ok();
    let oldest = pending
        .first()
        .and_then(|pending| posted(&pending.id))
        .map(time);
    let heartbeat = sessions
        .iter()
        .find(|session| session.key == "cron_heartbeat")
        .map(|session| &session.last);
    let mut object = status::read(home).unwrap_or_else(|| json!({}));
    object["running"] = notify::is_running(home).into();
    let state = state(&object, to);
    to.lines.push(("gateway", state));
    if object["running"] == true && object["polling"]["ok"] == false {
        let (since, why) = (
            to.time(object["polling"]["since"].as_str().unwrap_or_default()),
            &object["polling"]["why"],
        );
        to.lines.push((
            "",
            format!(
                "polling has failed since {since}: {}",
                why.as_str().unwrap_or_default()
            ),
        ));
    }
    object["waiting"] = waiting.into();
    if object["waiting"] != 0 {
        to.lines
            .push(("", format!("messages waiting for an answer: {waiting}")));
    }
    object["undelivered"] = json!({"count": pending.len(), "oldest": oldest});
    if !pending.is_empty() {
        let oldest = oldest.map_or(String::new(), |oldest| {
            format!(", the oldest from {}", to.time(&oldest))
        });
        to.lines.push((
            "",
            format!("answers not delivered yet: {}{oldest}", pending.len()),
        ));
    }
    if !unknown_users.is_empty() {
        let ids: Vec<String> = unknown_users.iter().map(i64::to_string).collect();
        to.lines.push((
            "strangers",
            format!("{} wrote and got no answer: {}", ids.len(), ids.join(", ")),
        ));
        to.lines.push((
            "",
            "to let one in, add the id to channels.telegram.allow_from".to_owned(),
        ));
    }
    object["strangers"] = unknown_users.into();
    object["jobs"] = jobs(to).into();
    object["heartbeat"] = json!(heartbeat);
    if let Some(last) = heartbeat {
        to.lines
            .push(("heartbeat", format!("the last was at {}", to.time(last))));
    }
    to.object["gateway"] = object;
}

fn state(object: &Value, to: &Status) -> String {
    match (
        object["running"] == true,
        object["started"].as_str(),
        object["ended"].as_str(),
    ) {
        (true, None, _) => "running".to_owned(),
        (true, Some(started), _) => {
            let bot = object["bot"].as_str().filter(|bot| !bot.is_empty());
            let bot = bot.map_or(String::new(), |bot| format!(", as {bot}"));
            format!(
                "running since {}{bot} (process {})",
                to.time(started),
                object["pid"]
            )
        }
        (false, None, _) => "not running; bantam gateway starts it".to_owned(),
        (false, Some(started), None) => {
            format!("not running: the one started at {} died", to.time(started))
        }
        (false, Some(_), Some(ended)) => format!("not running: it ended at {}", to.time(ended)),
    }
}

/// Returns the jobs that will run, the next one first.
fn jobs(to: &mut Status) -> Vec<Value> {
    let all = Jobs::new(to.home.clone(), to.env);
    let now = schedule::millis(SystemTime::now());
    let mut jobs: Vec<_> = to
        .or_warn(all.list())
        .into_iter()
        .filter_map(|job| {
            match all.zone(job.tz()).and_then(|zone| job.due(now, 0, &zone)) {
                Ok(Due::Later(Some(next)) | Due::Missed(next)) => Some((next, job)),
                Ok(Due::Now) => Some((now, job)),
                // The job will not run; `cron list` shows why.
                Ok(Due::Later(None)) | Err(_) => None,
            }
        })
        .collect();
    jobs.sort_by_key(|(at, _)| *at);
    let mut shown = Vec::new();
    for (next, job) in &jobs {
        let (name, next, last) = (
            to_single_line(job.name(), 60),
            time(*next),
            job.last_run().map(time),
        );
        let status =
            Some(to_single_line(job.last_status(), 20)).filter(|status| !status.is_empty());
        if shown.len() < MAX_JOBS {
            let at = last
                .as_ref()
                .map_or(String::new(), |last| format!(" at {}", to.time(last)));
            let went = status
                .as_ref()
                .map_or(String::new(), |status| format!(" (last: {status}{at})"));
            let label = if shown.is_empty() { "jobs" } else { "" };
            to.lines
                .push((label, format!("{} {name}{went}", to.time(&next))));
        }
        shown.push(
            json!({"id": job.id(), "name": name, "next": next, "last": last, "status": status}),
        );
    }
    if jobs.len() > MAX_JOBS {
        to.lines.push((
            "",
            format!("and {} more: bantam cron list", jobs.len() - MAX_JOBS),
        ));
    }
    shown
}

fn time(millis: i64) -> String {
    rfc3339(UNIX_EPOCH + Duration::from_millis(millis.try_into().unwrap_or(0)))
}
