//! The one constructor of child processes.
//!
//! Every child gets an environment built from nothing, so that nothing leaks into it that is not listed here. The types that
//! say how to confine it are here, too, because the configuration and the worker share them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Where programs are searched for. Fixed: the user's own PATH may lead into the workspace.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What runs the commands of the model.
pub(crate) const SHELL: &str = "/bin/sh";

/// Whether there is one: a container may hold this program alone.
pub(crate) fn has_shell() -> bool {
    Path::new(SHELL).exists()
}

/// A command with an environment of `PATH` and a UTF-8 locale, and nothing on its standard streams.
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

/// This program, as `bantam ROLE`. Started by the kernel's link, so that it is the same binary even if the file has been
/// replaced since.
pub(crate) fn again(role: impl AsRef<OsStr>) -> Command {
    let mut command = command(Path::new("/proc/self/exe"));
    command.arg(role);
    command
}

/// A program that the user has named, an editor say, with this process's environment and streams.
pub(crate) fn by_user(program: &str) -> Command {
    Command::new(program)
}

/// How commands are confined.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sandbox {
    /// The strongest sandbox that the kernel offers. Without one, no commands run, and file tools use open directories.
    Auto,
    /// The same, but without a sandbox there are no file tools either.
    Require,
    /// Commands run with all rights of the user.
    Off,
}

/// The network of a command.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Network {
    None,
    /// A proxy, which applies the address guard.
    Guarded,
    /// The network of the host.
    Full,
}
