//! The trees of the host that tools may reach.
//!
//! Links that lead to one are followed when the configuration is loaded, and never again: a call opens the place that was
//! found then, through no link, and makes sure that it is still what it was when the turn first used it.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, fstat, readlinkat};
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tree {
    /// As the configuration has it; absolute.
    pub path: PathBuf,
    /// The same place without symbolic links.
    pub real: PathBuf,
    pub access: Access,
    /// Device and inode, once it was used.
    pub id: Option<(u64, u64)>,
}

impl Tree {
    /// A tree at a path that has no links.
    pub(crate) fn at(path: PathBuf, access: Access) -> Self {
        Self {
            real: path.clone(),
            path,
            access,
            id: None,
        }
    }

    /// The tree, held. `None` if there is none, or none that this process may reach.
    ///
    /// # Errors
    /// A link has come into its path, or something else has taken its place.
    pub(crate) fn open(&self) -> Result<Option<OwnedFd>> {
        let path = self.real.display();
        match self.open_known() {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(None),
            Err(Errno::LOOP) => Err(Error::config(format!(
                "{path} is, or goes through, a link that was not there before"
            ))),
            Err(Errno::STALE) => Err(Error::config(format!(
                "{path} was replaced while it was in use"
            ))),
            Err(e) => Err(explain(e, &self.real)),
        }
    }

    /// The same tree, known by its device and inode from now on.
    pub(crate) fn identified(&self) -> Result<Self> {
        let id = self
            .open()?
            .map(|fd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)))
            .transpose()?;
        Ok(Self { id, ..self.clone() })
    }

    fn open_known(&self) -> Result<OwnedFd, Errno> {
        let fd = open_straight(&self.real)?;
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
        let is_other = self
            .id
            .is_some_and(|known| known != (stat.st_dev, stat.st_ino));
        if is_other { Err(Errno::STALE) } else { Ok(fd) }
    }
}

/// Where a path leads, and the links on its way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resolved {
    pub real: PathBuf,
    pub links: Vec<PathBuf>,
}

impl Resolved {
    /// Follows an absolute path.
    pub(crate) fn of(path: &Path) -> Self {
        Self::straight(path).unwrap_or_else(|_| {
            let root = Self {
                real: "/".into(),
                links: Vec::new(),
            };
            root.join(path)
        })
    }

    /// A path without links: one call, in place of one for each name.
    fn straight(path: &Path) -> Result<Self, Errno> {
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(Errno::LOOP);
        }
        open_straight(path)?;
        Ok(Self {
            real: path.components().collect(),
            links: Vec::new(),
        })
    }

    /// Follows a path from here. Of one that leads nowhere, the part that exists is followed.
    pub(crate) fn join(&self, path: &Path) -> Self {
        let mut left = reversed(path);
        let mut here = self.clone();
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
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_is_followed_and_its_links_are_told() {
        let root = std::env::temp_dir().join(format!("bantam-tree-{}", std::process::id()));
        std::fs::create_dir_all(root.join("dir/deep")).unwrap();
        let root = root.canonicalize().unwrap();
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
                Resolved::of(&at(path)),
                Resolved {
                    real: at(real),
                    links
                },
                "{path}"
            );
        }
        assert_eq!(Resolved::of(&at("loop")).links.len(), MAX_LINKS);
        let tree = Tree::at(at("dir"), Access::Write).identified().unwrap();
        assert!(
            tree.open().unwrap().is_some()
                && Tree::at(at("none"), Access::Read).open().unwrap().is_none()
        );
        std::fs::rename(at("dir"), at("old")).unwrap();
        symlink("old", at("dir")).unwrap();
        assert!(tree.open().unwrap_err().message.contains("a link"));
        std::fs::remove_file(at("dir")).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        assert!(tree.open().unwrap_err().message.contains("was replaced"));
        std::fs::remove_dir_all(root).unwrap();
    }
}
