//! `bantam onboard --import PATH`: brings over the home of another agent, or only its configuration file. Other agents keep
//! their instructions in the workspace, where their model can write them; here they go to `agent/`.
//!
//! PATH is only read. Symbolic links are not followed, and only regular files are opened. Nothing here is overwritten.

use std::ffi::OsString;
use std::fs::FileType;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::convert::{Converted, convert};
use super::{agrees, print};
use crate::beneath::{Dir, Links};
use crate::config;
use crate::disk::{self, Access, CopyOutcome};
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::text::{counted, one_line};

/// More lines about what was skipped would hide the others.
const MAX_SKIPPED: usize = 20;

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
    ("cron/jobs.json", "cron", "jobs.json"),
];
const WORKSPACE: &str = "workspace";
/// What other programs keep beside their agent's work.
const FOREIGN: [&str; 2] = ["sessions", "state"];

/// What `--import` names.
pub(super) struct Import {
    /// The configuration as it is, and converted.
    config: Option<(Value, Converted)>,
    /// Where the configuration came from.
    config_path: PathBuf,
    home: Option<ForeignHome>,
    /// Whether to take over the scheduled jobs.
    takes_jobs: bool,
}

/// The home of another agent.
struct ForeignHome {
    path: PathBuf,
    /// The same, held open.
    dir: Dir,
    /// Its workspace, relative to it: `workspace`, or nothing if the directory itself is one.
    workspace: PathBuf,
}

impl Import {
    pub(super) fn open(path: &str, home: &Home) -> Result<Self> {
        Self::read(path, home).doing(format_args!("importing {}", one_line(path, 200)))
    }

    fn read(path: &str, home: &Home) -> Result<Self> {
        let usage = |e: Error| Error::usage(e.message).hint("name a directory or a config.json: --import ~/.picoclaw");
        let path = fs_err::canonicalize(path).map_err(|e| usage(e.into()))?;
        if path.is_file() {
            let config = Some(read_config(&path, None)?);
            return Ok(Self { config, config_path: path, home: None, takes_jobs: false });
        }
        let ours = real(home.root());
        if ours.starts_with(&path) || path.starts_with(&ours) {
            let e = Error::usage(format!("it and bantam's home {} are one inside the other", ours.display()));
            return Err(e.hint("set BANTAM_HOME to a directory of its own"));
        }
        let mut home = ForeignHome { dir: Dir::open(&path).map_err(usage)?, workspace: WORKSPACE.into(), path };
        let is_file = |name: &str| home.kind(Path::new(name)).is_some_and(|kind| kind.is_file());
        let (has_config, is_nested) = (is_file("config.json"), home.path.join(&home.workspace).is_dir());
        let is_workspace = ["USER.md"].into_iter().chain(PARTS.map(|(name, ..)| name)).any(is_file);
        if !is_nested && !is_workspace && !has_config {
            let e = Error::usage("there is no config.json, no workspace/ and no AGENT.md in it");
            return Err(e.hint("name the home of a picoclaw, nanobot or OpenClaw, such as ~/.picoclaw"));
        }
        if !is_nested {
            home.workspace = PathBuf::new();
        }
        let config_path = home.path.join("config.json");
        let config = has_config.then(|| read_config(&config_path, Some(&home.path))).transpose()?;
        Ok(Self { config, config_path, home: Some(home), takes_jobs: false })
    }

    /// Asks about each setting that opens this machine to the model, and about the jobs.
    pub(super) fn ask(&mut self) -> Result<()> {
        let old_home = self.home.as_ref().map(|home| home.path.as_path());
        if let Some((theirs, converted)) = &mut self.config {
            let mut allowed = Vec::new();
            for setting in &converted.refused {
                if agrees(&format!("Take over {}?", one_line(setting, 500)))? {
                    allowed.push(setting.clone());
                }
            }
            *converted = convert(theirs.clone(), old_home, &allowed);
        }
        let jobs = self.home.as_ref().map_or_else(Vec::new, ForeignHome::jobs);
        if !jobs.is_empty() {
            let question = format!("Take over {}: {}?", counted(jobs.len(), "scheduled job"), jobs.join("; "));
            self.takes_jobs = agrees(&one_line(&question, 2000))?;
        }
        Ok(())
    }

    pub(super) fn has_config(&self) -> bool {
        self.config.is_some()
    }

    /// Brings over what there is, and prints a line for each thing.
    pub(super) fn run(&self, home: &Home) -> Result<()> {
        if let Some((_, config)) = &self.config {
            self.write_config(config, home)?;
        }
        let Some(source) = &self.home else { return Ok(()) };
        let mut copier = Copier { source, home, takes_jobs: self.takes_jobs, copied: 0, kept: 0, skipped: 0 };
        copier.copy_home()?;
        match copier.skipped.checked_sub(MAX_SKIPPED) {
            Some(more @ 1..) => print(&format!("skipped  and {more} more\n")),
            _ => Ok(()),
        }
    }

    fn write_config(&self, converted: &Converted, home: &Home) -> Result<()> {
        let path = home.config();
        if real(&path) == self.config_path {
            let old = path.with_file_name("config.json.old");
            if !disk::rename_new(&path, &old)? {
                return Err(Error::failed(format!("{} is in the way", old.display())).hint("move it away"));
            }
            print(&format!("kept     the original as {}\n", old.display()))?;
        }
        if !disk::write_new(&path, format!("{:#}\n", converted.config).as_bytes())? {
            return print("kept     config.json (already there)\n");
        }
        print(&format!("created  config.json from {}\n", self.config_path.display()))?;
        for (what, settings) in [
            ("unknown settings", &converted.unknown),
            ("settings that open your machine", &converted.refused),
            ("settings that are of no use here", &converted.useless),
        ] {
            if !settings.is_empty() {
                print(&format!("skipped  {what}: {}\n", one_line(&settings.join(", "), 1000)))?;
            }
        }
        Ok(())
    }
}

fn read_config(path: &Path, old_home: Option<&Path>) -> Result<(Value, Converted)> {
    let fail = |e: String| Error::config(format!("cannot read {}: {e}", path.display())).hint("correct or remove it");
    let text = config::read_json(path).map_err(|e| fail(e.to_string()))?;
    let theirs: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|e| fail(e.to_string()))?;
    let converted = convert(theirs.clone(), old_home, &[]);
    Ok((theirs, converted))
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
        self.path.join(path).symlink_metadata().ok().map(|meta| meta.file_type())
    }

    /// The scheduled jobs, as far as the file has the shape that all these programs share: what each says.
    fn jobs(&self) -> Vec<String> {
        let lists = [self.workspace.as_path(), Path::new("")].map(|base| base.join("cron/jobs.json"));
        let lists = lists.iter().filter_map(|path| self.job_list(path));
        let said =
            |job: Value| [&job["name"], &job["payload"]["message"]].map(|text| text.as_str().unwrap_or("?").to_owned());
        lists.flatten().map(|job| one_line(&said(job).join(": "), 200)).collect()
    }

    fn job_list(&self, path: &Path) -> Option<Vec<Value>> {
        let file = self.dir.read(path, path, Links::Refuse).ok()?;
        let mut parsed: Value = serde_json::from_reader(file.take(4 << 20)).ok()?;
        parsed.get_mut("jobs")?.as_array_mut().map(std::mem::take)
    }

    /// The names in a directory, sorted.
    fn names(&self, dir: &Path) -> Result<Vec<OsString>> {
        let entries = fs_err::read_dir(self.path.join(dir))?;
        let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }
}

struct Copier<'a> {
    source: &'a ForeignHome,
    home: &'a Home,
    takes_jobs: bool,
    /// Files of the part that is being copied.
    copied: usize,
    kept: usize,
    /// Lines about what was skipped.
    skipped: usize,
}

impl Copier<'_> {
    fn copy_home(&mut self) -> Result<()> {
        let (workspace, beside) = (&self.source.workspace, Path::new(""));
        let bases = if workspace == beside { vec![beside] } else { vec![workspace, beside] };
        let mut done = vec![workspace.clone()];
        if self.source.kind(Path::new("config.json")).is_some_and(|kind| kind.is_file()) {
            done.push(PathBuf::from("config.json"));
        }
        for base in &bases {
            for (from, dir, to) in PARTS {
                let path = base.join(from);
                if self.source.kind(&path).is_some() {
                    self.copy(&path, dir, Path::new(to))?;
                    done.extend(Path::new(from).iter().take(1).map(|name| base.join(name)));
                }
            }
        }
        for base in bases {
            for name in self.source.names(base)? {
                let path = base.join(&name);
                if done.contains(&path) {
                    continue;
                }
                if base != workspace || FOREIGN.iter().any(|foreign| name == *foreign) {
                    self.skip(&path, "only the other program uses it")?;
                } else {
                    self.copy(&path, WORKSPACE, Path::new(&name))?;
                }
            }
        }
        Ok(())
    }

    /// Copies a file or a tree to `to` in the directory `dir` of our home, and prints the outcome.
    fn copy(&mut self, from: &Path, dir: &str, to: &Path) -> Result<()> {
        if dir == "cron" {
            match self.source.job_list(from) {
                None => return self.skip(from, "not a known list of jobs"),
                Some(jobs) if !jobs.is_empty() && !self.takes_jobs => {
                    return self
                        .skip(from, "jobs run by themselves; take them over at a terminal, or use bantam cron add");
                }
                Some(_) => {}
            }
        }
        (self.copied, self.kept) = (0, 0);
        self.copy_tree(from, &self.home.root().join(dir), to)?;
        let (from, to) = (from.to_string_lossy(), Path::new(dir).join(to));
        let (from, to) = (one_line(&from, 100), one_line(&to.to_string_lossy(), 100));
        if self.copied > 0 {
            print(&format!("copied   {from} -> {to} ({})\n", counted(self.copied, "file")))?;
        }
        if self.kept > 0 {
            print(&format!("kept     {to} ({} already there)\n", counted(self.kept, "file")))?;
        }
        Ok(())
    }

    fn copy_tree(&mut self, from: &Path, root: &Path, to: &Path) -> Result<()> {
        let kind = self.source.kind(from);
        if kind.is_some_and(|kind| kind.is_dir()) {
            return match self.source.names(from) {
                Ok(names) => names.iter().try_for_each(|name| self.copy_tree(&from.join(name), root, &to.join(name))),
                Err(e) => self.skip(from, &e.message),
            };
        }
        if !kind.is_some_and(|kind| kind.is_file()) {
            return self.skip(from, "not a file");
        }
        let mut file = match self.source.dir.read(from, Path::new("it"), Links::Refuse) {
            Ok(file) => file,
            Err(e) => return self.skip(from, &e.message),
        };
        let runs = file.metadata()?.permissions().mode() & 0o100 != 0;
        let access = if runs { Access::Execute } else { Access::ReadWrite };
        match disk::copy_new(root, to, &mut file, access)? {
            CopyOutcome::Created => self.copied += 1,
            CopyOutcome::Exists => self.kept += 1,
            CopyOutcome::Blocked => {
                self.skip(from, "a link or a file is in the way")?;
            }
        }
        Ok(())
    }

    fn skip(&mut self, path: &Path, why: &str) -> Result<()> {
        self.skipped += 1;
        if self.skipped > MAX_SKIPPED {
            return Ok(());
        }
        let is_link = self.source.kind(path).is_some_and(|kind| kind.is_symlink());
        let why = if is_link { "a symbolic link" } else { why };
        print(&format!("skipped  {}: {why}\n", one_line(&path.to_string_lossy(), 200)))
    }
}
