//! The mode of the terminal on standard input. Every end of the program restores the one that it found.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use super::ask::Echo;
use crate::error::{Context, Result};

/// The mode before the first change.
static FOUND: OnceLock<Termios> = OnceLock::new();

const CTRL_C: u8 = 3;

/// Stores the mode that [`restore`] sets. Later calls change nothing.
pub(in crate::cli) fn remember() -> Result<&'static Termios> {
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let found = tcgetattr(io::stdin()).doing("reading the terminal's settings")?;
    Ok(FOUND.get_or_init(|| found))
}

/// Prepares the answer to a question: a line, in which keys send no signals.
pub(super) fn begin_answer(echo: Echo) -> Result<()> {
    let mut wanted = remember()?.clone();
    wanted.local_modes.remove(LocalModes::ISIG);
    // Ctrl-C ends the line, which then has no line feed.
    wanted.special_codes[SpecialCodeIndex::VEOL] = CTRL_C;
    if echo == Echo::Hidden {
        wanted.local_modes.remove(LocalModes::ECHO);
        wanted.local_modes.insert(LocalModes::ECHONL);
    }
    tcsetattr(io::stdin(), OptionalActions::Now, &wanted).doing("changing the terminal's settings")
}

/// Restores the mode before the first change.
pub(super) fn restore() {
    if let Some(found) = FOUND.get() {
        // Fails only if the terminal was closed.
        tcsetattr(io::stdin(), OptionalActions::Now, found).ok();
    }
}

/// Whether standard output is a terminal.
pub(in crate::cli) fn is_output() -> bool {
    io::stdout().is_terminal()
}

/// Returns the columns of the terminal.
pub(in crate::cli) fn columns() -> usize {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stderr()));
    // A terminal reports 0 for an unknown value.
    match size.map_or(0, |size| size.ws_col) {
        0 => 80,
        columns => columns.into(),
    }
}
