//! Prevents starting a program with a server's keys and network if tools can change the program.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use crate::access::{Grants, Resolved};
use crate::cancel::Cancel;
use crate::child::PATH;
use crate::error::{Error, Result};
use crate::storage;
use crate::text::to_single_line;
use crate::worker::protocol::ServeJob;
use crate::worker::{Worker, Workers};

/// A program with its own sandbox and directory.
pub(crate) struct Program {
    pub workers: Workers,
    pub job: ServeJob,
    /// Directories that tools can change.
    pub grants: Grants,
}

impl Program {
    pub(super) fn start(&self, server: &str, cancel: &Cancel) -> Result<Worker> {
        self.make_own_directory()?;
        self.refuse_writable_parts(server)?;
        self.workers.serve(self.job.clone(), cancel)
    }

    /// Creates its working directory. As root, gives it to the owner of the workspace, because workers run as that user.
    fn make_own_directory(&self) -> Result<()> {
        let dir = &self.job.home;
        storage::make_dir(dir)?;
        fs_err::set_permissions(dir, Permissions::from_mode(0o700))?;
        if rustix::process::geteuid().is_root() {
            let owner = fs_err::metadata(self.grants.workspace().real)?;
            lchown(dir, Some(owner.uid()), Some(owner.gid()))?;
        }
        Ok(())
    }

    /// Rejects a command, a working directory and existing files among the arguments if they are in a directory that tools can
    /// change, or behind a link there. This is an early warning; the keys are protected by the sandbox, because a server with
    /// variables or network has no access to the workspace.
    ///
    /// # Errors
    /// Returns a `Config` error with the path and the setting.
    fn refuse_writable_parts(&self, server: &str) -> Result<()> {
        let dir = Path::new(&self.job.working_dir);
        let mut parts = vec![("cwd", dir.to_owned())];
        parts.extend(self.file().map(|path| ("command", path)));
        for argument in &self.job.args {
            let word = match argument.split_once('=') {
                Some((flag, value)) if flag.starts_with('-') => value,
                _ => argument,
            };
            let path = dir.join(word);
            let is_there = path.symlink_metadata().is_ok() && !path.is_dir();
            if is_there && !word.is_empty() {
                parts.push(("args", path));
            }
        }
        for (part, path) in parts {
            let found = Resolved::follow(&path);
            for entry in found.links.iter().chain([&found.real]) {
                if let Some(setting) = self.grants.writable_at(entry) {
                    let shown = to_single_line(&path.to_string_lossy(), 200);
                    let place = format!("mcpServers.{server}.{part}: {shown} lies in {setting}");
                    let why = "what they write there would run with this server's keys and network";
                    let e = Error::config(format!("{place}, which tools can change: {why}"));
                    return Err(e.hint(format!("move it elsewhere, such as to state/mcp/{server}")));
                }
            }
        }
        Ok(())
    }

    /// Returns the file of the command.
    fn file(&self) -> Option<PathBuf> {
        let (dir, program) = (Path::new(&self.job.working_dir), &self.job.program);
        if program.contains('/') {
            return Some(dir.join(program));
        }
        let own = self.job.env.iter().find(|(name, _)| name == "PATH");
        let path = own.map_or(PATH, |(_, value)| value);
        path.split(':')
            .map(|bin| dir.join(bin).join(program))
            .find(|file| file.is_file())
    }
}
