//! Installs and removes skills.
//!
//! A skill that is being installed or removed has a name that starts with a dot, and one rename makes it visible or hidden, so
//! that a crash leaves a whole skill or none. The next installation or removal deletes the leftovers.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{FILES, NAME_RULE, Skills, description, file_in, front, is_valid_name};
use crate::access::{Dir, Links};
use crate::error::{Context, Error, Result};
use crate::storage::{self, copy_new};
use crate::text::{counted, not_found, size, to_single_line};

/// Limits of a skill, which is untrusted.
const MAX_FILES: usize = 500;
const MAX_BYTES: u64 = 10 << 20;
const MAX_DEPTH: usize = 6;
/// Maximum depth of a skill in a folder of skills.
const MAX_LEVELS: usize = 5;
/// Extensions of scripts.
const SCRIPTS: [&str; 8] = ["sh", "py", "js", "ts", "mjs", "rb", "pl", "bash"];

/// A skill that can be installed.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub name: String,
    pub folder: PathBuf,
    pub description: String,
    /// Its scripts, by path in the folder, and the paths of all its files.
    pub scripts: Vec<String>,
    pub files: Vec<PathBuf>,
    pub bytes: u64,
    /// A link, a pipe or a device, or a directory that is nested too deeply.
    odd: Option<PathBuf>,
}

/// Returns the skills in a folder: either the folder itself, or the skills in it. `called` is the name of a fetched skill at
/// the top that does not name itself; other skills have the name of their folder.
///
/// # Errors
/// Returns an error if the folder has no skill, or a skill that cannot be installed.
pub(crate) fn candidates(from: &Path, called: Option<&str>) -> Result<Vec<Candidate>> {
    if file_in(from).is_some() {
        return Ok(vec![Candidate::read(from, called)?]);
    }
    let mut found = Vec::new();
    let mut left = vec![(from.to_owned(), 0)];
    while let Some((dir, level)) = left.pop() {
        for entry in fs_err::read_dir(&dir)?.flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if !is_folder || is_hidden {
                continue;
            }
            if file_in(&entry.path()).is_some() {
                found.push(entry.path());
            } else if level < MAX_LEVELS {
                left.push((entry.path(), level + 1));
            }
        }
    }
    found.sort_unstable();
    found
        .iter()
        .map(|folder| Candidate::read(folder, None))
        .collect()
}

impl Candidate {
    fn read(folder: &Path, called: Option<&str>) -> Result<Self> {
        let file = file_in(folder).unwrap_or(FILES[0]);
        let text = Dir::open(folder)?.read_untrusted(file)?.unwrap_or_default();
        let (fields, body) = front::split(&text).doing(folder.display())?;
        let own = fields.get("name").and_then(Value::as_str);
        let own = own.unwrap_or_default().trim();
        let name = match (called, folder.file_name()) {
            (Some(_), _) if is_valid_name(own) => own.to_owned(),
            (Some(called), _) => called.to_owned(),
            (None, Some(name)) => name.to_string_lossy().into_owned(),
            (None, None) => String::new(),
        };
        let mut candidate = Self {
            name,
            folder: folder.to_owned(),
            description: description(&fields, body, 300),
            scripts: Vec::new(),
            files: Vec::new(),
            bytes: 0,
            odd: None,
        };
        candidate.list(Path::new(""))?;
        Ok(candidate)
    }

    /// Lists the contents of `dir`, a directory in the folder.
    fn list(&mut self, dir: &Path) -> Result<()> {
        for entry in fs_err::read_dir(self.folder.join(dir))?.flatten() {
            let path = dir.join(entry.file_name());
            let meta = fs_err::symlink_metadata(entry.path())?;
            if entry.file_name() == ".git" {
                continue;
            }
            if meta.is_dir() && path.components().count() <= MAX_DEPTH {
                self.list(&path)?;
            } else if meta.is_file() {
                self.bytes += meta.len();
                let end = path.extension().and_then(OsStr::to_str);
                let is_script = end.is_some_and(|end| SCRIPTS.contains(&end));
                if is_script || meta.permissions().mode() & 0o100 != 0 {
                    self.scripts
                        .push(to_single_line(&path.to_string_lossy(), 100));
                }
                self.files.push(path);
            } else {
                self.odd = Some(path);
            }
        }
        Ok(())
    }

    /// Describes the skill for the user who decides about it.
    pub(crate) fn describe(&self) -> String {
        let scripts = match self.scripts.as_slice() {
            [] => "none".to_owned(),
            scripts => to_single_line(&scripts.join(", "), 400),
        };
        format!(
            "{}: {}\n  scripts: {scripts}\n  size: {} in {}",
            to_single_line(&self.name, 64),
            self.description,
            size(self.bytes),
            counted(self.files.len(), "file")
        )
    }
}

/// Copies a skill, and returns its name. Refuses links, skips `.git`, runs nothing. The caller owns a lock.
pub(crate) fn install(skills: &Skills, skill: &Candidate) -> Result<String> {
    let name = &skill.name;
    if !is_valid_name(name) {
        return Err(Error::failed(format!(
            "invalid skill name \"{}\"",
            to_single_line(name, 64)
        ))
        .hint(NAME_RULE));
    }
    if skill.files.len() > MAX_FILES || skill.bytes > MAX_BYTES {
        return Err(Error::failed(format!(
            "the skill {name} has {} and {}: the limits are {MAX_FILES} files and {}",
            counted(skill.files.len(), "file"),
            size(skill.bytes),
            size(MAX_BYTES)
        )));
    }
    if let Some(odd) = &skill.odd {
        let what =
            "a link, a pipe or a device, or nested too deeply: a skill may contain only files";
        return Err(Error::failed(format!("{} is {what}", odd.display())));
    }
    let to = skills.dir().join(name);
    if to.symlink_metadata().is_ok() {
        let hint = format!("bantam skills remove {name}, then install it again");
        return Err(Error::failed(format!("the skill {name} exists already")).hint(hint));
    }
    clean_up(skills)?;
    let new = format!(".{name}.new");
    let path = skills.dir().join(&new);
    let copied = copy(skill, &skills.dir(), new.as_ref());
    if let Err(e) = copied.and_then(|()| storage::sync_all(&skills.dir())) {
        storage::remove(&path)?;
        return Err(e);
    }
    storage::rename_new(&path, &to)?;
    Ok(name.clone())
}

/// Copies the files of a skill into `to`, under this name.
fn copy(skill: &Candidate, to: &Path, name: &Path) -> Result<()> {
    let from = Dir::open(&skill.folder)?;
    for path in &skill.files {
        // The file may have been replaced by a link or a pipe since it was listed.
        let mut file = from.read(path, path, Links::Refuse)?;
        let meta = file.metadata()?;
        let mode = match meta.permissions().mode() & 0o100 {
            0 => storage::PLAIN,
            _ => storage::PROGRAM,
        };
        copy_new(to, &name.join(path), &mut file, mode)?;
    }
    Ok(())
}

/// Deletes the leftovers of a crash.
fn clean_up(skills: &Skills) -> Result<()> {
    for entry in fs_err::read_dir(skills.dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') && (name.ends_with(".new") || name.ends_with(".old")) {
            storage::remove(&entry.path())?;
        }
    }
    Ok(())
}

pub(crate) fn unknown(skills: &Skills, name: &str) -> Error {
    let found = skills.all().skills;
    let known = found.iter().map(|skill| skill.name.as_str());
    not_found("skill", name, known, "bantam skills list")
}

/// Deletes a skill with all its files. The caller owns a lock.
pub(crate) fn remove(skills: &Skills, name: &str) -> Result<()> {
    let dir = skills.dir().join(name);
    if !is_valid_name(name) || dir.symlink_metadata().is_err() {
        return Err(unknown(skills, name));
    }
    clean_up(skills)?;
    let old = skills.dir().join(format!(".{name}.old"));
    storage::rename_new(&dir, &old)?;
    storage::remove(&old)
}
