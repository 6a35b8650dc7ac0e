//! `kill -9` of the gateway at any moment, while people continue to write: every message is answered, tool effects happen once
//! or are reported as unknown, and answers are in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::botapi::{BotApi, Fault, TOKEN};
use crate::harness::{Home, Running, merged, until};
use crate::model::{Model, Reply, call, text_of};
use crate::rng::Rng;
use crate::stored::{assert_single_result_per_call, open_items, segments};

/// Pause between two messages.
const PACE: Duration = Duration::from_millis(100);
/// Minimum and maximum lifetime before a random kill, in milliseconds.
const LIFE: (u64, u64) = (20, 400);
/// The model thinks up to three times this long before it answers.
const THOUGHT: Duration = Duration::from_millis(50);
/// Time to wait for a particular moment.
const MOMENT: Duration = Duration::from_secs(2);
/// Time limit of the last gateway for the remaining answers; after a long attack, as long as that.
const QUIET: Duration = Duration::from_secs(600);
/// Number of calls per reply of the model.
const AT_ONCE: usize = 6;

/// Three people, and a topic of a group.
const PEOPLE: [i64; 3] = [42, 43, 44];
const GROUP: i64 = -1_000_000_000_123;
const TOPIC: i64 = 7;
const CHATS: [&str; 4] = ["42", "43", "44", "-1000000000123_7"];

/// Name of the workspace's file of effects.
const LOG: &str = "log.txt";

/// Returns the number of kills: `BANTAM_KILLS`, or this default.
fn kills() -> usize {
    std::env::var("BANTAM_KILLS")
        .map_or(15, |count| count.parse().expect("BANTAM_KILLS is a number"))
}

/// Returns the seed of the random numbers: `BANTAM_SEED`, or this default.
fn seed() -> u64 {
    std::env::var("BANTAM_SEED").map_or(20_261_122, |seed| {
        seed.parse().expect("BANTAM_SEED is a number")
    })
}

/// Returns the items in a text: `item-CHAT-NUMBER`, with the chat's position in [`CHATS`].
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
        .filter(|word| word.starts_with("item-"))
}

/// Returns a model that notes every item in the log by a separate call, and then answers with the unanswered items. It uses
/// only the conversation: it does not repeat a call, whatever its result was.
fn diligent() -> Model {
    Model::answering(|request, n| {
        // Some answers take longer, so that turns of several chats run at the same time.
        thread::sleep(THOUGHT * u32::try_from(n % 4).unwrap());
        if request.texts("system")[0].contains("so that the assistant can continue") {
            return Reply::text("Items were noted.");
        }
        let mut asked: Vec<String> = Vec::new();
        let mut called: BTreeSet<String> = BTreeSet::new();
        for message in request.messages() {
            match message["role"].as_str() {
                Some("user") => {
                    asked.extend(items(&text_of(&message["content"])).map(str::to_owned));
                }
                Some("assistant") => {
                    called.extend(calls_of(message).into_iter().map(|(_, item)| item));
                    let answered: BTreeSet<String> = items(&text_of(&message["content"]))
                        .map(str::to_owned)
                        .collect();
                    asked.retain(|item| !answered.contains(item));
                }
                _ => {}
            }
        }
        let left = asked
            .iter()
            .filter(|item| !called.contains(*item))
            .take(AT_ONCE);
        let calls: Vec<_> = left
            .map(|item| {
                let arguments = json!({ "path": LOG, "content": format!("{item}\n") });
                call(&format!("call-{item}"), "append_file", &arguments)
            })
            .collect();
        let reply = if calls.is_empty() {
            Reply::text(&format!("Noted: {}", asked.join(" ")))
        } else {
            Reply::calls(calls)
        };
        reply.counted(request.body.to_string().len() as u64 / 4, 100)
    })
    .forgetful()
}

/// Returns the calls of a message, by id, with the item of each.
fn calls_of(message: &Value) -> Vec<(String, String)> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    calls
        .filter_map(|call| {
            // In a session, the name and the arguments are directly in the call.
            let arguments = call["function"]["arguments"]
                .as_str()
                .or(call["arguments"].as_str())?;
            let arguments: Value = serde_json::from_str(arguments).ok()?;
            Some((
                call["id"].as_str()?.to_owned(),
                arguments["content"].as_str()?.trim().to_owned(),
            ))
        })
        .collect()
}

/// Writes items until stopped; returns them in the order of their updates.
fn write(api: &BotApi, mut chance: Rng, is_over: &AtomicBool) -> Vec<String> {
    let (mut written, mut counts) = (Vec::new(), [0; CHATS.len()]);
    while !is_over.load(Ordering::SeqCst) {
        let chat = usize::try_from(chance.below(CHATS.len() as u64)).unwrap();
        let item = format!("item-{chat}-{}", counts[chat]);
        counts[chat] += 1;
        match PEOPLE.get(chat) {
            Some(person) => api.text(*person, &item),
            None => api.topic(GROUP, PEOPLE[0], TOPIC, &format!("@test_bantam_bot {item}")),
        };
        written.push(item);
        // People write at their own pace, independent of the program.
        thread::sleep(PACE);
    }
    written
}

/// Waits for the moment of a kill, and returns its name.
fn moment(api: &BotApi, home: &Home, chance: &mut Rng) -> &'static str {
    let log = home.path("workspace").join(LOG);
    let length = || fs::metadata(&log).map_or(0, |meta| meta.len());
    match chance.below(8) {
        0 => {
            let before = api.handed_out();
            api.wait_up_to(MOMENT, |state| state.handed_out > before);
            "updates were handed out"
        }
        1 | 2 => {
            let fault = if chance.below(2) == 0 {
                Fault::Silence
            } else {
                Fault::Lost
            };
            api.fault("sendMessage", fault);
            api.wait_up_to(MOMENT, |state| state.faults.is_empty());
            api.calm();
            "a message was being sent"
        }
        3 => {
            let (before, deadline) = (length(), Instant::now() + MOMENT);
            while length() == before && Instant::now() < deadline {
                thread::park_timeout(Duration::from_millis(1));
            }
            "a tool had written"
        }
        _ => {
            thread::sleep(Duration::from_millis(
                LIFE.0 + chance.below(LIFE.1 - LIFE.0),
            ));
            "no particular moment"
        }
    }
}

fn killed(gateway: &Running) {
    gateway.signal(Signal::KILL);
    until("it is dead", || !gateway.is_running());
}

/// Returns the results of the calls for each item, from all segments of all conversations.
fn results(home: &Home) -> BTreeMap<String, BTreeSet<String>> {
    let mut results: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for chat in CHATS {
        let segments = segments(&home.path("sessions"), &format!("telegram_{chat}")).unwrap();
        for session in segments.values() {
            let history = session.history();
            assert_single_result_per_call(&history);
            let calls: BTreeMap<String, String> = history
                .iter()
                .flat_map(|message| calls_of(message))
                .collect();
            for result in history.iter().filter(|message| message["role"] == "tool") {
                let item = &calls[result["tool_call_id"].as_str().unwrap()];
                results
                    .entry(item.clone())
                    .or_default()
                    .insert(text_of(&result["content"]));
            }
        }
    }
    results
}

/// Returns the number of messages that turns added while they ran.
fn steered(home: &Home) -> usize {
    let of_chat = |chat: &&str| {
        let segments = segments(&home.path("sessions"), &format!("telegram_{chat}")).unwrap();
        let histories = segments.values().map(|session| {
            let history = session.history();
            let kinds = history.iter().map(|message| &message["kind"]);
            kinds.filter(|kind| *kind == "steering").count()
        });
        histories.sum::<usize>()
    };
    CHATS.iter().map(of_chat).sum()
}

#[test]
fn killed_gateway_answers_each_message_once() {
    let (kills, chosen) = (kills(), seed());
    println!("seed {chosen}");
    let mut chance = Rng(chosen | 1);
    let (model, api) = (diligent(), BotApi::start());
    let bot =
        json!({ "enabled": true, "token": TOKEN, "allow_from": PEOPLE, "api_base": api.base() });
    let extra =
        json!({ "channels": { "telegram": bot }, "model_list": [{ "context_window": 30_000 }] });
    let home = Home::with(&merged(model.config(), &extra));

    let mut moments = BTreeMap::<&str, usize>::new();
    let started = Instant::now();
    let is_over = AtomicBool::new(false);
    let written = thread::scope(|scope| {
        let pace = Rng(chance.0 ^ 0x9e37_79b9_7f4a_7c15);
        let writing = scope.spawn(|| write(&api, pace, &is_over));
        for _ in 0..kills {
            let gateway = home.bantam().arg("gateway").spawn();
            *moments.entry(moment(&api, &home, &mut chance)).or_default() += 1;
            killed(&gateway);
        }
        is_over.store(true, Ordering::SeqCst);
        writing.join().unwrap()
    });
    let attacked = started.elapsed();
    let gateway = home.bantam().arg("gateway").spawn();
    gateway.wait_for_stderr("serving as");
    let patience = attacked + QUIET.max(attacked);
    while (is_anything_left(&api, &written) || is_anything_unsent(&home))
        && started.elapsed() < patience
    {
        thread::park_timeout(Duration::from_millis(100));
    }
    let left = left(&api, &written);
    println!(
        "left: {left:?}; not confirmed: {:?}; unsent: {}",
        api.unconfirmed(),
        is_anything_unsent(&home)
    );
    if !left.is_empty() {
        println!(
            "{}",
            fs::read_to_string(home.path("state/queue.jsonl")).unwrap()
        );
    }
    gateway.signal(Signal::TERM);
    gateway.finish_within(patience + MOMENT * 5).exits(0);

    let (mut wrong, mut duplicates, mut again) = (Vec::new(), 0, 0);
    for (chat, id) in CHATS.iter().enumerate() {
        let texts = texts(&api, id);
        let mut seen = BTreeSet::new();
        let mut first: BTreeMap<&str, usize> = BTreeMap::new();
        for (n, text) in texts
            .iter()
            .enumerate()
            .filter(|(_, text)| text.starts_with("Noted: "))
        {
            let is_new = seen.insert(text);
            duplicates += usize::from(!is_new);
            for item in items(text) {
                again += usize::from(is_new && first.contains_key(item));
                first.entry(item).or_insert(n);
            }
        }
        let mut last = 0;
        for item in written
            .iter()
            .filter(|item| item.starts_with(&format!("item-{chat}-")))
        {
            match first.get(item.as_str()) {
                None => wrong.push(format!("{item} was never answered")),
                Some(place) if *place < last => {
                    wrong.push(format!("{item} was answered out of turn"));
                }
                Some(place) => last = *place,
            }
        }
        // Such as the notice that a message was skipped, although it did not cause the crash.
        let strange = texts.iter().filter(|text| !text.starts_with("Noted: "));
        wrong.extend(strange.map(|text| format!("a strange answer: {text}")));
    }
    let log = fs::read_to_string(home.path("workspace").join(LOG)).unwrap();
    let mut effects: BTreeMap<&str, usize> = BTreeMap::new();
    items(&log).for_each(|item| *effects.entry(item).or_default() += 1);
    let results = results(&home);
    let steered = steered(&home);
    let (mut unknown, mut undone) = (0, 0);
    for item in &written {
        let told: Vec<&String> = results.get(item).into_iter().flatten().collect();
        let is_unknown = told
            .iter()
            .any(|result| result.contains("interrupted, outcome unknown"));
        let times = effects.get(item.as_str()).copied().unwrap_or(0);
        unknown += usize::from(is_unknown);
        undone += usize::from(is_unknown && times == 0);
        if times > 1 || (times == 0 && !is_unknown) {
            wrong.push(format!(
                "{item} was noted {times} times; its results: {told:?}"
            ));
        }
    }
    for chat in CHATS {
        let name = format!("telegram_{chat}");
        let run = home.run(["sessions", "show", &name]);
        if run.code != Some(0) || !run.stderr.is_empty() {
            wrong.push(format!(
                "sessions show {name}: {:?} {}",
                run.code, run.stderr
            ));
        }
    }
    println!(
        "{kills} kills in {:.1} s ({moments:?}), {} messages answered, {steered} of them taken in by a running turn; {} effects, \
         {unknown} reported as unknown ({undone} of them not done); {duplicates} answers twice, {again} items answered \
         again; {} requests to the model; quiet after {:.1} s",
        attacked.as_secs_f64(),
        written.len(),
        effects.values().sum::<usize>(),
        model.asked(),
        started.elapsed().saturating_sub(attacked).as_secs_f64(),
    );
    if duplicates > kills {
        wrong.push(format!(
            "{duplicates} answers came twice, with {kills} kills"
        ));
    }
    if kills >= 100 && steered == 0 {
        wrong.push("no turn took in a message".to_owned());
    }
    assert!(
        wrong.is_empty(),
        "{} things are wrong: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(40)]
    );
    assert!(api.unconfirmed().is_empty());
}

/// Each run ends once, whatever the gateway did when it was killed, and its chat gets the answer.
#[test]
fn jobs_of_a_gateway_killed_at_any_moment_are_answered() {
    let (kills, mut chance) = (kills(), Rng(seed() | 1));
    let model = Model::answering(|request, n| match request.messages().last() {
        Some(last) if last["role"] == "tool" => Reply::text(&format!("Looked {n}.")),
        _ => Reply::calls([call("c", "list_dir", &json!({ "path": "." }))]),
    });
    let api = BotApi::start();
    api.chat(PEOPLE[0]);
    let bot =
        json!({ "enabled": true, "token": TOKEN, "allow_from": PEOPLE, "api_base": api.base() });
    let home = Home::with(&merged(
        model.config(),
        &json!({ "channels": { "telegram": bot } }),
    ));
    let cron = |args: &[&str]| home.bantam().arg("cron").args(args).run();
    cron(&["add", "-m", "look", "-n", "look", "-e", "1s"]).exits(0);
    for _ in 0..kills {
        let gateway = home.bantam().arg("gateway").spawn();
        thread::sleep(Duration::from_millis(
            LIFE.0 + chance.below(2 * LIFE.1 - LIFE.0),
        ));
        killed(&gateway);
    }
    let gateway = home.bantam().arg("gateway").spawn();
    let ran = || {
        let history = cron(&["history", "--json"]).json();
        let runs = history["runs"].as_array().unwrap().clone();
        runs.iter()
            .map(|run| run["status"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    until("it ran twice", || ran().len() > 1);
    cron(&["disable", "look"]).exits(0);
    until("no run is left", || {
        ran().iter().all(|status| status != "running") && !is_anything_unsent(&home)
    });
    gateway.signal(Signal::TERM);
    gateway.finish().exits(0);
    let (runs, texts) = (ran(), api.texts(PEOPLE[0]));
    println!(
        "{} runs in {kills} kills, {} answers",
        runs.len(),
        texts.len()
    );
    assert!(runs.iter().all(|status| status == "ok"), "{runs:?}");
    let answers: BTreeSet<&String> = texts
        .iter()
        .filter(|text| text.starts_with("Looked "))
        .collect();
    let strange: Vec<&String> = texts
        .iter()
        .filter(|text| !text.starts_with("Looked "))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
    // The history has 300 runs.
    assert_eq!(answers.len().min(300), runs.len());
    assert!(texts.len() - answers.len() <= kills, "{texts:?}");
}

/// Whether the outbox contains an incompletely sent message.
fn is_anything_unsent(home: &Home) -> bool {
    !open_items(&home.path(""), "out").is_empty()
}

/// Returns the bot's texts in a chat, oldest first.
fn texts(api: &BotApi, chat: &str) -> Vec<String> {
    let (id, _) = chat.split_once('_').unwrap_or((chat, ""));
    api.texts(id.parse().unwrap())
}

/// Returns the unanswered items.
fn left(api: &BotApi, written: &[String]) -> Vec<String> {
    let texts: Vec<String> = CHATS.iter().flat_map(|chat| texts(api, chat)).collect();
    let answered: BTreeSet<&str> = texts.iter().flat_map(|text| items(text)).collect();
    written
        .iter()
        .filter(|item| !answered.contains(item.as_str()))
        .cloned()
        .collect()
}

/// Whether items are still unanswered.
fn is_anything_left(api: &BotApi, written: &[String]) -> bool {
    !api.unconfirmed().is_empty() || !left(api, written).is_empty()
}
