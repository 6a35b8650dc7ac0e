//! Installs and removes skills.
//!
//! A skill on its way in or out has a name that starts with a dot, and one rename makes it visible or not: after a crash
//! there is a whole skill or none. The next installation or removal deletes what a crash left behind.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Skills, is_valid_name};
use crate::beneath::{Dir, Links};
use crate::disk::{self, Access, copy_new};
use crate::error::{Error, Result};
use crate::text::one_line;

/// The limits on a skill: somebody else wrote it.
const MAX_FILES: usize = 200;
const MAX_BYTES: u64 = 5 << 20;
const MAX_DEPTH: usize = 6;

/// Copies the skill in the directory `from`, and returns its name. Refuses links, skips `.git`, runs nothing. The caller
/// holds a lock.
pub(crate) fn install(skills: &Skills, from: &Path) -> Result<String> {
    let from = from.canonicalize().map_err(|_| {
        Error::failed(format!("there is no folder {}", from.display())).hint("name the folder of one skill")
    })?;
    let name = from.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if !is_valid_name(&name) {
        return Err(Error::failed(format!("invalid skill name \"{}\"", one_line(&name, 64)))
            .hint("rename its folder: lower-case letters, digits and single hyphens"));
    }
    if !from.join("SKILL.md").is_file() {
        return Err(Error::failed(format!("{} has no SKILL.md", from.display())).hint("name the folder of one skill"));
    }
    let (mut files, mut bytes) = (Vec::new(), 0);
    list(&from, Path::new(""), &mut files, &mut bytes)?;
    let to = skills.dir().join(&name);
    if to.symlink_metadata().is_ok() {
        let hint = format!("bantam skills remove {name}, then install it again");
        return Err(Error::failed(format!("the skill {name} exists already")).hint(hint));
    }
    clean_up(skills)?;
    let new = format!(".{name}.new");
    let path = skills.dir().join(&new);
    if let Err(e) = copy(&from, &skills.dir(), &new, &files) {
        disk::remove(&path)?;
        return Err(e);
    }
    disk::rename_new(&path, &to)?;
    Ok(name)
}

/// Deletes what a crash left behind.
fn clean_up(skills: &Skills) -> Result<()> {
    for entry in fs_err::read_dir(skills.dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') && (name.ends_with(".new") || name.ends_with(".old")) {
            disk::remove(&entry.path())?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, name: &str, files: &[PathBuf]) -> Result<()> {
    let held = Dir::open(from)?;
    for path in files {
        // It may have been replaced by a link or a pipe since it was listed.
        let mut file = held.read(path, path, Links::Refuse)?;
        let is_program = file.metadata()?.permissions().mode() & 0o100 != 0;
        let access = if is_program { Access::Execute } else { Access::ReadWrite };
        copy_new(to, &Path::new(name).join(path), &mut file, access)?;
    }
    disk::sync_all(to)
}

/// Adds every file below `from` to `files`, by its path from there, and its size to `bytes`.
fn list(from: &Path, dir: &Path, files: &mut Vec<PathBuf>, bytes: &mut u64) -> Result<()> {
    if dir.components().count() > MAX_DEPTH {
        return Err(Error::failed(format!("{} is nested too deep", dir.display())));
    }
    for entry in fs_err::read_dir(from.join(dir))? {
        let entry = entry?;
        let (path, kind) = (dir.join(entry.file_name()), entry.file_type()?);
        if entry.file_name() == ".git" {
            continue;
        }
        if kind.is_dir() {
            list(from, &path, files, bytes)?;
        } else if kind.is_file() {
            files.push(path);
            *bytes += entry.metadata()?.len();
        } else {
            return Err(Error::failed(format!("{} is a link, a pipe or a device: skills hold files", path.display())));
        }
        if files.len() > MAX_FILES {
            return Err(Error::failed(format!("the skill has more than {MAX_FILES} files")));
        }
        if *bytes > MAX_BYTES {
            return Err(Error::failed(format!("the skill is larger than {} MiB", MAX_BYTES >> 20)));
        }
    }
    Ok(())
}

/// Deletes a skill with all its files. The caller holds a lock.
pub(crate) fn remove(skills: &Skills, name: &str) -> Result<()> {
    let dir = skills.dir().join(name);
    if !is_valid_name(name) || dir.symlink_metadata().is_err() {
        let hint = "bantam skills list prints their names";
        return Err(Error::failed(format!("no skill named \"{}\"", one_line(name, 64))).hint(hint));
    }
    clean_up(skills)?;
    let old = skills.dir().join(format!(".{name}.old"));
    disk::rename_new(&dir, &old)?;
    disk::remove(&old)
}
