//! May this path be touched: the one module that decides it.
//!
//! - `layout` decides what the configuration may open: what tools can change must neither hold what bantam obeys nor decide
//!   where another tree is.
//! - `tree` is such a place on the host, and finds it again where and as it was.
//! - `beneath` opens files below a held directory, so that no path, link or race leads out of it.

mod beneath;
mod layout;
mod tree;

pub(crate) use beneath::{
    Dir, Links, MAX_UNTRUSTED, Reach, explain, is_regular, open_straight, read_untrusted,
};
pub(crate) use layout::{Layout, Opened, Setting};
pub(crate) use tree::{Access, Resolved, Tree};
