//! The modes of the terminal on standard input. Whatever ends the program restores the original one.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr,
    tcgetwinsize, tcsetattr,
};

use super::choice;
use super::screen::Screen;
use crate::error::{Context, Result};
use crate::sys;
use crate::text::printable;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Mode {
    /// What is typed is not shown.
    Hidden,
    /// The original one, which the line editor changes and restores.
    Editing,
    /// A question is answered by a line, and no key is a signal.
    Asking,
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
pub(in crate::cli) fn set(mode: Mode) -> Result<()> {
    let mut changed = lock();
    let original = match changed.take() {
        Some(changed) => changed.original,
        None => tcgetattr(io::stdin()).doing("reading the terminal's settings")?,
    };
    let mut wanted = original.clone();
    match mode {
        Mode::Editing => {}
        Mode::Asking => {
            wanted.local_modes.remove(LocalModes::ISIG);
            // Ctrl-C ends the line, which is no answer then.
            wanted.special_codes[SpecialCodeIndex::VEOL] = CTRL_C;
        }
        // Ctrl-\ and Ctrl-Z would end or stop the program without restoring the terminal; 0 disables them.
        Mode::Hidden => {
            wanted.local_modes.remove(LocalModes::ECHO);
            wanted.local_modes.insert(LocalModes::ECHONL);
            wanted.special_codes[SpecialCodeIndex::VQUIT] = 0;
            wanted.special_codes[SpecialCodeIndex::VSUSP] = 0;
        }
        Mode::Waiting => {
            wanted
                .local_modes
                .remove(LocalModes::ECHO | LocalModes::ICANON);
            wanted.special_codes[SpecialCodeIndex::VQUIT] = 0;
            wanted.special_codes[SpecialCodeIndex::VMIN] = 1;
            wanted.special_codes[SpecialCodeIndex::VTIME] = 0;
        }
    }
    *changed = Some(Changed { original, mode });
    tcsetattr(io::stdin(), OptionalActions::Now, &wanted).doing("changing the terminal's settings")
}

/// Restores the original mode, if another thread does not do that already.
pub(in crate::cli) fn restore() {
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

/// Tells the terminal not to mark pastes any more, as the line editor asked it to.
const PASTE_OFF: &str = "\x1b[?2004l";

const CTRL_C: u8 = 3;
/// Input that comes within this time after other input belongs to it.
const QUIET: Duration = Duration::from_millis(200);

/// Asks a question that only a line typed from now on can answer with yes: the rest of a paste does not.
pub(in crate::cli) fn confirm(screen: &Screen, question: &str) -> Result<bool> {
    let agreed = choice::yes_or_no(question, false, |question| {
        ask_line(screen, question, &|| false)
    });
    restore();
    Ok(agreed?.unwrap_or_default())
}

/// Asks likewise, and returns the line; `None` if it was not ended but given up, or nobody wants to know any more. Then the
/// terminal is in the mode that it was in before.
pub(in crate::cli) fn ask_line(
    screen: &Screen,
    question: &str,
    is_over: &dyn Fn() -> bool,
) -> Result<Option<String>> {
    static ASKING: Mutex<()> = Mutex::new(());
    // Calls that run side by side may ask at the same time.
    let _one_at_a_time = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    if is_over() {
        return Ok(None);
    }
    let before = lock().as_ref().map(|changed| changed.mode);
    set(Mode::Asking)?;
    let answer = read_line(screen, question, is_over);
    restore();
    if let Some(mode) = before {
        set(mode)?;
    }
    let answer = answer?;
    if answer.ends_with('\n') {
        screen.entered();
        Ok(Some(answer.trim().to_owned()))
    } else {
        screen.end_line();
        Ok(None)
    }
}

/// The line as it was typed, without a line feed if it was given up.
fn read_line(screen: &Screen, question: &str, is_over: &dyn Fn() -> bool) -> Result<String> {
    let is_typed = || -> Result<bool> {
        let stdin = io::stdin();
        let ready = sys::poll(&[(stdin.as_fd(), PollFlags::IN)], Some(QUIET)).doing("asking")?;
        Ok(ready[0])
    };
    let forget = || tcflush(io::stdin(), QueueSelector::IFlush).doing("asking");
    forget()?;
    while is_typed()? && !is_over() {
        forget()?;
    }
    forget()?;
    screen.draw(&super::broken(&printable(question)));
    while !is_typed()? {
        if is_over() {
            forget()?;
            return Ok(String::new());
        }
    }
    // The terminal gives a line at once, which Ctrl-C ends without a line feed.
    let mut answer = [0; 4096];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(io::stdin(), &mut answer));
    Ok(String::from_utf8_lossy(&answer[..read.doing("reading the answer")?]).into_owned())
}

/// Stops the program as Ctrl-Z does, until the shell continues it.
pub(in crate::cli) fn suspend() {
    let mode = lock().as_ref().map(|changed| changed.mode);
    restore();
    sys::stop();
    if let Some(mode) = mode {
        // Fails only when the terminal is gone.
        set(mode).ok();
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

/// The columns and rows of the terminal.
pub(in crate::cli) fn size() -> (usize, usize) {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stderr()));
    let (columns, rows) = size.map_or((0, 0), |size| (size.ws_col.into(), size.ws_row.into()));
    // A terminal that does not know one of them says 0.
    (
        if columns > 0 { columns } else { 80 },
        if rows > 0 { rows } else { 24 },
    )
}

/// Hides what is typed until it is dropped.
pub(in crate::cli) struct Hidden(());

impl Hidden {
    /// Turns the echo off. Where [`super::signals::Signals`] are watched, one restores it before it ends the program.
    pub(in crate::cli) fn begin() -> Result<Self> {
        set(Mode::Hidden).map(|()| Self(()))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        restore();
    }
}
