//! The one constructor of child processes.
//!
//! Every child gets an environment built from nothing, so that what is not listed here cannot leak into it. The words for
//! how it is to be confined are here too: the configuration says them and the hands do them.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Where programs are looked for. Fixed: the user's own PATH may lead into the workspace.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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

/// This program again, as `bantam ROLE`. By the link that the kernel keeps, so that it is the same binary even when the
/// file has been replaced since.
pub(crate) fn again(role: impl AsRef<OsStr>) -> Command {
    let mut command = command(Path::new("/proc/self/exe"));
    command.arg(role);
    command
}

/// This program again, with this process's environment and streams: not for what a model may reach.
pub(crate) fn same(args: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bantam").args(args);
    command
}

/// Becomes this program again, from its beginning and with this process's environment. Returns only when that fails.
pub(crate) fn reexec(args: &[&str]) -> std::io::Error {
    same(args).exec()
}

/// What has to stand between a command and the machine.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sandbox {
    /// The strongest jail that the kernel offers; without any, no commands, and files through held directories.
    Auto,
    /// The same, and without a jail no file tools either.
    Require,
    /// Commands run with all the user's rights.
    Off,
}

/// What a command can reach.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Network {
    None,
    /// What the address guard lets through, by a proxy.
    Guarded,
    /// All that the host can reach.
    Full,
}
