//! May this path be touched: the one module that decides it.
//!
//! - `grants` decides what the configuration may open: what tools can change must neither hold what bantam obeys nor decide
//!   where another grant is.
//! - `grant` is such a place on the host, and finds it again where it was; `mounts` finds other paths of the home.
//! - `beneath` opens files below a held directory, so that no path, link or race leads out of it.

mod beneath;
mod grant;
mod grants;
mod mounts;

pub(crate) use beneath::{
    Dir, Links, MAX_UNTRUSTED, Scope, explain, is_regular, open_straight, read_untrusted,
};
pub(crate) use grant::{Access, Grant, Resolved};
pub(crate) use grants::{Asked, Grants, NEVER_OPEN};
