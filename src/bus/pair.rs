//! A channel of two functions.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Builder;

use super::{Channel, Inbox, Origin, Outbound};
use crate::error::{Context, Error, Result, contained};

struct Pair<R, S> {
    read: R,
    show: S,
    ended: Option<Sender<Error>>,
}

/// Creates a channel from two functions, each on its own thread: `read` adds messages and returns after the last one, and
/// `show` gets the events of all channels, one at a time.
///
/// A panic in one of them ends serving ([`serve`](crate::serve()) returns it as an error); later events are still shown. If
/// `read` waits for something else, use [`Cancel::on_stop`](crate::agent::Cancel::on_stop) of the `cancel` given to `serve` to
/// wake it.
///
/// ```
/// use bantam::{Agent, Cancel, Demo, Inbound, Inbox, Outbound};
///
/// # let home = std::env::temp_dir().join(format!("bantam-channel-{}", std::process::id()));
/// let agent = Agent::builder().provider(Demo).build()?;
/// let read = |inbox: &Inbox| {
///     let message = Inbound::line("one", "me", "time").expect("a plain key");
///     inbox.add(message).expect("room on the disk");
/// };
/// let show = |event: &Outbound| {
///     if let Some(text) = event.text() {
///         assert!(text.starts_with("It is"), "{text}");
///     }
/// };
/// bantam::serve(agent, &home, vec![bantam::channel(read, show)], &Cancel::new(None))?;
/// # std::fs::remove_dir_all(home)?;
/// # Ok::<(), bantam::Error>(())
/// ```
pub fn channel(
    read: impl FnOnce(&Inbox) + Send + 'static,
    show: impl FnMut(&Outbound) + Send + 'static,
) -> Box<dyn Channel> {
    let ended = None;
    Box::new(Pair { read, show, ended })
}

impl<R, S> Channel for Pair<R, S>
where
    R: FnOnce(&Inbox) + Send + 'static,
    S: FnMut(&Outbound) + Send + 'static,
{
    fn start(self: Box<Self>, inbox: Inbox) -> Result<Sender<Outbound>> {
        let Self {
            read,
            mut show,
            ended,
        } = *self;
        let (outbound, events) = mpsc::channel::<Outbound>();
        let thread = |name: &str| Builder::new().name(name.to_owned());
        let failed = ended.clone();
        let reading = move || {
            let reading = contained("the channel", || {
                read(&inbox);
                Ok(())
            });
            tell(failed.as_ref(), reading.doing("reading messages"));
        };
        thread("read").spawn(reading).doing("starting a thread")?;
        let shown = move || {
            for event in events {
                let showing = contained("the channel", || {
                    show(&event);
                    Ok(())
                });
                let Origin { channel, chat } = &event.origin;
                let what = || format!("showing an event of chat {chat} of {channel}");
                tell(ended.as_ref(), showing.map_err(|e| e.doing(what())));
            }
        };
        thread("show").spawn(shown).doing("starting a thread")?;
        Ok(outbound)
    }

    fn drained(&mut self) -> Option<Receiver<Error>> {
        let (ended, end) = mpsc::channel();
        self.ended = Some(ended);
        Some(end)
    }
}

fn tell(serving: Option<&Sender<Error>>, result: Result<()>) {
    if let (Some(serving), Err(e)) = (serving, result) {
        // Ignored if serving has ended.
        serving.send(e).ok();
    }
}
