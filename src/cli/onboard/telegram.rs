//! `bantam onboard`, the bot: checks its token, and makes the first person who writes to it the owner.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::say;
use super::Setup;
use crate::app::bot::Bot;
use crate::cancel::Cancel;
use crate::config::{Telegram, edit};
use crate::error::Result;
use crate::secret::Secret;
use crate::telegram::api::Failure;
use crate::text::to_single_line;

/// Time to wait for a message.
const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_secs(25);

/// Connects a bot if the user wants one. Each answer is saved immediately.
pub(super) fn connect(setup: &Setup) -> Result<()> {
    let mut settings = setup
        .app
        .reread()
        .loaded()?
        .config
        .channels
        .telegram
        .clone();
    let question = if settings.token.is_empty() {
        "Connect a Telegram bot?"
    } else {
        "Connect another Telegram bot?"
    };
    if setup.agrees(question, false)? {
        say(
            "Talk to @BotFather in Telegram (https://t.me/BotFather) and send /newbot: it gives you a token.",
        );
        let Some(token) = ask_for_working_token(&settings, setup)? else {
            return Ok(());
        };
        let save = |name, value| {
            edit::set(
                &setup.app.home,
                &setup.app.env,
                &["channels", "telegram", name],
                &value,
            )
        };
        save("token", token.reveal().into())?;
        save("enabled", true.into())?;
        settings.token = token;
    }
    let has_owner = !settings.ids().is_empty();
    if settings.token.is_empty() || has_owner {
        return Ok(());
    }
    match find_owner(&settings, setup)? {
        Some(id) => {
            let path = ["channels", "telegram", "allow_from"];
            edit::set(&setup.app.home, &setup.app.env, &path, &json!([id])).map(drop)
        }
        None => {
            say("The bot has no owner yet and answers nobody. Later: bantam onboard");
            Ok(())
        }
    }
}

/// Asks for a token until Telegram accepts it; `None` if the user skips it.
fn ask_for_working_token(settings: &Telegram, setup: &Setup) -> Result<Option<Secret>> {
    loop {
        let token = ask_token(setup)?;
        if token.is_empty() {
            return Ok(None);
        }
        let settings = Telegram {
            token: Secret::new(token),
            ..settings.clone()
        };
        match find_username(&Bot::new(&settings, &setup.app.home, &setup.app.env)?) {
            Ok(name) => {
                say(&format!("The token works: it belongs to @{name}."));
                return Ok(Some(settings.token));
            }
            Err(e) => say(&to_single_line(&e.text(), 300)),
        }
    }
}

fn ask_token(setup: &Setup) -> Result<String> {
    setup.ask_secret("Token, not shown (Enter: skip): ", |text| {
        let is_token = text
            .split_once(':')
            .is_some_and(|(id, _)| id.parse::<u64>().is_ok())
            || text.contains("${");
        if text.is_empty() || is_token {
            Ok(text.to_owned())
        } else {
            Err("a token looks like 123456:ABC-DEF".to_owned())
        }
    })
}

fn find_username(bot: &Bot) -> Result<String, Failure> {
    let within = Cancel::new(Some(Duration::from_secs(15)));
    let me = bot.api.call("getMe", &json!({}), Duration::ZERO, &within)?;
    Ok(to_single_line(
        me["username"].as_str().unwrap_or_default(),
        64,
    ))
}

/// Waits until the user writes to the bot. The message remains in Telegram's queue, for the gateway to answer.
fn find_owner(settings: &Telegram, setup: &Setup) -> Result<Option<i64>> {
    let bot = Bot::new(settings, &setup.app.home, &setup.app.env)?;
    let name = match find_username(&bot) {
        Ok(name) => name,
        Err(e) => {
            say(&to_single_line(&e.text(), 300));
            return Ok(None);
        }
    };
    say(&format!(
        "Now write to it: https://t.me/{name} (waiting 5 minutes; Ctrl-C stops)"
    ));
    let until = Instant::now() + PATIENCE;
    let mut offset = 0;
    while Instant::now() < until {
        let within = Cancel::new(Some(POLL + Duration::from_secs(15)));
        let params = json!({"offset": offset, "timeout": POLL.as_secs()});
        let updates = match bot.api.call("getUpdates", &params, POLL, &within) {
            Ok(updates) => updates,
            Err(Failure::TooMany(wait)) => {
                within.sleep(wait).ok();
                continue;
            }
            Err(e) => {
                say(&to_single_line(&e.text(), 300));
                return Ok(None);
            }
        };
        for update in updates.as_array().into_iter().flatten() {
            if let Some((id, name)) = writer(update) {
                let question = format!("A message from {name} (id {id}). Is that you?");
                if setup.agrees(&question, true)? {
                    return Ok(Some(id));
                }
            }
            offset = update["update_id"].as_i64().unwrap_or(offset) + 1;
        }
    }
    Ok(None)
}

/// Returns the id and the name of the sender.
fn writer(update: &Value) -> Option<(i64, String)> {
    let from = &update["message"]["from"];
    let text = |field: &str| from[field].as_str().unwrap_or_default();
    let at = match text("username") {
        "" => String::new(),
        username => format!(" @{username}"),
    };
    let name = format!("{} {}{at}", text("first_name"), text("last_name"));
    Some((from["id"].as_i64()?, to_single_line(name.trim(), 80)))
}
