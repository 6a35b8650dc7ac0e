//! How the gateway stands, for `bantam status`: from what it left on disk. Nothing is asked and nothing changed.

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

/// Jobs that are shown, those that are due next.
const SHOWN: usize = 5;

/// See the module's description.
pub struct GatewayStatus {
    is_running: bool,
    /// What the last gateway wrote; [`Value::Null`] when none did.
    told: Value,
    waiting: usize,
    undelivered: usize,
    /// When the oldest of these was written; empty when there is none, as all times here.
    oldest: String,
    /// Those that will run, the next one first.
    jobs: Vec<Row>,
    heartbeat: String,
    /// Users who wrote and may not.
    pub strangers: Vec<i64>,
    /// What could not be read.
    pub warnings: Vec<String>,
}

/// A job that will run.
struct Row {
    id: String,
    name: String,
    next: i64,
    last: String,
    status: String,
}

fn time(millis: i64) -> String {
    let since = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    rfc3339(UNIX_EPOCH + since)
}

impl GatewayStatus {
    pub fn of(home: &Home, env: &Env, sessions: &[archive::Summary]) -> Self {
        let mut warnings = Vec::new();
        let inbox = inbox::look(&home.state()).unwrap_or_else(|e| {
            warnings.push(e.message);
            inbox::Glance::default()
        });
        let pending = Outbox::new(home.clone()).pending().unwrap_or_else(|e| {
            warnings.push(e.message);
            Vec::new()
        });
        // An id begins with when it was posted, as milliseconds in hexadecimal.
        let posted = |id: &str| i64::from_str_radix(id.split('-').next()?, 16).ok();
        let oldest = pending.first().and_then(|pending| posted(&pending.id)).map(time);
        let all = Jobs::new(home.clone(), env);
        let now = schedule::millis(SystemTime::now());
        let mut jobs: Vec<Row> = Vec::new();
        let found = all.list().unwrap_or_else(|e| {
            warnings.push(e.message);
            Vec::new()
        });
        for job in found {
            let next = match all.zone(job.tz()).and_then(|zone| job.due(now, 0, &zone)) {
                Ok(Due::Later(Some(next)) | Due::Missed(next)) => next,
                Ok(Due::Now) => now,
                // It will not run, and `cron list` says why.
                Ok(Due::Later(None)) | Err(_) => continue,
            };
            let place = jobs.iter().position(|other| other.next > next).unwrap_or(jobs.len());
            let last = job.last_run().map(time).unwrap_or_default();
            let (id, name, status) = (job.id().to_owned(), one_line(job.name(), 60), one_line(job.last_status(), 20));
            jobs.insert(place, Row { id, name, next, last, status });
        }
        let heartbeat = sessions.iter().find(|session| session.key == "cron_heartbeat");
        Self {
            is_running: status::is_running(home),
            told: status::read(home).unwrap_or_default(),
            waiting: inbox.waiting,
            undelivered: pending.len(),
            oldest: oldest.unwrap_or_default(),
            jobs,
            heartbeat: heartbeat.map(|session| session.last.clone()).unwrap_or_default(),
            strangers: inbox.strangers,
            warnings,
        }
    }

    /// Names and texts of lines; one without a name goes on with what is above it.
    pub fn lines(&self, zone: &Zone) -> Vec<(&'static str, String)> {
        let at = |time: &str| local_time(time, zone);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (started, ended) = (text(&self.told["started"]), text(&self.told["ended"]));
        let polling = &self.told["polling"];
        let mut lines = Vec::new();
        lines.push((
            "gateway",
            match (self.is_running, started.is_empty(), ended.is_empty()) {
                (true, true, _) => "running".to_owned(),
                (true, false, _) => {
                    let bot = text(&self.told["bot"]);
                    let bot = if bot.is_empty() { String::new() } else { format!(", as {bot}") };
                    format!("running since {}{bot} (process {})", at(&started), self.told["pid"])
                }
                (false, true, _) => "not running; bantam gateway starts it".to_owned(),
                (false, false, true) => format!("not running: the one of {} died", at(&started)),
                (false, false, false) => format!("not running: it ended at {}", at(&ended)),
            },
        ));
        if self.is_running && polling["ok"] == false {
            lines.push((
                "",
                format!("it cannot poll since {}: {}", at(&text(&polling["since"])), text(&polling["why"])),
            ));
        }
        if self.waiting > 0 {
            lines.push(("", format!("messages waiting for an answer: {}", self.waiting)));
        }
        if self.undelivered > 0 {
            let oldest =
                if self.oldest.is_empty() { String::new() } else { format!(", the oldest of {}", at(&self.oldest)) };
            lines.push(("", format!("answers not delivered yet: {}{oldest}", self.undelivered)));
        }
        if !self.strangers.is_empty() {
            let ids: Vec<String> = self.strangers.iter().map(i64::to_string).collect();
            lines.push(("strangers", format!("{} wrote and got no answer: {}", ids.len(), ids.join(", "))));
            lines.push(("", "to let one in, add the id to channels.telegram.allow_from".to_owned()));
        }
        for (n, job) in self.jobs.iter().take(SHOWN).enumerate() {
            let last = match (job.last.is_empty(), job.status.as_str()) {
                (_, "") => String::new(),
                (true, status) => format!(" (last: {status})"),
                (false, status) => format!(" (last: {status} at {})", at(&job.last)),
            };
            lines.push((
                if n == 0 { "jobs" } else { "" },
                format!("{} {}{last}", zone.stamp(job.next / 1000), job.name),
            ));
        }
        if self.jobs.len() > SHOWN {
            lines.push(("", format!("and {} more: bantam cron list", self.jobs.len() - SHOWN)));
        }
        if !self.heartbeat.is_empty() {
            lines.push(("heartbeat", format!("the last was at {}", at(&self.heartbeat))));
        }
        lines
    }

    pub fn object(&self) -> Value {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let mut gateway = self.told.clone();
        if !gateway.is_object() {
            gateway = json!({});
        }
        gateway["running"] = self.is_running.into();
        gateway["waiting"] = self.waiting.into();
        gateway["undelivered"] = json!({"count": self.undelivered, "oldest": some(&self.oldest)});
        gateway["strangers"] = self.strangers.clone().into();
        gateway["heartbeat"] = json!(some(&self.heartbeat));
        let mut jobs = Vec::new();
        for job in &self.jobs {
            let (last, status) = (some(&job.last), some(&job.status));
            jobs.push(json!({"id": job.id, "name": job.name, "next": time(job.next), "last": last, "status": status}));
        }
        gateway["jobs"] = jobs.into();
        gateway
    }
}
