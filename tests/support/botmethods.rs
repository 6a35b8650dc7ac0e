//! Methods of the scripted Bot API: their effects, and the errors of the real server.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::botapi::{BOT, BOT_NAME, Sent, Shared, State};
use super::bothttp::Request;
use super::entities;

/// An answer: a result, or an error's status, description and parameters.
pub type Answer = Result<Value, (u16, String, Value)>;

pub fn error(status: u16, description: &str) -> Answer {
    Err((status, description.to_owned(), Value::Null))
}

/// Executes a method.
pub fn answer(shared: &Shared, method: &str, request: &Request) -> Answer {
    let get = |name: &str| request.params.get(name).filter(|value| !value.is_null());
    let whole = |name: &str| {
        get(name).and_then(|value| value.as_i64().or_else(|| value.as_str()?.parse().ok()))
    };
    let text = |name: &str| get(name).and_then(Value::as_str).unwrap_or_default();
    // `getUpdates` sleeps, so it locks the state itself. Names of methods are case-insensitive.
    if method.eq_ignore_ascii_case("getUpdates") {
        return updates(
            shared,
            whole("offset"),
            whole("limit"),
            whole("timeout"),
            get("allowed_updates"),
        );
    }
    let mut state = shared.lock();
    let result = match method {
        "getMe" => Ok(json!({
            "id": BOT, "is_bot": true, "first_name": "Bantam", "username": BOT_NAME, "can_join_groups": true,
            "can_read_all_group_messages": false, "supports_inline_queries": false
        })),
        "deleteWebhook" => {
            state.webhook = false;
            if get("drop_pending_updates") == Some(&true.into()) {
                state.updates.clear();
            }
            Ok(true.into())
        }
        "getWebhookInfo" => Ok(json!({
            "url": if state.webhook { "https://example.com/hook" } else { "" }, "has_custom_certificate": false,
            "pending_update_count": state.updates.len()
        })),
        "setMyCommands" => commands(get("commands")),
        "getFile" => match state.files.get(text("file_id")) {
            Some(content) => {
                let id = text("file_id");
                let path = format!("files/{id}");
                Ok(
                    json!({ "file_id": id, "file_unique_id": format!("u{id}"), "file_size": content.len(), "file_path": path }),
                )
            }
            None => error(400, "Bad Request: invalid file_id"),
        },
        "answerCallbackQuery" if text("callback_query_id").is_empty() => error(
            400,
            "Bad Request: query is too old and response timeout expired or query ID is invalid",
        ),
        "answerCallbackQuery" => Ok(true.into()),
        "getChat" | "sendChatAction" | "sendMessage" | "sendMessageDraft" | "editMessageText"
        | "deleteMessage" | "sendPhoto" | "sendDocument" => to_chat(&mut state, method, request),
        _ => error(404, "Not Found"),
    };
    drop(state);
    shared.changed.notify_all();
    result
}

fn updates(
    shared: &Shared,
    offset: Option<i64>,
    limit: Option<i64>,
    timeout: Option<i64>,
    allowed: Option<&Value>,
) -> Answer {
    let conflict = |state: &State| {
        let text = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";
        if state.webhook {
            error(409, text)
        } else {
            Ok(Value::Null)
        }
    };
    let mut state = shared.lock();
    conflict(&state)?;
    state.poll += 1;
    let number = state.poll;
    // The value remains until it is changed; an empty list is the default. In a form, it is JSON in a string.
    let parsed = allowed.and_then(|list| {
        list.as_str()
            .map_or(Some(list.clone()), |text| serde_json::from_str(text).ok())
    });
    if let Some(list) = parsed.as_ref().and_then(Value::as_array) {
        let kinds: Vec<String> = list
            .iter()
            .filter_map(|kind| kind.as_str().map(str::to_owned))
            .collect();
        state.allowed = Some(kinds).filter(|kinds| !kinds.is_empty());
    }
    let offset = offset.unwrap_or(0);
    if offset > 0 {
        state.updates = state.updates.split_off(&offset);
    } else if offset < 0 {
        // Counted from the end; earlier updates are dropped.
        let keep = usize::try_from(-offset).unwrap();
        let first = state
            .updates
            .keys()
            .nth(state.updates.len().saturating_sub(keep))
            .copied();
        state.updates = first.map_or_else(BTreeMap::new, |first| state.updates.split_off(&first));
    }
    state.polling = true;
    shared.changed.notify_all();
    let wait = Duration::from_secs(u64::try_from(timeout.unwrap_or(0).clamp(0, 50)).unwrap());
    let idle = |state: &mut State| {
        state.updates.is_empty() && state.poll == number && !state.ending && !state.webhook
    };
    let (mut state, _) = shared
        .changed
        .wait_timeout_while(state, wait, idle)
        .unwrap();
    if state.poll != number {
        return error(
            409,
            "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
        );
    }
    state.polling = false;
    if state.webhook {
        return error(409, "Conflict: terminated by setWebhook request");
    }
    state.handed_out += usize::from(!state.updates.is_empty());
    let limit = usize::try_from(limit.unwrap_or(100).clamp(1, 100)).unwrap();
    Ok(state.updates.values().take(limit).cloned().collect())
}

fn commands(given: Option<&Value>) -> Answer {
    let named = |command: &Value| {
        let name = command["command"].as_str().unwrap_or_default();
        let letters = name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        (1..=32).contains(&name.len()) && letters
    };
    match given.and_then(Value::as_array) {
        None => error(400, "Bad Request: parameter \"commands\" is required"),
        Some(list) if !list.iter().all(named) => error(400, "Bad Request: BOT_COMMAND_INVALID"),
        Some(list)
            if list
                .iter()
                .any(|command| command["description"].as_str().is_none_or(str::is_empty)) =>
        {
            error(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        }
        Some(_) => Ok(true.into()),
    }
}

/// Executes a method with a chat.
fn to_chat(state: &mut State, method: &str, request: &Request) -> Answer {
    let get = |name: &str| request.params.get(name).filter(|value| !value.is_null());
    let whole = |value: &Value| value.as_i64().or_else(|| value.as_str()?.parse().ok());
    let number = |name: &str| get(name).and_then(whole);
    let Some(chat) = get("chat_id") else {
        return error(400, "Bad Request: chat_id is empty");
    };
    let Some(description) = whole(chat).and_then(|id| state.chats.get(&id)).cloned() else {
        return error(400, "Bad Request: chat not found");
    };
    let chat = whole(chat).unwrap();
    if let Some(to) = description["migrated_to"].as_i64() {
        let text = "Bad Request: group chat was upgraded to a supergroup chat".to_owned();
        return Err((400, text, json!({ "migrate_to_chat_id": to })));
    }
    if method == "getChat" {
        return Ok(description);
    }
    if let Some((status, why)) = state.refusing.get(&chat) {
        return error(*status, why);
    }
    let html = get("parse_mode")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !html.is_empty() && !html.eq_ignore_ascii_case("HTML") {
        return error(400, "Bad Request: unsupported parse_mode");
    }
    let html = !html.is_empty();
    let thread = number("message_thread_id");
    match method {
        "sendChatAction" => {
            let known = "typing upload_photo upload_document upload_voice record_voice";
            let action = get("action").and_then(Value::as_str).unwrap_or_default();
            if known.split(' ').any(|known| known == action) {
                Ok(true.into())
            } else {
                error(400, "Bad Request: wrong parameter action in request")
            }
        }
        "sendMessageDraft" => {
            let draft = number("draft_id").unwrap_or(0);
            if description["type"] != "private" {
                return error(
                    400,
                    "Bad Request: method is available only in private chats",
                );
            }
            if draft == 0 {
                return error(400, "Bad Request: DRAFT_ID_INVALID");
            }
            // An empty text is allowed here, and shows that the bot is thinking.
            let source = get("text").and_then(Value::as_str).unwrap_or_default();
            if !source.is_empty() {
                parsed(source, html, LIMIT)?;
            }
            Ok(true.into())
        }
        "deleteMessage" => {
            let before = state.sent.len();
            state
                .sent
                .retain(|sent| sent.chat != chat || Some(sent.id) != number("message_id"));
            let found = state.sent.len() < before;
            if found {
                Ok(true.into())
            } else {
                error(400, "Bad Request: message to delete not found")
            }
        }
        "editMessageText" => edit(state, chat, &description, request),
        _ => {
            let field = match method {
                "sendPhoto" => Some("photo"),
                "sendDocument" => Some("document"),
                _ => None,
            };
            let source =
                get(if field.is_some() { "caption" } else { "text" }).and_then(Value::as_str);
            let source = source.unwrap_or_default().to_owned();
            let (text, file) = match field {
                None => (parsed(&source, html, LIMIT)?, None),
                Some(field) => {
                    let Some(file) = request.files.get(field) else {
                        return error(
                            400,
                            &format!("Bad Request: there is no {field} in the request"),
                        );
                    };
                    takes(field, file)?;
                    let caption = if source.is_empty() {
                        String::new()
                    } else {
                        parsed(&source, html, LONGEST_CAPTION)?
                    };
                    (caption, Some(file.clone()))
                }
            };
            let reply = get("reply_parameters").map(|given| match given.as_str() {
                Some(text) => serde_json::from_str(text).unwrap_or(Value::Null),
                None => given.clone(),
            });
            let reply_to = reply
                .as_ref()
                .and_then(|reply| reply["message_id"].as_i64());
            let buttons = buttons(get("reply_markup"))?;
            state.next_message += 1;
            let sent = Sent {
                id: state.next_message,
                chat,
                thread,
                text,
                source,
                html,
                reply_to,
                file,
                buttons,
            };
            let message = sent_message(&sent, &description);
            state.sent.push(sent);
            Ok(message)
        }
    }
}

/// Checks whether the server accepts a file: its size, its name, and the content of a photo.
fn takes(field: &str, (name, content): &(String, Vec<u8>)) -> Result<(), (u16, String, Value)> {
    let refuse = |status: u16, text: &str| Err((status, text.to_owned(), Value::Null));
    if content.is_empty() {
        return refuse(400, "Bad Request: file must be non-empty");
    }
    if content.len() > 50 << 20 {
        return refuse(413, "Request Entity Too Large");
    }
    if name.is_empty() || name.contains(['/', '\\', '"']) || name.chars().any(char::is_control) {
        return refuse(400, "Bad Request: invalid file name");
    }
    if field == "document" {
        return Ok(());
    }
    if content.len() > 10 << 20 {
        let text = "is too big for a photo; the maximum size is 10485760 bytes";
        return refuse(
            400,
            &format!("Bad Request: file of size {} bytes {text}", content.len()),
        );
    }
    let edge = |at: usize| {
        content
            .get(at..at + 4)
            .map(|edge| u32::from_be_bytes(edge.try_into().unwrap()))
    };
    match (content.as_slice(), edge(16), edge(20)) {
        ([0x89, b'P', b'N', b'G', ..], Some(width), Some(height)) => {
            let (short, long) = (width.min(height), width.max(height));
            let fits = short > 0 && width + height <= 10_000 && long / short <= 20;
            if fits {
                Ok(())
            } else {
                refuse(400, "Bad Request: PHOTO_INVALID_DIMENSIONS")
            }
        }
        ([0xff, 0xd8, 0xff, ..] | [b'R', b'I', b'F', b'F', ..], ..) => Ok(()),
        _ => refuse(400, "Bad Request: IMAGE_PROCESS_FAILED"),
    }
}

fn edit(state: &mut State, chat: i64, description: &Value, request: &Request) -> Answer {
    let given = |name: &str| {
        request
            .params
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let html = !given("parse_mode").is_empty();
    let source = given("text");
    let text = parsed(source, html, LIMIT)?;
    let buttons = buttons(request.params.get("reply_markup"))?;
    let id = request
        .params
        .get("message_id")
        .and_then(|id| id.as_i64().or_else(|| id.as_str()?.parse().ok()));
    let of = |sent: &&mut Sent| sent.chat == chat && Some(sent.id) == id;
    let Some(sent) = state.sent.iter_mut().find(of) else {
        return error(400, "Bad Request: message to edit not found");
    };
    if sent.source == source && sent.html == html && sent.buttons == buttons {
        let text = "Bad Request: message is not modified: specified new message content and reply markup are exactly the \
                    same as a current content and reply markup of the message";
        return error(400, text);
    }
    (sent.text, sent.source, sent.html) = (text, source.to_owned(), html);
    sent.buttons = buttons;
    Ok(sent_message(sent, description))
}

/// Returns the buttons of an inline keyboard, in order of rows.
fn buttons(markup: Option<&Value>) -> Result<Vec<(String, String)>, (u16, String, Value)> {
    let rows = markup.map_or(&Value::Null, |markup| &markup["inline_keyboard"]);
    let mut found = Vec::new();
    for button in rows
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|row| row.as_array().unwrap())
    {
        let text = |name: &str| button[name].as_str().unwrap_or_default().to_owned();
        if text("text").is_empty() {
            error(400, "Bad Request: inline keyboard button text is empty")?;
        }
        if !(1..=64).contains(&text("callback_data").len()) {
            error(400, "Bad Request: BUTTON_DATA_INVALID")?;
        }
        found.push((text("text"), text("callback_data")));
    }
    Ok(found)
}

/// Maximum length of a message and of a caption, in UTF-16 code units.
const LIMIT: usize = 4096;
const LONGEST_CAPTION: usize = 1024;

/// Returns a text as displayed, or an error.
fn parsed(source: &str, html: bool, limit: usize) -> Result<String, (u16, String, Value)> {
    let refuse = |text: String| Err((400, text, Value::Null));
    if source.len() > 1 << 15 {
        return refuse("Bad Request: text is too long".to_owned());
    }
    let text = if html {
        entities::parse(source).map(|parsed| parsed.text)
    } else {
        Ok(source.to_owned())
    };
    let text = match text {
        Ok(text) => text.trim().to_owned(),
        Err(error) => return refuse(format!("Bad Request: can't parse entities: {error}")),
    };
    if text.is_empty() {
        return refuse("Bad Request: message text is empty".to_owned());
    }
    if entities::units(&text) > limit {
        let what = if limit == LIMIT {
            "message"
        } else {
            "message caption"
        };
        return refuse(format!("Bad Request: {what} is too long"));
    }
    Ok(text)
}

/// Returns a message of the bot as the server represents it.
pub fn sent_message(sent: &Sent, chat: &Value) -> Value {
    let from = json!({ "id": BOT, "is_bot": true, "first_name": "Bantam", "username": BOT_NAME });
    let mut message =
        json!({ "message_id": sent.id, "date": 1_800_000_000, "chat": chat, "from": from });
    message[if sent.file.is_some() {
        "caption"
    } else {
        "text"
    }] = sent.text.as_str().into();
    if let Some(thread) = sent.thread {
        message["message_thread_id"] = thread.into();
    }
    message
}
