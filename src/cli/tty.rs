//! The modes of the terminal on standard input. Whatever ends the program restores the original one.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize,
    tcsetattr,
};

use super::screen::Screen;
use super::signals::Signals;
use crate::config::Env;
use crate::error::{Context, Result};
use crate::sys;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// What is typed is not shown.
    Hidden,
    /// Every key is read at once, also Ctrl-C, and a paste is marked as one.
    Editing,
    /// What is typed is not shown but kept for later; Ctrl-C is a signal.
    Waiting,
}

struct Changed {
    original: Termios,
    mode: Mode,
}

/// `None` in the original mode.
static CHANGED: Mutex<Option<Changed>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Changed>> {
    CHANGED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters a mode.
pub(super) fn set(mode: Mode) -> Result<()> {
    let mut changed = lock();
    let original = match changed.take() {
        Some(changed) => changed.original,
        None => tcgetattr(io::stdin()).doing("reading the terminal's settings")?,
    };
    let mut wanted = original.clone();
    wanted.local_modes.remove(LocalModes::ECHO);
    match mode {
        // These keys would end or stop the program without restoring the terminal; 0 disables them.
        Mode::Hidden => {
            wanted.local_modes.insert(LocalModes::ECHONL);
            wanted.special_codes[SpecialCodeIndex::VQUIT] = 0;
            wanted.special_codes[SpecialCodeIndex::VSUSP] = 0;
        }
        Mode::Editing => {
            wanted
                .local_modes
                .remove(LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN);
            wanted
                .input_modes
                .remove(InputModes::ICRNL | InputModes::IXON);
        }
        Mode::Waiting => {
            wanted.local_modes.remove(LocalModes::ICANON);
            wanted.special_codes[SpecialCodeIndex::VQUIT] = 0;
        }
    }
    wanted.special_codes[SpecialCodeIndex::VMIN] = 1;
    wanted.special_codes[SpecialCodeIndex::VTIME] = 0;
    *changed = Some(Changed { original, mode });
    tcsetattr(io::stdin(), OptionalActions::Now, &wanted).doing("changing the terminal's settings")
}

/// Restores the original mode, if another thread does not do that already.
pub(super) fn restore() {
    if let Some(Changed { original, mode }) = CHANGED
        .try_lock()
        .ok()
        .and_then(|mut changed| changed.take())
    {
        // Both fail only when the terminal is gone.
        if mode == Mode::Editing {
            drop(io::stderr().write_all(PASTE_OFF.as_bytes()));
        }
        tcsetattr(io::stdin(), OptionalActions::Now, &original).ok();
    }
}

/// Asks the terminal to mark pastes, or not to.
pub(super) const PASTE_ON: &str = "\x1b[?2004h";
pub(super) const PASTE_OFF: &str = "\x1b[?2004l";

/// Stops the program as Ctrl-Z does, until the shell continues it.
pub(super) fn suspend() {
    let mode = lock().as_ref().map(|changed| changed.mode);
    restore();
    sys::stop();
    if let Some(mode) = mode {
        // Fails only when the terminal is gone.
        set(mode).ok();
    }
}

/// Restores the terminal before the message of a panic, which aborts.
pub(super) fn restore_on_panic() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        hook(info);
    }));
}

/// The columns and rows of the terminal.
pub(super) fn size() -> (usize, usize) {
    let size = tcgetwinsize(io::stderr())
        .ok()
        .filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
}

/// Hides what is typed until it is dropped.
pub(super) struct Hidden(());

impl Hidden {
    /// Turns the echo off. A signal restores it before it ends the program, if no other thread runs yet: signals are blocked
    /// only in threads started from now on.
    pub(super) fn begin(env: &Env) -> Result<Self> {
        Signals::watch(Screen::new(env), None)?;
        set(Mode::Hidden).map(|()| Self(()))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        restore();
    }
}
