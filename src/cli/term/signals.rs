//! Ctrl-C and SIGTERM: the first stops the running turn, the next ends the program.

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::Duration;

use super::screen::Screen;
use super::tty;
use crate::cancel::{Cancel, CancelReason};
use crate::error::{Context, Kind as ErrorKind, Result};
use crate::sync;
use crate::sys;

/// Interval at which a terminal updates the waiting time.
const TICK: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
pub(in crate::cli) struct Signals(Arc<Mutex<SignalState>>);

#[derive(Default)]
struct SignalState {
    /// Cancels the running turn.
    turn: Option<Cancel>,
    /// Whether the turn has been stopped.
    is_stopped: bool,
    /// Whether the program ends after the turn, because of another signal than Ctrl-C.
    is_terminating: bool,
}

impl Signals {
    /// Blocks the signals in every thread started from now on, and starts a thread that waits for them and updates the waiting
    /// time on a terminal. Signals of a conversation include Ctrl-Z; a new size of the terminal is left to the thread that
    /// edits lines.
    ///
    /// Must be called before other threads are started, because a thread without the block would get a signal first and end the
    /// program immediately.
    pub(in crate::cli) fn watch(screen: Screen, is_conversation: bool) -> Result<Self> {
        let signals = Self::default();
        let watched = signals.clone();
        let set = if is_conversation {
            sys::block_signals(sys::RESIZED);
            sys::CONVERSATION
        } else {
            sys::ENDING
        };
        sys::block_signals(set);
        let tick = screen.stderr_is_terminal.then_some(TICK);
        let watching = move || {
            loop {
                let signal = match tick {
                    Some(tick) => sys::wait_for_signal_within(set, tick),
                    None => Some(sys::wait_for_signal(set)),
                };
                match signal {
                    None => screen.tick(),
                    Some(libc::SIGTSTP) => tty::suspend(),
                    Some(signal) => watched.end(signal, &screen),
                }
            }
        };
        Builder::new().spawn(watching).doing("starting a thread")?;
        Ok(signals)
    }

    /// Stops the turn, or the program.
    fn end(&self, signal: i32, screen: &Screen) {
        let mut state = self.lock();
        match &state.turn {
            Some(turn) if !state.is_stopped => {
                turn.stop();
                state.is_stopped = true;
                state.is_terminating |= signal != libc::SIGINT;
            }
            _ => {
                screen.end_line_if_free();
                tty::restore();
                std::process::exit(ErrorKind::Interrupted.exit_code().into());
            }
        }
    }

    /// Makes signals stop this turn from now on.
    pub(in crate::cli) fn turn_begins(&self, cancel: &Cancel) {
        let mut state = self.lock();
        state.turn = Some(cancel.clone());
        state.is_stopped = cancel.reason() == Some(CancelReason::Stopped);
    }

    /// Returns whether a signal stopped the turn.
    pub(in crate::cli) fn turn_ends(&self) -> bool {
        let mut state = self.lock();
        state.turn = None;
        state.is_stopped
    }

    pub(in crate::cli) fn is_terminating(&self) -> bool {
        self.lock().is_terminating
    }

    fn lock(&self) -> MutexGuard<'_, SignalState> {
        sync::lock(&self.0)
    }
}
