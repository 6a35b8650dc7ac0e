//! Ctrl-C and SIGTERM: the first stops the running turn, the next ends the program.

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;

use super::terminal;
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Context, Kind as ErrorKind, Result};
use crate::sync;
use crate::sys;

#[derive(Clone, Default)]
pub(in crate::cli) struct Signals(Arc<Mutex<SignalState>>);

#[derive(Default)]
struct SignalState {
    is_watching: bool,
    /// Cancels the running turn.
    turn: Option<Cancel>,
    /// Whether the program ends after the turn, because of another signal than Ctrl-C.
    is_terminating: bool,
}

impl Signals {
    /// Blocks the signals in every thread started from now on, and starts a thread that waits for them.
    ///
    /// Must be called before other threads are started, because a thread without the block would get a signal first and end the
    /// program immediately. Later calls change nothing.
    pub(in crate::cli) fn watch(&self) -> Result<()> {
        if std::mem::replace(&mut self.lock().is_watching, true) {
            return Ok(());
        }
        sys::block_signals(sys::ENDING);
        let watched = self.clone();
        let watching = move || {
            loop {
                watched.end(sys::wait_for_signal(sys::ENDING));
            }
        };
        let started = Builder::new().spawn(watching).doing("starting a thread");
        let hint = "end other processes of your user, or raise `ulimit -u`";
        started.map(drop).map_err(|e| e.hint(hint))
    }

    /// Stops the turn, or the program.
    fn end(&self, signal: i32) {
        let mut state = self.lock();
        match &state.turn {
            Some(turn) if turn.reason() != Some(CancelReason::Stopped) => {
                turn.stop();
                state.is_terminating |= signal != libc::SIGINT;
            }
            _ => {
                // Writes nothing, because another thread may be stuck in a write.
                terminal::restore();
                std::process::exit(ErrorKind::Interrupted.exit_code().into());
            }
        }
    }

    /// Makes signals stop this turn from now on, or no turn.
    pub(in crate::cli) fn set_turn(&self, turn: Option<&Cancel>) {
        self.lock().turn = turn.cloned();
    }

    /// Whether the running turn must end.
    pub(super) fn has_stopped_turn(&self) -> bool {
        let turn = self.lock().turn.clone();
        turn.is_some_and(|turn| turn.reason().is_some())
    }

    pub(in crate::cli) fn is_terminating(&self) -> bool {
        self.lock().is_terminating
    }

    fn lock(&self) -> MutexGuard<'_, SignalState> {
        sync::lock(&self.0)
    }
}
