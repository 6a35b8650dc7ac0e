//! Checks whether Telegram accepts the bot's token, and what prevents it from getting messages.

use std::time::Duration;

use serde_json::{Value, json};

use super::Check;
use crate::cancel::Cancel;
use crate::telegram::api::{Api, Failure};
use crate::text::to_single_line;

const NAME: &str = "telegram";
/// Time limit of a question.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks Telegram for the account of a bot.
pub(crate) fn account(api: &Api) -> Result<Value, Failure> {
    let cancel = Cancel::new(Some(TIMEOUT));
    api.call("getMe", &json!({}), Duration::ZERO, &cancel)
}

/// Returns the username of an account, without `@`.
pub(crate) fn username(account: &Value) -> String {
    to_single_line(account["username"].as_str().unwrap_or_default(), 64)
}

/// Asks Telegram about the bot. `has_users` is whether anybody may talk to it.
pub(crate) fn bot(api: &Api, has_users: bool) -> Vec<Check> {
    let me = match account(api) {
        Ok(me) => me,
        Err(e) => return vec![failed(&e)],
    };
    // Bot API, `User.can_read_all_group_messages`: true if the privacy mode is off.
    let groups = if me["can_read_all_group_messages"] == true {
        "all messages"
    } else {
        "only messages that mention it or reply to it"
    };
    let found = format!("@{}; in groups Telegram shows it {groups}", username(&me));
    let mut checks = vec![Check::ok(NAME, found)];
    let cancel = Cancel::new(Some(TIMEOUT));
    let webhook = api.call("getWebhookInfo", &json!({}), Duration::ZERO, &cancel);
    if webhook.is_ok_and(|info| info["url"].as_str().is_some_and(|url| !url.is_empty())) {
        let found = "a webhook is set for this bot and receives all its messages";
        let fix = "curl https://api.telegram.org/botTOKEN/deleteWebhook    # with your token";
        checks.push(Check::fail(NAME, found).fix(fix));
    }
    if !has_users {
        let found = "channels.telegram.allow_from is empty, so the bot will not answer";
        checks.push(Check::fail(NAME, found).fix("bantam onboard"));
    }
    checks
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
            Check::fail(NAME, format!("cannot reach Telegram: {why}")).fix(
                "curl -I https://api.telegram.org    # through a proxy: channels.telegram.proxy",
            )
        }
    }
}
