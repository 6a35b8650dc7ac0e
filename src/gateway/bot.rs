//! The Telegram bot that the gateway runs.

use crate::app::bot::Bot;
use crate::config::{self, GroupTrigger, Loaded};
use crate::error::Result;
use crate::telegram::Settings;

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

    pub(super) fn channel_settings(&self) -> Settings {
        Settings {
            allow_from: self.settings.ids(),
            answers_all: self.settings.group_trigger == GroupTrigger::All,
            drafts: self.settings.streaming,
        }
    }

    /// Returns warnings about `allow_from`.
    pub(super) fn warnings(&self) -> Vec<String> {
        let written = self.settings.allow_from.iter();
        let invalid = written.filter(|written| config::user_id(written).is_none());
        let ignored = |written: &String| {
            let written = config::shown(written);
            format!(
                "channels.telegram.allow_from: \"{written}\" is not a numeric id and is ignored"
            )
        };
        invalid.map(ignored).collect()
    }
}
