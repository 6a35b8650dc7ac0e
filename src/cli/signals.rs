//! Ctrl-C and SIGTERM: the first stops the running turn, the next ends the program.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use super::screen::Screen;
use super::tty;
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
    /// The program ends after the turn, because of another signal than Ctrl-C.
    is_terminating: bool,
}

impl Signals {
    /// Blocks the signals in every thread started from now on, and starts one that waits for them. In a conversation
    /// `resized` becomes readable when the terminal has another size.
    pub(super) fn watch(screen: Screen, resized: Option<Arc<OwnedFd>>) -> Result<Self> {
        let signals = Self::default();
        let watched = signals.clone();
        let set = if resized.is_some() {
            sys::CONVERSATION
        } else {
            sys::ENDING
        };
        sys::block_signals(set);
        let watching = move || {
            loop {
                match sys::wait_for_signal(set) {
                    libc::SIGWINCH => {}
                    libc::SIGTSTP => tty::suspend(),
                    signal => watched.end(signal, &screen),
                }
                // It fails only when nobody has read it for 2^64 times.
                resized
                    .as_ref()
                    .map(|told| rustix::io::write(told, &1_u64.to_ne_bytes()).ok());
            }
        };
        Builder::new().spawn(watching).doing("starting a thread")?;
        Ok(signals)
    }

    /// Stops the turn, or the program.
    fn end(&self, signal: i32, screen: &Screen) {
        let mut state = self.lock();
        match &state.turn {
            Some((sender, stop)) if !state.is_stopped => {
                drop(sender.send(stop.clone()));
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

    /// From now on a signal stops the turn that `question` starts.
    pub(super) fn turn_begins(&self, inbound: &Sender<Inbound>, question: &Inbound) {
        let Inbound {
            origin, session, ..
        } = question;
        let stop = Inbound::message(origin.clone(), session.clone(), String::new());
        let mut state = self.lock();
        state.turn = Some((
            inbound.clone(),
            Inbound {
                kind: Kind::Stop,
                ..stop
            },
        ));
        state.is_stopped = false;
    }

    /// Whether a signal stopped it.
    pub(super) fn turn_ends(&self) -> bool {
        let mut state = self.lock();
        state.turn = None;
        state.is_stopped
    }

    pub(super) fn is_terminating(&self) -> bool {
        self.lock().is_terminating
    }

    fn lock(&self) -> MutexGuard<'_, SignalState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
