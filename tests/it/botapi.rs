//! A scripted Telegram: the Bot API on loopback, with the rules of the real one where a bot could trip over them.
//!
//! Updates wait until a later offset confirms them, a poll holds until there is one, a second poll ends the first; texts
//! are parsed and counted as the server does ([`crate::entities`]). Error texts are those of the real server. What a test
//! wants to go wrong it says with [`BotApi::fault`]. Every request is kept, for [`crate::botschema`] to be checked.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::entities;

/// The token of every test, an obvious fake.
pub const TOKEN: &str = "123456:TEST-token-of-no-bot";
/// The bot's own id and name.
pub const BOT: i64 = 123_456;
pub const BOT_NAME: &str = "test_bantam_bot";

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Parameters by name; a file that was uploaded is `attach://` and its name.
    pub params: Map<String, Value>,
    /// JSON: the types are those of the parameters. Of a form, everything is text.
    pub typed: bool,
    pub at: Instant,
    /// What it was answered, unless a fault was in the way.
    pub status: u16,
}

/// A message of the bot.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    pub id: i64,
    pub chat: i64,
    pub thread: Option<i64>,
    /// As people see it, after the last edit; of a file, its caption.
    pub text: String,
    /// The source, as the bot wrote it.
    pub source: String,
    pub html: bool,
    pub reply_to: Option<i64>,
    /// Name and content, of a photo or a document.
    pub file: Option<(String, Vec<u8>)>,
}

/// Something that goes wrong with one request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// 429 with so many seconds to wait.
    TooMany(u64),
    /// This status, as a page of the proxy before the server.
    Page(u16),
    /// This status and description, as the server writes it.
    Error(u16, &'static str),
    /// The connection ends without an answer, and nothing was done.
    CutBefore,
    /// The same after it was done: the bot cannot know.
    CutAfter,
    /// It is done, and there is no answer until the bot gives up.
    Silence,
}

#[derive(Default)]
struct State {
    updates: BTreeMap<i64, Value>,
    next_update: i64,
    next_message: i64,
    allowed: Option<Vec<String>>,
    webhook: bool,
    /// The number of the poll that is under way; an older one ends when it sees a greater number.
    poll: u64,
    polling: bool,
    chats: BTreeMap<i64, Value>,
    blocked: Vec<i64>,
    sent: Vec<Sent>,
    drafts: Vec<(i64, i64, String)>,
    files: BTreeMap<String, Vec<u8>>,
    asked: Vec<Asked>,
    /// By method; an empty name stands for any.
    faults: VecDeque<(String, Fault)>,
    ending: bool,
    open: Vec<TcpStream>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server. Dropped, it ends every connection, and fails the test if a message got by on the server's leniency.
pub struct BotApi {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl BotApi {
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { next_update: 7001, next_message: 1, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut state = serving.lock();
                if state.ending {
                    return;
                }
                state.open.extend(stream.try_clone());
                let shared = Arc::clone(&serving);
                // A bot that goes away mid-sentence is what some tests are about.
                thread::spawn(move || serve(&shared, stream).ok());
            }
        });
        Self { address, shared }
    }

    /// The `api_base` to configure.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.shared.lock());
        self.shared.changed.notify_all();
        result
    }

    /// Goes wrong with the next request of this method (any, if empty).
    pub fn fault(&self, method: &str, fault: Fault) {
        self.change(|state| state.faults.push_back((method.to_owned(), fault)));
    }

    /// Sets or removes a webhook, as another program with the same token might.
    pub fn webhook(&self, active: bool) {
        self.change(|state| state.webhook = active);
    }

    /// The user of this chat blocks the bot.
    pub fn block(&self, chat: i64) {
        self.change(|state| state.blocked.push(chat));
    }

    /// The number of the next update; after an idle week the real ones start anew, anywhere.
    pub fn restart_updates_at(&self, id: i64) {
        self.change(|state| state.next_update = id);
    }

    /// Puts an update before the bot and gives its id: `{"message": {..}}`.
    pub fn update(&self, body: &Value) -> i64 {
        self.change(|state| {
            let id = state.next_update;
            state.next_update += 1;
            let kind = body.as_object().and_then(|body| body.keys().next().cloned()).unwrap_or_default();
            // By default the server leaves these kinds out, and what was not asked for is never kept.
            let rare = ["chat_member", "message_reaction", "message_reaction_count"].contains(&kind.as_str());
            if state.allowed.as_ref().map_or(!rare, |kinds| kinds.contains(&kind)) {
                let mut update = body.clone();
                update["update_id"] = id.into();
                state.updates.insert(id, update);
            }
            id
        })
    }

    /// A message of a person: `extra` is laid over what every message has. Gives the message's id.
    pub fn message(&self, chat: i64, user: i64, extra: &Value) -> i64 {
        let message = self.compose(chat, user, extra);
        let id = message["message_id"].as_i64().unwrap();
        self.update(&json!({ "message": message }));
        id
    }

    pub fn text(&self, user: i64, text: &str) -> i64 {
        self.message(user, user, &json!({ "text": text }))
    }

    /// The same message, changed.
    pub fn edit(&self, chat: i64, user: i64, message: i64, text: &str) {
        let extra = json!({ "message_id": message, "edit_date": 1_800_000_001, "text": text });
        let message = self.compose(chat, user, &extra);
        self.update(&json!({ "edited_message": message }));
    }

    /// A text in a group that names the bot.
    pub fn mention(&self, chat: i64, user: i64, text: &str) -> i64 {
        let name = format!("@{BOT_NAME}");
        let entity = json!({ "type": "mention", "offset": 0, "length": entities::units(&name) });
        self.message(chat, user, &json!({ "text": format!("{name} {text}"), "entities": [entity] }))
    }

    /// A text that replies to another message, of the bot or of the user.
    pub fn reply(&self, chat: i64, user: i64, to: i64, text: &str) -> i64 {
        let sent = self.sent(chat).into_iter().find(|sent| sent.id == to);
        let replied = match sent {
            Some(sent) => sent_message(&sent, &self.chat(chat)),
            None => self.compose(chat, user, &json!({ "message_id": to, "text": "an earlier message" })),
        };
        self.message(chat, user, &json!({ "text": text, "reply_to_message": replied }))
    }

    /// A photo in two sizes; the larger one is `content`.
    pub fn photo(&self, user: i64, content: &[u8], extra: &Value) -> i64 {
        let small = self.file(&content[..content.len() / 2]);
        let large = self.file(content);
        let size = |id: &str, edge: u64, bytes: usize| json!({ "file_id": id, "file_unique_id": format!("u{id}"), "width": edge, "height": edge, "file_size": bytes });
        let sizes = json!([size(&small, 90, content.len() / 2), size(&large, 800, content.len())]);
        self.message(user, user, &merge(json!({ "photo": sizes }), extra))
    }

    pub fn document(&self, user: i64, name: &str, kind: &str, content: &[u8], extra: &Value) -> i64 {
        let id = self.file(content);
        let document = json!({
            "file_id": id, "file_unique_id": format!("u{id}"), "file_name": name, "mime_type": kind,
            "file_size": content.len()
        });
        self.message(user, user, &merge(json!({ "document": document }), extra))
    }

    pub fn voice(&self, user: i64, content: &[u8]) -> i64 {
        let id = self.file(content);
        let voice = json!({
            "file_id": id, "file_unique_id": format!("u{id}"), "duration": 2, "mime_type": "audio/ogg",
            "file_size": content.len()
        });
        self.message(user, user, &json!({ "voice": voice }))
    }

    /// Photos that belong together: one message each, with the caption on the first.
    pub fn album(&self, user: i64, photos: &[&[u8]], caption: &str) -> Vec<i64> {
        let extra = |n: usize| {
            let group = json!({ "media_group_id": "13000000000000001" });
            if n == 0 { merge(group, &json!({ "caption": caption })) } else { group }
        };
        photos.iter().enumerate().map(|(n, photo)| self.photo(user, photo, &extra(n))).collect()
    }

    /// A text in a topic of a group that has topics.
    pub fn topic(&self, chat: i64, user: i64, thread: i64, text: &str) -> i64 {
        let extra = json!({ "text": text, "message_thread_id": thread, "is_topic_message": true });
        self.message(chat, user, &extra)
    }

    /// The group becomes a supergroup: from now on only the new id will do.
    pub fn migrate(&self, chat: i64, to: i64) {
        self.message(chat, BOT, &json!({ "migrate_to_chat_id": to }));
        self.message(to, BOT, &json!({ "migrate_from_chat_id": chat }));
        self.change(|state| {
            if let Some(old) = state.chats.get_mut(&chat) {
                old["migrated_to"] = to.into();
            }
        });
    }

    fn file(&self, content: &[u8]) -> String {
        self.change(|state| {
            let id = format!("file{}", state.files.len() + 1);
            state.files.insert(id.clone(), content.to_vec());
            id
        })
    }

    /// The chat of this number, which the bot can write to from now on.
    pub fn chat(&self, id: i64) -> Value {
        let kind = match id {
            1.. => "private",
            ..=-1_000_000_000_000 => "supergroup",
            _ => "group",
        };
        let chat = if id > 0 {
            json!({ "id": id, "type": kind, "first_name": "User" })
        } else {
            json!({ "id": id, "type": kind, "title": "Group" })
        };
        self.change(|state| state.chats.entry(id).or_insert(chat).clone())
    }

    fn compose(&self, chat: i64, user: i64, extra: &Value) -> Value {
        let chat = self.chat(chat);
        let from = json!({ "id": user, "is_bot": user == BOT, "first_name": "User" });
        let id = self.change(|state| {
            state.next_message += 1;
            state.next_message
        });
        merge(json!({ "message_id": id, "date": 1_800_000_000, "chat": chat, "from": from }), extra)
    }

    /// The messages of the bot in this chat, oldest first, as they stand now.
    pub fn sent(&self, chat: i64) -> Vec<Sent> {
        self.shared.lock().sent.iter().filter(|sent| sent.chat == chat).cloned().collect()
    }

    /// Their texts.
    pub fn texts(&self, chat: i64) -> Vec<String> {
        self.sent(chat).into_iter().map(|sent| sent.text).collect()
    }

    /// The drafts so far: chat, id of the draft, text.
    pub fn drafts(&self) -> Vec<(i64, i64, String)> {
        self.shared.lock().drafts.clone()
    }

    /// The requests so far, of one method or, if that is empty, all.
    pub fn asked(&self, method: &str) -> Vec<Asked> {
        let of = |asked: &&Asked| method.is_empty() || asked.method == method;
        self.shared.lock().asked.iter().filter(of).cloned().collect()
    }

    /// The updates that no offset has confirmed.
    pub fn unconfirmed(&self) -> Vec<i64> {
        self.shared.lock().updates.keys().copied().collect()
    }

    /// Waits until this many messages stand in the chat, and gives their texts.
    #[track_caller]
    pub fn wait_for_texts(&self, chat: i64, count: usize) -> Vec<String> {
        let of = |state: &State| state.sent.iter().filter(|sent| sent.chat == chat).count();
        self.wait("messages", count, of);
        self.texts(chat)
    }

    /// Waits until this method has been asked so often.
    #[track_caller]
    pub fn wait_for_asked(&self, method: &str, count: usize) {
        self.wait(method, count, |state| state.asked.iter().filter(|asked| asked.method == method).count());
    }

    /// Waits until every update is confirmed.
    #[track_caller]
    pub fn wait_for_confirmation(&self) {
        self.wait("confirmation of all updates", 1, |state| usize::from(state.updates.is_empty()));
    }

    /// Waits until a poll is being held.
    #[track_caller]
    pub fn wait_for_poll(&self) {
        self.wait("poll", 1, |state| usize::from(state.polling));
    }

    #[track_caller]
    fn wait(&self, what: &str, count: usize, seen: impl Fn(&State) -> usize) {
        let few = |state: &mut State| seen(state) < count;
        let wait = Duration::from_secs(20);
        let (state, _) = self.shared.changed.wait_timeout_while(self.shared.lock(), wait, few).unwrap();
        let reached = seen(&state);
        drop(state);
        assert!(reached >= count, "waited for {count} {what}, only {reached} came: {:#?}", self.asked(""));
    }
}

impl Drop for BotApi {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ending = true;
        for stream in state.open.drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
        let sources: Vec<String> =
            state.sent.iter().filter(|sent| sent.html && sent.file.is_none()).map(|sent| sent.source.clone()).collect();
        drop(state);
        self.shared.changed.notify_all();
        TcpStream::connect(self.address).ok(); // wakes the accepting thread, which then ends
        if !thread::panicking() {
            for source in sources {
                entities::strict(&source).unwrap_or_else(|error| panic!("a message in sloppy HTML, {error}: {source}"));
            }
        }
    }
}

/// `extra` laid over `base`, one level deep.
fn merge(mut base: Value, extra: &Value) -> Value {
    for (key, value) in extra.as_object().into_iter().flatten() {
        base[key] = value.clone();
    }
    base
}

fn sent_message(sent: &Sent, chat: &Value) -> Value {
    let from = json!({ "id": BOT, "is_bot": true, "first_name": "Bantam", "username": BOT_NAME });
    let mut message = json!({ "message_id": sent.id, "date": 1_800_000_000, "chat": chat, "from": from });
    message[if sent.file.is_some() { "caption" } else { "text" }] = sent.text.as_str().into();
    if let Some(thread) = sent.thread {
        message["message_thread_id"] = thread.into();
    }
    message
}

/// A request's parts: the path, its parameters, its files by the name of the field, and whether it was JSON.
struct Request {
    path: String,
    params: Map<String, Value>,
    files: BTreeMap<String, (String, Vec<u8>)>,
    typed: bool,
}

/// What is answered: a result, or an error's status, description and parameters.
type Answer = Result<Value, (u16, String, Value)>;

fn error(status: u16, description: &str) -> Answer {
    Err((status, description.to_owned(), Value::Null))
}

fn serve(shared: &Shared, stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader, &mut writer)? {
        if let Some(path) = request.path.strip_prefix(&format!("/file/bot{TOKEN}/")) {
            let file = shared.lock().files.get(path.trim_start_matches("files/")).cloned();
            let (status, body) = file.map_or((404, b"Not Found".to_vec()), |content| (200, content));
            respond(&mut writer, status, "application/octet-stream", &body)?;
            continue;
        }
        let method = request.path.strip_prefix("/bot").and_then(|path| path.split_once('/'));
        let method = match method {
            Some((TOKEN, method)) => method.to_owned(),
            // A token of the right shape that is nobody's, and one of no shape at all.
            Some((token, _)) if token.contains(':') => {
                reply(&mut writer, &error(401, "Unauthorized"))?;
                continue;
            }
            _ => {
                reply(&mut writer, &error(404, "Not Found"))?;
                continue;
            }
        };
        let (number, fault) = {
            let mut state = shared.lock();
            let number = state.asked.len();
            let of = |fault: &(String, Fault)| fault.0.is_empty() || fault.0 == method;
            let found = state.faults.iter().position(of);
            let Request { params, typed, .. } = &request;
            let (params, typed) = (params.clone(), *typed);
            state.asked.push(Asked { method: method.clone(), params, typed, at: Instant::now(), status: 0 });
            (number, found.and_then(|n| state.faults.remove(n)).map(|fault| fault.1))
        };
        shared.changed.notify_all();
        match fault {
            Some(Fault::TooMany(seconds)) => {
                let description = format!("Too Many Requests: retry after {seconds}");
                reply(&mut writer, &Err((429, description, json!({ "retry_after": seconds }))))?;
            }
            Some(Fault::Page(status)) => {
                respond(&mut writer, status, "text/html", b"<html><body><h1>Bad Gateway</h1></body></html>")?;
            }
            Some(Fault::Error(status, description)) => reply(&mut writer, &error(status, description))?,
            Some(Fault::CutBefore) => return writer.shutdown(Shutdown::Both),
            Some(Fault::CutAfter) => {
                drop(answer(shared, &method, &request));
                return writer.shutdown(Shutdown::Both);
            }
            Some(Fault::Silence) => {
                drop(answer(shared, &method, &request));
                // Until the bot hangs up or the test is over.
                reader.read_line(&mut String::new())?;
                return Ok(());
            }
            None => {
                let answer = answer(shared, &method, &request);
                shared.lock().asked[number].status = answer.as_ref().map_or_else(|error| error.0, |_| 200);
                reply(&mut writer, &answer)?;
            }
        }
    }
    Ok(())
}

fn reply(writer: &mut TcpStream, answer: &Answer) -> std::io::Result<()> {
    let (status, body) = match answer {
        Ok(result) => (200, json!({ "ok": true, "result": result })),
        Err((status, description, parameters)) => {
            let mut body = json!({ "ok": false, "error_code": status, "description": description });
            if !parameters.is_null() {
                body["parameters"] = parameters.clone();
            }
            (*status, body)
        }
    };
    respond(writer, status, "application/json", body.to_string().as_bytes())
}

fn respond(writer: &mut TcpStream, status: u16, kind: &str, body: &[u8]) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} Scripted\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    writer.write_all(&[head.as_bytes(), body].concat())
}

/// Does what the method says.
fn answer(shared: &Shared, method: &str, request: &Request) -> Answer {
    let get = |name: &str| request.params.get(name).filter(|value| !value.is_null());
    let whole = |name: &str| get(name).and_then(|value| value.as_i64().or_else(|| value.as_str()?.parse().ok()));
    let text = |name: &str| get(name).and_then(Value::as_str).unwrap_or_default();
    // `getUpdates` sleeps, so it takes the lock itself. Names of methods are not case-sensitive.
    if method.eq_ignore_ascii_case("getUpdates") {
        return updates(shared, whole("offset"), whole("limit"), whole("timeout"), get("allowed_updates"));
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
        "answerCallbackQuery" if text("callback_query_id").is_empty() => {
            error(400, "Bad Request: query is too old and response timeout expired or query ID is invalid")
        }
        "answerCallbackQuery" => Ok(true.into()),
        "getChat" | "sendChatAction" | "sendMessage" | "sendMessageDraft" | "editMessageText" | "deleteMessage"
        | "sendPhoto" | "sendDocument" => to_chat(&mut state, method, request),
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
        if state.webhook { error(409, text) } else { Ok(Value::Null) }
    };
    let mut state = shared.lock();
    conflict(&state)?;
    state.poll += 1;
    let number = state.poll;
    // It stays until it is changed; an empty list is the default. In a form it is JSON in a string.
    let parsed =
        allowed.and_then(|list| list.as_str().map_or(Some(list.clone()), |text| serde_json::from_str(text).ok()));
    if let Some(list) = parsed.as_ref().and_then(Value::as_array) {
        let kinds: Vec<String> = list.iter().filter_map(|kind| kind.as_str().map(str::to_owned)).collect();
        state.allowed = Some(kinds).filter(|kinds| !kinds.is_empty());
    }
    let offset = offset.unwrap_or(0);
    if offset > 0 {
        state.updates = state.updates.split_off(&offset);
    } else if offset < 0 {
        // Counted from the end; what is before is forgotten.
        let keep = usize::try_from(-offset).unwrap();
        let first = state.updates.keys().nth(state.updates.len().saturating_sub(keep)).copied();
        state.updates = first.map_or_else(BTreeMap::new, |first| state.updates.split_off(&first));
    }
    state.polling = true;
    shared.changed.notify_all();
    let wait = Duration::from_secs(u64::try_from(timeout.unwrap_or(0).clamp(0, 50)).unwrap());
    let idle = |state: &mut State| state.updates.is_empty() && state.poll == number && !state.ending && !state.webhook;
    let (mut state, _) = shared.changed.wait_timeout_while(state, wait, idle).unwrap();
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
    let limit = usize::try_from(limit.unwrap_or(100).clamp(1, 100)).unwrap();
    Ok(state.updates.values().take(limit).cloned().collect())
}

fn commands(given: Option<&Value>) -> Answer {
    let named = |command: &Value| {
        let name = command["command"].as_str().unwrap_or_default();
        let letters = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        (1..=32).contains(&name.len()) && letters
    };
    match given.and_then(Value::as_array) {
        None => error(400, "Bad Request: parameter \"commands\" is required"),
        Some(list) if !list.iter().all(named) => error(400, "Bad Request: BOT_COMMAND_INVALID"),
        Some(list) if list.iter().any(|command| command["description"].as_str().is_none_or(str::is_empty)) => {
            error(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        }
        Some(_) => Ok(true.into()),
    }
}

/// The methods that have a chat.
fn to_chat(state: &mut State, method: &str, request: &Request) -> Answer {
    let get = |name: &str| request.params.get(name).filter(|value| !value.is_null());
    let whole = |value: &Value| value.as_i64().or_else(|| value.as_str()?.parse().ok());
    let number = |name: &str| get(name).and_then(whole);
    let Some(chat) = get("chat_id") else { return error(400, "Bad Request: chat_id is empty") };
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
    if state.blocked.contains(&chat) {
        return error(403, "Forbidden: bot was blocked by the user");
    }
    let html = get("parse_mode").and_then(Value::as_str).unwrap_or_default();
    if !html.is_empty() && !html.eq_ignore_ascii_case("HTML") {
        return error(400, "Bad Request: unsupported parse_mode");
    }
    let html = !html.is_empty();
    let thread = number("message_thread_id");
    match method {
        "sendChatAction" => {
            let known = ["typing", "upload_photo", "upload_document", "upload_voice", "record_voice"];
            let action = get("action").and_then(Value::as_str).unwrap_or_default();
            if known.contains(&action) {
                Ok(true.into())
            } else {
                error(400, "Bad Request: wrong parameter action in request")
            }
        }
        "sendMessageDraft" => {
            let draft = number("draft_id").unwrap_or(0);
            if description["type"] != "private" {
                return error(400, "Bad Request: method is available only in private chats");
            }
            if draft == 0 {
                return error(400, "Bad Request: DRAFT_ID_INVALID");
            }
            // Here an empty text is allowed: it shows that the bot is thinking.
            let source = get("text").and_then(Value::as_str).unwrap_or_default();
            let text = if source.is_empty() { String::new() } else { parsed(source, html, LIMIT)? };
            state.drafts.push((chat, draft, text));
            Ok(true.into())
        }
        "deleteMessage" => {
            let before = state.sent.len();
            state.sent.retain(|sent| sent.chat != chat || Some(sent.id) != number("message_id"));
            let found = state.sent.len() < before;
            if found { Ok(true.into()) } else { error(400, "Bad Request: message to delete not found") }
        }
        "editMessageText" => edit(state, chat, &description, request),
        _ => {
            let field = match method {
                "sendPhoto" => Some("photo"),
                "sendDocument" => Some("document"),
                _ => None,
            };
            let source = get(if field.is_some() { "caption" } else { "text" }).and_then(Value::as_str);
            let source = source.unwrap_or_default().to_owned();
            let (text, file) = match field {
                None => (parsed(&source, html, LIMIT)?, None),
                Some(field) => {
                    let Some(file) = request.files.get(field) else {
                        return error(400, &format!("Bad Request: there is no {field} in the request"));
                    };
                    takes(field, file)?;
                    let caption =
                        if source.is_empty() { String::new() } else { parsed(&source, html, LONGEST_CAPTION)? };
                    (caption, Some(file.clone()))
                }
            };
            let reply = get("reply_parameters").map(|given| match given.as_str() {
                Some(text) => serde_json::from_str(text).unwrap_or(Value::Null),
                None => given.clone(),
            });
            let reply_to = reply.as_ref().and_then(|reply| reply["message_id"].as_i64());
            state.next_message += 1;
            let sent = Sent { id: state.next_message, chat, thread, text, source, html, reply_to, file };
            let message = sent_message(&sent, &description);
            state.sent.push(sent);
            Ok(message)
        }
    }
}

/// Whether the server takes such a file: by size, by name, and as a photo by what is in it.
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
        return refuse(400, &format!("Bad Request: file of size {} bytes {text}", content.len()));
    }
    let edge = |at: usize| content.get(at..at + 4).map(|edge| u32::from_be_bytes(edge.try_into().unwrap()));
    match (content.as_slice(), edge(16), edge(20)) {
        ([0x89, b'P', b'N', b'G', ..], Some(width), Some(height)) => {
            let (short, long) = (width.min(height), width.max(height));
            let fits = short > 0 && width + height <= 10_000 && long / short <= 20;
            if fits { Ok(()) } else { refuse(400, "Bad Request: PHOTO_INVALID_DIMENSIONS") }
        }
        ([0xff, 0xd8, 0xff, ..] | [b'R', b'I', b'F', b'F', ..], ..) => Ok(()),
        _ => refuse(400, "Bad Request: IMAGE_PROCESS_FAILED"),
    }
}

fn edit(state: &mut State, chat: i64, description: &Value, request: &Request) -> Answer {
    let given = |name: &str| request.params.get(name).and_then(Value::as_str).unwrap_or_default();
    let html = !given("parse_mode").is_empty();
    let source = given("text");
    let text = parsed(source, html, LIMIT)?;
    let id = request.params.get("message_id").and_then(|id| id.as_i64().or_else(|| id.as_str()?.parse().ok()));
    let of = |sent: &&mut Sent| sent.chat == chat && Some(sent.id) == id;
    let Some(sent) = state.sent.iter_mut().find(of) else {
        return error(400, "Bad Request: message to edit not found");
    };
    if sent.source == source && sent.html == html {
        let text = "Bad Request: message is not modified: specified new message content and reply markup are exactly the \
                    same as a current content and reply markup of the message";
        return error(400, text);
    }
    (sent.text, sent.source, sent.html) = (text, source.to_owned(), html);
    Ok(sent_message(sent, description))
}

/// The most UTF-16 code units of a message and of a caption.
const LIMIT: usize = 4096;
const LONGEST_CAPTION: usize = 1024;

/// A text as people see it, or why there can be none.
fn parsed(source: &str, html: bool, limit: usize) -> Result<String, (u16, String, Value)> {
    let refuse = |text: String| Err((400, text, Value::Null));
    if source.len() > 1 << 15 {
        return refuse("Bad Request: text is too long".to_owned());
    }
    let text = if html { entities::parse(source).map(|parsed| parsed.text) } else { Ok(source.to_owned()) };
    let text = match text {
        Ok(text) => text.trim().to_owned(),
        Err(error) => return refuse(format!("Bad Request: can't parse entities: {error}")),
    };
    if text.is_empty() {
        return refuse("Bad Request: message text is empty".to_owned());
    }
    if entities::units(&text) > limit {
        let what = if limit == LIMIT { "message" } else { "message caption" };
        return refuse(format!("Bad Request: {what} is too long"));
    }
    Ok(text)
}

/// The next request of a connection; none when the client has closed it.
fn read(reader: &mut impl BufRead, writer: &mut TcpStream) -> std::io::Result<Option<Request>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let target = first.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    if headers.contains_key("expect") {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body = Vec::new();
    if let Some(length) = headers.get("content-length") {
        body.resize(length.parse().map_err(std::io::Error::other)?, 0);
        reader.read_exact(&mut body)?;
    } else if headers.contains_key("transfer-encoding") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
            let mut chunk = vec![0; length + 2]; // with the line end behind it
            reader.read_exact(&mut chunk)?;
            if length == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..length]);
        }
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut request = Request { path: path.to_owned(), params: form(query), files: BTreeMap::new(), typed: false };
    let kind = headers.get("content-type").map_or("", String::as_str);
    if kind.starts_with("application/json") {
        request.typed = true;
        if let Ok(Value::Object(params)) = serde_json::from_slice(&body) {
            request.params.extend(params);
        }
    } else if let Some(boundary) =
        kind.strip_prefix("multipart/form-data").and_then(|rest| rest.split_once("boundary="))
    {
        multipart(&body, boundary.1.trim_matches('"'), &mut request);
    } else {
        request.params.extend(form(&String::from_utf8_lossy(&body)));
    }
    Ok(Some(request))
}

fn form(text: &str) -> Map<String, Value> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decoded(name), decoded(value).into())).collect()
}

fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'+' => b' ',
            b'%' => {
                let digits: String = bytes.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).unwrap_or(b'?')
            }
            b => b,
        });
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn multipart(body: &[u8], boundary: &str, request: &mut Request) {
    let mark = format!("--{boundary}").into_bytes();
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|window| window == what);
    let mut left = body;
    while let Some(start) = find(left, &mark) {
        left = &left[start + mark.len()..];
        let (Some(head), Some(end)) = (find(left, b"\r\n\r\n"), find(left, &mark)) else { return };
        if head > end {
            continue;
        }
        let content = &left[head + 4..end.saturating_sub(2).max(head + 4)];
        let head = String::from_utf8_lossy(&left[..head]);
        let quoted = |name: &str| head.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
        let Some((field, _)) = quoted("name") else { continue };
        if let Some((file, _)) = quoted("filename") {
            request.params.insert(field.to_owned(), format!("attach://{file}").into());
            request.files.insert(field.to_owned(), (file.to_owned(), content.to_vec()));
        } else {
            request.params.insert(field.to_owned(), String::from_utf8_lossy(content).into());
        }
    }
}
