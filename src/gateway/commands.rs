//! Runs the commands of chats.

use super::Dispatcher;
use crate::bus::{Command, Inbound, Work};
use crate::outbox::{Button, Item};
use crate::telegram::MODEL_BUTTON;

/// Maximum number of models with a button; any other name can be typed.
const MAX_MODELS: usize = 20;
/// Maximum size of a button's data, in bytes (Bot API, `callback_data`).
const MAX_DATA: usize = 64;

/// The reply to a command.
pub(crate) struct CommandReply {
    pub text: String,
    /// Models for a menu of buttons.
    pub models: Vec<String>,
}

impl From<String> for CommandReply {
    fn from(text: String) -> Self {
        let models = Vec::new();
        Self { text, models }
    }
}

impl Dispatcher {
    /// Runs a command in its place among the messages of its conversation, but not again after a crash, because the first run
    /// may have succeeded.
    pub(super) fn command_in_turn(&self, work: &Work, command: &Command) {
        let message = work.first();
        if message.starts > 0 {
            let name = match command {
                Command::New => "/new",
                Command::Undo => "/undo",
                _ => "/model",
            };
            let text = format!("I was interrupted. Send {name} again if you still need it.");
            return self.reply(message, &text);
        }
        if self.start(message) {
            self.run_command(message, command);
        }
    }

    /// Runs a command that waits for no turn. `/stop` may have stopped one.
    pub(super) fn command_apart(&self, message: &Inbound, has_stopped: bool) {
        match &message.command {
            Some(Command::Stop) => {
                let text = match self.stop_tasks(message) {
                    // The end of the turn reports the stop.
                    0 if has_stopped => String::new(),
                    0 => "There is nothing to stop.".to_owned(),
                    count => stopped_tasks(count),
                };
                self.reply(message, &text);
                self.show_tasks(&message.origin, &message.session);
            }
            Some(command) => self.run_command(message, command),
            None => {}
        }
    }

    /// Stops the background tasks of a conversation and returns their number.
    fn stop_tasks(&self, message: &Inbound) -> usize {
        let (stopped, forgotten) = self.tasks.stop(&message.session);
        self.show_failure(&message.origin, forgotten);
        stopped.len()
    }

    fn run_command(&self, message: &Inbound, command: &Command) {
        let stopped = match command {
            // Reports of these tasks would refer to questions that are gone.
            Command::Undo | Command::New => self.stop_tasks(message),
            _ => 0,
        };
        let reply = self.handler.command(command, &message.session);
        let mut reply = reply.unwrap_or_else(|e| {
            let text = match e.hint {
                Some(hint) => format!("{}\nhint: {hint}", e.message),
                None => e.message,
            };
            text.into()
        });
        if stopped > 0 {
            reply.text.push('\n');
            reply.text.push_str(&stopped_tasks(stopped));
            self.show_tasks(&message.origin, &message.session);
        }
        if *command == Command::Status {
            let (turns, tasks) = (self.inbox.running(), self.tasks.open(None));
            let more = format!("\nturns running: {turns}\nbackground tasks: {tasks}");
            reply.text.push_str(&more);
        }
        match &message.reply_to {
            Some(to) if !reply.models.is_empty() => {
                let item = Item {
                    buttons: model_buttons(reply.models),
                    ..Item::text(to, &reply.text)
                };
                let ids = std::slice::from_ref(&message.id);
                self.post(&item, ids, None);
                self.inbox.forget(ids);
            }
            _ => self.reply(message, &reply.text),
        }
    }
}

/// Returns a button for each of the first models.
fn model_buttons(models: Vec<String>) -> Vec<Vec<Button>> {
    let button = |name: String| {
        let data = format!("{MODEL_BUTTON}{name}");
        (data.len() <= MAX_DATA).then(|| vec![Button { text: name, data }])
    };
    models
        .into_iter()
        .filter_map(button)
        .take(MAX_MODELS)
        .collect()
}

fn stopped_tasks(count: usize) -> String {
    match count {
        1 => "The background task was stopped.".to_owned(),
        count => format!("{count} background tasks were stopped."),
    }
}
