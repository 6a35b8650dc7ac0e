//! Parses an update: author, chat, contents, and whether it is addressed to the bot.

use serde_json::Value;

use super::Settings;
use super::admission::Stranger;
use super::marked::Marked;
use super::poll::command;
use crate::bus::RemoteFile;
use crate::text::{fenced, foreign_name, to_single_line};

/// Kinds of updates to poll for.
pub(super) const KINDS: [&str; 3] = ["message", "edited_message", PRESS];
const PRESS: &str = "callback_query";
/// Id of the first topic of a group with topics. Its messages have no topic id (Bot API, `message_thread_id`).
pub(super) const GENERAL: i64 = 1;

/// A message that is addressed to the bot.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct IncomingMessage {
    /// `CHAT`, or `CHAT_TOPIC` in a topic.
    pub chat: String,
    pub id: i64,
    /// Id of its author.
    pub from: i64,
    /// Text for the model; in a group it includes the name of the user.
    pub text: String,
    /// The text alone, if it starts with a slash.
    pub command: Option<String>,
    pub files: Vec<RemoteFile>,
    /// Whether there is a sign that related messages follow: an album, a text that the client has split, a forwarded message.
    pub more_follows: bool,
    pub is_edit: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Update {
    Message(IncomingMessage),
    Press(Press),
    /// A user who is not in `allow_from`.
    UnknownUser(Stranger),
    /// The group with the first id became the supergroup with the second one.
    Moved(i64, i64),
    /// A message to the bot whose author is hidden behind the group or a channel: id and name of the group.
    Hidden(i64, String),
    /// A message of an allowed user without anything to read: its chat and its kind.
    Unreadable(String, String),
    /// Not addressed to the bot, or of an unknown kind.
    Ignored,
}

/// A press of a button on a message of the bot, by an allowed user.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Press {
    /// Id for the answer to the press.
    pub id: String,
    pub from: i64,
    /// `CHAT`, or `CHAT_TOPIC` in a topic.
    pub chat: String,
    /// Id of the message with the button.
    pub message: i64,
    /// Data of the button.
    pub data: String,
}

/// The bot's account, from `getMe`.
#[derive(Clone, Debug, Default)]
pub(super) struct Me {
    pub id: i64,
    pub username: String,
}

/// Returns the id of the album that an update belongs to.
pub(super) fn album(update: &Value) -> Option<&str> {
    update["message"]["media_group_id"].as_str()
}

/// Parses an update. Of an unknown user's update, reads only the user.
pub(super) fn read(update: &Value, settings: &Settings, me: &Me) -> Update {
    let Some((kind, message)) = KINDS
        .iter()
        .find_map(|kind| Some((*kind, update.get(kind)?)))
    else {
        return Update::Ignored;
    };
    let shown = if kind == PRESS {
        &message["message"]
    } else {
        message
    };
    if let (Some(old), Some(new)) = (
        message["migrate_from_chat_id"].as_i64(),
        message["chat"]["id"].as_i64(),
    ) {
        return Update::Moved(old, new);
    }
    let from = &message["from"];
    let (Some(user), Some(chat)) = (from["id"].as_i64(), chat(shown)) else {
        return Update::Ignored;
    };
    let is_private = shown["chat"]["type"] == "private";
    if from["is_bot"] == true {
        return hidden(message, me).unwrap_or(Update::Ignored);
    }
    if !settings.allow_from.contains(&user) {
        return if is_private {
            Update::UnknownUser(stranger(from, user))
        } else {
            Update::Ignored
        };
    }
    if kind == PRESS {
        return Update::Press(press(message, user, chat));
    }
    let said = Marked::new(message);
    let names = said.names(me);
    let bot = said.command_bot();
    let is_for_other = bot.is_some_and(|bot| !names.contains(&bot));
    let is_ours = settings.answers_all || is_addressed(message, &said, me);
    if !is_private && (is_for_other || !is_ours) {
        return Update::Ignored;
    }
    let author = author(message);
    let mut files = files(message, author.is_none());
    let replied = &message["reply_to_message"];
    files.extend(self::files(replied, false));
    let mut text = said.read(Some(me));
    text.push_str(&description(message));
    if text.is_empty() && files.is_empty() {
        let kind = unreadable(message);
        return kind.map_or(Update::Ignored, |kind| Update::Unreadable(chat, kind));
    }
    let command = Some(text.clone()).filter(|text| text.starts_with('/') && author.is_none());
    let mut parts = Vec::new();
    if !is_private {
        parts.push(format!("[from {}]", name(from)));
    }
    parts.extend(quoted(message, me));
    parts.push(match author {
        Some(author) if !text.is_empty() => format!("[{author}:]\n{}", fenced(&text)),
        _ => text,
    });
    Update::Message(IncomingMessage {
        chat,
        id: message["message_id"].as_i64().unwrap_or_default(),
        from: user,
        // Clients split texts near the length limit. The comment on a forwarded message may follow it.
        more_follows: message.get("media_group_id").is_some()
            || message.get("forward_origin").is_some()
            || parts.iter().any(|part| part.encode_utf16().count() > 4000),
        text: parts.join("\n"),
        command,
        files,
        is_edit: kind == "edited_message",
    })
}

/// Returns the group of a message to the bot that has no visible author: an anonymous administrator, or a member who writes as
/// a channel. Telegram puts a bot of its own in place of the author (Bot API, `sender_chat`).
fn hidden(message: &Value, me: &Me) -> Option<Update> {
    let chat = &message["chat"];
    let is_hidden = message["sender_chat"].is_object() && message["is_automatic_forward"] != true;
    let is_addressed = is_hidden && is_addressed(message, &Marked::new(message), me);
    let (chat, name) = (chat["id"].as_i64()?, name(chat));
    is_addressed.then_some(Update::Hidden(chat, name))
}

/// Returns the kind of a message without anything to read; `None` for a notice of the chat itself, such as a changed title.
/// Telegram adds kinds, so that only the fields of any message and the endings of notices are known.
fn unreadable(message: &Value) -> Option<String> {
    const COMMON: &str = "from chat sender_chat forward_origin reply_to_message external_reply quote via_bot reply_markup \
                          link_preview_options reply_to_story sender_business_bot direct_messages_topic";
    const NOTICES: &str = "ed _set _done _info _member _members chat_photo hidden gift";
    let is_notice =
        |name: &str| NOTICES.split(' ').any(|end| name.ends_with(end)) || name == "pinned_message";
    let is_content = |(name, value): &(&String, &Value)| {
        let is_common = COMMON.split(' ').any(|common| common == *name);
        (value.is_object() || value.is_array()) && !is_common && !is_notice(name)
    };
    let (kind, _) = message.as_object()?.iter().find(is_content)?;
    Some(foreign_name(kind, 40))
}

/// Returns the chat of a message, including its topic. The first topic of a group counts as the group.
fn chat(message: &Value) -> Option<String> {
    let id = message["chat"]["id"].as_i64()?;
    let topic = message["message_thread_id"].as_i64();
    match topic.filter(|topic| *topic != GENERAL && message["is_topic_message"] == true) {
        Some(topic) => Some(format!("{id}_{topic}")),
        None => Some(id.to_string()),
    }
}

fn stranger(from: &Value, id: i64) -> Stranger {
    Stranger {
        id,
        username: foreign_name(from["username"].as_str().unwrap_or_default(), 40),
        name: name(from),
    }
}

fn press(query: &Value, from: i64, chat: String) -> Press {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Press {
        id: text(&query["id"]),
        from,
        chat,
        message: query["message"]["message_id"].as_i64().unwrap_or_default(),
        data: text(&query["data"]),
    }
}

/// Returns the original author of a forwarded message, which its user may not have read.
fn author(message: &Value) -> Option<String> {
    let others = [
        ("forwarded from", &message["forward_origin"]),
        ("sent through the bot", &message["via_bot"]),
    ];
    let (how, author) = others.into_iter().find(|(_, author)| !author.is_null())?;
    Some(format!("{how} {}", name(author)))
}

/// Whether a message in a group mentions the bot, is a command, or replies to the bot.
fn is_addressed(message: &Value, said: &Marked, me: &Me) -> bool {
    // Another command, or one with the name of another bot, is not for this one.
    let first = said.text.split_whitespace().next().unwrap_or_default();
    let is_command = command(first).is_some();
    let replied = message["reply_to_message"]["from"]["id"].as_i64();
    is_command || replied == Some(me.id) || !said.names(me).is_empty()
}

/// Returns the name of a user, of a chat, or of the source of a forwarded message.
pub(super) fn name(from: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let full = [text(&from["first_name"]), text(&from["last_name"])].join(" ");
    let inner = ["sender_user", "sender_chat", "chat"]
        .iter()
        .map(|key| &from[key])
        .find(|inner| inner.is_object());
    match (full.trim(), inner) {
        ("", Some(inner)) => name(inner),
        ("", None) => {
            let other = ["title", "sender_user_name", "username"]
                .iter()
                .find_map(|key| from[key].as_str());
            foreign_name(other.unwrap_or("somebody"), 60)
        }
        (full, _) => foreign_name(full, 60),
    }
}

/// Describes the message that this one replies to: its author, its files, and an excerpt.
fn quoted(message: &Value, me: &Me) -> Option<String> {
    let replied = &message["reply_to_message"];
    let quote = message["quote"]["text"].as_str();
    let text = match quote {
        Some(_) => Marked::new(&message["quote"]).read(None),
        None => Marked::new(replied).read(None),
    };
    let files = files(replied, false);
    if text.is_empty() && files.is_empty() {
        return None;
    }
    let from = if replied.is_null() {
        &message["external_reply"]["origin"]
    } else {
        &replied["from"]
    };
    let mut whose = match from["id"].as_i64() {
        Some(id) if id == me.id => "your message".to_owned(),
        _ => format!("a message from {}", name(from)),
    };
    let names: Vec<String> = files
        .iter()
        .map(|file| foreign_name(&file.name, 60))
        .collect();
    if !names.is_empty() {
        whose.push_str(&format!(", with {}", names.join(", ")));
    }
    Some(if text.is_empty() {
        format!("[in reply to {whose}]")
    } else {
        format!(
            "[in reply to {whose}:]\n{}",
            fenced(&to_single_line(&text, 500))
        )
    })
}

/// Describes a place, contact, poll, checklist or sticker in one line; empty for other messages. A venue also has a `location`.
fn description(message: &Value) -> String {
    let text = |value: &Value| match value.as_str() {
        Some(text) => foreign_name(text, 200),
        None => foreign_name(&value.to_string(), 200),
    };
    let point = |place: &Value| {
        [&place["latitude"], &place["longitude"]]
            .map(text)
            .join(", ")
    };
    let mut kinds = "venue location contact poll checklist sticker".split(' ');
    let found = kinds.find(|kind| message[kind].is_object());
    let value = &message[found.unwrap_or_default()];
    match found {
        Some("venue") => {
            let (title, address) = (text(&value["title"]), text(&value["address"]));
            format!(
                "[place: {title}, {address} ({})]",
                point(&value["location"])
            )
        }
        Some("location") => format!("[place: {}]", point(value)),
        Some("contact") => format!(
            "[contact: {}, {}]",
            name(value),
            text(&value["phone_number"])
        ),
        Some("poll") => {
            let options = value["options"].as_array().into_iter().flatten();
            let options: Vec<String> = options.map(|option| text(&option["text"])).collect();
            format!(
                "[poll: {} {}]",
                text(&value["question"]),
                options.join(" / ")
            )
        }
        Some("checklist") => {
            let tasks = value["tasks"].as_array().into_iter().flatten();
            let tasks: Vec<String> = tasks.map(|task| text(&task["text"])).collect();
            let title = text(&value["title"]);
            format!("[checklist: {title}: {}]", tasks.join(" / "))
        }
        Some("sticker") if value["emoji"].is_string() => {
            format!("[sticker {}]", text(&value["emoji"]))
        }
        _ => String::new(),
    }
}

/// Returns the files of a message. A voice message counts as the user's words if it is the user's `own`.
fn files(message: &Value, own: bool) -> Vec<RemoteFile> {
    let mut files = Vec::new();
    let mut add = |file: &Value, name: &str, what: &str| {
        let Some(id) = file["file_id"].as_str() else {
            return;
        };
        let name = file["file_name"].as_str().unwrap_or(name).to_owned();
        let mut about = what.to_owned();
        if let Some(seconds) = file["duration"].as_u64() {
            about.push_str(&format!(", {seconds} s"));
        }
        let size = file["file_size"].as_u64().unwrap_or(0);
        files.push(RemoteFile {
            id: id.to_owned(),
            name,
            about,
            size,
            is_media: !what.is_empty(),
        });
    };
    // The last size is the largest.
    if let Some(photo) = message["photo"].as_array().and_then(|sizes| sizes.last()) {
        add(photo, "photo.jpg", "");
    }
    // An animation is also sent as a document, for old clients.
    if message["animation"].is_null() {
        add(&message["document"], "document", "");
    }
    let sticker = &message["sticker"];
    if sticker["is_animated"] != true && sticker["is_video"] != true {
        add(sticker, "sticker.webp", "");
    }
    for (field, name, what) in [
        (
            "voice",
            "voice.ogg",
            if own {
                "voice message"
            } else {
                "forwarded voice message"
            },
        ),
        ("audio", "audio.mp3", "audio"),
        ("video", "video.mp4", "video"),
        ("video_note", "video.mp4", "video message"),
        ("animation", "animation.mp4", "animation"),
    ] {
        add(&message[field], name, what);
    }
    files
}

#[cfg(test)]
mod tests;
