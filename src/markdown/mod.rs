//! Markdown as models write it: one parser, and a writer for each output.
//!
//! [`blocks`] parses lines, and [`inline`] the text in a line, into [`styled`] text. [`html`] writes a whole answer as Telegram
//! messages, together with plain text; [`terminal`] shows lines while they arrive, as far as their styles are settled.

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
pub(crate) use terminal::Terminal;
pub(crate) use wrap::{columns, hanging};
