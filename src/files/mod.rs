//! The file tools. They run in a confined process; this module finds the grant of a path and dispatches a job.

mod atomic;
mod edit;
mod glob;
mod grep;
mod incoming;
mod lines;
mod list;
mod names;
pub(crate) mod notes;
mod read;
mod replace;
mod text;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub(crate) use atomic::random_name;
use names::existing;

use crate::access::{self, Access, Dir, Grant, Links, NEVER_OPEN, Scope};
use crate::error::{Error, Result};
use crate::paths::of_user;
use crate::worker::protocol::{FileAction, FileJob, Header, Reply, Setup};

/// The kernel's limit on a path, including its NUL.
const PATH_MAX: usize = 4096;

/// Open handles of the grants for file jobs. The workspace is the first.
pub(crate) struct OpenGrants {
    held: Vec<OpenGrant>,
    /// `/`, if the user has opened everything. Grants that contain a path take precedence.
    root: Option<Dir>,
    /// The user's home, for paths that start with `~`.
    user_home: Option<String>,
    /// All mount points, in these grants and elsewhere.
    mount_points: Vec<String>,
}

struct OpenGrant {
    grant: Grant,
    dir: Dir,
}

/// A path within a grant.
pub(crate) struct Target<'a> {
    pub(crate) dir: &'a Dir,
    /// Path relative to the directory, with the names that exist.
    pub(crate) path: PathBuf,
    /// Path as the caller wrote it, for messages.
    pub(crate) asked: &'a Path,
}

impl Target<'_> {
    fn open(&self, links: Links) -> Result<fs_err::File> {
        self.dir.read(&self.path, self.asked, links)
    }

    fn error(&self, e: Errno) -> Error {
        access::explain(e, self.asked)
    }
}

impl OpenGrants {
    /// Opens the grants. One that cannot be opened is left out, as if its files were missing.
    pub(crate) fn open(workspace: Dir, setup: &Setup, mount_points: Vec<String>) -> Result<Self> {
        let held = |grant: &Grant, dir| OpenGrant {
            grant: grant.clone(),
            dir,
        };
        // Without a sandbox that hides the home, only the grants are open.
        let is_anywhere = setup.policy.all_except.is_some() && setup.confinement.is_sandboxed();
        let (workspace, root) = if is_anywhere {
            let root = Dir::open("/".as_ref())?.with_scope(Scope::Anywhere);
            (workspace.with_scope(Scope::Anywhere), Some(root))
        } else {
            (workspace, None)
        };
        let mut grants = vec![held(&setup.policy.workspace, workspace)];
        for grant in &setup.policy.grants {
            grants.extend(grant.open()?.map(|fd| held(grant, fd.into())));
        }
        Ok(Self {
            held: grants,
            root,
            user_home: setup.policy.user_home.clone(),
            mount_points,
        })
    }

    pub(crate) fn workspace(&self) -> &Dir {
        &self.held[0].dir
    }

    /// Returns handles of the writable grants, and of the file systems mounted in them.
    pub(crate) fn writable(&self) -> impl Iterator<Item = OwnedFd> {
        let writable = self.held.iter();
        let writable = writable.filter(|held| held.grant.access == Access::Write);
        let mounted = self.mount_points.iter().filter_map(|point| {
            let Target { dir, path, .. } = self.find(point, Access::Write).ok()?;
            dir.open_at(&path, OFlags::PATH, Mode::empty(), Links::Refuse)
                .ok()
        });
        writable
            .filter_map(|held| held.dir.as_fd().try_clone_to_owned().ok())
            .chain(mounted)
    }

    /// Finds the grant that contains `path` and allows `access`. Links are checked when the path is opened beneath it.
    pub(crate) fn find<'a>(&'a self, path: &'a str, access: Access) -> Result<Target<'a>> {
        if path.len() >= PATH_MAX {
            return Err(Error::failed(format!(
                "the path is too long: {} bytes",
                path.len()
            )));
        }
        let asked = Path::new(if path.is_empty() { "." } else { path });
        let full = of_user(path, self.user_home.as_ref());
        let target = |dir, below: &Path| Target {
            dir,
            path: existing(dir, below),
            asked,
        };
        if full.is_relative() {
            return Ok(target(self.workspace(), asked));
        }
        let below = |held: &'a OpenGrant| Some((held, held.grant.below(&full)?));
        let holding = || self.held.iter().filter_map(below);
        let mut granting = holding().filter(|(held, _)| held.grant.access >= access);
        match (granting.next(), &self.root) {
            (Some((held, below)), _) => Ok(target(&held.dir, below)),
            (None, Some(root)) => Ok(target(root, &full)),
            (None, None) if holding().next().is_none() => Err(access::explain(Errno::XDEV, asked)),
            (None, None) => Err(Error::failed(format!("{} is read-only", asked.display()))),
        }
    }

    /// Explains that a file is missing because the sandbox hides it, although everything is open.
    fn explain(&self, job: &FileJob, e: Error) -> Error {
        let path = &*job.path;
        let full = of_user(path, self.user_home.as_ref());
        let is_missing = access::explain(Errno::NOENT, Path::new(path)).message == e.message;
        let is_closed = NEVER_OPEN.iter().any(|closed| full.starts_with(closed));
        if self.root.is_none() || !is_missing || !is_closed {
            return e;
        }
        let closed = NEVER_OPEN.join(", ");
        Error::failed(format!("{path} is out of reach: tools never see {closed}"))
    }
}

/// Does one job. A file sent unchanged goes to `output`, because it may be large.
pub(crate) fn perform(grants: &OpenGrants, job: &FileJob, output: &mut dyn Write) -> Result<Reply> {
    let done = perform_one(grants, job, output);
    done.map_err(|e| grants.explain(job, e))
}

fn perform_one(grants: &OpenGrants, job: &FileJob, output: &mut dyn Write) -> Result<Reply> {
    let at = |access| grants.find(&job.path, access);
    match &job.action {
        FileAction::ListDir { depth } => list::list_dir(&at(Access::Read)?, depth.unwrap_or(1)),
        FileAction::ReadFile(range) => read::read_file(&at(Access::Read)?, range),
        FileAction::TakeFile { name } => incoming::take_file(grants, job, name),
        FileAction::PutBack { state, was_there } => {
            let content = was_there.then_some(&*job.content);
            edit::put_back(&at(Access::Write)?, state, content)
        }
        FileAction::SendFile { most } => read::send_file(&at(Access::Read)?, *most, output),
        FileAction::Grep { pattern, glob, max } => {
            grep::grep(&at(Access::Read)?, pattern, glob.as_deref(), *max)
        }
        FileAction::WriteFile { content, shown } => {
            edit::write_file(&at(Access::Write)?, content, shown.as_deref())
        }
        FileAction::AppendFile { content } => edit::append_file(&at(Access::Write)?, content),
        FileAction::EditFile {
            old_text,
            new_text,
            replace_all,
        } => edit::edit_file(
            &at(Access::Write)?,
            [old_text, new_text],
            *replace_all == Some(true),
        ),
        FileAction::RemoveFile => edit::remove_file(&at(Access::Write)?),
        FileAction::Passages => notes::passages(grants.workspace()),
    }
}

fn text_reply(text: impl Into<Vec<u8>>) -> Reply {
    Reply {
        header: Header::Text,
        body: text.into(),
    }
}
