//! Lists directories.

use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, readlinkat, statat};

use super::names::shown;
use super::{Target, text_reply};
use crate::access::{Dir, Links};
use crate::error::Result;
use crate::text::size;
use crate::worker::protocol::Reply;

const MAX_ENTRIES: usize = 200;

/// Maximum depth; each level takes a descriptor.
const MAX_DEPTH: u32 = 10;

/// Lists a directory: one entry per line, directories with a slash, files with their size, links with their target.
pub(super) fn list_dir(target: &Target, depth: u32) -> Result<Reply> {
    let dir = target
        .dir
        .dir_at(&target.path, Links::Follow)
        .map_err(|e| target.error(e))?;
    let mut listing = Listing::default();
    listing.add(&dir, "", depth.clamp(1, MAX_DEPTH))?;
    if listing.omitted > 0 {
        listing
            .text
            .push_str(&format!("[{} more]\n", listing.omitted));
    }
    if listing.shown == 0 {
        listing.text.push_str("(empty)\n");
    }
    Ok(text_reply(listing.text))
}

#[derive(Default)]
struct Listing {
    text: String,
    shown: usize,
    /// Number of unlisted entries in the listed directories.
    omitted: usize,
}

impl Listing {
    fn add(&mut self, dir: &Dir, prefix: &str, depth: u32) -> Result<()> {
        for name in dir.names()? {
            if self.shown == MAX_ENTRIES {
                self.omitted += 1;
                continue;
            }
            let Ok(stat) = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            self.shown += 1;
            let path = format!("{prefix}{}", shown(name.as_bytes()));
            let kind = FileType::from_raw_mode(stat.st_mode);
            self.text.push_str(&match kind {
                FileType::Directory => format!("{path}/\n"),
                FileType::RegularFile => {
                    format!(
                        "{path}  {}\n",
                        size(u64::try_from(stat.st_size).unwrap_or(0))
                    )
                }
                FileType::Symlink => {
                    let target = readlinkat(dir, &name, Vec::new()).unwrap_or_default();
                    format!("{path} -> {}\n", shown(target.to_bytes()))
                }
                _ => format!("{path}  (not a regular file)\n"),
            });
            if kind == FileType::Directory && depth > 1 {
                if let Ok(inner) = dir.dir_at(name.as_ref(), Links::Refuse) {
                    self.add(&inner, &format!("{path}/"), depth - 1)?;
                }
            }
        }
        Ok(())
    }
}
