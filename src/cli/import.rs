//! `bantam onboard --import PATH`: brings over the home of another agent, or only its configuration file. Other agents keep
//! their instructions in the workspace, where their model can write them; here they go to `agent/`.
//!
//! PATH is only read. Symbolic links are not followed, and only regular files are opened. Nothing here is overwritten.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, statat};
use rustix::io::Errno;
use serde_json::Value;

use super::convert::{Converted, convert};
use super::print;
use crate::beneath::{Dir, Links};
use crate::config;
use crate::disk::{self, Access, CopyOutcome};
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::text::one_line;

/// More lines about what was skipped would hide the others.
const MAX_SKIPPED: usize = 20;
/// Settings named in one line.
const MAX_NAMED: usize = 16;

/// The files of an agent's instructions, by the names they have elsewhere, and their name here. The first found is taken.
const AGENT_FILES: [(&[&str], &str); 4] = [
    (&["IDENTITY.md"], "IDENTITY.md"),
    (&["AGENT.md", "AGENTS.md"], "AGENT.md"),
    (&["SOUL.md"], "SOUL.md"),
    (&["HEARTBEAT.md"], "HEARTBEAT.md"),
];
const AGENT_DIRS: [&str; 2] = ["skills", "prompts"];
/// What other programs keep beside their agent's work.
const FOREIGN: [(&str, &str); 2] =
    [("sessions", "conversations of other programs are not supported"), ("state", "only that program uses it")];

/// What `--import` names.
pub(super) struct Import {
    config: Option<Converted>,
    /// Where the configuration came from.
    config_path: PathBuf,
    home: Option<ForeignHome>,
}

/// The home of another agent.
struct ForeignHome {
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
            return Ok(Self { config: Some(read_config(&path, None)?), config_path: path, home: None });
        }
        let ours = real(home.root());
        if ours.starts_with(&path) || path.starts_with(&ours) {
            let e = Error::usage(format!("it and bantam's home {} are one inside the other", ours.display()));
            return Err(e.hint("set BANTAM_HOME to a directory of its own"));
        }
        let dir = Dir::open(&path).map_err(usage)?;
        let is = |name: &str, wanted| kind(&dir, Path::new(name)) == Some(wanted);
        let has_config = is("config.json", FileType::RegularFile);
        let marks = AGENT_FILES.iter().flat_map(|(names, _)| *names).chain(&["USER.md", "MEMORY.md"]);
        let is_nested = is("workspace", FileType::Directory);
        let is_workspace = marks.into_iter().any(|name| is(name, FileType::RegularFile));
        if !is_nested && !is_workspace && !has_config {
            let e = Error::usage("there is no config.json, no workspace/ and no AGENT.md in it");
            return Err(e.hint("name the home of a picoclaw, nanobot or OpenClaw, such as ~/.picoclaw"));
        }
        let config_path = path.join("config.json");
        let config = has_config.then(|| read_config(&config_path, Some(&path))).transpose()?;
        let workspace = PathBuf::from(if is_workspace && !is_nested { "" } else { "workspace" });
        Ok(Self { config, config_path, home: Some(ForeignHome { dir, workspace }) })
    }

    pub(super) fn has_config(&self) -> bool {
        self.config.is_some()
    }

    /// Brings over what there is, and prints a line for each thing.
    pub(super) fn run(&self, home: &Home) -> Result<()> {
        if let Some(config) = &self.config {
            self.write_config(config, home)?;
        }
        let Some(source) = &self.home else { return Ok(()) };
        let mut copier = Copier { source, home, skipped: 0 };
        copier.copy_home()?;
        if copier.skipped > MAX_SKIPPED {
            print(&format!("skipped  and {} more\n", copier.skipped - MAX_SKIPPED))?;
        }
        Ok(())
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
        let text = format!("{:#}\n", converted.config);
        let name = Path::new("config.json");
        if !matches!(
            disk::copy_new(home.root(), name, &mut text.as_bytes(), Access::ReadWrite, u64::MAX)?,
            CopyOutcome::Created(_)
        ) {
            return print("kept     config.json (already there)\n");
        }
        print(&format!("created  config.json from {}\n", self.config_path.display()))?;
        let list = |what: &str, settings: &[String]| match settings.len().checked_sub(MAX_NAMED) {
            _ if settings.is_empty() => Ok(()),
            Some(more @ 1..) => {
                print(&format!("skipped  {what}: {}, and {more} more\n", settings[..MAX_NAMED].join(", ")))
            }
            _ => print(&format!("skipped  {what}: {}\n", settings.join(", "))),
        };
        list("settings that mean nothing here", &converted.unknown)?;
        list("settings to decide on yourself", &converted.refused)
    }
}

fn read_config(path: &Path, old_home: Option<&Path>) -> Result<Converted> {
    let fail = |e: String| Error::config(format!("cannot read {}: {e}", path.display())).hint("correct or remove it");
    let text = config::read_json(path).map_err(|e| fail(e.to_string()))?;
    let theirs: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|e| fail(e.to_string()))?;
    Ok(convert(theirs, old_home))
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    match (fs_err::canonicalize(path), path.parent(), path.file_name()) {
        (Err(_), Some(parent), Some(name)) => real(parent).join(name),
        (found, ..) => found.unwrap_or_else(|_| path.to_owned()),
    }
}

struct Copier<'a> {
    source: &'a ForeignHome,
    home: &'a Home,
    skipped: usize,
}

/// How many files of a tree were copied, and how many were there already.
#[derive(Default)]
struct Counts {
    copied: usize,
    kept: usize,
}

impl Copier<'_> {
    fn copy_home(&mut self) -> Result<()> {
        let (agent, workspace) = (self.home.agent(), self.home.workspace());
        let from = &self.source.workspace;
        let is_nested = !from.as_os_str().is_empty();
        let mut done = vec![PathBuf::from("config.json")];
        if self.is(&done[0], FileType::Symlink) {
            self.skip(&done[0], "a symbolic link")?;
        }
        for (names, to) in AGENT_FILES {
            let mut paths = names.iter().map(|name| from.join(name));
            if let Some(path) = paths.find(|path| self.is(path, FileType::RegularFile)) {
                self.copy(&path, &agent, to)?;
                done.push(path);
            }
        }
        // Some keep skills and jobs in the workspace, others beside it.
        for base in [from.as_path(), Path::new("")].into_iter().take(1 + usize::from(is_nested)) {
            for name in AGENT_DIRS {
                if self.is(&base.join(name), FileType::Directory) {
                    self.copy(&base.join(name), &agent, name)?;
                    done.push(base.join(name));
                }
            }
            let jobs = base.join("cron/jobs.json");
            if self.is(&jobs, FileType::RegularFile) {
                self.copy_jobs(&jobs)?;
                done.push(base.join("cron"));
            }
        }
        for name in self.names(from)? {
            let path = from.join(&name);
            if done.contains(&path) {
                continue;
            }
            if let Some((_, why)) = FOREIGN.iter().find(|(foreign, _)| name == *foreign) {
                self.skip(&path, why)?;
            } else if name == "MEMORY.md" && !self.is(&from.join("memory/MEMORY.md"), FileType::RegularFile) {
                self.copy(&path, &workspace, "memory/MEMORY.md")?;
            } else if name == "AGENTS.md" {
                self.skip(&path, "AGENT.md is used instead")?;
            } else {
                self.copy(&path, &workspace, &name)?;
            }
        }
        if is_nested {
            for path in self.names(Path::new(""))?.into_iter().map(PathBuf::from) {
                if !done.contains(&path) && path != *from {
                    let foreign = FOREIGN.iter().find(|(name, _)| path == Path::new(name)).map(|(_, why)| *why);
                    self.skip(&path, foreign.unwrap_or("not a known part of an agent"))?;
                }
            }
        }
        Ok(())
    }

    /// Copies a file or a tree, and prints the outcome.
    fn copy(&mut self, from: &Path, root: &Path, to: impl AsRef<OsStr>) -> Result<()> {
        let to = Path::new(to.as_ref());
        let mut counts = Counts::default();
        self.copy_tree(from, root, to, &mut counts)?;
        let shown = root.join(to);
        let shown = shown.strip_prefix(self.home.root()).unwrap_or(&shown);
        let (from, to) = (one_line(&from.to_string_lossy(), 100), one_line(&shown.to_string_lossy(), 100));
        let files = |n: usize| if n == 1 { "1 file".to_owned() } else { format!("{n} files") };
        match counts {
            Counts { copied: 0, kept: 0 } => Ok(()),
            Counts { copied: 0, kept } => print(&format!("kept     {to} ({} already there)\n", files(kept))),
            Counts { copied, kept: 0 } => print(&format!("copied   {from} -> {to} ({})\n", files(copied))),
            Counts { copied, kept } => {
                print(&format!("copied   {from} -> {to} ({}; {} already there)\n", files(copied), files(kept)))
            }
        }
    }

    /// Copies cron jobs if they have the shape that all these programs share.
    fn copy_jobs(&mut self, from: &Path) -> Result<()> {
        let Some((file, _)) = self.open(from)? else { return Ok(()) };
        let parsed: Option<Value> = serde_json::from_reader(std::io::Read::take(file, 4 << 20)).ok();
        if parsed.is_some_and(|value| value.get("jobs").is_some_and(Value::is_array)) {
            self.copy(from, &self.home.root().join("cron"), "jobs.json")
        } else {
            self.skip(from, "not a known list of jobs")
        }
    }

    fn copy_tree(&mut self, from: &Path, root: &Path, to: &Path, counts: &mut Counts) -> Result<()> {
        match kind(&self.source.dir, from) {
            Some(FileType::Directory) => {
                for name in self.names(from)? {
                    self.copy_tree(&from.join(&name), root, &to.join(&name), counts)?;
                }
                Ok(())
            }
            Some(FileType::RegularFile) => {
                let Some((mut file, runs)) = self.open(from)? else { return Ok(()) };
                match disk::copy_new(root, to, &mut file, runs, u64::MAX)? {
                    CopyOutcome::Created(_) => counts.copied += 1,
                    CopyOutcome::Exists => counts.kept += 1,
                    CopyOutcome::Blocked | CopyOutcome::TooLarge => {
                        self.skip(from, "a link or a file is in its way here")?;
                    }
                }
                Ok(())
            }
            Some(FileType::Symlink) => self.skip(from, "a symbolic link"),
            Some(_) => self.skip(from, "not a file"),
            None => self.skip(from, "cannot be read"),
        }
    }

    /// Opens a regular file, or skips it.
    fn open(&mut self, path: &Path) -> Result<Option<(fs_err::File, Access)>> {
        // It may have become a pipe since it was listed: never block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = self.source.dir.open_at(path, flags, Mode::empty(), Links::Refuse);
        match opened.and_then(|fd| Ok((fstat(&fd)?, fd))) {
            Ok((stat, fd)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                let runs = if stat.st_mode & 0o100 == 0 { Access::ReadWrite } else { Access::Execute };
                Ok(Some((fs_err::File::from_parts(fd.into(), path), runs)))
            }
            Ok(_) => self.skip(path, "not a file").map(|()| None),
            Err(e) => self.skip(path, &reason(e)).map(|()| None),
        }
    }

    /// The names in a directory, sorted.
    fn names(&mut self, dir: &Path) -> Result<Vec<OsString>> {
        let mut names = match open_dir(&self.source.dir, dir).and_then(list) {
            Ok(names) => names,
            Err(Errno::NOENT) => Vec::new(),
            Err(e) => {
                self.skip(dir, &reason(e))?;
                Vec::new()
            }
        };
        names.sort_unstable();
        Ok(names)
    }

    fn is(&self, path: &Path, wanted: FileType) -> bool {
        kind(&self.source.dir, path) == Some(wanted)
    }

    fn skip(&mut self, path: &Path, why: &str) -> Result<()> {
        self.skipped += 1;
        if self.skipped > MAX_SKIPPED {
            return Ok(());
        }
        print(&format!("skipped  {}: {why}\n", one_line(&path.to_string_lossy(), 200)))
    }
}

fn reason(e: Errno) -> String {
    match e {
        Errno::LOOP => "a symbolic link".to_owned(),
        e => std::io::Error::from(e).to_string(),
    }
}

fn open_dir(dir: &Dir, path: &Path) -> Result<OwnedFd, Errno> {
    dir.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty(), Links::Refuse)
}

fn list(dir: OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// What is at `path`; for a link, the link itself.
fn kind(dir: &Dir, path: &Path) -> Option<FileType> {
    let parent = open_dir(dir, path.parent().unwrap_or(Path::new(""))).ok()?;
    let stat = statat(parent, path.file_name()?, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}
