//! A scripted Telegram: the Bot API on loopback, with the real rules that matter for bots.
//!
//! This module is for tests: people write, requests fail as told by [`BotApi::fault`], and the bot's messages can be inspected.
//! The rules are in [`super::botmethods`]: updates wait until a later offset confirms them, a poll waits for an update, a
//! second poll ends the first, and texts are parsed and counted as the server does ([`super::entities`]). All requests are
//! recorded for [`crate::botschema`].

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::bothttp::{Request, read, respond};
use super::botmethods::{Answer, answer, error, sent_message};
use super::entities;

/// Token of all tests, an obvious fake.
pub const TOKEN: &str = "123456:TEST-token-of-no-bot";
/// Id and name of the bot.
pub const BOT: i64 = 123_456;
pub const BOT_NAME: &str = "test_bantam_bot";
/// Id of the first update; later ids are consecutive.
pub const FIRST_UPDATE: i64 = 7001;

/// A request as received.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Parameters by name; the value of an uploaded file is `attach://` and its name.
    pub params: Map<String, Value>,
    /// Whether the request was JSON, with typed parameters. Forms contain only text.
    pub typed: bool,
    pub at: Instant,
    /// Status of the answer, without a fault.
    pub status: u16,
}

/// A message of the bot.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    pub id: i64,
    pub chat: i64,
    pub thread: Option<i64>,
    /// Text, or caption of a file, as displayed after the last edit.
    pub text: String,
    /// Source as written by the bot.
    pub source: String,
    pub html: bool,
    pub reply_to: Option<i64>,
    /// Name and content of a photo or a document.
    pub file: Option<(String, Vec<u8>)>,
    /// Label and data of each button.
    pub buttons: Vec<(String, String)>,
}

/// A fault in one request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// 429 with this number of seconds to wait.
    TooMany(u64),
    /// This status, with a page of the proxy before the server.
    Page(u16),
    /// This status and description, in the server's format.
    Error(u16, &'static str),
    /// The connection ends without an answer or an effect.
    CutBefore,
    /// The connection ends without an answer, but with an effect, which the bot cannot know.
    CutAfter,
    /// The request has an effect, but is not answered until the bot gives up.
    Silence,
    /// The request is neither executed nor answered.
    Lost,
    /// The connection is reset without an effect.
    Reset,
    /// The request has an effect, but only half of the answer is sent.
    Half,
    /// The request has an effect, and the answer is delayed.
    Late(Duration),
}

/// Chooses faults of requests at random, by method.
type Weather = Box<dyn FnMut(&str) -> Option<Fault> + Send>;

/// State of the server.
#[derive(Default)]
pub struct State {
    pub updates: BTreeMap<i64, Value>,
    pub next_update: i64,
    /// Number of times that updates were handed out.
    pub handed_out: usize,
    pub next_message: i64,
    pub allowed: Option<Vec<String>>,
    pub webhook: bool,
    /// Number of the current poll; an earlier poll ends when the number grows.
    pub poll: u64,
    pub polling: bool,
    pub chats: BTreeMap<i64, Value>,
    /// Chats that take nothing, with the status and the description of their refusal.
    pub refusing: BTreeMap<i64, (u16, &'static str)>,
    pub sent: Vec<Sent>,
    pub files: BTreeMap<String, Vec<u8>>,
    pub asked: Vec<Asked>,
    /// Faults by method; an empty name matches any method.
    pub faults: VecDeque<(String, Fault)>,
    pub weather: Option<Weather>,
    pub ending: bool,
    /// Connections by number.
    pub open: BTreeMap<u64, TcpStream>,
}

pub struct Shared {
    state: Mutex<State>,
    pub changed: Condvar,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server. Dropping it ends all connections, and fails the test if a message was accepted only by leniency.
pub struct BotApi {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl BotApi {
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            next_update: FIRST_UPDATE,
            next_message: 1,
            ..State::default()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming().flatten()) {
                let mut state = serving.lock();
                if state.ending {
                    return;
                }
                state
                    .open
                    .extend(stream.try_clone().map(|stream| (number, stream)));
                let shared = Arc::clone(&serving);
                thread::spawn(move || {
                    // Some tests disconnect in the middle of a request.
                    serve(&shared, stream).ok();
                    shared.lock().open.remove(&number);
                });
            }
        });
        Self { address, shared }
    }

    /// Returns the `api_base` to configure.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.shared.lock());
        self.shared.changed.notify_all();
        result
    }

    /// Adds a fault for the next request of this method (any, if empty).
    pub fn fault(&self, method: &str, fault: Fault) {
        self.change(|state| state.faults.push_back((method.to_owned(), fault)));
    }

    /// Makes the user of this chat block the bot.
    pub fn block(&self, chat: i64) {
        self.refuse(chat, 403, "Forbidden: bot was blocked by the user");
    }

    /// Refuses every message to this chat with this status and description.
    pub fn refuse(&self, chat: i64, status: u16, why: &'static str) {
        self.change(|state| state.refusing.insert(chat, (status, why)));
    }

    /// Sets the id of the next update. After an idle week, the real server restarts anywhere.
    pub fn restart_updates_at(&self, id: i64) {
        self.change(|state| state.next_update = id);
    }

    /// Adds an update such as `{"message": {..}}`, and returns its id.
    pub fn update(&self, body: &Value) -> i64 {
        self.change(|state| {
            let id = state.next_update;
            state.next_update += 1;
            let kind = body
                .as_object()
                .and_then(|body| body.keys().next().cloned())
                .unwrap_or_default();
            // By default, the server omits these kinds, and updates that were not requested are never stored.
            let rare = ["chat_member", "message_reaction", "message_reaction_count"]
                .contains(&kind.as_str());
            if state
                .allowed
                .as_ref()
                .map_or(!rare, |kinds| kinds.contains(&kind))
            {
                let mut update = body.clone();
                update["update_id"] = id.into();
                state.updates.insert(id, update);
            }
            id
        })
    }

    /// Adds a person's message, with `extra` merged into it. Returns its id.
    pub fn message(&self, chat: i64, user: i64, extra: &Value) -> i64 {
        let message = self.compose(chat, user, extra);
        let id = message["message_id"].as_i64().unwrap();
        self.update(&json!({ "message": message }));
        id
    }

    pub fn text(&self, user: i64, text: &str) -> i64 {
        self.message(user, user, &json!({ "text": text }))
    }

    /// Edits a message.
    pub fn edit(&self, chat: i64, user: i64, message: i64, text: &str) {
        let extra = json!({ "message_id": message, "edit_date": 1_800_000_001, "text": text });
        let message = self.compose(chat, user, &extra);
        self.update(&json!({ "edited_message": message }));
    }

    /// Presses the button with this label.
    #[track_caller]
    pub fn press(&self, chat: i64, user: i64, message: i64, shown: &str) {
        let sent = self.sent(chat).into_iter().find(|sent| sent.id == message);
        let buttons = sent.expect("no such message").buttons;
        let data = buttons.iter().find(|(text, _)| text == shown);
        let (_, data) = data.unwrap_or_else(|| panic!("no button {shown}: {buttons:?}"));
        self.press_data(chat, user, message, data);
    }

    /// Presses a button with data chosen by the user, which a client can send.
    pub fn press_data(&self, chat: i64, user: i64, message: i64, data: &str) {
        let from = json!({ "id": user, "is_bot": false, "first_name": "User" });
        let shown =
            json!({ "message_id": message, "date": 1_800_000_000, "chat": self.chat(chat) });
        let id = self.change(|state| {
            state.next_message += 1;
            format!("query{}", state.next_message)
        });
        self.update(&json!({ "callback_query": {
            "id": id, "from": from, "message": shown, "chat_instance": "1", "data": data
        } }));
    }

    /// Adds a text in a group that mentions the bot.
    pub fn mention(&self, chat: i64, user: i64, text: &str) -> i64 {
        let name = format!("@{BOT_NAME}");
        let entity = json!({ "type": "mention", "offset": 0, "length": entities::units(&name) });
        self.message(
            chat,
            user,
            &json!({ "text": format!("{name} {text}"), "entities": [entity] }),
        )
    }

    /// Adds a text that replies to a message of the bot or the user.
    pub fn reply(&self, chat: i64, user: i64, to: i64, text: &str) -> i64 {
        let sent = self.sent(chat).into_iter().find(|sent| sent.id == to);
        let replied = match sent {
            Some(sent) => sent_message(&sent, &self.chat(chat)),
            None => self.compose(
                chat,
                user,
                &json!({ "message_id": to, "text": "an earlier message" }),
            ),
        };
        self.message(
            chat,
            user,
            &json!({ "text": text, "reply_to_message": replied }),
        )
    }

    /// Adds a photo in two sizes; the larger one is `content`.
    pub fn photo(&self, user: i64, content: &[u8], extra: &Value) -> i64 {
        let small = self.file(&content[..content.len() / 2]);
        let large = self.file(content);
        let size = |id: &str, edge: u64, bytes: usize| json!({ "file_id": id, "file_unique_id": format!("u{id}"), "width": edge, "height": edge, "file_size": bytes });
        let sizes = json!([
            size(&small, 90, content.len() / 2),
            size(&large, 800, content.len())
        ]);
        self.message(user, user, &merge(json!({ "photo": sizes }), extra))
    }

    pub fn document(
        &self,
        user: i64,
        name: &str,
        kind: &str,
        content: &[u8],
        extra: &Value,
    ) -> i64 {
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

    /// Adds a text that begins with the bot's name in a topic of a group.
    pub fn topic(&self, chat: i64, user: i64, thread: i64, text: &str) -> i64 {
        let mention = json!({ "type": "mention", "offset": 0, "length": BOT_NAME.len() + 1 });
        let extra = json!({ "text": text, "entities": [mention], "message_thread_id": thread, "is_topic_message": true });
        self.message(chat, user, &extra)
    }

    /// Converts the group to a supergroup, so that only the new id is valid.
    pub fn migrate(&self, chat: i64, to: i64) {
        self.message(to, BOT, &json!({ "migrate_from_chat_id": chat }));
        self.change(|state| {
            if let Some(old) = state.chats.get_mut(&chat) {
                old["migrated_to"] = to.into();
            }
        });
    }

    pub fn file(&self, content: &[u8]) -> String {
        self.change(|state| {
            let id = format!("file{}", state.files.len() + 1);
            state.files.insert(id.clone(), content.to_vec());
            id
        })
    }

    /// Returns the chat with this id, to which the bot can write from now on.
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
        merge(
            json!({ "message_id": id, "date": 1_800_000_000, "chat": chat, "from": from }),
            extra,
        )
    }

    /// Returns the bot's messages in this chat, oldest first, in their current state.
    pub fn sent(&self, chat: i64) -> Vec<Sent> {
        self.shared
            .lock()
            .sent
            .iter()
            .filter(|sent| sent.chat == chat)
            .cloned()
            .collect()
    }

    /// Returns the texts of these messages.
    pub fn texts(&self, chat: i64) -> Vec<String> {
        self.sent(chat).into_iter().map(|sent| sent.text).collect()
    }

    /// Returns the requests so far, of one method or, if that is empty, of all.
    pub fn asked(&self, method: &str) -> Vec<Asked> {
        let of = |asked: &&Asked| method.is_empty() || asked.method == method;
        self.shared
            .lock()
            .asked
            .iter()
            .filter(of)
            .cloned()
            .collect()
    }

    /// Returns the updates that are not confirmed by an offset.
    pub fn unconfirmed(&self) -> Vec<i64> {
        self.shared.lock().updates.keys().copied().collect()
    }

    /// Waits until the chat has this many messages, and returns their texts.
    #[track_caller]
    pub fn wait_for_texts(&self, chat: i64, count: usize) -> Vec<String> {
        let of = |state: &State| state.sent.iter().filter(|sent| sent.chat == chat).count();
        self.wait("messages", count, of);
        self.texts(chat)
    }

    /// Waits for this many requests of a method.
    #[track_caller]
    pub fn wait_for_asked(&self, method: &str, count: usize) {
        self.wait(method, count, |state| {
            state
                .asked
                .iter()
                .filter(|asked| asked.method == method)
                .count()
        });
    }

    /// Waits until all updates are confirmed.
    #[track_caller]
    pub fn wait_for_confirmation(&self) {
        self.wait("confirmation of all updates", 1, |state| {
            usize::from(state.updates.is_empty())
        });
    }

    /// Waits until a poll is waiting.
    #[track_caller]
    pub fn wait_for_poll(&self) {
        self.wait("poll", 1, |state| usize::from(state.polling));
    }

    /// Returns how many times updates were handed out.
    pub fn handed_out(&self) -> usize {
        self.shared.lock().handed_out
    }

    /// Waits until a condition is met, and returns whether it was met in time.
    pub fn wait_up_to(&self, time: Duration, mut is_so: impl FnMut(&State) -> bool) -> bool {
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), time, |state| !is_so(state))
            .unwrap();
        is_so(&state)
    }

    /// Chooses faults at random for all requests without an explicit fault.
    pub fn weather(&self, weather: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        self.change(|state| state.weather = Some(Box::new(weather)));
    }

    /// Removes the remaining faults.
    pub fn calm(&self) {
        self.change(|state| {
            state.faults.clear();
            state.weather = None;
        });
    }

    #[track_caller]
    fn wait(&self, what: &str, count: usize, seen: impl Fn(&State) -> usize) {
        let few = |state: &mut State| seen(state) < count;
        let wait = Duration::from_secs(60);
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), wait, few)
            .unwrap();
        let reached = seen(&state);
        drop(state);
        assert!(
            reached >= count,
            "waited for {count} {what}, only {reached} came: {:#?}",
            self.asked("")
        );
    }
}

impl Drop for BotApi {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ending = true;
        for stream in std::mem::take(&mut state.open).into_values() {
            stream.shutdown(Shutdown::Both).ok();
        }
        let sources: Vec<String> = state
            .sent
            .iter()
            .filter(|sent| sent.html && sent.file.is_none())
            .map(|sent| sent.source.clone())
            .collect();
        drop(state);
        self.shared.changed.notify_all();
        TcpStream::connect(self.address).ok(); // wakes the accepting thread, which then ends
        if !thread::panicking() {
            for source in sources {
                entities::strict(&source)
                    .unwrap_or_else(|error| panic!("a message in sloppy HTML, {error}: {source}"));
            }
        }
    }
}

/// Merges `extra` into `base`, one level deep.
fn merge(mut base: Value, extra: &Value) -> Value {
    for (key, value) in extra.as_object().into_iter().flatten() {
        base[key] = value.clone();
    }
    base
}

fn serve(shared: &Shared, stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader, &mut writer)? {
        if let Some(path) = request.path.strip_prefix(&format!("/file/bot{TOKEN}/")) {
            let file = shared
                .lock()
                .files
                .get(path.trim_start_matches("files/"))
                .cloned();
            let (status, body) =
                file.map_or((404, b"Not Found".to_vec()), |content| (200, content));
            respond(&mut writer, status, "application/octet-stream", &body)?;
            continue;
        }
        let method = request
            .path
            .strip_prefix("/bot")
            .and_then(|path| path.split_once('/'));
        let method = match method {
            Some((TOKEN, method)) => method.to_owned(),
            // A well-formed but unknown token, and a malformed one.
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
            state.asked.push(Asked {
                method: method.clone(),
                params,
                typed,
                at: Instant::now(),
                status: 0,
            });
            let fault = found
                .and_then(|n| state.faults.remove(n))
                .map(|fault| fault.1);
            (number, fault.or_else(|| state.weather.as_mut()?(&method)))
        };
        shared.changed.notify_all();
        match fault {
            Some(Fault::TooMany(seconds)) => {
                let description = format!("Too Many Requests: retry after {seconds}");
                reply(
                    &mut writer,
                    &Err((429, description, json!({ "retry_after": seconds }))),
                )?;
            }
            Some(Fault::Page(status)) => {
                respond(
                    &mut writer,
                    status,
                    "text/html",
                    b"<html><body><h1>Bad Gateway</h1></body></html>",
                )?;
            }
            Some(Fault::Error(status, description)) => {
                reply(&mut writer, &error(status, description))?;
            }
            Some(Fault::Reset) => {
                // With a zero linger time, closing resets the connection.
                rustix::net::sockopt::set_socket_linger(&writer, Some(Duration::ZERO))?;
                return Ok(());
            }
            Some(Fault::CutBefore) => return writer.shutdown(Shutdown::Both),
            Some(Fault::CutAfter) => {
                drop(answer(shared, &method, &request));
                return writer.shutdown(Shutdown::Both);
            }
            Some(fault @ (Fault::Silence | Fault::Lost)) => {
                if matches!(fault, Fault::Silence) {
                    drop(answer(shared, &method, &request));
                }
                // Waits until the bot hangs up or the test ends.
                reader.read_line(&mut String::new())?;
                return Ok(());
            }
            fault @ (None | Some(Fault::Half | Fault::Late(_))) => {
                let answer = answer(shared, &method, &request);
                shared.lock().asked[number].status =
                    answer.as_ref().map_or_else(|error| error.0, |_| 200);
                match fault {
                    Some(Fault::Half) => {
                        writer.write_all(
                            b"HTTP/1.1 200 Scripted\r\nContent-Length: 100\r\n\r\n{\"ok\":tr",
                        )?;
                        return writer.shutdown(Shutdown::Both);
                    }
                    Some(Fault::Late(by)) => thread::sleep(by),
                    _ => {}
                }
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
    respond(
        writer,
        status,
        "application/json",
        body.to_string().as_bytes(),
    )
}
