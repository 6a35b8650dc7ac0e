//! `bantam onboard --import PATH`: brings over the home of another agent, or only its configuration file. Other agents keep
//! their instructions in the workspace, where their model can write them; here they go to `agent/`.
//!
//! PATH is only read. Symbolic links are not followed, and only regular files are opened. Nothing here is overwritten.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::FileType;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::consent::Consent;
use super::convert::convert;
use super::{import_sessions, print, print_line, security_yml};
use crate::access::{Dir, Links};
use crate::config;
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::storage::{self, CopyOutcome};
use crate::text::{counted, one_line, parse_json, size};

/// Parts of an agent: the name elsewhere, in the workspace or beside it; the directory of our home, and the name there. Of two
/// with the same name here, the first one that exists is copied.
const PARTS: [(&str, &str, &str); 10] = [
    ("IDENTITY.md", "agent", "IDENTITY.md"),
    ("AGENT.md", "agent", "AGENT.md"),
    ("AGENTS.md", "agent", "AGENT.md"),
    ("SOUL.md", "agent", "SOUL.md"),
    ("HEARTBEAT.md", "agent", "HEARTBEAT.md"),
    ("skills", "agent", "skills"),
    ("prompts", "agent", "prompts"),
    ("memory", WORKSPACE, "memory"),
    ("MEMORY.md", WORKSPACE, "memory/MEMORY.md"),
    ("cron", "cron", "jobs.json"),
];
const WORKSPACE: &str = "workspace";
/// The most bytes of a file, and of all files. A few bytes on their disk may be read as any number.
const MAX_FILE: u64 = 100 << 20;
const MAX_ALL: u64 = 1 << 30;
/// What other programs keep beside their agent's work.
const FOREIGN: [&str; 2] = ["auth.json", "state"];

/// What `--import` names.
pub(super) struct Import {
    /// The configuration in our shape, and the paths of what was not taken over.
    config: Option<(Value, Vec<String>)>,
    /// What the user did not agree to, in words.
    refused: Vec<String>,
    /// Where the configuration came from.
    config_path: PathBuf,
    home: Option<ForeignHome>,
}

/// The home of another agent.
pub(super) struct ForeignHome {
    path: PathBuf,
    /// The same, held open.
    pub(super) dir: Dir,
    /// Its workspace, relative to it: `workspace`, or nothing if the directory itself is one.
    workspace: PathBuf,
    /// Bytes of files that were copied.
    copied: Cell<u64>,
}

impl Import {
    pub(super) fn open(path: &str, home: &Home) -> Result<Self> {
        Self::read(path, home).doing(format_args!("importing {}", one_line(path, 200)))
    }

    fn read(path: &str, home: &Home) -> Result<Self> {
        let usage = |e: Error| {
            Error::usage(e.message).hint("name a directory or a config.json: --import ~/.picoclaw")
        };
        let path = fs_err::canonicalize(path).map_err(|e| usage(e.into()))?;
        if path.is_file() {
            return Ok(Self {
                config: Some(read_config(&path, None)?),
                refused: Vec::new(),
                config_path: path,
                home: None,
            });
        }
        let ours = real(home.root());
        if ours.starts_with(&path) || path.starts_with(&ours) {
            let e = Error::usage(format!(
                "it contains bantam's home {}, or lies inside it",
                ours.display()
            ));
            return Err(e.hint("set BANTAM_HOME to a directory of its own"));
        }
        let mut home = ForeignHome {
            dir: Dir::open(&path).map_err(usage)?,
            workspace: WORKSPACE.into(),
            path,
            copied: Cell::new(0),
        };
        let is_file = |name: &str| {
            home.kind(Path::new(name))
                .is_some_and(|kind| kind.is_file())
        };
        let (has_config, is_nested) = (
            is_file("config.json"),
            home.path.join(&home.workspace).is_dir(),
        );
        if !is_nested
            && !has_config
            && !["USER.md"]
                .into_iter()
                .chain(PARTS.map(|(name, ..)| name))
                .any(is_file)
        {
            let e = Error::usage("there is no config.json, no workspace/ and no AGENT.md in it");
            return Err(e.hint(
                "name the home of a picoclaw, nanobot, SmartBot or OpenClaw, such as ~/.picoclaw",
            ));
        }
        if !is_nested {
            home.workspace = PathBuf::new();
        }
        let config_path = home.path.join("config.json");
        let config = has_config
            .then(|| read_config(&config_path, Some(&home.path)))
            .transpose()?;
        Ok(Self {
            config,
            refused: Vec::new(),
            config_path,
            home: Some(home),
        })
    }

    pub(super) fn has_config(&self) -> bool {
        self.config.is_some()
    }

    /// Asks for all that the configuration may have only with the user's consent, unless it will not be written.
    pub(super) fn ask(&mut self, home: &Home, can_ask: bool) -> Result<()> {
        let is_kept = home.config().exists() && real(&home.config()) != self.config_path;
        if let Some((config, _)) = self.config.as_mut().filter(|_| !is_kept) {
            let mut consent = Consent {
                can_ask,
                refused: Vec::new(),
            };
            consent.apply(config)?;
            self.refused = consent.refused;
        }
        Ok(())
    }

    /// Brings over what there is, and prints a line for each thing.
    pub(super) fn run(&self, home: &Home) -> Result<()> {
        if let Some((config, left)) = &self.config {
            self.write_config(config, left, home)?;
        }
        self.home
            .as_ref()
            .map_or(Ok(()), |source| source.copy_to(home))
    }

    fn write_config(&self, config: &Value, left: &[String], home: &Home) -> Result<()> {
        let path = home.config();
        if real(&path) == self.config_path {
            let old = path.with_file_name("config.json.old");
            if !storage::rename_new(&path, &old)? {
                return Err(
                    Error::failed(format!("{} is in the way", old.display())).hint("move it away")
                );
            }
            print(&format!("kept     the original as {}\n", old.display()))?;
        }
        if !storage::write_new(&path, format!("{config:#}\n").as_bytes())? {
            return print("kept     config.json (already there)\n");
        }
        print(&format!(
            "created  config.json from {}\n",
            self.config_path.display()
        ))?;
        for what in &self.refused {
            print_line(&format!("skipped  {what}"))?;
        }
        if left.is_empty() {
            return Ok(());
        }
        print_line(&format!(
            "skipped  settings that bantam does not have, or that only you can set: {}",
            one_line(&left.join(", "), 2000)
        ))
    }
}

fn read_config(path: &Path, old_home: Option<&Path>) -> Result<(Value, Vec<String>)> {
    let fail = |e: String| {
        Error::config(format!("cannot read {}: {e}", path.display())).hint("correct or remove it")
    };
    let text = config::read_json(path).map_err(|e| fail(e.to_string()))?;
    let mut theirs =
        parse_json(text.trim_start_matches('\u{feff}')).map_err(|e| fail(e.to_string()))?;
    let keys = path.with_file_name(security_yml::NAME);
    if fs_err::symlink_metadata(&keys).is_ok_and(|meta| meta.is_file()) {
        let text = config::read_json(&keys).map_err(|e| {
            Error::config(format!("cannot read {}: {e}", keys.display()))
                .hint("correct or remove it")
        })?;
        security_yml::merge(&mut theirs, &text);
    }
    Ok(convert(theirs, old_home))
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    match (fs_err::canonicalize(path), path.parent(), path.file_name()) {
        (Err(_), Some(parent), Some(name)) => real(parent).join(name),
        (found, ..) => found.unwrap_or_else(|_| path.to_owned()),
    }
}

impl ForeignHome {
    /// What is at `path`; for a link, the link itself.
    fn kind(&self, path: &Path) -> Option<FileType> {
        self.path
            .join(path)
            .symlink_metadata()
            .ok()
            .map(|meta| meta.file_type())
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.kind(path).is_some_and(|kind| kind.is_dir())
    }

    /// The names in a directory: parts of an agent first, in their order.
    pub(super) fn names(&self, dir: &Path) -> Result<Vec<OsString>> {
        let entries = fs_err::read_dir(self.path.join(dir))?;
        let mut names = entries
            .map(|entry| Ok(entry?.file_name()))
            .collect::<Result<Vec<_>>>()?;
        let place = |name: &OsString| {
            PARTS
                .iter()
                .position(|(part, ..)| name == part)
                .unwrap_or(PARTS.len())
        };
        names.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.cmp(b)));
        Ok(names)
    }

    fn copy_to(&self, home: &Home) -> Result<()> {
        let is_nested = self.workspace != Path::new("");
        for base in [self.workspace.as_path(), Path::new("")]
            .into_iter()
            .take(1 + usize::from(is_nested))
        {
            for name in self.names(base)? {
                let path = base.join(&name);
                let is_config = path == Path::new("config.json")
                    && self.kind(&path).is_some_and(|kind| kind.is_file());
                match PARTS.iter().find(|(part, ..)| name == *part) {
                    Some((.., "jobs.json")) => self.copy_jobs(&path.join("jobs.json"), home)?,
                    Some((_, dir, to)) => self.copy(&path, home, dir, Path::new(to))?,
                    None if is_config || path == self.workspace => {}
                    // It is read with config.json, and no tool may read it.
                    None if name == security_yml::NAME => {
                        self.skip(&path, "bantam keeps keys in config.json")?;
                    }
                    None if name == "sessions" && self.is_dir(&path) => {
                        import_sessions::bring(self, &path, home)?;
                    }
                    None if base != self.workspace
                        || FOREIGN.iter().any(|foreign| name == *foreign) =>
                    {
                        self.skip(&path, "only the other program uses it")?;
                    }
                    None => self.copy(&path, home, WORKSPACE, Path::new(&name))?,
                }
            }
        }
        Ok(())
    }

    /// Copies the scheduled jobs, disabled: they would run by themselves.
    fn copy_jobs(&self, from: &Path, home: &Home) -> Result<()> {
        let read = |file: fs_err::File| {
            let mut bytes = Vec::new();
            file.take(4 << 20).read_to_end(&mut bytes).ok()?;
            parse_json(&bytes).ok()
        };
        let mut list = self
            .dir
            .read(from, from, Links::Refuse)
            .ok()
            .and_then(read)
            .unwrap_or_default();
        let Some(jobs) = list.get_mut("jobs").and_then(Value::as_array_mut) else {
            return self.skip(from, "not a known list of jobs");
        };
        for job in jobs.iter_mut().filter(|job| job.is_object()) {
            job["enabled"] = false.into();
        }
        let (jobs, text) = (counted(jobs.len(), "job"), list.to_string());
        let to = Path::new("jobs.json");
        match storage::copy_new(
            &home.root().join("cron"),
            to,
            &mut text.as_bytes(),
            storage::PLAIN,
        )? {
            CopyOutcome::Created => print(&format!(
                "copied   {} -> cron/jobs.json ({jobs}, disabled: bantam cron list)\n",
                from.display()
            )),
            _ => print("kept     cron/jobs.json (already there)\n"),
        }
    }

    /// Copies a file or a tree to `to` in the directory `dir` of our home, and prints the outcome.
    fn copy(&self, from: &Path, home: &Home, dir: &str, to: &Path) -> Result<()> {
        let mut counts = [0, 0];
        self.copy_tree(from, &home.root().join(dir), to, &mut counts)?;
        let [copied, kept] = counts;
        let to = one_line(&Path::new(dir).join(to).to_string_lossy(), 100);
        if copied > 0 {
            let from = one_line(&from.to_string_lossy(), 100);
            print(&format!(
                "copied   {from} -> {to} ({})\n",
                counted(copied, "file")
            ))?;
        }
        if kept > 0 {
            print(&format!(
                "kept     {to} ({} already there)\n",
                counted(kept, "file")
            ))?;
        }
        Ok(())
    }

    /// Counts the files that were copied, and those that were there already.
    fn copy_tree(
        &self,
        from: &Path,
        root: &Path,
        to: &Path,
        counts: &mut [usize; 2],
    ) -> Result<()> {
        if self.kind(from).is_some_and(|kind| kind.is_dir()) {
            let names = match self.names(from) {
                Ok(names) => names,
                Err(e) => return self.skip(from, &e.message),
            };
            return names.iter().try_for_each(|name| {
                self.copy_tree(&from.join(name), root, &to.join(name), counts)
            });
        }
        if !self.kind(from).is_some_and(|kind| kind.is_file()) {
            return self.skip(from, "not a file");
        }
        let file = match self.dir.read(from, Path::new("it"), Links::Refuse) {
            Ok(file) => file,
            Err(e) => return self.skip(from, &e.message),
        };
        let meta = file.metadata()?;
        let all = self.copied.get() + meta.len();
        for (bytes, most, what) in [
            (meta.len(), MAX_FILE, "it has"),
            (all, MAX_ALL, "with it, all files have"),
        ] {
            if bytes > most {
                let most = size(most);
                return self.skip(from, &format!("{what} more than {most}: copy it yourself"));
            }
        }
        let runs = meta.permissions().mode() & 0o100 != 0;
        let mode = if runs {
            storage::PROGRAM
        } else {
            storage::PLAIN
        };
        // It may grow meanwhile.
        match storage::copy_new(root, to, &mut file.take(meta.len()), mode)? {
            CopyOutcome::Created => {
                counts[0] += 1;
                self.copied.set(all);
            }
            CopyOutcome::Exists => counts[1] += 1,
            CopyOutcome::Blocked => return self.skip(from, "a link or a file is in the way"),
        }
        Ok(())
    }

    pub(super) fn skip(&self, path: &Path, why: &str) -> Result<()> {
        let is_link = self.kind(path).is_some_and(|kind| kind.is_symlink());
        let why = if is_link { "a symbolic link" } else { why };
        print_line(&format!(
            "skipped  {}: {why}",
            one_line(&path.to_string_lossy(), 200)
        ))
    }
}
