//! Ctrl-C and SIGTERM: the first stops the running turn, the next ends the program.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use super::screen::Screen;
use crate::bus::{Inbound, Kind};
use crate::error::{Context, Kind as ErrorKind, Result};
use crate::sys;

#[derive(Clone, Default)]
pub(super) struct Signals(Arc<Mutex<SignalState>>);

#[derive(Default)]
struct SignalState {
    /// The running turn: its dispatcher, and the message that stops it.
    turn: Option<(Sender<Inbound>, Inbound)>,
    /// The turn has been stopped.
    is_stopped: bool,
    /// Ctrl-C was typed at the prompt since the last line.
    at_prompt: bool,
    /// The program ends after the turn, because of another signal than Ctrl-C.
    is_terminating: bool,
}

impl Signals {
    /// Blocks the signals in every thread started from now on, and starts one that waits for them. The first Ctrl-C outside
    /// of a turn calls `at_prompt`; without it, it ends the program.
    pub(super) fn watch(screen: Screen, at_prompt: Option<fn(&Screen)>) -> Result<Self> {
        let signals = Self::default();
        let watched = signals.clone();
        sys::block_signals();
        let watching = move || {
            loop {
                let signal = sys::wait_for_signal();
                let mut state = watched.lock();
                match (&state.turn, at_prompt) {
                    (Some((sender, stop)), _) if !state.is_stopped => {
                        drop(sender.send(stop.clone()));
                        state.is_stopped = true;
                        state.is_terminating |= signal != libc::SIGINT;
                    }
                    (None, Some(warn)) if signal == libc::SIGINT && !state.at_prompt => {
                        state.at_prompt = true;
                        warn(&screen);
                    }
                    _ => {
                        screen.end_line_if_free();
                        std::process::exit(ErrorKind::Interrupted.exit_code().into());
                    }
                }
            }
        };
        Builder::new().spawn(watching).doing("starting a thread")?;
        Ok(signals)
    }

    /// From now on a signal stops the turn that `question` starts.
    pub(super) fn turn_begins(&self, inbound: &Sender<Inbound>, question: &Inbound) {
        let Inbound { origin, session, .. } = question;
        let stop = Inbound::message(origin.clone(), session.clone(), String::new());
        let mut state = self.lock();
        state.turn = Some((inbound.clone(), Inbound { kind: Kind::Stop, ..stop }));
        state.is_stopped = false;
    }

    /// Whether a signal stopped it.
    pub(super) fn turn_ends(&self) -> bool {
        let mut state = self.lock();
        state.turn = None;
        state.is_stopped
    }

    /// Whether Ctrl-C was typed at the prompt since the last call.
    pub(super) fn take_interrupt(&self) -> bool {
        std::mem::take(&mut self.lock().at_prompt)
    }

    pub(super) fn is_terminating(&self) -> bool {
        self.lock().is_terminating
    }

    fn lock(&self) -> MutexGuard<'_, SignalState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
