//! The agent of a home, and its replies to commands.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use super::Handler;
use crate::agent::Agent;
use crate::app::{App, Flags, StoredConversation, local_time, skills};
use crate::bus::Command;
use crate::error::{Error, Result};
use crate::outbox::{Button, Item};
use crate::provider::catalog;
use crate::session::Session;
use crate::sync;
use crate::telegram::{self, MODEL_BUTTON};
use crate::text::clip;
use crate::usage;

/// Maximum number of models with a button; any other name can be typed.
const MAX_MODELS: usize = 20;
/// Maximum size of a button's data, in bytes (Bot API, `callback_data`).
const MAX_DATA: usize = 64;

/// The agent of a home's configuration.
pub(super) struct HomeAgent {
    app: Arc<App>,
    flags: Flags,
    /// Rebuilt after the tools of a server have changed.
    built: Mutex<Option<Arc<Agent>>>,
}

impl HomeAgent {
    pub(super) fn new(app: Arc<App>, flags: Flags) -> Self {
        Self {
            app,
            flags,
            built: Mutex::default(),
        }
    }

    /// Builds the agent, and returns it with notices for the user.
    pub(super) fn build(&self) -> Result<(Arc<Agent>, Vec<String>)> {
        let (agent, notices) = self.app.build(&self.flags)?;
        let agent = Arc::new(agent);
        *self.built() = Some(agent.clone());
        Ok((agent, notices))
    }

    fn built(&self) -> MutexGuard<'_, Option<Arc<Agent>>> {
        sync::lock(&self.built)
    }

    fn conversation<'a>(&'a self, key: &'a str) -> StoredConversation<'a> {
        let (app, memory) = (&*self.app, None);
        StoredConversation { app, key, memory }
    }

    /// Names the current model, and offers the configured models and those that their providers offer, as buttons.
    fn offer_models(&self, session: &str) -> Result<Item> {
        let loaded = self.app.loaded()?;
        let names = loaded.config.names().into_iter();
        let mut models: Vec<String> = names.map(str::to_owned).collect();
        for name in catalog::names(loaded) {
            if !models.contains(&name) {
                models.push(name);
            }
        }
        let now = self.agent()?.models_for(session)?;
        let model = now.first();
        let text = format!(
            "`{model}` answers here. To change that, press a button, or type any other name after `/model`, such as `/model \
             PROVIDER/MODEL`."
        );
        let buttons = models.into_iter().filter_map(model_button);
        Ok(Item {
            buttons: buttons.take(MAX_MODELS).collect(),
            ..Item::text("", &text)
        })
    }

    fn change_model(&self, session: &str, name: &str) -> Result<String> {
        if self.app.is_model_fixed() {
            let what =
                "/model has no effect: BANTAM_AGENTS_DEFAULTS_MODEL_NAME is set for the gateway";
            return Err(Error::config(what));
        }
        let (_, first) = self.conversation(session).use_model(name)?;
        Ok(format!("This chat now uses `{first}`."))
    }

    fn status(&self, session: &str) -> Result<String> {
        let messages = Session::peek(&self.app.store(), session)?.messages.len();
        let agent = self.agent()?;
        Ok(format!(
            "bantam {}, `{}`\nmessages in this conversation: {messages}\ncontext: {}",
            env!("CARGO_PKG_VERSION"),
            agent.models_for(session)?.first(),
            agent.window_use(session)?
        ))
    }

    fn usage(&self, session: &str) -> Result<String> {
        let today = local_time(&self.app.env)(SystemTime::now());
        let total = usage::report(&self.app.home.usage(), clip(&today, 10))?.total;
        let cost = total
            .cost
            .map_or(String::new(), |cost| format!(", cost {cost}"));
        let (calls, usage) = (total.calls, total.usage);
        Ok(format!(
            "Today: {calls} requests, {} input and {} output tokens{cost}.\nContext of this conversation: {}.",
            usage.prompt_tokens,
            usage.completion_tokens,
            self.agent()?.window_use(session)?
        ))
    }
}

/// Returns the row of a model's button, unless its name is too long for one.
fn model_button(name: String) -> Option<Vec<Button>> {
    let data = format!("{MODEL_BUTTON}{name}");
    (data.len() <= MAX_DATA).then(|| vec![Button { text: name, data }])
}

/// Capitalizes the first letter.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

impl Handler for HomeAgent {
    fn agent(&self) -> Result<Arc<Agent>> {
        if self.app.servers.take_changed() {
            *self.built() = None;
        }
        if let Some(agent) = &*self.built() {
            return Ok(agent.clone());
        }
        Ok(self.build()?.0)
    }

    fn unknown_command(&self, message: &str) -> Option<String> {
        skills(self.app.loaded().ok()?).unknown_command(message)
    }

    fn command(&self, command: &Command, session: &str) -> Result<Item> {
        let text = match command {
            Command::New => {
                self.conversation(session).reset()?;
                "This is a new conversation.".to_owned()
            }
            Command::Undo => match self.conversation(session).undo_with_files()? {
                Some(lines) => sentence(&lines.join("\n")),
                None => "Nothing to undo.".to_owned(),
            },
            Command::Model(name) if name.is_empty() => return self.offer_models(session),
            Command::Model(name) => self.change_model(session, name)?,
            Command::Status => self.status(session)?,
            Command::Usage => self.usage(session)?,
            Command::Help => telegram::help(),
            Command::Stop => String::new(),
        };
        Ok(Item::text("", &text))
    }
}
