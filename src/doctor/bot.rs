//! Checks whether Telegram accepts the bot's token, and what prevents it from getting messages.

use std::time::Duration;

use serde_json::{Value, json};

use super::Check;
use crate::cancel::Cancel;
use crate::telegram::api::{Api, Failure};
use crate::text::{counted, to_single_line};

const NAME: &str = "telegram";
/// Time limit of all requests together.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks Telegram about the bot. `allowed` is the number of users who may talk to it.
pub(crate) fn bot(api: &Api, allowed: usize) -> Vec<Check> {
    let cancel = Cancel::new(Some(TIMEOUT));
    let ask = |method| api.call(method, &json!({}), Duration::ZERO, &cancel);
    let me = match ask("getMe") {
        Ok(me) => me,
        Err(e) => return vec![failed(&e)],
    };
    let name = to_single_line(me["username"].as_str().unwrap_or_default(), 64);
    // Bot API, `User.can_read_all_group_messages`: true if the privacy mode is off.
    let groups = if me["can_read_all_group_messages"] == true {
        "all messages"
    } else {
        "only messages that mention it or reply to it"
    };
    let mut checks = vec![Check::ok(
        NAME,
        format!("@{name}; in groups Telegram shows it {groups}"),
    )];
    if let Ok(info) = ask("getWebhookInfo") {
        if info["url"].as_str().is_some_and(|url| !url.is_empty()) {
            checks.push(
                Check::fail(
                    NAME,
                    "a webhook is set for this bot and receives all its messages",
                )
                .fix("curl https://api.telegram.org/botTOKEN/deleteWebhook    # with your token"),
            );
        }
        let waiting = info
            .get("pending_update_count")
            .and_then(Value::as_u64)
            .unwrap_or(0);
        if waiting > 0 {
            let waiting = counted(usize::try_from(waiting).unwrap_or(usize::MAX), "message");
            let what = format!("{waiting} waiting at Telegram until bantam gateway runs");
            checks.push(Check::info(NAME, what).fix("bantam gateway"));
        }
    }
    if allowed == 0 {
        checks.push(
            Check::fail(NAME, "channels.telegram.allow_from is empty: the bot answers nobody")
                .fix("write to the bot while bantam gateway runs, and put the id that it prints into allow_from"),
        );
    }
    checks
}

fn failed(failure: &Failure) -> Check {
    match failure {
        Failure::Unauthorized(why) => Check::fail(
            NAME,
            format!("Telegram refused the token ({})", to_single_line(why, 200)),
        )
        .fix("copy it again from @BotFather (/token) into channels.telegram.token"),
        Failure::Stopped => Check::fail(
            NAME,
            format!("no answer from Telegram in {} s", TIMEOUT.as_secs()),
        )
        .fix("check the network, or set channels.telegram.proxy"),
        e => Check::fail(
            NAME,
            format!("cannot ask Telegram: {}", to_single_line(&e.text(), 200)),
        )
        .fix("check the network, or set channels.telegram.proxy"),
    }
}
