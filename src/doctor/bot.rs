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
    match failure {
        Failure::Unauthorized(why) => {
            let why = to_single_line(why, 200);
            Check::fail(NAME, format!("Telegram refused the token ({why})"))
                .fix("bantam onboard    # with the token that @BotFather shows for /token")
        }
        e => {
            let why = to_single_line(&e.text(), 200);
            let fix =
                "curl -I https://api.telegram.org    # through a proxy: channels.telegram.proxy";
            Check::fail(NAME, format!("cannot reach Telegram: {why}")).fix(fix)
        }
    }
}
