//! Landlock: the kernel decides at the moment of opening which files a process may use.

use std::os::fd::OwnedFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use crate::error::{Error, Result};

/// The oldest usable version: earlier ones do not restrict truncation.
pub(crate) const OLDEST_ABI: u32 = 3;
/// The first version that restricts signals and abstract sockets.
pub(super) const SIGNALS_ABI: u32 = 6;

/// Holds the places at these paths; missing ones are left out.
pub(super) fn held<'a>(paths: impl Iterator<Item = &'a Path>) -> impl Iterator<Item = OwnedFd> {
    paths.filter_map(|path| openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok())
}

/// A domain whose processes can signal no process outside it; none where this kernel confines no signals.
pub(super) fn signal_scope() -> Result<Option<OwnedFd>> {
    let made = Ruleset::default()
        .scope(Scope::Signal)
        .and_then(Ruleset::create);
    made.map(Option::from)
        .map_err(|e| Error::failed(e.to_string()).doing("making a Landlock domain"))
}

/// Restricts this process and what it starts: it may read and execute below `readable`, do anything below `writable`,
/// and nothing elsewhere; without `tcp` it makes no TCP connections and no listeners. What this kernel's version cannot
/// restrict is left out.
pub(super) fn enter(readable: Vec<OwnedFd>, writable: Vec<OwnedFd>, tcp: bool) -> Result<()> {
    restrict(readable, writable, tcp)
        .map_err(|e| Error::failed(e.to_string()).doing("entering Landlock"))
}

fn restrict(readable: Vec<OwnedFd>, writable: Vec<OwnedFd>, tcp: bool) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(ABI::V5);
    let mut ruleset = Ruleset::default()
        .handle_access(all)?
        .scope(Scope::from_all(ABI::V6))?;
    if !tcp {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
    }
    let ruleset = ruleset
        .create()?
        .add_rules(rules(readable, AccessFs::from_read(ABI::V5)))?;
    // Killing all that a command left asks for more processes than may be killed, and each refusal would be logged.
    ruleset
        .add_rules(rules(writable, all))?
        .log_same_exec(false)?
        .restrict_self()
        .map(drop)
}

fn rules(
    places: Vec<OwnedFd>,
    access: BitFlags<AccessFs>,
) -> impl Iterator<Item = Result<PathBeneath<OwnedFd>, RulesetError>> {
    places.into_iter().map(move |place| {
        let is_dir = fstat(&place)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        Ok(PathBeneath::new(
            place,
            if is_dir {
                access
            } else {
                access & AccessFs::from_file(ABI::V5)
            },
        ))
    })
}
