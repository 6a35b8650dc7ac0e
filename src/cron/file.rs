//! Reads and writes `cron/jobs.json`. Fields of other programs in it are preserved.

use std::io::{ErrorKind, Read};

use serde_json::{Map, Value, json};

use super::job::Job;
use crate::error::{Context, Error, Result};
use crate::json::{explain, parse_json};
use crate::paths::Home;
use crate::storage::{self, Durability};
use crate::text::{not_found, size, to_single_line};

/// Maximum size of the file, in bytes; JSON may take many times its size in memory.
const MAX_FILE: u64 = 8 << 20;

#[derive(Default)]
pub(super) struct JobsFile {
    /// Other fields of the file.
    fields: Map<String, Value>,
    pub jobs: Vec<Job>,
}

impl JobsFile {
    pub(super) fn read(home: &Home) -> Result<Self> {
        let path = home.cron_jobs();
        let broken = |what: String| {
            Error::config(format!("reading the jobs: {}: {what}", path.display()))
                .hint("correct the file or move it away; until then bantam leaves it alone")
        };
        let mut text = String::new();
        let read = fs_err::File::open(&path)
            .and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
        match read {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                let error = broken(Error::from(e).message);
                return Err(error.hint("run `bantam doctor`, which tells how to own it"));
            }
            read => read.map_err(|e| broken(Error::from(e).message))?,
        };
        if text.len() as u64 > MAX_FILE {
            return Err(broken(format!("larger than {}", size(MAX_FILE))));
        }
        let value = parse_json(text.trim_start_matches('\u{feff}'));
        let value: Value = value.map_err(|e| broken(explain(&e)))?;
        let Value::Object(mut fields) = value else {
            return Err(broken("not an object".into()));
        };
        let version = fields.get("version").and_then(Value::as_u64);
        if version.is_some_and(|version| version > 1) {
            return Err(broken("a newer program wrote it".into()));
        }
        let Value::Array(items) = fields.remove("jobs").unwrap_or_else(|| json!([])) else {
            return Err(broken("\"jobs\" is not a list".into()));
        };
        let jobs: Vec<Job> = items.into_iter().map(Job).collect();
        if let Some(at) = jobs.iter().position(|job| job.id().is_empty()) {
            return Err(broken(format!("job {} in the list has no id", at + 1)));
        }
        Ok(Self { fields, jobs })
    }

    /// Replaces the file, on disk before this returns. The caller owns the lock.
    pub(super) fn write(&self, home: &Home) -> Result<()> {
        let mut fields = self.fields.clone();
        fields.entry("version").or_insert(json!(1));
        let jobs = self.jobs.iter().map(|job| job.0.clone()).collect();
        fields.insert("jobs".to_owned(), jobs);
        let text = format!("{:#}\n", Value::Object(fields));
        if text.len() as u64 > MAX_FILE {
            return Err(Error::failed(format!(
                "saving the jobs: they take more than {}",
                size(MAX_FILE)
            ))
            .hint("remove some that are no longer needed"));
        }
        storage::replace(&home.cron_jobs(), text.as_bytes(), Durability::Now)
            .doing("saving the jobs")
            .map_err(|e| e.hint("free some space or repair the disk; the jobs are unchanged"))
    }

    /// Returns the job with this id, or with this name if it is unique.
    pub(super) fn find(&mut self, id: &str) -> Result<&mut Job> {
        let by_id = self.jobs.iter().position(|job| job.id() == id);
        let named: Vec<usize> = (0..self.jobs.len())
            .filter(|at| self.jobs[*at].name() == id)
            .collect();
        let shown = to_single_line(id, 40);
        match (by_id, &named[..]) {
            (Some(at), _) | (None, &[at]) => Ok(&mut self.jobs[at]),
            (None, []) => {
                let known = self.jobs.iter().flat_map(|job| [job.id(), job.name()]);
                Err(not_found("job", id, known, "bantam cron list"))
            }
            (None, several) => {
                let ids: Vec<&str> = several.iter().map(|at| self.jobs[*at].id()).collect();
                Err(
                    Error::usage(format!("several jobs have the name \"{shown}\""))
                        .hint(format!("use an id: {}", ids.join(", "))),
                )
            }
        }
    }
}
