//! Landlock: the kernel decides at the moment of opening which files a process may use.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};

use crate::error::{Error, Result};

/// The oldest usable version: earlier ones do not restrict truncation.
pub(super) const OLDEST_ABI: u32 = 3;
/// The first version that restricts signals and abstract sockets.
pub(super) const SIGNALS_ABI: u32 = 6;

/// Restricts this process and what it starts: it may read and execute below `readable`, do anything below `writable`,
/// and nothing elsewhere; without `tcp` it makes no TCP connections and no listeners. Missing paths are left out, and so is
/// what this kernel's version cannot restrict.
pub(super) fn enter(readable: &[&Path], writable: &[&Path], tcp: bool) -> Result<()> {
    restrict(readable, writable, tcp).map_err(|e| Error::failed(e.to_string()).doing("entering Landlock"))
}

fn restrict(readable: &[&Path], writable: &[&Path], tcp: bool) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(ABI::V5);
    let mut ruleset = Ruleset::default().handle_access(all)?.scope(Scope::from_all(ABI::V6))?;
    if !tcp {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
    }
    let ruleset = ruleset.create()?.add_rules(path_beneath_rules(readable, AccessFs::from_read(ABI::V5)))?;
    ruleset.add_rules(path_beneath_rules(writable, all))?.restrict_self().map(drop)
}
