//! Markdown as models write it: one parser, and a writer for each place that shows it.
//!
//! [`blocks`] reads lines and [`inline`] the text within them. A whole answer becomes [`styled`] text, which [`html`] writes
//! as Telegram messages, with the plain text of each; [`terminal`] shows the same lines and tokens while they stream in.

mod blocks;
mod html;
mod inline;
mod split;
mod styled;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod wrap;

pub(crate) use blocks::refilled;
pub(crate) use html::{Piece, pieces};
pub(crate) use terminal::{Look, Terminal};
pub(crate) use wrap::{columns, hanging};
