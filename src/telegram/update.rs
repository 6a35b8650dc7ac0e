//! What an update says: who wrote what where, and whether it is meant for the bot.

use base64::Engine;
use serde_json::{Value, json};

use super::Settings;
use crate::message::Image;
use crate::text::one_line;

/// The kinds of updates that are asked for.
pub const ALLOWED: [&str; 2] = ["message", "edited_message"];

/// The most bytes of an image: hosts refuse larger ones.
const MOST_IMAGE: usize = 5 << 20;
/// The most bytes of a text file that go with a message.
const MOST_TEXT: usize = 64 << 10;

/// A message that is meant for the bot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// `CHAT`, or `CHAT_TOPIC` in a topic.
    pub chat: String,
    pub message: i64,
    /// Who wrote it.
    pub from: i64,
    /// What goes to the model, with who says it where that is not clear.
    pub text: String,
    /// The text alone, when it begins with a slash.
    pub command: Option<String>,
    pub files: Vec<Attached>,
    /// It is one of several that belong together: an album, or a text that the sender's program has cut.
    pub is_part: bool,
    /// It replaces what was said before.
    pub is_edit: bool,
}

/// A file that came with a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attached {
    pub id: String,
    pub name: String,
    /// It is shown to the model as an image.
    pub is_image: bool,
}

/// A file that was fetched.
pub enum Fetched {
    Image(Image),
    Text(String),
}

/// What to make of an update.
#[derive(Clone, Debug, PartialEq)]
pub enum Meaning {
    Said(Said),
    /// Somebody who may not, by id.
    Stranger(i64),
    /// Not for the bot, or of no kind that it knows.
    Nothing,
}

/// The bot itself, as `getMe` tells.
#[derive(Clone, Debug, Default)]
pub struct Me {
    pub id: i64,
    pub username: String,
}

/// Reads an update. Who may not is known before anything else of it is looked at.
#[must_use]
pub fn meaning(update: &Value, settings: &Settings, me: &Me) -> Meaning {
    let Some((kind, message)) = ALLOWED.iter().find_map(|kind| Some((*kind, update.get(kind)?))) else {
        return Meaning::Nothing;
    };
    let (from, chat) = (&message["from"], &message["chat"]);
    let (Some(from_id), Some(chat_id)) = (from["id"].as_i64(), chat["id"].as_i64()) else { return Meaning::Nothing };
    if from["is_bot"] == true {
        return Meaning::Nothing;
    }
    let private = chat["type"] == "private";
    if !settings.allow_from.contains(&from_id) {
        return if private { Meaning::Stranger(from_id) } else { Meaning::Nothing };
    }
    let mut text = message["text"].as_str().or(message["caption"].as_str()).unwrap_or_default().to_owned();
    if !private && !settings.answers_all && !is_meant(message, &text, me) {
        return Meaning::Nothing;
    }
    let files = files(message);
    if text.is_empty() && files.is_empty() {
        return Meaning::Nothing;
    }
    if let Some(place) = message.get("location") {
        text.push_str(&format!("[location: {}, {}]", place["latitude"], place["longitude"]));
    }
    if !me.username.is_empty() {
        text = text.replace(&format!("@{}", me.username), "").trim().to_owned();
    }
    let mut parts = Vec::new();
    if !private {
        let name = [&from["first_name"], &from["last_name"]].map(|name| name.as_str().unwrap_or_default());
        parts.push(format!("[from {}]", one_line(name.join(" ").trim(), 60)));
    }
    if let Some(quoted) = quoted(message) {
        parts.push(quoted);
    }
    let command = Some(text.clone()).filter(|text| text.starts_with('/') && files.is_empty());
    parts.push(text);
    let topic = message["message_thread_id"].as_i64().filter(|_| message["is_topic_message"] == true);
    Meaning::Said(Said {
        chat: topic.map_or_else(|| chat_id.to_string(), |topic| format!("{chat_id}_{topic}")),
        message: message["message_id"].as_i64().unwrap_or_default(),
        from: from_id,
        // A text near the limit was cut by the sender's program, and goes on.
        is_part: message.get("media_group_id").is_some() || parts.iter().any(|part| part.chars().count() > 4000),
        text: parts.join("\n"),
        command,
        files,
        is_edit: kind == "edited_message",
    })
}

/// In a group: a mention, a command, or a reply to the bot.
fn is_meant(message: &Value, text: &str, me: &Me) -> bool {
    let named = !me.username.is_empty() && text.to_lowercase().contains(&format!("@{}", me.username.to_lowercase()));
    // A command may name another bot.
    let command = text.starts_with('/') && !text.split_whitespace().next().is_some_and(|word| word.contains('@'));
    named || command || message["reply_to_message"]["from"]["id"].as_i64() == Some(me.id)
}

/// What a reply replies to, in short.
fn quoted(message: &Value) -> Option<String> {
    let quote = message["quote"]["text"].as_str();
    let replied = &message["reply_to_message"];
    let text = quote.or(replied["text"].as_str()).or(replied["caption"].as_str())?;
    Some(format!("[in reply to: {}]", one_line(text, 500)))
}

fn files(message: &Value) -> Vec<Attached> {
    let mut files = Vec::new();
    let mut add = |file: &Value, name: &str, is_image: bool| {
        if let Some(id) = file["file_id"].as_str() {
            let name = file["file_name"].as_str().unwrap_or(name);
            files.push(Attached { id: id.to_owned(), name: one_line(name, 100), is_image });
        }
    };
    // The last size is the largest.
    if let Some(photo) = message["photo"].as_array().and_then(|sizes| sizes.last()) {
        add(photo, "photo.jpg", true);
    }
    let document = &message["document"];
    let kind = document["mime_type"].as_str().unwrap_or_default();
    add(document, "document", matches!(kind, "image/png" | "image/jpeg" | "image/webp" | "image/gif"));
    for (field, name) in
        [("voice", "voice.ogg"), ("audio", "audio"), ("video", "video.mp4"), ("video_note", "video.mp4")]
    {
        add(&message[field], name, false);
    }
    files
}

/// # Errors
/// A sentence for the model: it is of a kind that cannot be read.
pub fn read_file(file: &Attached, bytes: Vec<u8>) -> Result<Fetched, String> {
    let starts = |mark: &[u8]| bytes.starts_with(mark);
    let kind = if starts(b"\x89PNG") {
        "image/png"
    } else if starts(b"\xff\xd8\xff") {
        "image/jpeg"
    } else if starts(b"GIF8") {
        "image/gif"
    } else if starts(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        "image/webp"
    } else {
        ""
    };
    if !kind.is_empty() && bytes.len() > MOST_IMAGE {
        return Err(format!("an image may have {} MB", MOST_IMAGE >> 20));
    }
    if !kind.is_empty() {
        let data = base64::engine::general_purpose::STANDARD.encode(bytes);
        return Ok(Fetched::Image(Image { mime: kind.to_owned(), base64: data }));
    }
    if file.is_image {
        return Err("it is no image".to_owned());
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => {
            let shown = crate::text::clip(&text, MOST_TEXT);
            let cut = if shown.len() < text.len() { format!("\n[cut at {MOST_TEXT} bytes]") } else { String::new() };
            let fence = crate::text::fence(shown);
            Ok(Fetched::Text(format!("{}:\n{fence}\n{shown}\n{fence}{cut}", file.name)))
        }
        _ => Err("it is neither text nor an image".to_owned()),
    }
}

impl Attached {
    pub fn to_json(&self) -> Value {
        json!({"id": self.id, "name": self.name, "image": self.is_image})
    }

    pub fn from_json(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        Self { id: text("id"), name: text("name"), is_image: value["image"] == true }
    }
}
