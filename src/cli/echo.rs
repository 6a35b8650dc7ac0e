//! The terminal's echo: off while a key is typed, and on again however that ends.

use std::io::{self, Stdin};
use std::thread::Builder;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use super::tell;
use crate::error::{Context, Kind, Result};
use crate::sys;

/// As long as this is there, what is typed is not shown.
pub(super) struct Hidden {
    stdin: Stdin,
    before: Termios,
}

impl Hidden {
    /// Takes the echo away, and has a signal give it back before it ends the program. No thread may have been started yet:
    /// the signal would end it there and then.
    pub(super) fn begin() -> Result<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin).doing("asking the terminal how it is set")?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        // That Enter was typed may be seen.
        hidden.local_modes.insert(LocalModes::ECHONL);
        // These two would end or stop the program without a word, and leave the terminal as it is. 0 is no key.
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
        tcsetattr(&stdin, OptionalActions::Drain, &hidden).doing("hiding what is typed")?;
        Ok(Self { stdin, before })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        show(&self.stdin, &self.before);
    }
}

fn show(stdin: &Stdin, before: &Termios) {
    // A terminal that has gone shows nothing any more.
    tcsetattr(stdin, OptionalActions::Drain, before).ok();
}
