//! A channel of two functions.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Builder;

use super::{Channel, Inbound, Outbound};
use crate::error::{Context, Result};

struct Pair<R, S> {
    read: R,
    show: S,
    ended: Option<Sender<()>>,
}

/// A channel of two functions, each on a thread of its own: `read` sends messages until there are no more, and `show` gets the
/// events, of its own channel and of all others, one after the other.
///
/// ```
/// use bantam::agent::{Agent, Cancel};
/// use bantam::bus::{self, Inbound, Outbound};
/// use bantam::provider::demo::Demo;
///
/// # let home = std::env::temp_dir().join(format!("bantam-channel-{}", std::process::id()));
/// let agent = Agent::builder().provider(Demo).build()?;
/// let read = |inbound: &std::sync::mpsc::Sender<Inbound>| {
///     let message = Inbound::line("one", "me", "time").expect("a plain key");
///     inbound.send(message).ok();
/// };
/// let show = |event: &Outbound| {
///     if let Some(text) = event.text() {
///         assert!(text.starts_with("It is"), "{text}");
///     }
/// };
/// bantam::serve(agent, &home, vec![bus::channel(read, show)], &Cancel::new(None))?;
/// # std::fs::remove_dir_all(home)?;
/// # Ok::<(), bantam::error::Error>(())
/// ```
pub fn channel(
    read: impl FnOnce(&Sender<Inbound>) + Send + 'static,
    show: impl FnMut(&Outbound) + Send + 'static,
) -> Box<dyn Channel> {
    let ended = None;
    Box::new(Pair { read, show, ended })
}

impl<R, S> Channel for Pair<R, S>
where
    R: FnOnce(&Sender<Inbound>) + Send + 'static,
    S: FnMut(&Outbound) + Send + 'static,
{
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self {
            read,
            mut show,
            ended,
        } = *self;
        let (outbound, events) = mpsc::channel::<Outbound>();
        let thread = |name: &str| Builder::new().name(name.to_owned());
        let reading = thread("read").spawn(move || read(&inbound));
        reading.doing("starting a thread")?;
        let shown = move || {
            for event in events {
                show(&event);
            }
            drop(ended);
        };
        thread("show").spawn(shown).doing("starting a thread")?;
        Ok(outbound)
    }

    fn last_shown(&mut self) -> Option<Receiver<()>> {
        let (ended, end) = mpsc::channel();
        self.ended = Some(ended);
        Some(end)
    }
}
