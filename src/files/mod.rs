//! The file tools. They run inside a confined process; this file finds the tree of a path and dispatches a job.

mod atomic;
mod edit;
mod glob;
mod grep;
mod incoming;
mod lines;
mod list;
pub(crate) mod notes;
mod ranking;
mod read;
mod replace;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rustix::fs::fstat;
use rustix::io::Errno;

use crate::beneath::{self, Dir, Links, Reach};
use crate::error::{Error, Result};
use crate::jail;
use crate::wire::{FileJob, Header, Reply, Setup};

/// The kernel's limit on a path, its NUL included.
const PATH_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The trees that file jobs may touch, each held by a handle. The workspace is the first.
pub(crate) struct Trees {
    trees: Vec<Tree>,
    /// `/`, where the user has opened everything. Any other tree that holds a path takes precedence.
    root: Option<Tree>,
}

struct Tree {
    path: PathBuf,
    dir: Dir,
    access: Access,
}

/// A path within a tree.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) tree: &'a Dir,
    /// Relative to the tree; never empty.
    pub(crate) path: &'a Path,
    /// As the caller wrote it, for messages.
    pub(crate) asked: &'a Path,
}

impl Target<'_> {
    fn open(&self, links: Links) -> Result<fs_err::File> {
        self.tree.read(self.path, self.asked, links)
    }

    fn error(&self, e: Errno) -> Error {
        beneath::explain(e, self.asked)
    }
}

impl Trees {
    /// A configured tree that cannot be opened is left out: its files do not exist then.
    pub(crate) fn open(workspace: Dir, setup: &Setup) -> Self {
        let mut trees = vec![Tree { path: setup.workspace.clone(), dir: workspace, access: Access::Write }];
        let write = setup.write_paths.iter().map(|path| (path.as_path(), Access::Write));
        for (path, access) in write.chain(setup.readable_trees().map(|path| (path, Access::Read))) {
            trees.extend(Dir::open(path).ok().map(|dir| Tree { path: path.to_owned(), dir, access }));
        }
        let Some(home) = &setup.all_except else { return Self { trees, root: None } };
        let reach = reach(setup, home, &trees);
        trees[0].dir.set_reach(reach.clone());
        let root = Dir::open("/".as_ref()).ok().map(|mut dir| {
            dir.set_reach(reach);
            Tree { path: "/".into(), dir, access: Access::Write }
        });
        Self { trees, root }
    }

    pub(crate) fn workspace(&self) -> &Dir {
        &self.trees[0].dir
    }

    pub(crate) fn writable(&self) -> impl Iterator<Item = &Dir> {
        self.trees.iter().filter(|tree| tree.access == Access::Write).map(|tree| &tree.dir)
    }

    /// Finds the tree that holds `path` and grants `access`. Links are not looked at here: opening beneath the tree does.
    pub(crate) fn find<'a>(&'a self, path: &'a str, access: Access) -> Result<Target<'a>> {
        if path.len() >= PATH_MAX {
            return Err(Error::failed(format!("the path is too long: {} bytes", path.len())));
        }
        let asked = Path::new(if path.is_empty() { "." } else { path });
        if asked.is_relative() {
            return Ok(Target { tree: self.workspace(), path: asked, asked });
        }
        let holding = self.trees.iter().filter_map(|tree| Some((tree, asked.strip_prefix(&tree.path).ok()?)));
        // The outermost: the root of a tree within a writable one may have been replaced by a link.
        let granting = holding.clone().filter(|(tree, _)| tree.access >= access);
        let found = granting.min_by_key(|(tree, _)| tree.path.components().count());
        let Some((tree, below)) = found.or_else(|| self.root.as_ref().map(|tree| (tree, asked))) else {
            return Err(if holding.count() == 0 {
                beneath::explain(Errno::XDEV, asked)
            } else {
                Error::failed(format!("{} is read-only", asked.display()))
            });
        };
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        Ok(Target { tree: &tree.dir, path: below, asked })
    }
}

/// How far a path leads where the user has opened everything but bantam's home.
fn reach(setup: &Setup, home: &Path, trees: &[Tree]) -> Reach {
    if !setup.confinement.is_sandboxed() {
        let open = setup.workspace.canonicalize().unwrap_or_else(|_| setup.workspace.clone());
        return Reach::Except { closed: home.to_owned(), open };
    }
    // The jail leaves the home out itself. A tree that the configuration opens may cover what the jail made.
    let opened: Vec<u64> = trees.iter().filter_map(|tree| Some(fstat(&tree.dir).ok()?.st_dev)).collect();
    let mut replaced = jail::scratch_devices(setup.confinement);
    replaced.retain(|device| !opened.contains(device));
    Reach::Everywhere { replaced }
}

/// Does one job. `hung_up` says whether the caller has gone, which ends a long read early.
pub(crate) fn perform(trees: &Trees, job: &FileJob, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    match job {
        FileJob::ListDir { path, depth } => list::list_dir(trees.find(path, Access::Read)?, depth.unwrap_or(1)),
        FileJob::ReadFile { path, offset, limit } => {
            read::read_file(trees.find(path, Access::Read)?, offset.unwrap_or(1), *limit, hung_up)
        }
        FileJob::TakeFile(part) => incoming::take_file(trees, part),
        FileJob::GiveFile { path, offset, most } => read::give_file(trees.find(path, Access::Read)?, *offset, *most),
        FileJob::Grep { pattern, path, glob, max } => {
            let target = trees.find(path.as_deref().unwrap_or("."), Access::Read)?;
            grep::grep(target, pattern, glob.as_deref(), *max, hung_up)
        }
        FileJob::WriteFile { path, content } => edit::write_file(trees.find(path, Access::Write)?, content),
        FileJob::AppendFile { path, content } => edit::append_file(trees.find(path, Access::Write)?, content),
        FileJob::EditFile { path, old_text, new_text, replace_all } => {
            edit::edit_file(trees.find(path, Access::Write)?, old_text, new_text, replace_all.unwrap_or(false))
        }
        FileJob::Memory { request, now } => notes::perform(trees.workspace(), request, now, hung_up),
    }
}

fn text_reply(text: impl Into<Vec<u8>>) -> Reply {
    Reply { header: Header::Text, body: text.into() }
}

/// A name or path on one line: control characters become escapes.
fn escape_controls(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}
