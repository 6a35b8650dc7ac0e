//! What all jobs with files share: the trees they may touch, which of them a path is in, and who does which job.

mod edit;
mod encoding;
mod grep;
pub mod notes;
mod read;
mod replace;

use std::path::{Path, PathBuf};

use crate::wire::{FileJob, Header, Reply, Setup};

use crate::beneath::{self, Dir};
use crate::error::{Error, Result};

/// The kernel's limit on a path (`PATH_MAX`), its NUL included.
const LONGEST_PATH: usize = 4096;

/// What a job does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Read,
    Write,
}

/// The trees that file jobs may touch, each held by a handle. The workspace is the first.
pub struct Trees {
    trees: Vec<Tree>,
    /// Where the user has opened everything. Any other tree that holds a path comes first.
    all: Option<Tree>,
}

struct Tree {
    root: PathBuf,
    dir: Dir,
    /// The most that may be done in it.
    most: Access,
}

/// A path within a tree.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The held root of the tree.
    pub tree: &'a Dir,
    /// From there; never empty.
    pub path: &'a Path,
    /// As it was asked for: what people and models are told.
    pub asked: &'a Path,
}

impl Trees {
    /// `workspace` is held already. Any other tree that cannot be opened is left out: its files do not exist then.
    pub fn open(workspace: Dir, setup: &Setup) -> Self {
        let reach = setup.reach();
        let workspace = workspace.reaching(reach.clone());
        let mut trees = vec![Tree { root: setup.workspace.clone(), dir: workspace, most: Access::Write }];
        let write = setup.write_paths.iter().map(|root| (root.as_path(), Access::Write));
        for (root, most) in write.chain(setup.look().map(|root| (root, Access::Read))) {
            if let Ok(dir) = Dir::open(root) {
                trees.push(Tree { root: root.to_owned(), dir, most });
            }
        }
        let all = setup.all_except.as_ref().and_then(|_| Dir::open("/".as_ref()).ok());
        let all = all.map(|dir| Tree { root: "/".into(), dir: dir.reaching(reach), most: Access::Write });
        Self { trees, all }
    }

    /// The first of the trees.
    pub fn workspace(&self) -> &Dir {
        &self.trees[0].dir
    }

    /// Which tree `path` is in, for this access. It says nothing about links: opening it beneath the tree does.
    pub fn find<'a>(&'a self, path: &'a str, access: Access) -> Result<Target<'a>> {
        if path.contains('\0') {
            return Err(Error::failed("the path contains a NUL byte"));
        }
        if path.len() >= LONGEST_PATH {
            return Err(Error::failed(format!("the path is too long: {} bytes", path.len())));
        }
        let asked = Path::new(if path.is_empty() { "." } else { path });
        if asked.is_relative() {
            let tree = self.trees.first().ok_or_else(|| Error::failed("there is no workspace"))?;
            return Ok(Target { tree: &tree.dir, path: asked, asked });
        }
        // Of trees within each other the outermost: a root inside of a tree that can be changed may have become a link.
        let holding = self.trees.iter().filter_map(|tree| Some((tree, asked.strip_prefix(&tree.root).ok()?)));
        let allowed = holding.clone().filter(|(tree, _)| tree.most >= access);
        let found = allowed.min_by_key(|(tree, _)| tree.root.components().count());
        let anywhere = || self.all.as_ref().map(|tree| (tree, asked));
        let Some((tree, below)) = found.or_else(anywhere) else {
            return Err(if holding.count() == 0 {
                beneath::explain(rustix::io::Errno::XDEV, asked)
            } else {
                Error::failed(format!("{} may only be read", asked.display()))
            });
        };
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        Ok(Target { tree: &tree.dir, path: below, asked })
    }
}

/// Does a job. `hung_up` tells whether the caller has gone, so that a long one can end early.
pub fn perform(trees: &Trees, job: &FileJob, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    match job {
        FileJob::ListDir { path, depth } => read::list_dir(trees.find(path, Access::Read)?, depth.unwrap_or(1)),
        FileJob::ReadFile { path, offset, limit } => {
            read::read_file(trees.find(path, Access::Read)?, offset.unwrap_or(1), *limit, hung_up)
        }
        FileJob::TakeFile(part) => edit::take_file(trees, part),
        FileJob::GiveFile { path, offset, most } => read::give_file(trees.find(path, Access::Read)?, *offset, *most),
        FileJob::Grep { pattern, path, glob, max } => {
            let search = grep::Search::new(pattern, glob.as_deref().unwrap_or_default(), *max)?;
            search.run(trees.find(path.as_deref().unwrap_or("."), Access::Read)?, hung_up)
        }
        FileJob::WriteFile { path, content } => edit::write_file(trees.find(path, Access::Write)?, content, hung_up),
        FileJob::AppendFile { path, content } => edit::append_file(trees.find(path, Access::Write)?, content, hung_up),
        FileJob::EditFile { path, old_text, new_text, replace_all } => {
            let change = replace::Change { old: old_text, new: new_text, all: replace_all.unwrap_or(false) };
            edit::edit_file(trees.find(path, Access::Write)?, &change, hung_up)
        }
        FileJob::Memory { ask, now } => notes::perform(trees.workspace(), ask, now, hung_up),
    }
}

/// A reply of text.
pub(super) fn text(text: impl Into<Vec<u8>>) -> Reply {
    Reply { header: Header::Text, body: text.into() }
}

/// A name or path in one line of a listing: control characters, a line feed above all, are written as escapes.
pub(super) fn shown(name: &str) -> String {
    name.chars().fold(String::new(), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::Network;
    use crate::hands::Confinement;

    #[test]
    fn a_path_is_in_the_outermost_tree_that_allows_it_and_in_none_that_only_sounds_alike() {
        let root = std::env::temp_dir().join(format!("bantam-trees-{}", std::process::id()));
        for tree in ["work", "open/closed", "closed/open"] {
            std::fs::create_dir_all(root.join(tree)).unwrap();
        }
        let at = |below: &str| root.join(below);
        let setup = Setup {
            way: Confinement::Unconfined,
            network: Network::None,
            agent_dir: None,
            workspace: at("work"),
            read_paths: vec![at("open/closed"), at("closed"), at("not/there")],
            write_paths: vec![at("open"), at("closed/open")],
            all_except: None,
            memory_mb: 0,
        };
        let trees = Trees::open(Dir::open(&setup.workspace).unwrap(), &setup);
        for (path, access, comes_to) in [
            (at("work"), Access::Write, Some(".")),
            (at("work/"), Access::Read, Some(".")),
            (at("work//a/./b"), Access::Write, Some("a/b")),
            (at("work/../secret"), Access::Read, Some("../secret")),
            ("a/b".into(), Access::Write, Some("a/b")),
            ("".into(), Access::Read, Some(".")),
            // The root of the inner tree may be a link by now: it is looked up beneath the outer one.
            (at("open/closed/a"), Access::Read, Some("closed/a")),
            (at("open/closed/a"), Access::Write, Some("closed/a")),
            (at("closed/open/a"), Access::Read, Some("open/a")),
            (at("closed/open/a"), Access::Write, Some("a")),
            (at("closed/a"), Access::Write, None),
            (at("worker/a"), Access::Read, None),
            (at("not/there/a"), Access::Read, None),
            ("/".into(), Access::Read, None),
        ] {
            let path = path.to_str().unwrap();
            let found = trees.find(path, access).ok();
            assert_eq!(found.map(|target| target.path), comes_to.map(Path::new), "{path} for {access:?}");
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
