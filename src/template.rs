//! The files that a new home starts with, compiled in from `workspace-template/`.

use std::path::Path;

use crate::disk;
use crate::error::Result;

include!(concat!(env!("OUT_DIR"), "/template.rs"));

/// The text of one of them, by its path in `workspace-template/`.
#[must_use]
pub fn text(path: &str) -> Option<String> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
}

/// The names of those in `dir`, a path in `workspace-template/`.
#[must_use]
pub fn names(dir: &str) -> Vec<&'static str> {
    let below = FILES.iter().filter_map(|(name, _)| name.strip_prefix(dir)?.strip_prefix('/'));
    below.filter(|name| !name.contains('/')).collect()
}

/// Writes those below `part` (`agent` or `workspace`) into `dir`; what is there already stays.
///
/// # Errors
/// What the file system says.
pub fn write(part: &str, dir: &Path) -> Result<()> {
    disk::make_dir(dir)?;
    for (name, text) in FILES {
        if let Some(path) = name.strip_prefix(part).and_then(|rest| rest.strip_prefix('/')) {
            disk::write_new(&dir.join(path), text.as_bytes())?;
        }
    }
    Ok(())
}
