//! The configured Telegram bot: its settings, its token and its API.

use std::sync::Arc;

use super::http_settings;
use crate::config::{self, Env, Loaded, keys};
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::telegram::CHANNEL;
use crate::telegram::api::{Api, BASE};
use crate::telegram::deliver::Delivery;

/// The configured bot.
pub(crate) struct Bot {
    /// Settings, with the token resolved if the file names a variable, a file or a command.
    pub settings: config::Telegram,
    pub api: Arc<Api>,
}

impl Bot {
    /// Returns the configured bot, even if it is disabled.
    pub(crate) fn configured(loaded: &Loaded) -> Result<Self> {
        let settings = &loaded.config.channels.telegram;
        Self::new(settings, &loaded.home, &loaded.env)
    }

    pub(crate) fn new(settings: &config::Telegram, home: &Home, env: &Env) -> Result<Self> {
        let mut settings = settings.clone();
        if settings.token.is_empty() {
            return Err(Error::config("channels.telegram.token is not set")
                .hint("ask @BotFather for a token, and put it into channels.telegram.token or TELEGRAM_BOT_TOKEN"));
        }
        settings.token =
            keys::resolve(&settings.token, env, &home.config()).doing("channels.telegram.token")?;
        let own = settings.api_base.as_str();
        config::check_base("channels.telegram.api_base", own)?;
        let base = if own.is_empty() { BASE } else { own };
        let http = http_settings(base, &settings.proxy, env);
        let api = Arc::new(Api::new(http, own, &settings.token));
        Ok(Self { settings, api })
    }

    /// Makes the delivery of a command. `None` without a bot, which is an error if there is a chat `to` deliver to, so that it
    /// is reported before the model is asked.
    pub(crate) fn delivery(
        loaded: &Loaded,
        to: Option<&str>,
        notice: fn(&str),
    ) -> Result<Option<Delivery>> {
        match Self::configured(loaded) {
            Err(e) if to.is_some() => Err(e),
            Err(_) => Ok(None),
            Ok(bot) => Ok(Some(Delivery::new(&loaded.home, bot.api, notice))),
        }
    }

    /// Returns the bot's numeric id, the first part of its token.
    pub(crate) fn id(&self) -> i64 {
        let id = self.settings.token.reveal().split(':').next();
        id.and_then(|id| id.parse().ok()).unwrap_or_default()
    }
}

/// Returns the owner's chat with the bot that the gateway runs, if there is one.
pub(crate) fn owner(loaded: &Loaded) -> Option<String> {
    if !is_enabled(loaded) {
        return None;
    }
    let owner = *loaded.config.channels.telegram.ids().first()?;
    Some(format!("{CHANNEL}:{owner}"))
}

/// Whether the gateway runs the bot. Without `enabled`, a token enables it, such as one in the environment.
pub(crate) fn is_enabled(loaded: &Loaded) -> bool {
    let bot = &loaded.config.channels.telegram;
    bot.enabled.unwrap_or(!bot.token.is_empty())
}
