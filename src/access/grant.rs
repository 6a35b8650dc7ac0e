//! Directories of the host that tools may access.
//!
//! Links to a directory are followed once, when the configuration is loaded. Calls open the directory found then, without
//! following links.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, readlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::beneath::{MAX_LINKS, explain, open_straight};
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Access {
    Read,
    Write,
}

/// A directory or file that calls may use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// Absolute path, as configured.
    pub path: PathBuf,
    /// Same path without symbolic links.
    pub real: PathBuf,
    pub access: Access,
}

impl Grant {
    /// Returns a grant of a path without links.
    pub(crate) fn at(path: PathBuf, access: Access) -> Self {
        let real = path.clone();
        Self { path, real, access }
    }

    /// Returns the path relative to the grant, if it is in it.
    pub(crate) fn below<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let mut own = [&self.path, &self.real].into_iter();
        own.find_map(|own| path.strip_prefix(own).ok())
    }

    /// Opens the grant. `None` if it is missing or inaccessible.
    ///
    /// # Errors
    /// Returns an error if its path now contains a link.
    pub(crate) fn open(&self) -> Result<Option<OwnedFd>> {
        match open_straight(&self.real) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(None),
            Err(Errno::LOOP) => Err(Error::config(format!(
                "{} is, or goes through, a link that was not there before",
                self.real.display()
            ))),
            Err(e) => Err(explain(e, &self.real)),
        }
    }
}

/// Target of a path, and the links on the way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resolved {
    pub real: PathBuf,
    pub links: Vec<PathBuf>,
}

impl Resolved {
    /// Follows an absolute path.
    pub(crate) fn follow(path: &Path) -> Self {
        Self::below("/".as_ref(), path)
    }

    /// Follows a path from a directory whose own path has no links. Missing components remain as they are.
    pub(super) fn below(from: &Path, path: &Path) -> Self {
        let mut left = reversed(path);
        let mut here = Self {
            real: from.to_owned(),
            links: Vec::new(),
        };
        while let Some(name) = left.pop() {
            if name == ".." {
                here.real.pop();
                continue;
            }
            let at = here.real.join(name);
            match readlinkat(CWD, &at, Vec::new()) {
                Ok(target) if here.links.len() < MAX_LINKS => {
                    let target = Path::new(OsStr::from_bytes(target.to_bytes()));
                    if target.is_absolute() {
                        here.real = "/".into();
                    }
                    left.extend(reversed(target));
                    here.links.push(at);
                }
                _ => here.real = at,
            }
        }
        here
    }
}

/// The names in a path, the last one first.
fn reversed(path: &Path) -> Vec<OsString> {
    let names = path
        .components()
        .rev()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_is_followed_and_its_links_are_told() {
        let root = TestDir::new();
        std::fs::create_dir_all(root.join("dir/deep")).unwrap();
        let at = |path: &str| root.join(path);
        symlink("dir", at("relative")).unwrap();
        symlink(at("relative/deep"), at("absolute")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for (path, real, links) in [
            ("dir/deep", "dir/deep", &[][..]),
            ("dir/../dir//deep/.", "dir/deep", &[]),
            ("relative/deep", "dir/deep", &["relative"]),
            ("absolute/../x/y", "dir/x/y", &["absolute", "relative"]),
        ] {
            let links = links.iter().map(|link| at(link)).collect();
            assert_eq!(
                Resolved::follow(&at(path)),
                Resolved {
                    real: at(real),
                    links
                },
                "{path}"
            );
        }
        assert_eq!(Resolved::follow(&at("loop")).links.len(), MAX_LINKS);
        let grant = Grant::at(at("dir"), Access::Write);
        let none = Grant::at(at("none"), Access::Read);
        assert!(grant.open().unwrap().is_some() && none.open().unwrap().is_none());
        std::fs::rename(at("dir"), at("old")).unwrap();
        symlink("old", at("dir")).unwrap();
        assert!(grant.open().unwrap_err().message.contains("a link"));
    }
}
