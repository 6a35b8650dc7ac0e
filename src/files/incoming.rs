//! Stores files that arrive from outside, such as attachments.

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use super::atomic::{LockedEntry, temporary_name};
use super::names::composed;
use super::{OpenGrants, text_reply};
use crate::access::Access;
use crate::error::{Error, Result};
use crate::worker::protocol::{FileJob, Reply};

/// Maximum number of names to try for one file.
const MAX_NAMES: usize = 1000;

/// Stores the file, with a number added to a taken name, and replies with its path.
pub(super) fn take_file(grants: &OpenGrants, job: &FileJob, name: &str) -> Result<Reply> {
    let dir = &job.path;
    let name = composed(name);
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => (stem, format!(".{extension}")),
        _ => (&*name, String::new()),
    };
    // Finds the directory by an unused name, because an existing one could be a link to another directory.
    let free = format!("{dir}/{}", temporary_name());
    let mut entry = LockedEntry::make_and_lock(&grants.find(&free, Access::Write)?)?;
    for n in 1..=MAX_NAMES {
        let name = if n == 1 {
            name.clone()
        } else {
            format!("{stem}-{n}{extension}")
        };
        entry.name = name.clone().into();
        match statat(&entry.dir, &entry.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {
                entry.write(None, &job.content)?;
                return Ok(text_reply(format!("{dir}/{name}")));
            }
            Ok(_) => {}
            Err(e) => return Err(entry.error(e)),
        }
    }
    Err(Error::failed(format!("{MAX_NAMES} files have that name")))
}
