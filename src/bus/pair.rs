//! A channel of two functions.

use std::sync::Mutex;

use super::{Channel, Inbox};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::sync;

struct Pair<R, D> {
    name: String,
    read: Mutex<Option<R>>,
    deliver: D,
}

/// Creates a channel from two functions: `read` adds messages, on a separate thread, and returns after the last one; `deliver`
/// gets each text for a chat, one at a time in each chat, and again after an error.
///
/// If `read` waits for something else, use [`Cancel::on_stop`](crate::agent::Cancel::on_stop) of the `cancel` given to
/// [`serve`](crate::serve()) to wake it.
///
/// ```
/// use bantam::{Agent, Cancel, Demo, Inbound, Inbox};
///
/// # let home = std::env::temp_dir().join(format!("bantam-channel-{}", std::process::id()));
/// let agent = Agent::builder().provider(Demo).build()?;
/// let read = |inbox: &Inbox| inbox.add(Inbound::line("one", "me", "time")?).map(drop);
/// let deliver = |_chat: &str, text: &str| {
///     assert!(text.starts_with("It is"), "{text}");
///     Ok(())
/// };
/// let one = bantam::channel("one", read, deliver);
/// bantam::serve(agent, &home, vec![one], &Cancel::new(None))?;
/// # std::fs::remove_dir_all(home)?;
/// # Ok::<(), bantam::Error>(())
/// ```
pub fn channel(
    name: &str,
    read: impl FnOnce(&Inbox) -> Result<()> + Send + 'static,
    deliver: impl Fn(&str, &str) -> Result<()> + Send + Sync + 'static,
) -> Box<dyn Channel> {
    Box::new(Pair {
        name: name.to_owned(),
        read: Mutex::new(Some(read)),
        deliver,
    })
}

impl<R, D> Channel for Pair<R, D>
where
    R: FnOnce(&Inbox) -> Result<()> + Send + 'static,
    D: Fn(&str, &str) -> Result<()> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn poll(&self, inbox: &Inbox, _: &Cancel) -> Result<()> {
        let read = sync::lock(&self.read).take();
        read.map_or(Ok(()), |read| read(inbox))
    }

    fn deliver(&self, chat: &str, text: &str) -> Result<()> {
        (self.deliver)(chat, text)
    }
}
