//! The gateway over months: interrupted turns, a changing configuration, and reports by `bantam status` and the log.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bot::{config, dies, ends, start};
use crate::botapi::{BotApi, Fault};
use crate::door;
use crate::harness::{Home, has_all, has_fields, merged, until};
use crate::model::{Model, Reply};
use crate::stored::journal;
use crate::without_syscall::Withheld;

/// The allowed user.
const OWNER: i64 = 42;

#[test]
fn three_polite_ends_do_not_make_a_message_one_that_crashes() {
    let model = Model::answering(|request, n| match (request.texts("tool").len(), n) {
        (0, _) => Reply::call("exec", &json!({ "command": "echo x >>count" })),
        (_, ..=4) => Reply::text("Counted.").held(),
        _ => Reply::text("Counted."),
    });
    let (api, home) = crate::bot::home(&model);
    for n in 1..=4 {
        let gateway = start(&home);
        if n == 1 {
            api.text(OWNER, "count");
        }
        model.wait_for_holds(n);
        ends(gateway);
    }
    let gateway = start(&home);
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Counted."]);
    api.text(43, "and you?");
    api.wait_for_texts(43, 1);
    ends(gateway);
    assert_eq!(api.texts(OWNER).len(), 1);
    assert_eq!(
        home.read("workspace/count"),
        "x\nx\n",
        "once for each of the two"
    );
    home.session("telegram_42").has_one_result_per_call();
}

#[test]
fn removed_user_gets_no_pending_answer() {
    let model = Model::answering(|_, n| {
        let reply = Reply::text("Late.");
        if n < 2 { reply.held() } else { reply }
    });
    let api = BotApi::start();
    let mut config = config(&model, &api);
    let home = Home::with(&config);
    let gateway = start(&home);
    api.text(43, "mine");
    api.text(OWNER, "theirs");
    model.wait_for_holds(2);
    ends(gateway);
    config["channels"]["telegram"]["allow_from"] = json!([OWNER]);
    home.config(&config.to_string());
    let gateway = start(&home);
    gateway.wait_for_stderr("dropped a message from a user who is no longer in allow_from");
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Late."]);
    ends(gateway);
    assert!(api.texts(43).is_empty());
    assert_eq!(model.requests().len(), 3);
}

/// Effects before the crash are unknown.
#[test]
fn a_command_that_a_crash_interrupted_is_not_repeated() {
    let (model, api) = (Model::never_asked(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let kept = |update: i64, command: &Value, begun: &Value| {
        let source =
            json!({ "telegram": { "user": OWNER, "message": update, "more_follows": false } });
        let item = json!({
            "origin": { "channel": "telegram", "chat": "42" }, "session": "telegram_42",
            "text": "/undo", "command": command, "reply_to": "telegram:42", "source": source,
        });
        let line =
            json!({ "add": format!("telegram:123456:{update}"), "kind": "message", "item": item });
        merged(line, begun)
    };
    let begun = json!({ "starts": 1, "begun": true });
    let lines = [
        json!({ "v": 1 }),
        kept(1, &json!("stop"), &json!({})),
        kept(2, &json!("undo"), &begun),
        kept(3, &json!({ "model": "other" }), &begun),
        kept(4, &json!("undo"), &json!({})),
    ];
    home.dir("state");
    home.write("state/queue.jsonl", journal(lines));
    api.chat(OWNER);
    let gateway = start(&home);
    let mut texts = api.wait_for_texts(OWNER, 4);
    ends(gateway);
    // `/stop` waits for no other command.
    texts.retain(|text| !text.contains("nothing to stop"));
    for text in &texts[..2] {
        has_all(text, ["interrupted", "again"]);
    }
    assert!(texts[2].contains("Nothing to undo"), "{texts:?}");
}

#[test]
fn comment_and_forward_form_a_turn() {
    let eve = json!({ "type": "user", "sender_user": { "id": 9, "is_bot": false, "first_name": "Eve" }, "date": 1 });
    let forward = json!({ "text": "buy now", "forward_origin": eve });
    let comment = json!({ "text": "is this true?" });
    for messages in [[&comment, &forward], [&forward, &comment]] {
        let model = Model::answering(|_, _| Reply::text("Read."));
        let api = BotApi::start();
        let home = Home::with(&config(&model, &api));
        for message in messages {
            api.message(OWNER, OWNER, message);
        }
        let gateway = start(&home);
        api.wait_for_texts(OWNER, 1);
        ends(gateway);
        assert_eq!(model.requests().len(), 1);
        let asked = model.request(0).last("user");
        has_all(&asked, ["is this true?", "[forwarded from Eve:]"]);
    }
}

#[test]
fn after_an_idle_week_numbers_begin_anew_and_nothing_is_lost() {
    let model = Model::answering(|_, _| Reply::text("Yes."));
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    api.text(OWNER, "one");
    api.wait_for_texts(OWNER, 1);
    api.wait_for_confirmation();
    ends(gateway);
    api.restart_updates_at(9);
    let gateway = start(&home);
    for n in 2..=3 {
        api.text(OWNER, "more");
        api.wait_for_texts(OWNER, n);
    }
    api.wait_for_confirmation();
    ends(gateway);
    assert_eq!(model.requests().len(), 3);
}

/// Returns the output of `bantam status`, as a page and as an object.
fn status(home: &Home) -> (String, Value) {
    let page = home.run(["status"]);
    page.exits(0).is_quiet();
    let object = home.run(["status", "--json"]);
    (
        page.stdout.clone(),
        object.exits(0).json()["gateway"].clone(),
    )
}

#[test]
fn status_shows_state_of_gateway() {
    let model = Model::answering(|request, _| {
        let reply = Reply::text("Yes.");
        if request.last("user").contains("slow") {
            reply.held()
        } else {
            reply
        }
    });
    let (api, home) = crate::bot::home(&model);
    let (page, object) = status(&home);
    assert!(page.contains("not running"), "{page}");
    assert_eq!(object["running"], false);
    assert_eq!(home.files(), ["config.json"], "looking makes nothing");

    let gateway = start(&home);
    api.text(666, "let me in");
    api.text(OWNER, "slow");
    model.wait_for_holds(1);
    api.wait_for_confirmation();
    let (page, object) = status(&home);
    for says in [
        "running since 20",
        "as @test_bantam_bot",
        "waiting for an answer: 1",
    ] {
        assert!(page.contains(says), "{says:?} is missing: {page}");
    }
    has_fields(
        &object,
        &json!({ "running": true, "pid": gateway.pid(), "waiting": 1 }),
    );
    let second = home.run(["gateway"]);
    second
        .fails(7)
        .says(&format!("(process {})", gateway.pid()));

    api.fault("getUpdates", Fault::Error(401, "Unauthorized"));
    api.text(666, "again");
    until("the refused token is shown", || {
        let (page, object) = status(&home);
        page.contains("Telegram refused the token") && object["polling"]["ok"] == false
    });
    ends(gateway);
    let (page, object) = status(&home);
    assert!(page.contains("not running; it ended at 20"), "{page}");
    assert!(object["ended"].is_string());

    api.fault("sendMessage", Fault::TooMany(300));
    let gateway = start(&home);
    api.text(43, "quick");
    until("an answer is not delivered", || {
        status(&home).1["undelivered"]["count"] == 1
    });
    dies(gateway);
    let (page, _) = status(&home);
    has_all(
        &page,
        [
            "crashed",
            "answers not delivered yet: 1, the oldest from 20",
        ],
    );
}

/// Pauses. The standard library panics if the kernel refuses one, so a program without a bug can be made to panic.
const PAUSES: &[Withheld] = &[
    (libc::SYS_nanosleep, libc::EPERM),
    (libc::SYS_clock_nanosleep, libc::EPERM),
];

/// A client without the token must pause, in another thread than the turn.
#[test]
fn a_panic_says_where_and_ends_the_gateway_like_a_crash() {
    let model = Model::answering(|request, n| match (request.texts("tool").len(), n) {
        (0, _) => Reply::call("exec", &json!({ "command": "echo x >>count" })),
        (_, 1) => Reply::text("Counted.").held(),
        _ => Reply::text("Counted."),
    });
    let api = BotApi::start();
    let home = Home::with(&merged(config(&model, &api), &door::settings()));
    let gateway = home.bantam().arg("gateway").on_a_system_without(PAUSES);
    let gateway = gateway.env("RUST_BACKTRACE", "1").spawn();
    let address = door::address(&gateway.stderr_line("http://127.0.0.1:"));
    api.text(OWNER, "count");
    model.wait_for_holds(1);
    let mut client = TcpStream::connect(address).unwrap();
    let request = "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    client.write_all(request.as_bytes()).unwrap();
    let run = gateway.finish();
    assert_eq!(
        run.killed_by,
        Some(Signal::ABORT.as_raw()),
        "{}",
        run.stderr
    );
    let said = run.stderr.split_once("panicked at ").expect(&run.stderr).1;
    let (place, message) = said.split_once('\n').unwrap();
    has_all(place, [".rs:"]);
    assert!(message.starts_with("assertion"), "{said}");
    let gateway = start(&home);
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Counted."]);
    let count = fs::read_to_string(home.path("workspace/count"));
    assert_eq!(count.unwrap(), "x\n");
    home.session("telegram_42").has_one_result_per_call();
    ends(gateway);
}

#[test]
fn stop_during_restart_ends_the_gateway() {
    let model = Model::answering(|_, _| Reply::text("Yes.").held());
    let api = BotApi::start();
    let config = config(&model, &api);
    let home = Home::with(&config);
    let gateway = start(&home);
    api.text(OWNER, "slow");
    model.wait_for_holds(1);
    home.config(&merged(config, &json!({ "gateway": { "workers": 3 } })).to_string());
    api.text(666, "a poll returns");
    gateway.wait_for_stderr("restarting");
    gateway.signal(Signal::TERM);
    until("the signal is heard", || {
        status(&home).1["ended"].is_string() || !gateway.is_running()
    });
    model.release();
    gateway.finish().exits(0);
}

/// A restart keeps the process, so the gateway knows by its own status file that it was restarted.
#[test]
fn a_restarted_gateway_waits_until_its_configuration_is_valid() {
    const OWN: &str = r#"ticks=$(cut -d" " -f22 /proc/$$/stat)
        echo "{\"v\":1,\"pid\":$$,\"ticks\":\"$ticks\"}" >"$BANTAM_HOME/state/gateway.json""#;
    const OTHER: &str =
        r#"echo "{\"v\":1,\"pid\":$$,\"ticks\":\"1\"}" >"$BANTAM_HOME/state/gateway.json""#;
    let (model, api) = (echo(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let good = home.read("config.json");
    let after = |file| {
        home.config("{ broken");
        home.dir("state");
        home.bantam().after(file).arg("gateway").spawn()
    };
    let restarted = || {
        let gateway = after(OWN);
        gateway.wait_for_stderr("waiting for a valid one");
        gateway
    };
    ends(restarted());
    let left = home.read("state/gateway.json");
    assert!(left.contains("\"ended\":\""), "{left}");
    let gateway = restarted();
    home.config(&good);
    api.text(OWNER, "hello");
    api.wait_for_texts(OWNER, 1);
    ends(gateway);
    home.config("{ broken");
    start(&home).finish().exits(3);
    // In a container, every gateway has the same id, also one that follows a crash.
    after(OTHER).finish().exits(3);
}

/// systemd kills a program that needs more than 15 seconds, and a killed turn counts as crashed.
#[test]
fn signal_during_config_check_ends_the_gateway() {
    let model = Model::scripted([Reply::text("First.").held(), Reply::text("Second.")]);
    let api = BotApi::start();
    let good = config(&model, &api);
    let home = Home::with(&good);
    let gateway = start(&home);
    api.text(OWNER, "hello");
    model.wait_for_holds(1);
    let begun = home.path("begun");
    let slow = format!("cmd:/bin/sh -c 'echo >{}; sleep 9'", begun.display());
    let other = json!({ "channels": { "telegram": { "token": slow } } });
    home.config(&merged(good.clone(), &other).to_string());
    api.message(-5, OWNER, &json!({ "text": "a poll returns" }));
    until("the check runs", || begun.exists());
    let begun = Instant::now();
    gateway.signal(Signal::TERM);
    gateway.wait();
    assert!(begun.elapsed() < Duration::from_secs(8), "{begun:?}");
    gateway.finish().exits(0);
    assert!(status(&home).1["ended"].is_string());
    let queue = home.read("state/queue.jsonl");
    assert!(queue.contains("\"halt\":[\"telegram:"), "{queue}");
    home.config(&good.to_string());
    let gateway = start(&home);
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Second."]);
    ends(gateway);
}

#[test]
fn while_a_turn_goes_on_a_changed_configuration_leaves_nobody_unheard() {
    let model = Model::answering(|request, _| {
        let reply = Reply::text("Hello.");
        if request.last("user").contains("long") {
            reply.held()
        } else {
            reply
        }
    });
    let api = BotApi::start();
    let config = config(&model, &api);
    let home = Home::with(&config);
    let gateway = start(&home);
    api.text(OWNER, "long");
    model.wait_for_holds(1);
    let good = merged(config, &json!({ "gateway": { "workers": 3 } })).to_string();
    home.config(&good);
    api.text(43, "hello");
    gateway.wait_for_stderr("restarting");
    assert_eq!(api.wait_for_texts(43, 1), ["Hello."]);
    api.text(43, "and now?");
    assert_eq!(api.wait_for_texts(43, 2), ["Hello.", "Hello."]);
    assert_eq!(
        api.asked("getMe").len(),
        1,
        "it has begun anew in the middle of a turn"
    );
    // A slip before the restart keeps these settings; when it is mended, the gateway restarts as soon as it is idle.
    home.config("{ broken");
    api.text(43, "still there?");
    gateway.wait_for_stderr("keeping the previous settings");
    api.wait_for_texts(43, 3);
    home.config(&good);
    api.text(43, "and now?");
    api.wait_for_texts(43, 4);
    api.text(OWNER, "/stop");
    until("it is stopped", || {
        api.texts(OWNER).iter().any(|text| text == "(Stopped.)")
    });
    api.wait_for_asked("getMe", 2);
    ends(gateway);
}

#[test]
fn the_log_tells_as_much_as_it_is_asked_for() {
    let model = Model::answering(|_, n| {
        if n == 0 {
            Reply::call("list_dir", &json!({"path": "."}))
        } else {
            Reply::text("fine")
        }
    });
    let api = BotApi::start();
    let told = |log: Value, last: &str| {
        let home = Home::with(&merged(config(&model, &api), &json!({ "log": log })));
        let gateway = start(&home);
        let before = api.texts(OWNER).len();
        api.text(OWNER, "how is it?");
        api.wait_for_texts(OWNER, before + 1);
        if !last.is_empty() {
            gateway.wait_for_stderr(last);
        }
        gateway.signal(Signal::TERM);
        gateway.finish().exits(0).stderr.clone()
    };
    let all = told(json!({"level": "debug", "json": true}), "a turn ended");
    let lines = all.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    for (level, about, text) in [
        ("info", "telegram", "serving as @"),
        ("debug", "turn", "telegram 42: list_dir done in"),
        ("debug", "turn", "telegram 42: a turn ended (done)"),
    ] {
        let is_it = |line: &Value| {
            line["time"].is_string()
                && (&line["level"], &line["about"]) == (&json!(level), &json!(about))
                && line["text"].as_str().unwrap().contains(text)
        };
        assert!(lines.iter().any(is_it), "{text}: {all}");
    }
    let few = told(json!({"level": "info"}), "serving");
    assert_eq!(
        few.split_once(' ').unwrap().1,
        "bantam: telegram: serving as @test_bantam_bot\n"
    );
    assert_eq!(told(json!({"level": "error"}), ""), "");
}

#[test]
fn newly_allowed_user_is_answered_without_notice() {
    let model = Model::answering(|_, _| Reply::text("Welcome."));
    let api = BotApi::start();
    let config = config(&model, &api);
    let home = Home::with(&config);
    let gateway = start(&home);
    api.wait_for_poll();
    let allowed = json!({ "channels": { "telegram": { "allow_from": [OWNER, 43, 666] } } });
    let mut changed = merged(config, &allowed);
    changed["channels"]["telegram"]["allow_from"] = json!([OWNER, 43, 666]);
    home.config(&changed.to_string());
    api.text(666, "hello");
    assert_eq!(api.wait_for_texts(666, 1), ["Welcome."]);
    ends(gateway);
    assert!(api.texts(OWNER).is_empty(), "{:?}", api.texts(OWNER));
}

#[test]
fn a_gateway_removes_old_parts_of_conversations() {
    let model = Model::answering(|_, _| Reply::text("Looked."));
    let api = BotApi::start();
    let home = Home::with(&config(&model, &api));
    let job = ["cron", "add", "-m", "look", "-e", "1d", "--to", "none"];
    home.bantam().args(job).args(["-n", "job"]).run().exits(0);
    for _ in 0..2 {
        home.run(["cron", "run", "job"]).exits(0);
    }
    let sessions = || {
        let files = home.files().into_iter();
        let files = files.filter(|file| file.starts_with("sessions/cron_"));
        files.collect::<Vec<_>>()
    };
    assert_eq!(sessions().len(), 2);
    let old = SystemTime::now() - Duration::from_secs(31 * 24 * 3600);
    let is_part = |file: &String| file.matches('.').count() == 2;
    for file in sessions().into_iter().filter(is_part) {
        let file = fs::File::options().write(true).open(home.path(&file));
        file.unwrap().set_modified(old).unwrap();
    }
    let gateway = start(&home);
    until("the old part is removed", || sessions().len() == 1);
    ends(gateway);
}

/// Returns a model that repeats its input.
fn echo() -> Model {
    Model::answering(|request, _| Reply::text(&format!("You said: {}", request.last("user"))))
}

#[test]
fn a_refused_token_ends_no_gateway_and_loses_no_answer() {
    let (model, api) = (echo(), BotApi::start());
    api.chat(OWNER);
    let good = config(&model, &api);
    let home = Home::with(&good);
    let gateway = start(&home);
    api.wait_for_poll();
    let wrong = json!({ "channels": { "telegram": { "token": "654321:wrong" } } });
    home.config(&merged(good.clone(), &wrong).to_string());
    api.message(-5, OWNER, &json!({ "text": "a poll returns" }));
    gateway.wait_for_stderr("refused the token");
    home.run("cron add -m report --at +1s --to telegram:42".split(' '))
        .exits(0);
    until("the job's answer waits", || {
        status(&home).1["undelivered"]["count"] == 1
    });
    home.config(&good.to_string());
    // Wakes the gateway.
    home.run(["config", "set", "log.level", "debug"]).exits(0);
    let texts = api.wait_for_texts(OWNER, 1);
    assert!(texts[0].contains("report"), "{texts:?}");
    ends(gateway);
}

#[test]
fn a_model_for_recordings_without_a_key_is_told_and_ends_no_gateway() {
    let (model, api) = (echo(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    api.chat(OWNER);
    let gateway = start(&home);
    api.wait_for_poll();
    let set = [
        "set",
        "tools.transcribe.model",
        "groq/whisper-large-v3-turbo",
    ];
    let saved = home.bantam().arg("config").args(set).run();
    saved.exits(0).says("saved, but").says("GROQ_API_KEY");
    api.wait_for_asked("getMe", 2);
    api.voice(OWNER, b"OggS\0\xff\xfe");
    let texts = api.wait_for_texts(OWNER, 2);
    assert!(
        texts
            .iter()
            .all(|text| text.contains("no API key for groq")),
        "{texts:?}"
    );
    ends(gateway);
}

/// Other channels serve meanwhile, and it starts as soon as possible.
#[test]
fn an_address_that_is_taken_is_tried_again() {
    let (model, api) = (echo(), BotApi::start());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let http = json!({ "enabled": true, "listen": address, "token": "token-of-a-test-0123456789" });
    let home = Home::with(&merged(
        config(&model, &api),
        &json!({ "channels": { "http": http } }),
    ));
    let gateway = start(&home);
    gateway.wait_for_stderr("the HTTP endpoint cannot start");
    api.text(OWNER, "hello");
    until("it answers", || {
        api.texts(OWNER).iter().any(|text| text.contains("hello"))
    });
    drop(taken);
    gateway.wait_for_stderr(&format!("listening at http://{address}"));
    ends(gateway);
}

#[test]
fn a_refused_token_keeps_jobs_and_the_endpoint_running() {
    let (model, api) = (echo(), BotApi::start());
    let http =
        json!({ "enabled": true, "listen": "127.0.0.1:0", "token": "token-of-a-test-0123456789" });
    let home = Home::with(&merged(
        config(&model, &api),
        &json!({ "channels": { "http": http, "telegram": { "token": "654321:wrong" } } }),
    ));
    let gateway = start(&home);
    gateway.wait_for_stderr("@BotFather");
    gateway.wait_for_stderr("listening at http://127.0.0.1:");
    ends(gateway);
}
