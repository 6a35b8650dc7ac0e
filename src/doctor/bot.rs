//! Checks whether Telegram accepts the bot's token, and whether anybody may write to the bot.

use std::time::Duration;

use serde_json::json;

use super::Check;
use crate::cancel::Cancel;
use crate::telegram::api::{Api, Failure};
use crate::text::to_single_line;

const NAME: &str = "telegram";
/// Time limit of a question.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks Telegram for the username of a bot, without `@`.
pub(crate) fn username(api: &Api) -> Result<String, Failure> {
    let cancel = Cancel::new(Some(TIMEOUT));
    let account = api.call("getMe", &json!({}), Duration::ZERO, &cancel)?;
    let name = account["username"].as_str().unwrap_or_default();
    Ok(to_single_line(name, 64))
}

/// Asks Telegram about the bot. `has_users` is whether anybody may talk to it.
pub(crate) fn bot(api: &Api, has_users: bool) -> Check {
    match username(api) {
        Err(e) => failed(&e),
        Ok(_) if !has_users => {
            let found = "channels.telegram.allow_from is empty, so the bot will not answer";
            Check::fail(NAME, found).fix("bantam onboard")
        }
        Ok(name) => Check::ok(NAME, format!("@{name}")),
    }
}

fn failed(failure: &Failure) -> Check {
    let (found, fix) = match failure {
        Failure::Unauthorized(_) => (
            "",
            "bantam onboard    # with the token that @BotFather shows for /token",
        ),
        _ => (
            "cannot reach Telegram: ",
            "curl -I https://api.telegram.org    # through a proxy: channels.telegram.proxy",
        ),
    };
    let why = to_single_line(&failure.text(), 300);
    Check::fail(NAME, format!("{found}{why}")).fix(fix)
}
