//! Serves a home: code shared by `bantam gateway` and [`serve`], and the channels of the latter.

use std::path::Path;
use std::slice::from_ref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::Builder;
use std::time::Duration;

use super::Dispatcher;
use super::deliver::deliver;
use super::handler::HomeAgent;
use super::reports::{MAX_POSTED, Reports};
use crate::agent::{Agent, Tasks};
use crate::app::status;
use crate::bus::{Channel, Inbound, Source, TelegramMessage};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind as ErrorKind, Result, contained};
use crate::log::{Level, Logger, log_error};
use crate::outbox::{Item, Note, Outbox};
use crate::paths::Home;
use crate::storage::Lock;
use crate::telegram;
use crate::text::clip;

/// Number of turns that run at the same time, in different conversations.
const WORKERS: usize = 4;

/// Locks a home for serving.
pub(super) fn lock(home: &Home) -> Result<Lock> {
    // A program that checks for a gateway locks it for a moment.
    let wait = Duration::from_millis(300);
    Lock::acquire(&home.lock("gateway"), wait).map_err(|e| {
        if e.kind != ErrorKind::Busy {
            return e;
        }
        let running = status::read(home).filter(|gateway| gateway["ended"].is_null());
        let process = running.map_or(String::new(), |gateway| {
            format!(" (process {})", gateway["pid"])
        });
        let what = format!("a gateway is already running for this home{process}");
        let hint = "stop that one first, or set BANTAM_HOME to another home";
        Error::new(ErrorKind::Busy, what).hint(hint)
    })
}

/// Runs an agent that answers the messages of these channels until all channels have ended, or `cancel` stops, and then until
/// all messages are answered.
///
/// Messages of one conversation are answered in order; those waiting together share a turn. Up to four conversations are
/// answered at the same time. [`Command::Stop`](crate::Command::Stop) ends the running turn. Events of a turn are shown in its
/// channel; the last one is [`Event::Done`](crate::Event::Done). Its answer, or the reason of its failure, is delivered to its
/// chat, like the reply to a command.
///
/// A message is stored in `home` until its turn ends, and then its answer, until it is delivered. After a crash, the next call
/// of `serve` with this home continues the turn, if the agent's store has saved it. Messages with a known id are not answered
/// again. A message that crashed the program three times is skipped, with a notice to its chat. Only one server can use `home`
/// at a time.
///
/// Before this returns, `cancel` is stopped, so that readers of channels can end, and
/// [`Inbox::add`](crate::bus::Inbox::add) refuses later messages.
///
/// # Errors
/// Returns [`crate::error::Kind::Busy`] if another server uses `home`, and other errors if a thread cannot start or the queue
/// cannot be read. Also returns the error, or the panic, of a channel's [`Channel::poll`], after the waiting messages are
/// answered.
pub fn serve(
    agent: Agent,
    home: impl AsRef<Path>,
    channels: Vec<Box<dyn Channel>>,
    cancel: &Cancel,
) -> Result<()> {
    let served = serve_until_end(agent, home.as_ref(), channels, cancel);
    cancel.stop();
    served
}

fn serve_until_end(
    agent: Agent,
    home: &Path,
    channels: Vec<Box<dyn Channel>>,
    cancel: &Cancel,
) -> Result<()> {
    let home = Home::new(std::path::absolute(home)?);
    let _lock = lock(&home)?;
    let outbox = Outbox::new(home);
    let inbox = outbox.inbox.clone();
    inbox.allow_turns(WORKERS);
    let log: Logger = Arc::new(|_, _| ());
    let dispatcher = Arc::new_cyclic(|own| Dispatcher {
        agents: Arc::new(HomeAgent::of(agent)),
        inbox: inbox.clone(),
        runner: None,
        outbox,
        channels: channels.into_iter().map(Arc::from).collect(),
        bot: None,
        tasks: Tasks::with_sink(Reports(inbox.clone(), own.clone())),
        // Received messages are answered even after the channels have ended.
        cancel: Cancel::new(None),
        log: log.clone(),
        turn_log: log,
    });
    dispatcher.take_left(&|_| false)?;
    if dispatcher.channels.is_empty() {
        inbox.close();
    }
    dispatcher.serve_channels(cancel)
}

impl Dispatcher {
    /// Lets messages of an earlier program wait, and passes on its reports. Those of other channels remain for a program that
    /// serves them, and those of removed users are dropped.
    pub(super) fn take_left(&self, is_removed: &dyn Fn(&TelegramMessage) -> bool) -> Result<()> {
        let is_removed = |message: &Inbound| message.written().is_some_and(is_removed);
        let (removed, mut left): (Vec<_>, Vec<_>) = self
            .inbox
            .open(&|_| true)?
            .into_iter()
            .partition(is_removed);
        for message in removed {
            let text = "dropped a message from a user who is no longer in allow_from";
            (self.log)(Level::Info, text);
            self.inbox.queue.done(&[message.id])?;
        }
        left.retain(|message| {
            let mut channels = self.channels.iter();
            let is_own = channels.any(|channel| channel.name() == message.origin.channel);
            is_own || (self.runner.is_some() && matches!(message.source, Source::Job(_)))
        });
        let is_report = |message: &Inbound| matches!(message.source, Source::Task);
        let (reports, messages): (Vec<_>, Vec<_>) = left.into_iter().partition(is_report);
        for report in &reports {
            // Without a model: otherwise each restart could exceed the task's limit of requests.
            let item = Item::text("", clip(&report.text, MAX_POSTED));
            let note = Note {
                title: "This was sent to the chat",
                from: "",
                text: &report.text,
            };
            self.end(report, item, from_ref(&report.id), Some(&note));
        }
        self.inbox.push(messages);
        Ok(())
    }

    /// Answers the messages that the channels add, until all channels, if there are any, have ended or `cancel` is stopped. Then
    /// waits for all turns, tasks and deliveries.
    pub(super) fn serve_channels(self: &Arc<Self>, cancel: &Cancel) -> Result<()> {
        let (inbox, halted) = (self.inbox.clone(), self.clone());
        let _close = cancel.on_stop(move || inbox.close());
        let _halt = self.cancel.on_stop(move || {
            log_error(&halted.log, halted.inbox.halt());
        });
        let (failed, failures) = mpsc::channel();
        let over = Cancel::new(None);
        let outbox = self.outbox.clone();
        let mut delivering = Vec::new();
        let _wake = over.on_stop(move || outbox.wake());
        let reading = Arc::new(AtomicUsize::new(self.channels.len()));
        for channel in &self.channels {
            let (own, failed, cancel) = (self.clone(), failed.clone(), cancel.clone());
            let (polled, left) = (channel.clone(), reading.clone());
            let poll = move || {
                let polled = contained("the channel", || polled.poll(&own.inbox, &cancel));
                if let Err(e) = polled {
                    // The receiver is gone if serving has ended.
                    failed.send(e.doing("reading messages")).ok();
                    cancel.stop();
                }
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    own.inbox.close();
                }
            };
            let thread = Builder::new().name("read".to_owned()).spawn(poll);
            thread.doing("starting a thread")?;
            if channel.name() != telegram::CHANNEL {
                let own = self.clone();
                let channel = channel.clone();
                let over = over.clone();
                let deliver = move || deliver(&*channel, &own.outbox, &over);
                let thread = Builder::new().name("deliver".to_owned()).spawn(deliver);
                delivering.push(thread.doing("starting a thread")?);
            }
        }
        self.serve();
        over.stop();
        let mut served = failures.try_iter().next().map_or(Ok(()), Err);
        for thread in delivering {
            // A panic in the channel is a failed delivery, so there is none here.
            served = served.and(thread.join().unwrap_or(Ok(())));
        }
        served
    }
}
