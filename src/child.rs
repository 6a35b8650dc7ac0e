//! The one constructor of child processes.
//!
//! Every child gets a new environment, so that only the variables listed here reach it. The types that describe its confinement
//! are also here, because the configuration and the worker share them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Search path of programs. It is fixed, because the user's own PATH may lead into the workspace.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Shell that runs the model's commands.
pub(crate) const SHELL: &str = "/bin/sh";

/// Whether the shell exists; a container may contain only this program.
pub(crate) fn has_shell() -> bool {
    Path::new(SHELL).exists()
}

/// Creates a command whose environment is `PATH` and a UTF-8 locale, with null standard streams.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", PATH)
        .env("LANG", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Creates a command that runs this program as `bantam ROLE`. Started by the kernel's link, so that it is the same binary even
/// if the file has been replaced since.
pub(crate) fn again(role: impl AsRef<OsStr>) -> Command {
    let mut command = command(Path::new("/proc/self/exe"));
    command.arg(role);
    command
}

/// Creates a command for a program that the user named, such as an editor, with this process's environment and streams.
pub(crate) fn by_user(program: &str) -> Command {
    Command::new(program)
}

/// Confinement of commands.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sandbox {
    /// The strongest sandbox that the kernel offers. Without one, commands are disabled, and file tools use open directories.
    Auto,
    /// Like `Auto`, but without a sandbox file tools are also disabled.
    Require,
    /// Commands run with all rights of the user.
    Off,
}

/// Network access of a command.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Network {
    None,
    /// A proxy that applies the address guard.
    Guarded,
    /// The network of the host.
    Full,
}
