//! Markdown as models write it: one parser, and a writer for each output.
//!
//! [`blocks`] parses lines, and [`inline`] the text in them. A whole answer becomes [`styled`] text, which [`html`] writes as
//! Telegram messages, together with plain text; [`terminal`] shows the lines and tokens while they arrive.

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
