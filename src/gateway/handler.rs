//! The agent of a home, and its replies to commands.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use crate::agent::Agent;
use crate::app::{App, Flags, StoredConversation, chat_status, local_time, skills};
use crate::bus::Command;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::outbox::{Button, Item};
use crate::provider::catalog;
use crate::session::archive;
use crate::sync;
use crate::telegram::{self, MODEL_BUTTON};
use crate::text::clip;
use crate::usage;

/// Maximum number of models with a button; any other name can be typed.
const MAX_MODELS: usize = 20;
/// Maximum size of a button's data, in bytes (Bot API, `callback_data`).
const MAX_DATA: usize = 64;

/// Provides the agent, and runs commands.
pub(super) struct HomeAgent {
    /// The home whose configuration makes the agent; `None` for a program's agent.
    app: Option<Arc<App>>,
    flags: Flags,
    /// Replaced after the tools of a server have changed.
    built: Mutex<Arc<Agent>>,
}

impl HomeAgent {
    /// Builds the agent, and returns it with notices for the user.
    pub(super) fn new(app: Arc<App>, flags: Flags) -> Result<(Self, Vec<String>)> {
        let (agent, notices) = app.build(&flags)?;
        let mut own = Self::of(agent);
        (own.app, own.flags) = (Some(app), flags);
        Ok((own, notices))
    }

    /// Provides one agent for all conversations, with the commands `/new` and `/status`.
    pub(super) fn of(agent: Agent) -> Self {
        Self {
            app: None,
            flags: Flags::default(),
            built: Mutex::new(Arc::new(agent)),
        }
    }

    fn app(&self) -> Result<&Arc<App>> {
        let app = self.app.as_ref();
        app.ok_or_else(|| Error::failed("this command does not exist here"))
    }

    /// Returns the agent for the next turn.
    pub(super) fn agent(&self) -> Result<Arc<Agent>> {
        let mut built = sync::lock(&self.built);
        let app = self.app.as_ref();
        if let Some(app) = app.filter(|app| app.servers.take_changed()) {
            *built = Arc::new(app.build(&self.flags)?.0);
        }
        Ok(built.clone())
    }

    /// Returns the name of an unknown command, `/NAME`, in a message.
    pub(super) fn unknown_command(&self, message: &str) -> Option<String> {
        skills(self.app.as_ref()?.loaded().ok()?).unknown_command(message)
    }

    /// Runs a command other than [`Command::Stop`], and returns the reply, without its destination.
    pub(super) fn command(&self, command: &Command, session: &str) -> Result<Item> {
        let text = match command {
            Command::New => {
                match &self.app {
                    Some(app) => {
                        let now = SystemTime::now();
                        archive::reset(&app.home, session, &Cancel::new(None), now)?;
                    }
                    None => self.agent()?.reset(session)?,
                }
                "This is a new conversation.".to_owned()
            }
            Command::Undo => match self.conversation(session)?.undo_with_files()? {
                Some(lines) => lines.join("\n").replacen("undone", "Undone", 1),
                None => "Nothing to undo.".to_owned(),
            },
            Command::Model(name) if name.is_empty() => return self.offer_models(session),
            Command::Model(name) => self.change_model(session, name)?,
            Command::Status => {
                let agent = self.agent()?;
                chat_status(&agent, session, agent.models_for(session)?.first())?
            }
            Command::Usage => self.usage()?,
            Command::Help => self.app().map(|_| telegram::help())?,
            Command::Stop => String::new(),
        };
        Ok(Item::text("", &text))
    }

    fn conversation<'a>(&'a self, key: &'a str) -> Result<StoredConversation<'a>> {
        let (app, memory) = (&**self.app()?, None);
        Ok(StoredConversation { app, key, memory })
    }

    /// Names the current model, and offers the configured models and those that their providers offer, as buttons.
    fn offer_models(&self, session: &str) -> Result<Item> {
        let loaded = self.app()?.loaded()?;
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
        if self.app()?.is_model_fixed() {
            let what =
                "/model has no effect: BANTAM_AGENTS_DEFAULTS_MODEL_NAME is set for the gateway";
            return Err(Error::config(what));
        }
        let (_, first) = self.conversation(session)?.use_model(name)?;
        Ok(format!("This chat now uses `{first}`."))
    }

    fn usage(&self) -> Result<String> {
        let app = self.app()?;
        let today = local_time(&app.env)(SystemTime::now());
        let total = usage::report(&app.home.usage(), clip(&today, 10))?.total;
        let cost = total
            .cost
            .map_or(String::new(), |cost| format!(", cost {cost}"));
        let (calls, usage) = (total.calls, total.usage);
        Ok(format!(
            "Today: {calls} requests, {} input and {} output tokens{cost}.",
            usage.prompt_tokens, usage.completion_tokens,
        ))
    }
}

/// Returns the row of a model's button, unless its name is too long for one.
fn model_button(name: String) -> Option<Vec<Button>> {
    let data = format!("{MODEL_BUTTON}{name}");
    (data.len() <= MAX_DATA).then(|| vec![Button { text: name, data }])
}
