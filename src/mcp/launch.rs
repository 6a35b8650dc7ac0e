//! Prevents starting a program with a server's keys and network if tools can change the program.

use std::path::{Path, PathBuf};

use crate::access::{Grants, Resolved};
use crate::child::PATH;
use crate::error::{Error, Result};
use crate::text::to_single_line;

/// The program and arguments of an entry.
pub(crate) struct Launch<'a> {
    pub name: &'a str,
    pub command: &'a str,
    pub args: &'a [String],
    /// Variable `PATH` of the entry, if it has one.
    pub path: Option<&'a str>,
    pub working_dir: &'a Path,
}

/// Rejects a command, a working directory and existing files among the arguments if they are in a directory that tools can
/// change, or behind a link there. This is an early warning; the keys are protected by the sandbox, because a server with
/// variables or network has no access to the workspace.
///
/// # Errors
/// Returns a `Config` error with the path and the setting.
pub(crate) fn refuse_writable_parts(launch: &Launch, grants: &Grants) -> Result<()> {
    let dir = launch.working_dir;
    let mut parts = vec![("cwd", dir.to_owned())];
    parts.extend(program(launch).map(|path| ("command", path)));
    for argument in launch.args {
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
            if let Some(setting) = grants.writable_at(entry) {
                let name = launch.name;
                let shown = to_single_line(&path.to_string_lossy(), 200);
                return Err(Error::config(format!(
                    "mcpServers.{name}.{part}: {shown} lies in {setting}, which tools can change: what they write there \
                     would run with this server's keys and network"
                ))
                .hint(format!(
                    "move it elsewhere; state/mcp/{name} in bantam's home is the server's own directory"
                )));
            }
        }
    }
    Ok(())
}

/// Returns the file of the command.
fn program(launch: &Launch) -> Option<PathBuf> {
    if launch.command.contains('/') {
        return Some(launch.working_dir.join(launch.command));
    }
    let path = launch.path.unwrap_or(PATH);
    path.split(':')
        .map(|dir| launch.working_dir.join(dir).join(launch.command))
        .find(|file| file.is_file())
}
