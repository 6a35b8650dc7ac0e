//! `bantam onboard`, the bot: checks its token, and makes the first person who writes to it the owner.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::say;
use super::super::ui::Echo;
use super::super::ui::Ui;
use crate::app::App;
use crate::app::bot::Bot;
use crate::cancel::Cancel;
use crate::config::{Telegram, edit};
use crate::doctor::bot::username;
use crate::error::Result;
use crate::secret::Secret;
use crate::text::to_single_line;

/// Time to wait for a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_secs(25);

/// Connects a bot if the user wants one. Each answer is saved immediately.
pub(super) fn connect(app: &App, ui: &Ui) -> Result<()> {
    let mut settings = app.loaded()?.config.channels.telegram.clone();
    let save = |name, value| {
        let path = ["channels", "telegram", name];
        edit::set(&app.home, &app.env, &path, &value).map(drop)
    };
    let has_token = !settings.token.is_empty();
    let which = if has_token { "another" } else { "a" };
    if ui.agrees(&format!("Connect {which} Telegram bot?"), false)? {
        say("Send /newbot to @BotFather in Telegram (https://t.me/BotFather) to get a token.");
        if !ask_for_working_token(&mut settings, app, ui)? {
            return Ok(());
        }
        save("token", settings.token.reveal().into())?;
        save("enabled", true.into())?;
    }
    if settings.token.is_empty() || !settings.ids().is_empty() {
        return Ok(());
    }
    if let Some(id) = find_owner(&settings, app, ui)? {
        return save("allow_from", json!([id]));
    }
    say("The bot has no owner yet, so it will not answer. Run `bantam onboard` again to set one.");
    Ok(())
}

/// Asks for a token until Telegram accepts it; false if the user skips it.
fn ask_for_working_token(settings: &mut Telegram, app: &App, ui: &Ui) -> Result<bool> {
    const QUESTION: &str = "Token, not shown (Enter: skip): ";
    loop {
        let token = ui.ask_until(QUESTION, Echo::Hidden, |text| Ok(text.to_owned()))?;
        if token.is_empty() {
            return Ok(false);
        }
        settings.token = Secret::new(token);
        if let Some(name) = find_username(&Bot::new(settings, &app.home, &app.env)?) {
            say(&format!("The token works. It belongs to @{name}."));
            return Ok(true);
        }
    }
}

/// Returns the bot's name, or shows why Telegram does not answer.
fn find_username(bot: &Bot) -> Option<String> {
    let name = username(&bot.api).map_err(|e| to_single_line(&e.text(), 300));
    let tell = |why| say(&format!("Telegram did not confirm the token: {why}"));
    name.map_err(tell).ok()
}

/// Waits until the user writes to the bot. The message remains in Telegram's queue, for the gateway to answer.
fn find_owner(settings: &Telegram, app: &App, ui: &Ui) -> Result<Option<i64>> {
    let bot = Bot::new(settings, &app.home, &app.env)?;
    let Some(name) = find_username(&bot) else {
        return Ok(None);
    };
    let wait = "waiting 5 minutes; Ctrl-C stops";
    say(&format!("Now write to it: https://t.me/{name} ({wait})"));
    let until = Instant::now() + WRITE_TIMEOUT;
    let mut offset = 0;
    while Instant::now() < until {
        let cancel = Cancel::new(Some(POLL + Duration::from_secs(15)));
        let params = json!({"offset": offset, "timeout": POLL.as_secs()});
        let updates = match bot.api.call("getUpdates", &params, POLL, &cancel) {
            Ok(updates) => updates,
            Err(e) => {
                say(&to_single_line(&e.text(), 300));
                return Ok(None);
            }
        };
        for update in updates.as_array().into_iter().flatten() {
            let from = &update["message"]["from"];
            if let Some(id) = from["id"].as_i64() {
                let question = format!("A message from {} (id {id}). Is that you?", shown(from));
                // Enter must not let a stranger in.
                if ui.agrees(&question, false)? {
                    return Ok(Some(id));
                }
            }
            offset = update["update_id"].as_i64().unwrap_or(offset) + 1;
        }
    }
    Ok(None)
}

/// Formats the names of a user.
fn shown(user: &Value) -> String {
    let names = ["first_name", "last_name", "username"].map(|name| user[name].as_str());
    let names: Vec<&str> = names.into_iter().flatten().collect();
    to_single_line(&names.join(" "), 80)
}
