//! Installs, removes, enables and disables skills.
//!
//! A skill on its way in or out has a name that starts with a dot, and one rename makes it visible or not: after a crash
//! there is a whole skill or none. The next installation or removal deletes what a crash left behind.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{DISABLED, Skills, is_valid_name};
use crate::disk::{self, Durability, copy_new};
use crate::error::{Error, Result};
use crate::reach::{Dir, Links};
use crate::text::one_line;

/// The limits on a skill: somebody else wrote it.
const MAX_FILES: usize = 200;
const MAX_BYTES: u64 = 5 << 20;
const MAX_DEPTH: usize = 6;

/// Copies the skill in the directory `from`, and returns its name. Refuses links, skips `.git`, runs nothing. The caller
/// holds a lock.
pub(crate) fn install(skills: &Skills, from: &Path) -> Result<String> {
    let from = from.canonicalize().map_err(|_| {
        Error::failed(format!("there is no folder {}", from.display()))
            .hint("name the folder of one skill")
    })?;
    let name = from
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    if !is_valid_name(&name) {
        return Err(
            Error::failed(format!("invalid skill name \"{}\"", one_line(&name, 64)))
                .hint("rename its folder: lower-case letters, digits and single hyphens"),
        );
    }
    if !from.join("SKILL.md").is_file() {
        return Err(Error::failed(format!("{} has no SKILL.md", from.display()))
            .hint("name the folder of one skill"));
    }
    let to = skills.dir().join(&name);
    if to.symlink_metadata().is_ok() {
        let hint = format!("bantam skills remove {name}, then install it again");
        return Err(Error::failed(format!("the skill {name} exists already")).hint(hint));
    }
    clean_up(skills)?;
    let new = format!(".{name}.new");
    let path = skills.dir().join(&new);
    let mut copying = Copying {
        from: Dir::open(&from)?,
        to: skills.dir(),
        name: new,
        files: 0,
        bytes: 0,
    };
    if let Err(e) = copying
        .copy(&from, Path::new(""))
        .and_then(|()| disk::sync_all(&skills.dir()))
    {
        disk::remove(&path)?;
        return Err(e);
    }
    disk::rename_new(&path, &to)?;
    Ok(name)
}

/// Deletes what a crash left behind.
fn clean_up(skills: &Skills) -> Result<()> {
    for entry in fs_err::read_dir(skills.dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') && (name.ends_with(".new") || name.ends_with(".old")) {
            disk::remove(&entry.path())?;
        }
    }
    Ok(())
}

struct Copying {
    from: Dir,
    to: PathBuf,
    /// Of the copy.
    name: String,
    files: usize,
    bytes: u64,
}

impl Copying {
    /// Copies what is in `dir`, a directory below `root`.
    fn copy(&mut self, root: &Path, dir: &Path) -> Result<()> {
        for entry in fs_err::read_dir(root.join(dir))? {
            let entry = entry?;
            let (path, kind) = (dir.join(entry.file_name()), entry.file_type()?);
            if entry.file_name() == ".git" {
                continue;
            }
            if kind.is_dir() && path.components().count() <= MAX_DEPTH {
                self.copy(root, &path)?;
                continue;
            }
            if !kind.is_file() {
                let what = "a link, a pipe or a device, or lies too deep: skills hold files";
                return Err(Error::failed(format!("{} is {what}", path.display())));
            }
            // It may have been replaced by a link or a pipe since it was listed.
            let mut file = self.from.read(&path, &path, Links::Refuse)?;
            let meta = file.metadata()?;
            (self.files, self.bytes) = (self.files + 1, self.bytes + meta.len());
            if self.files > MAX_FILES || self.bytes > MAX_BYTES {
                let most = format!("{MAX_FILES} files or {} MiB", MAX_BYTES >> 20);
                return Err(Error::failed(format!("the skill has more than {most}")));
            }
            let is_program = meta.permissions().mode() & 0o100 != 0;
            let mode = if is_program {
                disk::PROGRAM
            } else {
                disk::PLAIN
            };
            copy_new(
                &self.to,
                &Path::new(&self.name).join(&path),
                &mut file,
                mode,
            )?;
        }
        Ok(())
    }
}

pub(crate) fn unknown(name: &str) -> Error {
    let hint = "bantam skills list prints their names";
    Error::failed(format!("no skill named \"{}\"", one_line(name, 64))).hint(hint)
}

fn folder(skills: &Skills, name: &str) -> Result<PathBuf> {
    let dir = skills.dir().join(name);
    if !is_valid_name(name) || dir.symlink_metadata().is_err() {
        return Err(unknown(name));
    }
    Ok(dir)
}

/// Lets the agent use a skill again. The caller holds a lock.
pub(crate) fn enable(skills: &Skills, name: &str) -> Result<()> {
    disk::remove(&folder(skills, name)?.join(DISABLED))
}

/// Stops the agent from using a skill. The caller holds a lock.
pub(crate) fn disable(skills: &Skills, name: &str) -> Result<()> {
    disk::replace(&folder(skills, name)?.join(DISABLED), b"", Durability::Now)
}

/// Deletes a skill with all its files. The caller holds a lock.
pub(crate) fn remove(skills: &Skills, name: &str) -> Result<()> {
    let dir = folder(skills, name)?;
    clean_up(skills)?;
    let old = skills.dir().join(format!(".{name}.old"));
    disk::rename_new(&dir, &old)?;
    disk::remove(&old)
}
