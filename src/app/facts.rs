//! Facts about a home, found once and shown by `status`, `doctor`, `onboard` and `config get`. Finding them only reads files:
//! no key is fetched, no server contacted and no command run.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::status;
use super::{App, bot};
use crate::config::{Loaded, Model, keys, path, shown};
use crate::cron::{Jobs, schedule};
use crate::error::Result;
use crate::notify;
use crate::outbox::Outbox;
use crate::paths::UNNAMED;
use crate::provider::catalog;
use crate::provider::facts::{self, HostFacts};
use crate::redact::{Redactor, change_texts};
use crate::session::SessionInfo;
use crate::session::archive;
use crate::text::{rfc3339, to_single_line};

pub(crate) struct Facts<'a> {
    pub app: &'a App,
    pub loaded: Result<&'a Arc<Loaded>>,
    /// The model that answers; `None` leaves Ollama or the demo.
    pub model: Result<Option<Model>>,
    /// Conversations, the newest first.
    pub sessions: Vec<SessionInfo>,
    /// State of the last gateway, with its waiting messages and the next runs of jobs.
    pub gateway: Value,
    /// Detected features of hosts.
    pub learned: Vec<HostFacts>,
    /// Unknown settings, and files that cannot be read.
    pub warnings: Vec<String>,
}

impl<'a> Facts<'a> {
    pub(crate) fn find(app: &'a App) -> Self {
        let (home, loaded) = (&app.home, app.loaded());
        let choose = |loaded: &Arc<Loaded>| {
            let model = loaded.config.choose_model(&loaded.env)?;
            Ok(model.map(|model| catalog::with_known_default(model, home)))
        };
        let mut facts = Self {
            app,
            model: loaded.clone().and_then(choose),
            sessions: Vec::new(),
            gateway: status::read(home).unwrap_or_else(|| json!({})),
            learned: facts::rows(home),
            warnings: loaded.iter().flat_map(|l| l.warnings.clone()).collect(),
            loaded,
        };
        facts.sessions = facts.or_warn(archive::list(home));
        facts.find_waiting();
        facts.gateway["jobs"] = facts.find_next_runs().into();
        facts
    }

    fn or_warn<T: Default>(&mut self, result: Result<T>) -> T {
        result.unwrap_or_else(|e| {
            self.warnings.push(e.message);
            T::default()
        })
    }

    /// Returns the name of the model that answers, without a key that stands in its place.
    pub(crate) fn model_name(&self) -> Result<String> {
        let none = "Ollama if it answers, else the built-in demo".to_owned();
        let model = self.model.clone()?;
        Ok(model.map_or(none, |model| shown(&model.name)))
    }

    /// Returns where the key of the model comes from.
    pub(crate) fn key(&self) -> String {
        let model = self.model.as_ref().ok().and_then(Option::as_ref);
        match (model.and_then(|model| model.keys.first()), self.unset_key()) {
            (_, Some(name)) => format!("the variable {name}, which is not set: export {name}=..."),
            (Some(key), _) => keys::source(key),
            (None, _) if model.is_none() => "none; for a real model: bantam onboard".to_owned(),
            (None, _) => "not needed".to_owned(),
        }
    }

    /// Returns the unset variable that the model's key should come from.
    pub(crate) fn unset_key(&self) -> Option<&str> {
        let model = self.model.as_ref().ok()?.as_ref()?;
        keys::missing(model.keys.first()?, &self.app.env)
    }

    /// Returns the number of users who may write to the bot of the gateway, if it has one.
    pub(crate) fn bot_users(&self) -> Option<usize> {
        let loaded = self.loaded.as_ref().ok()?;
        bot::is_enabled(loaded).then(|| loaded.config.channels.telegram.ids().len())
    }

    /// Adds the messages that wait for an answer or for their delivery.
    fn find_waiting(&mut self) {
        let outbox = Outbox::new(self.app.home.clone());
        let waiting = outbox.inbox.open(&|_| true);
        let pending = self.or_warn(outbox.pending(&mut |_| true));
        // An id is a fresh key: the time of posting in microseconds, and two more digits.
        let posted = |id: &str| i64::from_str_radix(id.strip_prefix(UNNAMED)?, 36).ok();
        let oldest = pending.first().and_then(|pending| posted(&pending.id));
        self.gateway["running"] = notify::is_running(&self.app.home).into();
        self.gateway["waiting"] = self.or_warn(waiting).len().into();
        let oldest = oldest.map(|posted| time(posted / 1_296_000));
        self.gateway["undelivered"] = json!({"count": pending.len(), "oldest": oldest});
    }

    /// Returns the jobs that will run, the next one first.
    fn find_next_runs(&mut self) -> Vec<Value> {
        let all = Jobs::new(self.app.home.clone(), &self.app.env);
        let now = schedule::millis(SystemTime::now());
        let mut rows = Vec::new();
        for job in self.or_warn(all.list()) {
            let due = all.zone(job.tz()).and_then(|zone| job.due(now, 0, &zone));
            // `cron list` shows why a job will not run.
            if let Ok(Some(next)) = due {
                let name = to_single_line(job.name(), 60);
                let last = job.last_run().map(time);
                let status = to_single_line(job.last_status(), 20);
                rows.push(json!({"id": job.id(), "name": name, "next": time(next), "last": last, "status": status}));
            }
        }
        rows.sort_by_key(|row| row["next"].to_string());
        rows
    }
}

fn time(millis: i64) -> String {
    rfc3339(UNIX_EPOCH + Duration::from_millis(millis.try_into().unwrap_or(0)))
}

/// Returns the paths of the configured settings, their values without secrets, and their sources, for people.
pub(crate) fn set_values(loaded: &Loaded) -> Vec<(String, Value, String)> {
    let mut paths = path::list_values(&loaded.file);
    for set in &loaded.overrides {
        paths.retain(|path| !path.starts_with(&set.path));
        paths.push(set.path.clone());
    }
    let redactor = loaded.redactor();
    let config = serde_json::to_value(&*loaded.config).unwrap_or_default();
    let value_at = |path: &Vec<String>| {
        let value = redacted(&redactor, path::get(&config, path)?);
        let from = match loaded.override_of(path) {
            Some(set) => format!("the variable {}", set.name),
            None => "config.json".to_owned(),
        };
        Some((path::join(path), value, from))
    };
    paths.iter().filter_map(value_at).collect()
}

/// Removes possible secrets from the strings of a value.
pub(crate) fn redacted(redactor: &Redactor, value: &Value) -> Value {
    change_texts(value, &|text| redactor.redact(text.to_owned()))
}
