//! Landlock: restricts the files that a process can open.

use std::os::fd::OwnedFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use crate::error::{Error, Result};

/// Minimum usable version; earlier ones do not restrict truncation.
pub(crate) const OLDEST_ABI: u32 = 3;
/// First version that restricts signals and abstract sockets.
pub(super) const SIGNALS_ABI: u32 = 6;

/// Opens these paths as handles; skips missing ones.
pub(super) fn open_existing<'a>(
    paths: impl Iterator<Item = &'a Path>,
) -> impl Iterator<Item = OwnedFd> {
    paths.filter_map(|path| openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok())
}

/// Creates a domain whose processes cannot signal processes outside; `None` if the kernel cannot confine signals.
pub(super) fn signal_scope() -> Result<Option<OwnedFd>> {
    signals().map(Option::from).map_err(|e| failed(&e))
}

/// Lets this process signal only its descendants, if the kernel can confine signals.
pub(super) fn keep_signals_inside() -> Result<()> {
    signals().and_then(restrict_quietly).map_err(|e| failed(&e))
}

fn signals() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default().scope(Scope::Signal)?.create()
}

fn failed(e: &RulesetError) -> Error {
    Error::failed(e.to_string()).doing("entering Landlock")
}

/// Killing all processes of a command also tries processes outside, and each denial would be logged.
fn restrict_quietly(ruleset: RulesetCreated) -> Result<(), RulesetError> {
    ruleset.log_same_exec(false)?.restrict_self().map(drop)
}

/// Restricts this process and its children: they may read and execute below `readable`, have full access below `writable`, and
/// no access elsewhere. Without `tcp`, they cannot connect or listen. Unsupported restrictions are skipped.
pub(super) fn enter(readable: Vec<OwnedFd>, writable: Vec<OwnedFd>, tcp: bool) -> Result<()> {
    restrict(readable, writable, tcp).map_err(|e| failed(&e))
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
    restrict_quietly(ruleset.add_rules(rules(writable, all))?)
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
