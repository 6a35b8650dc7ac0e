//! Decides which paths may be accessed.
//!
//! - `grants` decides which directories the configuration may open. Tools must be unable to change instructions or the location
//!   of another grant.
//! - `grant` finds such a directory again at its original place; `mounts` finds other paths of the home.
//! - `beneath` opens files under an open directory, so that paths, links and races cannot lead out of it.

mod beneath;
mod grant;
mod grants;
mod mounts;

pub(crate) use beneath::{
    Dir, Links, MAX_UNTRUSTED, Scope, explain, has_one_name, is_regular, open_straight,
    read_untrusted,
};
pub(crate) use grant::{Access, Grant, Resolved};
pub(crate) use grants::{Grants, NEVER_OPEN, Place};
pub(crate) use mounts::unescape;
