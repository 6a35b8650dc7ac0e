//! `bantam onboard --import DIR`: brings over the home of another agent. Other agents keep what they obey in the workspace,
//! where their model can write it; here it goes to `agent/`.
//!
//! DIR is only read. Nothing in it leads out of it: symbolic links are not followed, and what is no regular file is not
//! opened. Nothing that is here already is overwritten.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, statat};
use rustix::io::Errno;
use serde_json::Value;

use super::print;
use crate::beneath::{Dir, Links};
use crate::disk::{self, Copied, Runs};
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::text::one_line;

/// The largest file that is taken, in bytes.
const LARGEST: u64 = 64 << 20;
/// How much is taken in all.
const MOST_BYTES: u64 = 1 << 30;
const MOST_FILES: usize = 10_000;
const DEEPEST: usize = 32;
/// More lines about what was left would hide the others.
const MOST_LINES: usize = 20;

/// What an agent obeys, by the names it has elsewhere, and its name here. The first that is there is taken.
const AGENT_FILES: [(&[&str], &str); 4] = [
    (&["IDENTITY.md"], "IDENTITY.md"),
    (&["AGENT.md", "AGENTS.md"], "AGENT.md"),
    (&["SOUL.md"], "SOUL.md"),
    (&["HEARTBEAT.md"], "HEARTBEAT.md"),
];
const AGENT_DIRS: [&str; 2] = ["skills", "prompts"];
/// What another program keeps beside its agent's work, in forms of its own.
const FOREIGN: [(&str, &str); 2] =
    [("sessions", "conversations of another program are not read here"), ("state", "of use to that program only")];

/// The home of another agent.
pub struct Source {
    held: Dir,
    dir: PathBuf,
    /// Its workspace, relative to it: `workspace`, or nothing where DIR itself is one.
    workspace: PathBuf,
}

impl Source {
    pub fn open(dir: &str, home: &Home) -> Result<Self> {
        let doing = || format!("importing {}", one_line(dir, 200));
        let usage = |e: Error| Error::usage(e.message).hint("name a directory: --import ~/.picoclaw");
        let dir = fs_err::canonicalize(dir).map_err(|e| usage(e.into())).doing(doing())?;
        let ours = real(home.root());
        if ours.starts_with(&dir) || dir.starts_with(&ours) {
            let e = Error::usage(format!("it and bantam's home {} are one inside the other", ours.display()));
            return Err(e.hint("set BANTAM_HOME to a directory of its own").doing(doing()));
        }
        let held = Dir::open(&dir).map_err(usage).doing(doing())?;
        let kind = |name: &str| kind(&held, Path::new(name));
        let marks = AGENT_FILES.iter().flat_map(|(names, _)| *names).chain(&["USER.md", "MEMORY.md"]);
        let workspace = if kind("workspace") == Some(FileType::Directory) {
            PathBuf::from("workspace")
        } else if marks.into_iter().any(|name| kind(name) == Some(FileType::RegularFile)) {
            PathBuf::new()
        } else if kind("config.json") == Some(FileType::RegularFile) {
            PathBuf::from("workspace")
        } else {
            let e = Error::usage("there is no config.json, no workspace/ and no AGENT.md in it");
            return Err(e.hint("name the home of a picoclaw, nanobot or OpenClaw, such as ~/.picoclaw").doing(doing()));
        };
        Ok(Self { held, dir, workspace })
    }

    /// Whether it has a configuration to take.
    pub fn has_config(&self) -> bool {
        kind(&self.held, Path::new("config.json")) == Some(FileType::RegularFile)
    }

    /// The workspace that a configuration names is perhaps the one that was copied.
    pub fn holds(&self, path: &Path) -> bool {
        fs_err::canonicalize(path).is_ok_and(|path| path.starts_with(&self.dir))
    }
}

/// The path without links, as far as there is something at it.
fn real(path: &Path) -> PathBuf {
    match (fs_err::canonicalize(path), path.parent(), path.file_name()) {
        (Err(_), Some(parent), Some(name)) => real(parent).join(name),
        (found, ..) => found.unwrap_or_else(|_| path.to_owned()),
    }
}

/// Takes over what there is, and says so, a line for each thing.
pub fn run(source: &Source, home: &Home) -> Result<()> {
    let mut import = Import { source, home, files: 0, bytes: 0, left: 0, full: false };
    import.all()?;
    if import.left > MOST_LINES {
        print(&format!("left  and {} more\n", import.left - MOST_LINES))?;
    }
    Ok(())
}

struct Import<'a> {
    source: &'a Source,
    home: &'a Home,
    /// Taken so far.
    files: usize,
    bytes: u64,
    /// Told of as left.
    left: usize,
    /// No more is taken.
    full: bool,
}

/// What became of a file or of a tree.
#[derive(Default)]
struct Tally {
    made: usize,
    kept: usize,
}

impl Import<'_> {
    fn all(&mut self) -> Result<()> {
        let (root, agent, workspace) = (self.home.root(), self.home.agent(), self.home.workspace());
        let from = self.source.workspace.clone();
        let nested = !from.as_os_str().is_empty();
        let mut done: Vec<PathBuf> = Vec::new();
        if self.source.has_config() {
            self.item(Path::new("config.json"), root, "config.json")?;
            done.push("config.json".into());
        }
        for (names, to) in AGENT_FILES {
            let mut paths = names.iter().map(|name| from.join(name));
            if let Some(path) = paths.find(|path| self.is(path, FileType::RegularFile)) {
                self.item(&path, &agent, to)?;
                done.push(path);
            }
        }
        // Skills and jobs are kept in the workspace by some and beside it by others.
        let bases = if nested { vec![from.as_path(), Path::new("")] } else { vec![from.as_path()] };
        for base in bases {
            for name in AGENT_DIRS {
                if self.is(&base.join(name), FileType::Directory) {
                    self.item(&base.join(name), &agent, name)?;
                    done.push(base.join(name));
                }
            }
            let jobs = base.join("cron").join("jobs.json");
            if self.is(&jobs, FileType::RegularFile) {
                self.jobs(&jobs)?;
                done.push(base.join("cron"));
            }
        }

        // What is small and dear comes before what may be large.
        for name in self.in_order(&from, "memory")? {
            let path = from.join(&name);
            if done.contains(&path) {
                continue;
            }
            if let Some((_, why)) = FOREIGN.iter().find(|(foreign, _)| name == *foreign) {
                self.leave(&path, why)?;
            } else if name == "MEMORY.md" && !self.is(&from.join("memory/MEMORY.md"), FileType::RegularFile) {
                self.item(&path, &workspace, "memory/MEMORY.md")?;
            } else if name == "AGENTS.md" {
                self.leave(&path, "AGENT.md stands for it")?;
            } else {
                self.item(&path, &workspace, &name)?;
            }
        }
        if nested {
            for path in self.names(Path::new(""))?.into_iter().map(PathBuf::from) {
                if !done.contains(&path) && path != from {
                    let foreign = FOREIGN.iter().find(|(foreign, _)| path == Path::new(foreign)).map(|(_, why)| *why);
                    let link = self.is(&path, FileType::Symlink).then_some("a symbolic link");
                    self.leave(&path, link.or(foreign).unwrap_or("not a part of an agent that is known here"))?;
                }
            }
        }
        Ok(())
    }

    /// Takes a file or a tree, and says what became of it.
    fn item(&mut self, from: &Path, root: &Path, to: impl AsRef<OsStr>) -> Result<()> {
        let to = Path::new(to.as_ref());
        let mut tally = Tally::default();
        self.take(from, root, to, 0, &mut tally)?;
        let shown = root.join(to);
        let shown = shown.strip_prefix(self.home.root()).unwrap_or(&shown);
        let (from, to) = (one_line(&from.to_string_lossy(), 100), one_line(&shown.to_string_lossy(), 100));
        match tally {
            Tally { made: 0, kept: 0 } => Ok(()),
            Tally { made: 0, kept } => print(&format!("kept  {to} ({} there already)\n", are(kept))),
            Tally { made, kept: 0 } => print(&format!("took  {from} -> {to} ({})\n", files(made))),
            Tally { made, kept } => {
                print(&format!("took  {from} -> {to} ({}; {} there already)\n", files(made), are(kept)))
            }
        }
    }

    /// Jobs of the shape that we have, too.
    fn jobs(&mut self, from: &Path) -> Result<()> {
        let Some((file, _)) = self.open(from)? else { return Ok(()) };
        let parsed: Option<Value> = serde_json::from_reader(std::io::Read::take(file, 4 << 20)).ok();
        if parsed.is_some_and(|value| value.get("jobs").is_some_and(Value::is_array)) {
            self.item(from, &self.home.root().join("cron"), "jobs.json")
        } else {
            self.leave(from, "not a list of jobs of a shape that is known here")
        }
    }

    fn take(&mut self, from: &Path, root: &Path, to: &Path, depth: usize, tally: &mut Tally) -> Result<()> {
        if self.full {
            return Ok(());
        }
        match kind(&self.source.held, from) {
            Some(FileType::Directory) if depth >= DEEPEST => self.leave(from, "too deep"),
            Some(FileType::Directory) => {
                for name in self.in_order(from, "")? {
                    self.take(&from.join(&name), root, &to.join(&name), depth + 1, tally)?;
                }
                Ok(())
            }
            Some(FileType::RegularFile) => self.copy(from, root, to, tally),
            Some(FileType::Symlink) => self.leave(from, "a symbolic link"),
            Some(_) => self.leave(from, "not a file"),
            None => self.leave(from, "it cannot be read"),
        }
    }

    fn copy(&mut self, from: &Path, root: &Path, to: &Path, tally: &mut Tally) -> Result<()> {
        let left = MOST_BYTES.saturating_sub(self.bytes);
        if self.files >= MOST_FILES || left == 0 {
            self.full = true;
            return print(&format!("left  the rest: {MOST_FILES} files or {} MB are enough\n", MOST_BYTES >> 20));
        }
        let Some((mut file, runs)) = self.open(from)? else { return Ok(()) };
        let most = LARGEST.min(left);
        let too_large = format!("larger than {} MB", most >> 20);
        if file.metadata()?.len() > most {
            return self.leave(from, &too_large);
        }
        // It may grow while it is read.
        match disk::copy_new(root, to, &mut file, runs, most)? {
            Copied::Made(bytes) => {
                tally.made += 1;
                self.files += 1;
                self.bytes += bytes;
                Ok(())
            }
            Copied::Kept => {
                tally.kept += 1;
                Ok(())
            }
            Copied::Blocked => self.leave(from, "a link or a file is in its way here"),
            Copied::TooLarge => self.leave(from, &too_large),
        }
    }

    /// Opens a regular file. One that cannot be read is left.
    fn open(&mut self, path: &Path) -> Result<Option<(fs_err::File, Runs)>> {
        // Non-blocking, should it have become a pipe since it was looked at.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = self.source.held.open_at(path, flags, Mode::empty(), Links::Refuse);
        match opened.and_then(|fd| Ok((fstat(&fd)?, fd))) {
            Ok((stat, fd)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                let runs = if stat.st_mode & 0o100 == 0 { Runs::No } else { Runs::Yes };
                Ok(Some((fs_err::File::from_parts(fd.into(), path), runs)))
            }
            Ok(_) => self.leave(path, "not a file").map(|()| None),
            Err(e) => self.leave(path, &why(e)).map(|()| None),
        }
    }

    /// The names in a directory: those of files, then `dear`, then all others.
    fn in_order(&mut self, dir: &Path, dear: &str) -> Result<Vec<OsString>> {
        let names = self.names(dir)?.into_iter();
        let (mut names, others): (Vec<_>, Vec<_>) =
            names.partition(|name| self.is(&dir.join(name), FileType::RegularFile));
        let (dear, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|name| name == dear);
        names.extend(dear);
        names.extend(others);
        Ok(names)
    }

    /// The names in a directory, sorted. One that cannot be read is left.
    fn names(&mut self, dir: &Path) -> Result<Vec<OsString>> {
        let mut names = match open_dir(&self.source.held, dir).and_then(list) {
            Ok(names) => names,
            Err(Errno::NOENT) => Vec::new(),
            Err(e) => {
                self.leave(dir, &why(e))?;
                Vec::new()
            }
        };
        names.sort_unstable();
        Ok(names)
    }

    fn is(&self, path: &Path, wanted: FileType) -> bool {
        kind(&self.source.held, path) == Some(wanted)
    }

    fn leave(&mut self, path: &Path, why: &str) -> Result<()> {
        self.left += 1;
        if self.left > MOST_LINES {
            return Ok(());
        }
        print(&format!("left  {}: {why}\n", one_line(&path.to_string_lossy(), 200)))
    }
}

fn files(n: usize) -> String {
    if n == 1 { "1 file".to_owned() } else { format!("{n} files") }
}

fn are(n: usize) -> String {
    if n == 1 { "1 is".to_owned() } else { format!("{n} are") }
}

fn why(e: Errno) -> String {
    match e {
        Errno::LOOP => "a symbolic link".to_owned(),
        e => std::io::Error::from(e).to_string(),
    }
}

fn open_dir(held: &Dir, path: &Path) -> Result<OwnedFd, Errno> {
    held.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty(), Links::Refuse)
}

fn list(dir: OwnedFd) -> Result<Vec<OsString>, Errno> {
    use std::os::unix::ffi::OsStrExt;
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

/// What is at `path`, the thing itself and not what a link leads to.
fn kind(held: &Dir, path: &Path) -> Option<FileType> {
    let name = path.file_name()?;
    let dir = open_dir(held, path.parent().unwrap_or(Path::new(""))).ok()?;
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}
