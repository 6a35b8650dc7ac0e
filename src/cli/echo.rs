//! Turns the terminal's echo off while a key is typed, and restores it also after a signal.

use std::io::{self, Stdin};
use std::thread::Builder;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use super::tell;
use crate::error::{Context, Kind, Result};
use crate::sys;

/// Hides what is typed until it is dropped.
pub(super) struct Hidden {
    stdin: Stdin,
    before: Termios,
}

impl Hidden {
    /// Turns the echo off. A signal restores it before it ends the program, if no other thread runs yet: signals are blocked
    /// only in threads started from now on.
    pub(super) fn begin() -> Result<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin).doing("reading the terminal's settings")?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        // Show the line break of Enter.
        hidden.local_modes.insert(LocalModes::ECHONL);
        // These keys would end or stop the program without restoring the terminal; 0 disables them.
        hidden.special_codes[SpecialCodeIndex::VQUIT] = 0;
        hidden.special_codes[SpecialCodeIndex::VSUSP] = 0;
        let shown = before.clone();
        sys::block_signals();
        let watching = move || {
            let _signal = sys::wait_for_signal();
            show(&io::stdin(), &shown);
            tell("");
            std::process::exit(Kind::Interrupted.exit_code().into());
        };
        Builder::new().spawn(watching).doing("starting a thread")?;
        tcsetattr(&stdin, OptionalActions::Drain, &hidden).doing("turning the terminal's echo off")?;
        Ok(Self { stdin, before })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        show(&self.stdin, &self.before);
    }
}

fn show(stdin: &Stdin, before: &Termios) {
    // Fails only when the terminal is gone.
    tcsetattr(stdin, OptionalActions::Drain, before).ok();
}
