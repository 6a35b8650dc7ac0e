//! Ctrl-C and SIGTERM: the first stops the running turn, the next ends the program.

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;

use super::terminal;
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Context, Kind as ErrorKind, Result};
use crate::sync;
use crate::sys;

#[derive(Clone, Default)]
pub(super) struct Signals(Arc<Mutex<SignalState>>);

#[derive(Default)]
struct SignalState {
    is_watching: bool,
    /// Cancels the running turn.
    turn: Option<Cancel>,
    /// Whether the turn has been stopped.
    is_stopped: bool,
    /// Whether the program ends after the turn, because of another signal than Ctrl-C.
    is_terminating: bool,
}

impl Signals {
    /// Blocks the signals in every thread started from now on, and starts a thread that waits for them. Signals of a conversation
    /// include Ctrl-Z; a new size of the terminal is left to the thread that edits lines.
    ///
    /// Must be called before other threads are started, because a thread without the block would get a signal first and end the
    /// program immediately. Later calls change nothing.
    pub(super) fn watch(&self, is_conversation: bool) -> Result<()> {
        if std::mem::replace(&mut self.lock().is_watching, true) {
            return Ok(());
        }
        let set = if is_conversation {
            sys::block_signals(sys::RESIZED);
            sys::CONVERSATION
        } else {
            sys::ENDING
        };
        sys::block_signals(set);
        let watched = self.clone();
        let watching = move || {
            loop {
                match sys::wait_for_signal(set) {
                    libc::SIGTSTP => terminal::suspend(),
                    signal => watched.end(signal),
                }
            }
        };
        Builder::new().spawn(watching).doing("starting a thread")?;
        Ok(())
    }

    /// Stops the turn, or the program.
    fn end(&self, signal: i32) {
        let mut state = self.lock();
        match &state.turn {
            Some(turn) if !state.is_stopped => {
                turn.stop();
                state.is_stopped = true;
                state.is_terminating |= signal != libc::SIGINT;
            }
            _ => {
                // Writes nothing, because another thread may be stuck in a write.
                terminal::restore();
                std::process::exit(ErrorKind::Interrupted.exit_code().into());
            }
        }
    }

    /// Makes signals stop this turn from now on.
    pub(super) fn begin_turn(&self, cancel: &Cancel) {
        let mut state = self.lock();
        state.turn = Some(cancel.clone());
        state.is_stopped = cancel.reason() == Some(CancelReason::Stopped);
    }

    /// Returns whether a signal stopped the turn.
    pub(super) fn end_turn(&self) -> bool {
        let mut state = self.lock();
        state.turn = None;
        state.is_stopped
    }

    pub(super) fn is_terminating(&self) -> bool {
        self.lock().is_terminating
    }

    fn lock(&self) -> MutexGuard<'_, SignalState> {
        sync::lock(&self.0)
    }
}
