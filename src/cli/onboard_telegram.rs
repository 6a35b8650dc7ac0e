//! `bantam onboard`, the bot: checks its token, and makes the first person who writes to it its owner.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::onboard::{ask_until, offer};
use super::term::tty::Hidden;
use super::{load, tell};
use crate::app::bot::Bot;
use crate::cancel::Cancel;
use crate::config::{Env, Telegram, edit};
use crate::error::Result;
use crate::paths::Home;
use crate::secret::Secret;
use crate::telegram::api::Failure;
use crate::text::one_line;

/// How long to wait for a message.
const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_secs(25);

/// Connects a bot, unless the user stops at a question. Keeps a token and owners that are there.
pub(super) fn connect(home: &Home, env: &Env) -> Result<()> {
    let settings = load(env)?.1.config.channels.telegram.clone();
    let configured = !settings.token.is_empty();
    connect_with(settings, configured, home, env)
}

/// The same, where a token may be replaced by another.
pub(super) fn change(home: &Home, env: &Env) -> Result<()> {
    let settings = load(env)?.1.config.channels.telegram.clone();
    let keep = !settings.token.is_empty() && !offer("Replace the bot's token?", false)?;
    connect_with(settings, keep, home, env)
}

fn connect_with(mut settings: Telegram, configured: bool, home: &Home, env: &Env) -> Result<()> {
    if configured {
        tell("Keeping the token that is already configured.");
    } else {
        tell(
            "Talk to @BotFather in Telegram (https://t.me/BotFather) and send /newbot: it gives you a token.",
        );
    }
    let bot = loop {
        if !configured {
            let token = ask_token()?;
            if token.is_empty() {
                return Ok(());
            }
            settings.token = Secret::new(token);
        }
        let bot = Bot::new(&settings, home, env)?;
        let within = Cancel::new(Some(Duration::from_secs(15)));
        match bot.api.call("getMe", &json!({}), Duration::ZERO, &within) {
            Ok(me) => {
                let name = one_line(me["username"].as_str().unwrap_or_default(), 64);
                tell(&format!("The token works: it belongs to @{name}."));
                break (bot, name);
            }
            Err(e) => {
                tell(&one_line(&e.text(), 300));
                if configured {
                    return Ok(());
                }
            }
        }
    };
    let (bot, name) = bot;
    if !configured {
        edit::set(
            home,
            env,
            &["channels", "telegram", "token"],
            &settings.token.reveal().into(),
        )?;
        edit::set(
            home,
            env,
            &["channels", "telegram", "enabled"],
            &true.into(),
        )?;
    }
    if !settings.ids().is_empty() {
        tell("channels.telegram.allow_from already names its owner.");
        return Ok(());
    }
    match first_writer(&bot, &name)? {
        Some(id) => edit::set(
            home,
            env,
            &["channels", "telegram", "allow_from"],
            &json!([id]),
        )
        .map(drop)?,
        None => tell("The bot has no owner yet and answers nobody. Later: bantam onboard telegram"),
    }
    Ok(())
}

fn ask_token() -> Result<String> {
    let _hidden = Hidden::begin()?;
    ask_until("Token, not shown (Enter: skip): ", |text| {
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

/// Waits until somebody writes to the bot who is the user. Their message stays with Telegram, for the gateway to answer.
fn first_writer(bot: &Bot, name: &str) -> Result<Option<i64>> {
    tell(&format!(
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
                tell(&one_line(&e.text(), 300));
                return Ok(None);
            }
        };
        for update in updates.as_array().into_iter().flatten() {
            if let Some((id, who)) = writer(update) {
                if offer(
                    &format!("A message from {who} (id {id}). Is that you?"),
                    true,
                )? {
                    return Ok(Some(id));
                }
            }
            offset = update["update_id"].as_i64().unwrap_or(offset) + 1;
        }
    }
    Ok(None)
}

/// The id and the name of a person who has written.
fn writer(update: &Value) -> Option<(i64, String)> {
    let from = &update["message"]["from"];
    let name = |field: &str| from[field].as_str().unwrap_or_default();
    let at = if name("username").is_empty() {
        String::new()
    } else {
        format!(" @{}", name("username"))
    };
    Some((
        from["id"].as_i64()?,
        one_line(
            format!("{} {}{at}", name("first_name"), name("last_name")).trim(),
            80,
        ),
    ))
}
