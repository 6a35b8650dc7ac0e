//! Modes of the terminal on standard input. Every end of the program restores the original mode.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use super::ask::Echo;
use crate::error::{Context, Result};
use crate::sync;
use crate::sys;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Mode {
    /// The original mode, which the line editor changes and restores.
    Editing,
    /// The user answers a question by a line, and keys send no signals.
    Asking(Echo),
    /// Input is hidden but preserved for later; Ctrl-C sends a signal.
    Waiting,
}

struct Changed {
    original: Termios,
    mode: Mode,
}

/// `None` in the original mode.
static CHANGED: Mutex<Option<Changed>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Changed>> {
    sync::lock(&CHANGED)
}

/// Enters a mode.
pub(in crate::cli) fn set(mode: Mode) -> Result<()> {
    let mut changed = lock();
    let original = match changed.take() {
        Some(changed) => changed.original,
        None => tcgetattr(io::stdin()).doing("reading the terminal's settings")?,
    };
    let mut wanted = original.clone();
    match mode {
        Mode::Editing => {}
        Mode::Asking(echo) => {
            wanted.local_modes.remove(LocalModes::ISIG);
            // Ctrl-C ends the line, which then has no line feed.
            wanted.special_codes[SpecialCodeIndex::VEOL] = CTRL_C;
            if echo == Echo::Hidden {
                wanted.local_modes.remove(LocalModes::ECHO);
                wanted.local_modes.insert(LocalModes::ECHONL);
            }
        }
        Mode::Waiting => {
            wanted
                .local_modes
                .remove(LocalModes::ECHO | LocalModes::ICANON);
            // Ctrl-\ would end the program without restoring the terminal; 0 disables it.
            wanted.special_codes[SpecialCodeIndex::VQUIT] = 0;
            wanted.special_codes[SpecialCodeIndex::VMIN] = 1;
            wanted.special_codes[SpecialCodeIndex::VTIME] = 0;
        }
    }
    *changed = Some(Changed { original, mode });
    tcsetattr(io::stdin(), OptionalActions::Now, &wanted).doing("changing the terminal's settings")
}

/// Restores the original mode, unless another thread is doing that.
pub(in crate::cli) fn restore() {
    if let Some(Changed { original, mode }) = CHANGED
        .try_lock()
        .ok()
        .and_then(|mut changed| changed.take())
    {
        // Both fail only if the terminal was closed.
        if mode == Mode::Editing {
            drop(io::stderr().write_all(PASTE_OFF.as_bytes()));
        }
        tcsetattr(io::stdin(), OptionalActions::Now, &original).ok();
    }
}

/// Make the terminal mark pastes for the line editor, and stop that.
const PASTE_ON: &str = "\x1b[?2004h";
const PASTE_OFF: &str = "\x1b[?2004l";

const CTRL_C: u8 = 3;

/// Returns the mode of the terminal; `None` is the original one.
pub(super) fn mode() -> Option<Mode> {
    lock().as_ref().map(|changed| changed.mode)
}

/// Stops the program like Ctrl-Z, until the shell continues it. Settings of the line editor return as well.
pub(in crate::cli) fn suspend() {
    let (current, mode) = (tcgetattr(io::stdin()), mode());
    restore();
    sys::stop();
    // Both fail only if the terminal was closed.
    if let Some(mode) = mode {
        set(mode).ok();
    }
    if let Ok(current) = current {
        tcsetattr(io::stdin(), OptionalActions::Now, &current).ok();
    }
    if mode == Some(Mode::Editing) {
        drop(io::stderr().write_all(PASTE_ON.as_bytes()));
    }
}

/// Restores the terminal before the message of a panic, which aborts.
pub(in crate::cli) fn restore_on_panic() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        hook(info);
    }));
}

/// Whether standard output is a terminal.
pub(in crate::cli) fn is_output() -> bool {
    io::stdout().is_terminal()
}

/// Returns the columns and rows of the terminal.
pub(in crate::cli) fn size() -> (usize, usize) {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stderr()));
    let (columns, rows) = size.map_or((0, 0), |size| (size.ws_col.into(), size.ws_row.into()));
    // A terminal reports 0 for an unknown value.
    (
        if columns > 0 { columns } else { 80 },
        if rows > 0 { rows } else { 24 },
    )
}
