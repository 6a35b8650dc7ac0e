//! Runs the commands of chats.

use super::Dispatcher;
use crate::bus::{Command, Inbound, Work};
use crate::outbox::Item;
use crate::text::counted;

impl Dispatcher {
    /// Runs a command. One that changes the conversation does not run again after a crash, because the first run may have
    /// succeeded.
    pub(super) fn answer_command(&self, work: &Work, command: &Command) {
        let message = work.first();
        if message.starts > 0 {
            let text = "I was interrupted. Send the command again if you still need it.";
            return self.reply(message, text);
        }
        match command {
            Command::Stop => {
                let text = match self.stop_tasks(message) {
                    // The end of the turn reports the stop.
                    0 if message.has_stopped => String::new(),
                    0 => "There is nothing to stop.".to_owned(),
                    count => stopped_tasks(count),
                };
                self.reply(message, &text);
                self.show_tasks(&message.origin, &message.session);
            }
            Command::Status | Command::Usage | Command::Help => self.run_command(message, command),
            _ if self.start(message) => self.run_command(message, command),
            _ => {}
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
        let reply = self.agents.command(command, &message.session);
        let mut reply = reply.unwrap_or_else(|e| {
            // Other hints are for a shell.
            let near = e.hint.filter(|hint| hint.starts_with("did you mean"));
            let near = near.map_or(String::new(), |near| format!("; {near}"));
            Item::text("", &(e.message + &near))
        });
        if stopped > 0 {
            reply.text.push('\n');
            reply.text.push_str(&stopped_tasks(stopped));
            self.show_tasks(&message.origin, &message.session);
        }
        if *command == Command::Status {
            let (turns, behind) = self.inbox.running();
            let tasks = self.tasks.open(None);
            let more = format!("\nturns running: {turns}\nbackground tasks: {tasks}");
            reply.text.push_str(&more);
            if !behind.is_empty() {
                let open = behind.len();
                let waiting: usize = behind.iter().sum();
                let text = format!("\nopen questions: {open}, messages behind them: {waiting}");
                reply.text.push_str(&text);
            }
        }
        self.end(message, reply, std::slice::from_ref(&message.id), None);
    }
}

fn stopped_tasks(count: usize) -> String {
    format!("Stopped {}.", counted(count, "background task"))
}
