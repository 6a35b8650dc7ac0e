//! The next program reads a home left by a crash: conversations, jobs, received messages and queued ones.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bot::{ends, start};
use crate::botapi::{BotApi, Fault, TOKEN};
use crate::harness::{Home, merged, until, walk};
use crate::model::{Model, Reply, Request, call};

const OWNER: i64 = 42;
const OTHER: i64 = 43;
/// Refusal of a host, which is not asked again.
const REFUSED: &str = "Extra inputs are not permitted: stream_options";

fn config(model: &Model, api: &BotApi) -> Value {
    let bot = json!({ "enabled": true, "token": TOKEN, "allow_from": [OWNER, OTHER], "api_base": api.base() });
    merged(
        model.config(),
        &json!({ "channels": { "telegram": bot }, "cron": { "grace_minutes": 5_000_000 } }),
    )
}

/// Returns the text that the model is asked.
fn asked(request: &Request) -> String {
    let said = request.last("user");
    // Text that a job adds.
    let said = said.split("\n\n[If there is nothing").next().unwrap();
    said.rsplit("]\n").next().unwrap_or_default().to_owned()
}

/// Replies of the crashing program's model, held wherever the work must remain unfinished.
fn before(request: &Request) -> Reply {
    if request.body.get("stream_options").is_some() {
        return Reply::error(400, REFUSED);
    }
    let is_new = request
        .messages()
        .last()
        .is_some_and(|last| last["role"] == "user");
    match asked(request).as_str() {
        said if said.contains("hold this") => Reply::text("never").held(),
        said if said.contains("begin") && is_new => Reply::calls([call(
            "c0",
            "subagent",
            &json!({ "task": "hold this: the moon", "background": true }),
        )]),
        said if said.contains("look") && is_new => {
            Reply::call("list_dir", &json!({ "path": "." })).saying("I look.")
        }
        said if said.contains("much") => {
            Reply::text(&format!("Begins.\n\n{}\n\nEnds.", "word ".repeat(1000)))
        }
        said => Reply::text(&format!(
            "Answer to {}.",
            said.trim().lines().last().unwrap_or_default()
        )),
    }
}

/// Leaves a home as after a crash, with data in each of its files.
fn leave(home: &Home) {
    let (model, api) = (
        Model::answering(|request, _| before(request)),
        BotApi::start(),
    );
    home.config(&config(&model, &api).to_string());
    home.write("workspace/notes.txt", "some notes\n");
    let cron = |args: &[&str]| {
        home.bantam()
            .args(["cron", "add"])
            .args(args)
            .run()
            .exits(0);
    };
    home.agent(["-s", "old", "-m", "look around"]).exits(0);
    home.agent(["-s", "old", "-m", "and now?"]).exits(0);
    cron(&[
        "-n",
        "daily",
        "-m",
        "water the plants",
        "-c",
        "0 7 * * *",
        "--tz",
        "Europe/Berlin",
    ]);
    cron(&["-n", "often", "-m", "breathe", "-e", "86400"]);

    let gateway = start(home);
    api.text(OWNER, "my name is Ada");
    api.wait_for_texts(OWNER, 1);
    api.text(OWNER, "begin");
    api.wait_for_texts(OWNER, 2);
    model.wait_for_holds(1);
    api.wait_for_confirmation();
    // From here on, one piece of a message reaches a chat.
    let mut left = 1;
    api.weather(move |method| {
        let fails = method == "sendMessage" && left == 0;
        if method == "sendMessage" && left > 0 {
            left -= 1;
        }
        fails.then_some(Fault::Error(500, "Internal Server Error"))
    });
    api.text(OWNER, "write much");
    let is_kept = |what: &str| {
        let files = walk(&home.path("state"));
        let mut texts = files
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok());
        texts.any(|text| text.contains(what))
    };
    until("half of the answer is sent", || {
        is_kept("Begins.") && api.texts(OWNER).len() == 3
    });
    let soon = ["--at", "+1s", "--to", "telegram:42"];
    cron(&[&["-n", "told", "-m", "tell the weather"], &soon[..]].concat());
    cron(&[&["-n", "cut", "-m", "hold this job"], &soon[..]].concat());
    model.wait_for_holds(2);
    until("the job's answer is kept", || {
        is_kept("Answer to tell the weather.")
    });
    api.text(OTHER, "hold this message");
    model.wait_for_holds(3);
    api.text(OTHER, "and this one");
    api.wait_for_confirmation();
    gateway.signal(Signal::KILL);
    gateway.wait();
}

/// Checks the results of the next program.
fn is_read(home: &Home) {
    let (model, api) = (
        Model::answering(|request, _| {
            Reply::text(&format!("Later: {}", asked(request).replace('\n', " ")))
        }),
        BotApi::start(),
    );
    home.config(&config(&model, &api).to_string());
    let run = |args: &[&str]| {
        let run = home.bantam().args(args).run();
        run.exits(0);
        run
    };
    let usage = run(&["usage", "--json", "--days", "36500"]).json();
    let calls = usage["total"]["calls"].as_u64();
    assert!(calls >= Some(7), "{usage}");
    let shown = run(&["sessions", "show", "old"]).stdout;
    assert!(
        shown.contains("look around") && shown.contains("Answer to and now?"),
        "{shown}"
    );
    let jobs = run(&["cron", "list"]).stdout;
    assert!(jobs.contains("daily") && jobs.contains("often"), "{jobs}");
    let history = run(&["cron", "history"]).stdout;
    assert!(history.contains("ok"), "{history}");
    run(&["status"]);
    run(&["agent", "-s", "old", "-m", "go on"]);
    let texts = model.request(0).texts("user");
    assert!(texts[0].contains("look around"), "{texts:?}");
    assert_eq!(model.request(0).texts("tool").len(), 1);

    api.restart_updates_at(9001);
    for chat in [OWNER, OTHER] {
        api.chat(chat);
    }
    let gateway = start(home);
    let all = |chat, parts: &[&str]| {
        until(&format!("{chat} has {parts:?}"), || {
            let texts = api.texts(chat);
            let has = |part: &&str| texts.iter().any(|text| text.contains(part));
            parts.iter().all(has)
        });
    };
    // The queued messages, the questions, and the outcome of the task and the job.
    // The second message has reached the turn of the first, or waits behind it.
    all(OTHER, &["and this one"]);
    let requests = model.requests();
    let joined = requests
        .iter()
        .rfind(|request| request.last("user").contains("and this one"));
    let said = joined.unwrap().texts("user").concat();
    assert!(said.contains("hold this message"), "{said}");
    all(
        OWNER,
        &[
            "Ends.",
            "Answer to tell the weather.",
            "moon",
            "hold this job",
        ],
    );
    api.text(OWNER, "what is my name?");
    all(OWNER, &["Later: what is my name?"]);
    ends(gateway);
    let texts = api.texts(OWNER);
    let begun = texts.iter().filter(|text| text.contains("Begins."));
    assert_eq!(begun.count(), 0, "it is sent already: {texts:?}");
    let ended = texts.iter().filter(|text| text.contains("Ends."));
    assert_eq!(ended.count(), 1, "{texts:?}");
    let requests = model.requests();
    let last = requests
        .iter()
        .rfind(|request| request.last("user").contains("what is my name?"))
        .unwrap();
    let said = last.texts("user").join("\n");
    assert!(said.contains("my name is Ada"), "{said}");
    let whole = last.body.to_string();
    assert!(whole.contains("tell the weather"), "{whole}");
    home.session("telegram_42").has_one_result_per_call();
    home.session("telegram_43").has_one_result_per_call();
}

#[test]
fn files_after_crash_are_readable() {
    let home = Home::empty();
    leave(&home);
    is_read(&home);
}
