//! The bot: whether Telegram knows its token, and what keeps messages from reaching it.

use std::time::Duration;

use serde_json::{Value, json};

use super::Check;
use crate::cancel::Cancel;
use crate::telegram::api::{Api, Failure};
use crate::text::one_line;

const WHAT: &str = "telegram";
/// How long Telegram has to answer both questions.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks Telegram who the bot is. `allowed` is how many may talk to it.
pub fn asked(api: &Api, allowed: usize) -> Vec<Check> {
    let cancel = Cancel::new(Some(PATIENCE));
    let ask = |method| api.call(method, &json!({}), Duration::ZERO, &cancel);
    let me = match ask("getMe") {
        Ok(me) => me,
        Err(e) => return vec![unknown(&e)],
    };
    let name = one_line(me["username"].as_str().unwrap_or_default(), 64);
    // Bot API, `User.can_read_all_group_messages`: whether the privacy mode is off.
    let groups = if me["can_read_all_group_messages"] == true { "all" } else { "what mentions it or answers it" };
    let mut checks = vec![Check::well(WHAT, format!("@{name} is known; in groups Telegram shows it {groups}"))];
    if let Ok(info) = ask("getWebhookInfo") {
        if info["url"].as_str().is_some_and(|url| !url.is_empty()) {
            checks.push(
                Check::fails(WHAT, "a webhook is set for this bot, which takes all that people write")
                    .fix("curl https://api.telegram.org/botTOKEN/deleteWebhook    # with the token in its place"),
            );
        }
        let waiting = info.get("pending_update_count").and_then(Value::as_u64).unwrap_or(0);
        if waiting > 0 {
            let what = format!("{waiting} messages wait with Telegram: no gateway has fetched them");
            checks.push(Check::aside(WHAT, what).fix("bantam gateway"));
        }
    }
    if allowed == 0 {
        checks.push(
            Check::fails(WHAT, "channels.telegram.allow_from is empty: nobody is answered").fix(
                "write to the bot while bantam gateway runs, which then tells your id, and put that into allow_from",
            ),
        );
    }
    checks
}

fn unknown(failure: &Failure) -> Check {
    match failure {
        Failure::Unauthorized(why) => Check::fails(WHAT, format!("the token is refused ({})", one_line(why, 200)))
            .fix("ask @BotFather for a new one (/token), and put it into channels.telegram.token"),
        Failure::Stopped => Check::fails(WHAT, format!("no answer in {} s", PATIENCE.as_secs()))
            .fix("check the network, or set channels.telegram.proxy"),
        e => Check::fails(WHAT, format!("cannot be asked: {}", one_line(&e.text(), 200)))
            .fix("check the network, or set channels.telegram.proxy"),
    }
}
