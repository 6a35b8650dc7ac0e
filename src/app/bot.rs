//! The configured Telegram bot: its settings, its token and its API.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::http_settings;
use crate::cancel::Cancel;
use crate::config::{self, Env, GroupTrigger, Loaded, keys};
use crate::error::{Context, Error, Kind, Result};
use crate::paths::Home;
use crate::telegram::api::{Api, BASE, Failure};
use crate::telegram::deliver::Delivery;
use crate::telegram::{CHANNEL, REFUSED_TOKEN, Settings};
use crate::text::to_single_line;

/// The configured bot.
pub(crate) struct Bot {
    /// Settings, with the token resolved if the file names a variable, a file or a command.
    pub settings: config::Telegram,
    pub api: Arc<Api>,
}

impl Bot {
    /// Returns the bot that the gateway runs, if any. Without `enabled`, a token enables it, such as one in the environment.
    pub(super) fn if_wanted(loaded: &Loaded) -> Result<Option<Self>> {
        let settings = &loaded.config.channels.telegram;
        let is_wanted = settings.enabled.unwrap_or(!settings.token.is_empty());
        if is_wanted {
            Self::configured(loaded).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Returns the configured bot, even if it is disabled.
    pub(crate) fn configured(loaded: &Loaded) -> Result<Self> {
        let settings = &loaded.config.channels.telegram;
        Self::new(settings, &loaded.home, &loaded.env)
    }

    pub(crate) fn new(settings: &config::Telegram, home: &Home, env: &Env) -> Result<Self> {
        let mut settings = settings.clone();
        if settings.token.is_empty() {
            return Err(Error::config("channels.telegram.token is not set")
                .hint("@BotFather gives a token; put it into channels.telegram.token, or into TELEGRAM_BOT_TOKEN"));
        }
        settings.token =
            keys::resolve(&settings.token, env, &home.config()).doing("channels.telegram.token")?;
        if !settings.api_base.is_empty() && !settings.api_base.starts_with("http") {
            return Err(Error::config("channels.telegram.api_base has no scheme")
                .hint("write it as http://HOST:PORT"));
        }
        let base = if settings.api_base.is_empty() {
            BASE
        } else {
            &settings.api_base
        };
        let api = Arc::new(Api::new(
            http_settings(base, &settings.proxy, env),
            &settings.api_base,
            &settings.token,
        ));
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

    /// # Errors
    /// Returns an error if Telegram refuses the token. Other failures are ignored.
    pub(super) fn check_token(&self, cancel: &Cancel) -> Result<()> {
        match self.api.call("getMe", &json!({}), Duration::ZERO, cancel) {
            Err(Failure::Unauthorized(why)) => Err(Error::new(
                Kind::Auth,
                format!("Telegram refused the token ({why})"),
            )
            .hint(REFUSED_TOKEN)),
            _ => Ok(()),
        }
    }

    pub(super) fn channel_settings(&self) -> Settings {
        let config::Telegram {
            streaming,
            group_trigger,
            ..
        } = &self.settings;
        Settings {
            allow_from: self.settings.ids(),
            answers_all: *group_trigger == GroupTrigger::All,
            drafts: *streaming,
        }
    }

    /// Returns warnings about `allow_from`.
    pub(super) fn warnings(&self) -> Vec<String> {
        let (valid, invalid): (Vec<&String>, Vec<&String>) = self
            .settings
            .allow_from
            .iter()
            .partition(|written| config::user_id(written).is_some());
        let ignored = |written: &String| {
            let written = to_single_line(written, 40);
            format!(
                "channels.telegram.allow_from: \"{written}\" is not a numeric id and is ignored"
            )
        };
        let mut warnings: Vec<String> = invalid.into_iter().map(ignored).collect();
        if valid.is_empty() {
            warnings.push(
                "channels.telegram.allow_from is empty: nobody gets an answer; the log shows the ids of users who write"
                    .to_owned(),
            );
        }
        warnings
    }

    /// Returns the bot's numeric id, the first part of its token.
    pub(crate) fn id(&self) -> i64 {
        self.settings
            .token
            .reveal()
            .split(':')
            .next()
            .and_then(|id| id.parse().ok())
            .unwrap_or_default()
    }
}

/// Returns the owner's chat with the bot that the gateway runs, if there is one.
pub(crate) fn owner(loaded: &Loaded) -> Option<String> {
    let bot = &loaded.config.channels.telegram;
    if !is_enabled(loaded) || bot.token.is_empty() {
        return None;
    }
    Some(format!("{CHANNEL}:{}", bot.ids().first()?))
}

/// Whether the gateway may run the bot. Without `enabled`, a token enables it, such as one in the environment.
pub(crate) fn is_enabled(loaded: &Loaded) -> bool {
    loaded.config.channels.telegram.enabled != Some(false)
}
