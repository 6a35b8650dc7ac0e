//! Telegram: what a model writes, as messages that Telegram takes.
//!
//! Markdown becomes text with styles (`rich`): line by line (`blocks`, `table`) and within them (`inline`). From there
//! messages of HTML are cut and written ([`format`]). All of it is pure.

mod blocks;
mod characters;
pub mod format;
mod inline;
mod rich;
mod table;
#[cfg(test)]
mod tests;
