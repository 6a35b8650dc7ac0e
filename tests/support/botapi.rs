//! A scripted Telegram: the Bot API on loopback, with the rules of the real one where a bot could trip over them.
//!
//! Here is what a test has in hand: people write, things go wrong when it says so with [`BotApi::fault`], and what the bot
//! has sent can be looked at. The rules are those of [`super::botmethods`]: updates wait until a later offset confirms
//! them, a poll holds until there is one, a second poll ends the first; texts are parsed and counted as the server does
//! ([`super::entities`]). Every request is kept, for [`crate::botschema`] to be checked.

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

/// The token of every test, an obvious fake.
pub const TOKEN: &str = "123456:TEST-token-of-no-bot";
/// The bot's own id and name.
pub const BOT: i64 = 123_456;
pub const BOT_NAME: &str = "test_bantam_bot";
/// The number of the first update; those that follow are counted on.
pub const FIRST_UPDATE: i64 = 7001;

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
    /// What each shows, and what it says to the bot.
    pub buttons: Vec<(String, String)>,
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
    /// The same, but nothing is done.
    Lost,
    /// The connection is reset, and nothing was done.
    Reset,
    /// It is done, and half of the answer comes.
    Half,
    /// It is done, and answered so much later.
    Late(Duration),
}

/// What goes wrong with a request of this method, when chance decides.
type Weather = Box<dyn FnMut(&str) -> Option<Fault> + Send>;

/// All that the server knows.
#[derive(Default)]
pub struct State {
    pub updates: BTreeMap<i64, Value>,
    pub next_update: i64,
    /// How often updates were handed out.
    pub handed_out: usize,
    pub next_message: i64,
    pub allowed: Option<Vec<String>>,
    pub webhook: bool,
    /// The number of the poll that is under way; an older one ends when it sees a greater number.
    pub poll: u64,
    pub polling: bool,
    pub chats: BTreeMap<i64, Value>,
    pub blocked: Vec<i64>,
    pub sent: Vec<Sent>,
    pub drafts: Vec<(i64, i64, String)>,
    pub files: BTreeMap<String, Vec<u8>>,
    pub asked: Vec<Asked>,
    /// By method; an empty name stands for any.
    pub faults: VecDeque<(String, Fault)>,
    pub weather: Option<Weather>,
    pub ending: bool,
    /// The connections, by their numbers.
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

/// The server. Dropped, it ends every connection, and fails the test if a message got by on the server's leniency.
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
                    // A bot that goes away mid-sentence is what some tests are about.
                    serve(&shared, stream).ok();
                    shared.lock().open.remove(&number);
                });
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
            let kind = body
                .as_object()
                .and_then(|body| body.keys().next().cloned())
                .unwrap_or_default();
            // By default the server leaves these kinds out, and what was not asked for is never kept.
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

    /// A user presses the button of a message that shows this.
    #[track_caller]
    pub fn press(&self, chat: i64, user: i64, message: i64, shown: &str) {
        let sent = self.sent(chat).into_iter().find(|sent| sent.id == message);
        let buttons = sent.expect("no such message").buttons;
        let data = buttons.iter().find(|(text, _)| text == shown);
        let (_, data) = data.unwrap_or_else(|| panic!("no button {shown}: {buttons:?}"));
        self.press_data(chat, user, message, data);
    }

    /// The same with data of the user's own, as a client can send it.
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

    /// A text in a group that names the bot.
    pub fn mention(&self, chat: i64, user: i64, text: &str) -> i64 {
        let name = format!("@{BOT_NAME}");
        let entity = json!({ "type": "mention", "offset": 0, "length": entities::units(&name) });
        self.message(
            chat,
            user,
            &json!({ "text": format!("{name} {text}"), "entities": [entity] }),
        )
    }

    /// A text that replies to another message, of the bot or of the user.
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

    /// A photo in two sizes; the larger one is `content`.
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

    /// Photos that belong together: one message each, with the caption on the first.
    pub fn album(&self, user: i64, photos: &[&[u8]], caption: &str) -> Vec<i64> {
        let extra = |n: usize| {
            let group = json!({ "media_group_id": "13000000000000001" });
            if n == 0 {
                merge(group, &json!({ "caption": caption }))
            } else {
                group
            }
        };
        photos
            .iter()
            .enumerate()
            .map(|(n, photo)| self.photo(user, photo, &extra(n)))
            .collect()
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

    pub fn file(&self, content: &[u8]) -> String {
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
        merge(
            json!({ "message_id": id, "date": 1_800_000_000, "chat": chat, "from": from }),
            extra,
        )
    }

    /// The messages of the bot in this chat, oldest first, as they stand now.
    pub fn sent(&self, chat: i64) -> Vec<Sent> {
        self.shared
            .lock()
            .sent
            .iter()
            .filter(|sent| sent.chat == chat)
            .cloned()
            .collect()
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
        self.shared
            .lock()
            .asked
            .iter()
            .filter(of)
            .cloned()
            .collect()
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
        self.wait(method, count, |state| {
            state
                .asked
                .iter()
                .filter(|asked| asked.method == method)
                .count()
        });
    }

    /// Waits until every update is confirmed.
    #[track_caller]
    pub fn wait_for_confirmation(&self) {
        self.wait("confirmation of all updates", 1, |state| {
            usize::from(state.updates.is_empty())
        });
    }

    /// Waits until a poll is being held.
    #[track_caller]
    pub fn wait_for_poll(&self) {
        self.wait("poll", 1, |state| usize::from(state.polling));
    }

    /// How often updates were handed out so far.
    pub fn handed_out(&self) -> usize {
        self.shared.lock().handed_out
    }

    /// Waits until something is so, and tells whether it came to be in time.
    pub fn wait_up_to(&self, time: Duration, mut is_so: impl FnMut(&State) -> bool) -> bool {
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), time, |state| !is_so(state))
            .unwrap();
        is_so(&state)
    }

    /// Has chance decide, for every request to which no fault was given, what goes wrong with it.
    pub fn weather(&self, weather: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        self.change(|state| state.weather = Some(Box::new(weather)));
    }

    /// Takes back the faults that have not come yet.
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

/// `extra` laid over `base`, one level deep.
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
                // Closed with nothing to linger for, a connection is reset.
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
                // Until the bot hangs up or the test is over.
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
