//! Landlock: which files may be opened, and with which rights, decided by the kernel at the moment of opening.
//!
//! Rights and structures are those of `linux/landlock.h`; each version of it (ABI) handles more.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};

use crate::sys;

/// Rights on files.
mod right {
    pub const EXECUTE: u64 = 1 << 0;
    pub const WRITE_FILE: u64 = 1 << 1;
    pub const READ_FILE: u64 = 1 << 2;
    pub const READ_DIR: u64 = 1 << 3;
    pub const TRUNCATE: u64 = 1 << 14;
    pub const IOCTL_DEV: u64 = 1 << 15;
    /// Those of ABI 1: everything from executing to making symbolic links.
    pub const FIRST: u64 = (1 << 13) - 1;
    pub const REFER: u64 = 1 << 13;
    /// What can be said of a file that is no directory.
    pub const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
    pub const LOOK: u64 = EXECUTE | READ_FILE | READ_DIR;
}

/// The oldest version worth anything: before it, files could be cut short.
pub const OLDEST: u32 = 3;

/// The first version that holds signals and abstract sockets.
pub const HOLDS_SIGNALS: u32 = 6;

/// What of the network Landlock guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// Somebody else does.
    Open,
    /// None may be reached or served.
    Closed,
}

/// Puts this process and what it starts under rules: below `look` files may be read and run, below `change` everything
/// is allowed, and elsewhere nothing. A path that is not there is left out.
pub fn enter(look: &[&Path], change: &[&Path], tcp: Tcp) -> io::Result<()> {
    let abi = sys::landlock_abi()?;
    let files = right::FIRST
        | if abi >= 2 { right::REFER } else { 0 }
        | if abi >= 3 { right::TRUNCATE } else { 0 }
        | if abi >= 5 { right::IOCTL_DEV } else { 0 };
    // Bind and connect.
    let net = if abi >= 4 && tcp == Tcp::Closed { 0b11 } else { 0 };
    // Abstract unix sockets and signals.
    let scopes = if abi >= HOLDS_SIGNALS { 0b11 } else { 0 };
    let known = match abi {
        0..=3 => 8,
        4..=5 => 16,
        _ => 24,
    };
    let ruleset = sys::landlock_ruleset(files, net, scopes, known)?;
    for (paths, rights) in [(look, right::LOOK), (change, files)] {
        for path in paths {
            let Ok(below) = open(*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { continue };
            let is_dir = FileType::from_raw_mode(fstat(&below)?.st_mode) == FileType::Directory;
            let rights = if is_dir { rights } else { rights & right::OF_FILES } & files;
            sys::landlock_allow(ruleset.as_fd(), below.as_fd(), rights)?;
        }
    }
    sys::landlock_enforce(ruleset.as_fd())
}
