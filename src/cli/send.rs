//! `bantam send`: sends text to a chat, without a model.

use std::io::{self, IsTerminal, Read};

use super::args::Args;
use super::notice;
use super::ui::Ui;
use crate::app::App;
use crate::app::bot::{self, Bot};
use crate::error::{Context, Error, Result};
use crate::paths::telegram_chat;

/// Maximum size of a text, in bytes. Telegram's limit is 4,096 characters per message, so this is about twenty messages.
const MAX_TEXT: u64 = 64 << 10;

pub(super) fn send(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    let loaded = app.loaded()?;
    let owner = bot::owner(loaded);
    let Some(to) = args.value("to").or(owner.as_deref()) else {
        return Err(Error::usage("no chat to send to").hint("use `--to telegram:CHAT`"));
    };
    let chat = telegram_chat(to)?;
    let text = text(args)?;
    let Some(delivery) = Bot::delivery(loaded, Some(chat), notice)? else {
        return Err(Error::config("no Telegram bot is configured").hint("run `bantam onboard`"));
    };
    delivery.send(chat, &text).map(|()| 0)
}

/// Returns the words, or else standard input.
fn text(args: &Args) -> Result<String> {
    let mut text = args.words.join(" ");
    let stdin = io::stdin();
    if text.is_empty() && !stdin.is_terminal() {
        let read = stdin.lock().take(MAX_TEXT + 1).read_to_string(&mut text);
        read.doing("reading standard input")?;
    }
    if text.trim().is_empty() {
        let hint = "write `bantam send \"The backup is done\"`";
        return Err(Error::usage("no message to send").hint(hint));
    }
    if text.len() as u64 > MAX_TEXT {
        return Err(
            Error::usage(format!("the message is longer than {} KB", MAX_TEXT >> 10))
                .hint("send a part of it, such as the output of `tail -n 50`"),
        );
    }
    Ok(text)
}
