//! Putting skills on the shelf and taking them off.
//!
//! What is on its way there or away has a name with a dot before it, which is no skill's, and gets or gives up its own in one
//! step: whatever happens, there is a whole skill or none. What a crash leaves under such a name goes the next time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Skills, is_a_name};
use crate::beneath::{Dir, Links};
use crate::disk::{self, Access, CopyOutcome, copy_new};
use crate::error::{Context, Error, Result};
use crate::text::one_line;

/// What a skill may consist of: somebody else wrote it.
const MOST_FILES: usize = 200;
const MOST_BYTES: u64 = 5 << 20;
const DEEPEST: usize = 6;

/// Copies the skill in the directory `from`. Links are refused, and `.git` is left out. Nothing of it is run. Returns the
/// skill's name. The caller holds a lock.
pub fn install(skills: &Skills, from: &Path) -> Result<String> {
    let from = from.canonicalize().doing(format_args!("opening {}", from.display()))?;
    let name = from.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if !is_a_name(&name) {
        return Err(Error::failed(format!("\"{}\" cannot be a skill's name", one_line(&name, 64)))
            .hint("the folder's name is the skill's: lower-case letters, digits and single hyphens"));
    }
    if !from.join("SKILL.md").is_file() {
        return Err(Error::failed(format!("{} has no SKILL.md", from.display())).hint("name the folder of one skill"));
    }
    let mut files = Vec::new();
    list(&from, Path::new(""), &mut files)?;
    let to = skills.dir().join(&name);
    if to.symlink_metadata().is_ok() {
        let hint = format!("bantam skills remove {name}, then install it again");
        return Err(Error::failed(format!("there is a skill called {name} already")).hint(hint));
    }
    sweep(skills)?;
    let new = format!(".{name}.new");
    let copied =
        copy(&from, &skills.dir(), &new, &files).and_then(|()| disk::rename_new(&skills.dir().join(&new), &to));
    if !matches!(copied, Ok(true)) {
        disk::remove(&skills.dir().join(&new))?;
    }
    if copied? { Ok(name) } else { Err(Error::failed(format!("something stands in the way of {name}"))) }
}

/// Removes what was on its way when a program died.
fn sweep(skills: &Skills) -> Result<()> {
    for entry in fs_err::read_dir(skills.dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let under_way = name.strip_suffix(".new").or(name.strip_suffix(".old"));
        if under_way.is_some_and(|name| name.starts_with('.')) {
            disk::remove(&entry.path())?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, name: &str, files: &[PathBuf]) -> Result<()> {
    let held = Dir::open(from)?;
    let mut left = MOST_BYTES;
    for path in files {
        use std::os::unix::fs::PermissionsExt;
        // It may be another file by now: no links, no pipes.
        let mut file = held.read(path, path, Links::Refuse)?;
        let runs = if file.metadata()?.permissions().mode() & 0o100 == 0 { Access::ReadWrite } else { Access::Execute };
        match copy_new(to, &Path::new(name).join(path), &mut file, runs, left)? {
            CopyOutcome::Created(bytes) => left -= bytes,
            CopyOutcome::TooLarge => {
                return Err(Error::failed(format!("the skill is larger than {} MiB", MOST_BYTES >> 20)));
            }
            CopyOutcome::Exists | CopyOutcome::Blocked => {
                return Err(Error::failed(format!("something stands in the way of {}", path.display())));
            }
        }
    }
    disk::sync_all(to)
}

/// Every file below `from`, by its path from there.
fn list(from: &Path, dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if dir.components().count() > DEEPEST {
        return Err(Error::failed(format!("{} is too deep in the skill", dir.display())));
    }
    let mut names: Vec<OsString> = Vec::new();
    for entry in fs_err::read_dir(from.join(dir))? {
        names.push(entry?.file_name());
    }
    names.sort_unstable();
    for name in names.into_iter().filter(|name| name != ".git") {
        let path = dir.join(name);
        let kind = fs_err::symlink_metadata(from.join(&path))?.file_type();
        if kind.is_dir() {
            list(from, &path, files)?;
        } else if kind.is_file() {
            files.push(path);
        } else {
            return Err(Error::failed(format!("{} is a link, a pipe or a device: skills hold files", path.display())));
        }
        if files.len() > MOST_FILES {
            return Err(Error::failed(format!("the skill has more than {MOST_FILES} files")));
        }
    }
    Ok(())
}

/// Takes a skill away, with all its files. The caller holds a lock.
pub fn remove(skills: &Skills, name: &str) -> Result<()> {
    let dir = skills.dir().join(name);
    if !is_a_name(name) || dir.symlink_metadata().is_err() {
        let hint = "bantam skills list has their names";
        return Err(Error::failed(format!("there is no skill called \"{}\" to remove", one_line(name, 64))).hint(hint));
    }
    sweep(skills)?;
    let old = skills.dir().join(format!(".{name}.old"));
    disk::rename_new(&dir, &old)?;
    disk::remove(&old)
}
