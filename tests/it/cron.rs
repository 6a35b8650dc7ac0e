//! Scheduled jobs: changes of `cron/jobs.json` by the commands and the tool, and the outcomes of runs.

use std::fs;

use serde_json::{Value, json};

use crate::bot::{config, ends, start};
use crate::botapi::{BotApi, TOKEN};
use crate::harness::{Home, Run, has_all, has_fields, merged, until};
use crate::model::{Model, Reply, call};
use crate::stored::journal;

#[track_caller]
fn cron<const N: usize>(home: &Home, args: [&str; N]) -> Run {
    home.bantam().arg("cron").args(args).run()
}

/// Adds a job and returns its id.
#[track_caller]
fn added<const N: usize>(home: &Home, args: [&str; N]) -> String {
    let run = home.bantam().args(["cron", "add"]).args(args).run();
    run.exits(0);
    run.stdout.split(' ').nth(2).unwrap().to_owned()
}

fn stored(home: &Home) -> Value {
    serde_json::from_str(&home.read("cron/jobs.json")).unwrap()
}

/// Returns how the recorded runs ended, oldest first.
fn statuses(home: &Home) -> Vec<String> {
    let history = cron(home, ["history", "--json"]).exits(0).json();
    history["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["status"].as_str().unwrap().to_owned())
        .collect()
}

const HOUR: i64 = 3_600_000;

#[test]
fn a_job_is_added_listed_switched_and_removed() {
    let home = Home::empty();
    cron(&home, ["list"]).answers("").says("no jobs");
    assert_eq!(
        cron(&home, ["list", "--json"]).json(),
        json!({ "jobs": [] })
    );
    assert!(!home.path("").exists(), "looking makes nothing");

    let args = [
        "cron",
        "add",
        "-m",
        "the news",
        "-c",
        "30 7 * * mon-fri",
        "--tz",
        "Asia/Kolkata",
        "-n",
        "news",
    ];
    let run = home.bantam().args(args).args(["--to", "telegram:42"]).run();
    run.exits(0).says("bantam cron run");
    has_all(&run.stdout, ["07:30:00", "(Asia/Kolkata)"]);
    let id = run.stdout.split(' ').nth(2).unwrap().to_owned();
    let job = &stored(&home)["jobs"][0];
    assert_eq!(stored(&home)["version"], 1);
    has_fields(job, &json!({ "id": id, "name": "news", "enabled": true }));
    assert_eq!(
        job["schedule"],
        json!({"kind": "cron", "expr": "30 7 * * mon-fri", "tz": "Asia/Kolkata"})
    );
    let payload = json!({"kind": "agent_turn", "message": "the news", "deliver": true, "channel": "telegram", "to": "42"});
    assert_eq!(job["payload"], payload);
    let next = job["state"]["nextRunAtMs"].as_i64().unwrap();
    assert_eq!(
        next % (24 * HOUR),
        2 * HOUR,
        "07:30 in Kolkata is 02:00 UTC"
    );

    let run = cron(&home, ["list"]);
    run.exits(0).is_quiet();
    assert!(
        run.stdout.contains(&id)
            && run.stdout.contains("next run (UTC)")
            && run.stdout.contains(" 02:00:00 "),
        "{}",
        run.stdout
    );
    run.shows("news -> telegram:42");
    cron(&home, ["disable", "news"]).exits(0);
    assert!(cron(&home, ["list"]).stdout.contains("disabled"));
    assert_eq!(
        stored(&home)["jobs"][0]["state"]["nextRunAtMs"],
        Value::Null
    );
    cron(&home, ["enable", &id]).exits(0);
    assert_eq!(
        stored(&home)["jobs"][0]["state"]["nextRunAtMs"].as_i64(),
        Some(next)
    );
    cron(&home, ["remove", "nws"])
        .fails(2)
        .says("no job named \"nws\"")
        .says("did you mean `news`?");
    cron(&home, ["remove", &id]).exits(0);
    assert_eq!(stored(&home)["jobs"], json!([]));
    cron(&home, ["history"]).answers("").says("no runs yet");
    cron(&home, ["history", "news"]).fails(2);
}

#[test]
fn broken_jobs_file_is_reported_and_kept() {
    let home = Home::empty();
    let long = format!("{{\"jobs\": [{}]}}", "[],".repeat(3 << 20));
    for (text, says) in [
        (long.as_str(), "larger than 8.0 MB"),
        ("{\n \"jobs\": [\n  {\"id\": \"a\",}\n ]\n}\n", "line 3"),
        ("", "line 1"),
        ("[]", "not an object"),
        ("{\"jobs\": {}}", "\"jobs\" is not a list"),
        ("{\"jobs\": [{\"id\": \"a\"}, {\"name\": \"b\"}]}", "job 2"),
        ("{\"version\": 2, \"jobs\": []}", "newer"),
    ] {
        home.write("cron/jobs.json", text);
        for args in [
            &["add", "-m", "x", "-e", "60"][..],
            &["list"],
            &["remove", "a"],
            &["run", "a"],
        ] {
            let run = home.bantam().arg("cron").args(args).run();
            run.fails(3).prints("").says(says).says("jobs.json");
        }
        assert_eq!(home.read("cron/jobs.json"), text);
    }
}

#[test]
fn a_job_is_run_now_with_nothing_in_the_environment() {
    let another = json!({ "action": "add", "message": "and again", "every_seconds": 60 });
    let (model, home) = Home::of(Model::scripted([
        Reply::call("cron", &another),
        Reply::text("All is well."),
        Reply::text("Still well."),
    ]));
    let id = added(&home, ["-m", "is all well?", "-e", "3600", "-n", "check"]);
    let run = home
        .bantam()
        .args(["cron", "run", &id])
        .without("PATH")
        .closed_stdin()
        .run();
    run.answers("All is well.\n").is_quiet();
    let job = stored(&home)["jobs"][0].clone();
    has_fields(
        &job,
        &json!({ "state": { "lastStatus": "ok", "lastError": null } }),
    );
    assert!(job["state"]["lastRunAtMs"].is_i64());
    home.session(&format!("cron_{id}"))
        .has_one_result_per_call();
    let refused = model.request(1).last("tool");
    assert!(refused.contains("a job cannot change jobs"), "{refused}");

    // The next run starts over, and the list has its beginning.
    let created = || {
        let list = home.run(["sessions", "list", "--json"]).json();
        list["sessions"][0]["created"].as_str().unwrap().to_owned()
    };
    let first = created();
    cron(&home, ["run", "check"]).answers("Still well.\n");
    assert!(created() > first, "{first}");
    assert_eq!(model.request(2).texts("user").len(), 1);
    let run = cron(&home, ["history", "check"]);
    assert_eq!(
        run.exits(0)
            .stdout
            .lines()
            .filter(|line| line.contains(" ok "))
            .count(),
        2,
        "{}",
        run.stdout
    );
    let object = cron(&home, ["history", "--json"]).json();
    assert_eq!(
        (&object["runs"][1]["job"], &object["runs"][1]["status"]),
        (&json!(id), &json!("ok"))
    );
    cron(&home, ["run", "nobody"]).fails(2);
    cron(&home, ["remove", "check"]).exits(0);
    for name in ["check", &id] {
        let history = cron(&home, ["history", name]).exits(0).stdout.clone();
        assert!(history.contains("check: Still well."), "{history}");
    }
    cron(&home, ["history", "nobody"]).exits(2);
    let model = Model::scripted([Reply::error(401, "no such key")]);
    home.config(&model.config().to_string());
    let id = added(&home, ["-m", "x", "-c", "@daily"]);
    cron(&home, ["run", &id]).fails(4).prints("");
    let list = cron(&home, ["list"]).exits(0).stdout.clone();
    assert!(list.contains("error"), "{list}");
    assert_eq!(statuses(&home), ["ok", "ok", "error"]);
}

#[test]
fn named_conversation_job_delivers_without_gateway() {
    let model = Model::scripted([Reply::text("Noted."), Reply::text("You said: plants.")]);
    let api = BotApi::start();
    api.chat(7);
    let home = Home::with(&model.config());
    home.agent(["-s", "notes", "-m", "remember the plants"])
        .exits(0);
    let id = added(
        &home,
        [
            "-m",
            "what did I say?",
            "--at",
            "+1h",
            "-s",
            "notes",
            "--to",
            "telegram:7",
        ],
    );
    cron(&home, ["run", &id]).fails(3).prints("").says("token");
    let bot = json!({ "channels": { "telegram": { "token": TOKEN, "api_base": api.base() } } });
    home.reconfigure(&model, &bot);
    cron(&home, ["run", "-q", &id])
        .answers("You said: plants.\n")
        .is_quiet();
    assert_eq!(api.texts(7), ["You said: plants."]);
    // It waits for the chat's next turn.
    let noted = home.read("state/queue.jsonl");
    has_all(&noted, ["sent this to the chat", "You said: plants."]);
    assert_eq!(model.request(1).texts("user").len(), 2);
    assert_eq!(
        stored(&home)["jobs"].as_array().unwrap().len(),
        1,
        "its own time is still to come"
    );
}

#[test]
fn a_model_schedules_within_bounds() {
    let add = |extra: Value| {
        call(
            "c",
            "cron",
            &merged(
                json!({"action": "add", "message": "water the plants"}),
                &extra,
            ),
        )
    };
    let (model, home) = Home::of(Model::scripted([
        Reply::calls([add(json!({"every_seconds": 10}))]),
        Reply::calls([add(json!({}))]),
        Reply::calls([add(json!({"cron_expr": "0 8 * * *", "tz": "Asia/Kolkata"}))]),
        Reply::calls([call("c", "cron", &json!({"action": "list"}))]),
        Reply::text("Done."),
    ]));
    home.agent(["-m", "remind me to water the plants"])
        .answers("Done.\n");
    let results = model.request(4).texts("tool");
    assert!(results[0].contains("every_seconds"), "{}", results[0]);
    assert!(results[1].contains("exactly one of"), "{}", results[1]);
    has_all(&results[2], ["T08:00:00+05:30", "bantam cron run"]);
    has_all(&results[3], ["0 8 * * * (Asia/Kolkata)"]);
    let jobs = stored(&home)["jobs"].clone();
    assert_eq!(
        (
            jobs.as_array().unwrap().len(),
            &jobs[0]["payload"]["deliver"]
        ),
        (1, &json!(true))
    );

    let id = jobs[0]["id"].as_str().unwrap().to_owned();
    let many: Vec<Value> = (0..99)
        .map(|n| merged(jobs[0].clone(), &json!({ "id": format!("x{n}") })))
        .collect();
    let many = [many, vec![jobs[0].clone()]].concat();
    home.write("cron/jobs.json", json!({ "jobs": many }).to_string());
    let model = Model::scripted([
        Reply::calls([add(json!({"at": "+1h"}))]),
        Reply::calls([call(
            "c",
            "cron",
            &json!({"action": "remove", "job_id": id}),
        )]),
        Reply::calls([add(json!({"at": "+1h"}))]),
        Reply::text("Done."),
    ]);
    home.config(&model.config().to_string());
    home.agent(["--new", "-m", "and again"]).exits(0);
    let results = model.request(3).texts("tool");
    has_all(&results[0], ["already 100 jobs"]);
    has_all(&results[2], ["added the job"]);

    home.reconfigure(&model, &json!({ "cron": { "enabled": false } }));
    assert!(!home.run(["tools"]).stdout.contains("cron"));
}

#[test]
fn default_job_answer_goes_to_owner() {
    let model = Model::never_asked();
    let bot = json!({ "enabled": true, "token": "123456:fake-token", "allow_from": [42, 43] });
    let home = Home::asking(&model, &json!({ "channels": { "telegram": bot } }));
    let said = cron(&home, ["add", "-m", "look", "-e", "5m", "-n", "told"]);
    said.exits(0).says("telegram:42, the bot's owner");
    let kept = cron(
        &home,
        [
            "add", "-m", "look", "-e", "1d", "-n", "kept", "--to", "none",
        ],
    );
    kept.exits(0).does_not_say("owner");
    let list = cron(&home, ["list"]).stdout;
    assert!(list.contains("told -> telegram:42"), "{list}");
    assert!(!list.contains("kept ->"), "{list}");
    let jobs = stored(&home);
    assert_eq!(jobs["jobs"][1]["schedule"]["everyMs"], 86_400_000);
    cron(
        &home,
        ["add", "-m", "look", "-e", "1d", "--to", "telegram:43"],
    )
    .exits(0)
    .does_not_say("sessions list");
    for stranger in ["telegram:999", "telegram:-100999", "telegram:999_5"] {
        cron(&home, ["add", "-m", "look", "-e", "1d", "--to", stranger])
            .exits(0)
            .says("bantam sessions list");
    }
    for zone in ["UTC+2", "gmt-3", "UTC+5:30", "UTC2", "CEST+02:00"] {
        let add = ["add", "-m", "look", "-c", "@daily", "--tz", zone];
        cron(&home, add).fails(2).says("Greenwich");
    }
    for zone in ["Etc/GMT-2", "CET-1CEST,M3.5.0,M10.5.0/3", "UTC", "GMT+0"] {
        cron(&home, ["add", "-m", "look", "-c", "@daily", "--tz", zone]).exits(0);
    }
}

/// The model costs money; the command does not.
#[test]
fn a_check_decides_whether_the_model_is_asked() {
    let model = Model::answering(|request, _| Reply::text(&request.last("user")));
    let off = json!({ "tools": { "exec": { "sandbox": "off" } } });
    let home = Home::asking(&model, &off);
    home.write("workspace/new.txt", "");
    let id = added(&home, ["--if", "cat new.txt", "-e", "1h", "What is new?"]);
    let run = cron(&home, ["run", &id]);
    run.answers("").says("the command printed nothing");
    assert_eq!(stored(&home)["jobs"][0]["state"]["lastStatus"], "skipped");
    assert!(model.requests().is_empty() && statuses(&home).is_empty());
    home.write("workspace/new.txt", "three apples\n");
    let run = cron(&home, ["run", &id]);
    has_all(&run.exits(0).stdout, ["three apples"]);
    assert_eq!(statuses(&home), ["ok"]);
    let broken = added(
        &home,
        ["--if", "echo no such host >&2; exit 3", "-e", "1h", "x"],
    );
    cron(&home, ["run", &broken])
        .exits(0)
        .says("exit code 3: no such host");
    home.write("workspace/plain.sh", "true\n");
    let tried = |check| cron(&home, ["add", "--if", check, "-e", "1h", "x"]);
    tried("cat new.txt").exits(0).says("prints 1 line now");
    tried("cat /var/log/nosuch.log")
        .exits(0)
        .says("tools.read_paths");
    let none = tried("grep zzz new.txt");
    none.exits(0).says("found nothing now");
    assert!(!none.stderr.contains("read_paths"), "{}", none.stderr);
    let unable = [
        ("nosuchcmd", "exit code 127"),
        ("./plain.sh", "exit code 126"),
        ("cat new.txt | nosuchcmd", "exit code 127"),
    ];
    for (check, why) in unable {
        tried(check).exits(0).says(why);
        let id = added(&home, ["--if", check, "-e", "1h", "x"]);
        cron(&home, ["run", &id]).exits(1).says(why);
        let list = cron(&home, ["list"]).exits(0).stdout.clone();
        let row = list.lines().find(|line| line.contains(&id)).unwrap();
        assert!(row.contains("error"), "{list}");
        let jobs = stored(&home)["jobs"].as_array().unwrap().clone();
        let state = &jobs.last().unwrap()["state"];
        has_all(state["lastError"].as_str().unwrap(), [why]);
    }
    assert_eq!(model.requests().len(), 1);
    let none = json!({ "tools": { "exec": { "enabled": false } } });
    home.reconfigure(&model, &none);
    cron(&home, ["add", "--if", "true", "-e", "1h", "x"]).fails(3);
}

/// The user has allowed commands, so a scheduled command needs no further approval.
#[test]
fn model_makes_a_check_where_commands_run_unasked() {
    let add = || {
        let check = "cat new.txt; cat /proc/net/dev | wc -l";
        let args = json!({ "action": "add", "message": "What is new?", "every_seconds": 3600, "if": check });
        Reply::calls([call("c", "cron", &args)])
    };
    let model = Model::scripted([add(), Reply::text("Added."), Reply::text("Three apples.")]);
    let full = json!({ "tools": { "exec": { "network": "full" } } });
    let home = Home::asking(&model, &full);
    home.write("workspace/new.txt", "three apples\n");
    home.agent(["-m", "look each hour"]).exits(0);
    let id = stored(&home)["jobs"][0]["id"].as_str().unwrap().to_owned();
    cron(&home, ["run", &id]).answers("Three apples.\n");
    let asked = model.request(2).last("user").clone();
    // Two heading lines, and only the loopback interface.
    assert!(asked.contains("three apples\n3\n"), "{asked}");
    // If approval is required, a check does not run, and the tool does not accept checks.
    for confirm in ["exec", "runs"] {
        let model = Model::scripted([add(), Reply::text("No.")]);
        let ask = json!({ "tools": { "confirm": [confirm] } });
        home.reconfigure(&model, &ask);
        cron(&home, ["run", &id]).answers("").says("tools.confirm");
        home.agent(["-m", "look each hour"]);
        let refused = model.request(1).last("tool").clone();
        assert!(refused.contains("unknown field \"if\""), "{refused}");
    }
}

/// An hourly check must not notify a phone each hour.
#[test]
fn a_job_with_nothing_to_report_sends_nothing() {
    let model = Model::answering(|request, n| {
        assert!(request.last("user").contains("NOTHING_TO_REPORT"));
        Reply::text(if n == 0 {
            "I looked at everything.\n\n**NOTHING_TO_REPORT**"
        } else {
            "A leak!"
        })
    });
    let api = BotApi::start();
    api.chat(42);
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    gateway.wait_for_stderr("serving as");
    let add = ["--at", "+1s", "--to", "telegram:42", "Is it dry?"];
    home.bantam().args(["cron", "add"]).args(add).run().exits(0);
    // A quiet run is not recorded, and a one-time job is removed after it.
    let jobs = home.path("cron/jobs.json");
    until("it ran", || {
        let jobs = fs::read_to_string(&jobs).unwrap_or_default();
        model.asked() == 1 && !jobs.contains("Is it dry?")
    });
    home.bantam().args(["cron", "add"]).args(add).run().exits(0);
    assert_eq!(api.wait_for_texts(42, 1), ["A leak!"]);
    ends(gateway);
    // Lists show the question, without what the program adds.
    let list = home.run(["sessions", "list", "--json"]).json();
    let titles = list["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["title"]);
    assert!(titles.clone().any(|title| title == "Is it dry?"), "{list}");
    assert!(
        titles
            .clone()
            .all(|title| !title.to_string().contains("NOTHING")),
        "{list}"
    );
}

#[test]
fn gateway_job_runs_after_its_check_passes() {
    let model = Model::answering(|request, _| Reply::text(&request.last("user")));
    let api = BotApi::start();
    api.chat(42);
    let second = json!({ "model_name": "second", "model": "vllm/second-model", "api_base": model.base(), "api_key": "k" });
    let mut configured = config(&model, &api);
    configured["model_list"]
        .as_array_mut()
        .unwrap()
        .push(second);
    let home = Home::with(&configured);
    home.write("workspace/news.txt", "a parcel\n");
    let quiet = added(&home, ["--if", "true", "--at", "+1s", "silence"]);
    let unable = added(&home, ["--if", "nosuchcmd", "--at", "+1s", "nothing"]);
    let args = [
        "--if",
        "cat news.txt",
        "--model",
        "second",
        "--at",
        "+1s",
        "--to",
        "telegram:42",
    ];
    home.bantam()
        .args(["cron", "add"])
        .args(args)
        .arg("What came?")
        .run()
        .exits(0);
    let gateway = start(&home);
    let texts = api.wait_for_texts(42, 1);
    assert!(texts[0].contains("a parcel"), "{texts:?}");
    until("the others have not run", || {
        let jobs = stored(&home)["jobs"].clone();
        let jobs = jobs.as_array().unwrap().clone();
        let is = |id: &str, status| {
            jobs.iter()
                .any(|job| job["id"] == *id && job["state"]["lastStatus"] == status)
        };
        is(&quiet, "skipped") && is(&unable, "error")
    });
    ends(gateway);
    let asked: Vec<String> = model
        .requests()
        .iter()
        .filter_map(|request| request.body["model"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(asked, ["second-model"]);
    cron(&home, ["add", "--model", "nosuch", "-e", "1h", "x"]).exits(2);
}

#[test]
fn a_chat_does_not_wait_for_a_slow_check() {
    let model = Model::answering(|request, _| Reply::text(&request.last("user")));
    let api = BotApi::start();
    let workers = json!({ "gateway": { "workers": 1 } });
    let home = Home::with(&merged(config(&model, &api), &workers));
    let go = home.write("workspace/go", "");
    let check = "touch begun; until [ -e go ]; do sleep 0.1; done; echo a parcel";
    let at = ["--to", "telegram:42", "--at", "+1s", "What came?"];
    cron(
        &home,
        ["add", "--if", check, at[0], at[1], at[2], at[3], at[4]],
    )
    .exits(0);
    let begun = home.path("workspace/begun");
    fs::remove_file(&begun).unwrap();
    fs::remove_file(&go).unwrap();
    let gateway = start(&home);
    until("the check has begun", || begun.exists());
    api.text(42, "hello");
    assert!(api.wait_for_texts(42, 1)[0].contains("hello"));
    fs::write(&go, "").unwrap();
    assert!(api.wait_for_texts(42, 2)[1].contains("a parcel"));
    ends(gateway);
}

/// A run that ended the program, or that is too late to go on, is reported once, and is not repeated.
#[test]
fn a_run_that_an_earlier_program_left_is_given_up() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let api = BotApi::start();
    api.chat(42);
    let home = Home::with(&config(&model, &api));
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let old = now - 5 * HOUR;
    let runs = [
        ("crashes", now, 3, "crashed the program three times"),
        ("cut", old, 1, "was interrupted"),
        ("waited", old, 0, "was missed"),
    ];
    let lines = runs.map(|(name, at, starts, _)| {
        added(&home, ["-m", "look", "-e", "1d", "-n", name, "--to", "telegram:42"]);
        let jobs = stored(&home);
        let id = jobs["jobs"].as_array().unwrap().last().unwrap()["id"].clone();
        let id = id.as_str().unwrap();
        let item = json!({
            "origin": { "channel": "cron", "chat": id }, "session": format!("cron_{id}"), "text": "look", "reply_to": "telegram:42",
            "source": { "job": { "job": id, "name": name, "due": at, "at": at } },
        });
        json!({ "add": format!("cron:{id}:{at}:0"), "kind": "message", "item": item, "starts": starts, "begun": starts > 0 })
    });
    let lines = [&[json!({ "v": 1 })], &lines[..]].concat();
    home.write("state/queue.jsonl", journal::<4>(lines.try_into().unwrap()));
    assert_eq!(statuses(&home), ["running"; 3]);
    for n in 1..=2 {
        let gateway = start(&home);
        api.text(42, "hello");
        let texts = api.wait_for_texts(42, 3 + n);
        for (name, _, _, what) in &runs {
            let told = texts
                .iter()
                .filter(|text| text.contains(&format!("“{name}” {what}")));
            assert_eq!(told.count(), 1, "{texts:?}");
        }
        ends(gateway);
    }
    assert_eq!(model.asked(), 2);
    assert_eq!(statuses(&home), ["error", "error"]);
    let list = cron(&home, ["list"]).exits(0).stdout.clone();
    let ended = |name: &str| {
        list.lines()
            .find(|line| line.contains(name))
            .unwrap()
            .to_owned()
    };
    has_all(&ended("crashes"), ["error"]);
    has_all(&ended("waited"), ["skipped"]);
}

/// A power cut may leave zeros; no job runs then, and nobody would notice.
#[test]
fn the_owner_is_told_of_a_broken_jobs_file_once() {
    let model = Model::answering(|_, _| Reply::text("Looked."));
    let api = BotApi::start();
    api.chat(42);
    let home = Home::with(&config(&model, &api));
    home.write("cron/jobs.json", "\0".repeat(512));
    let gateway = start(&home);
    let texts = api.wait_for_texts(42, 1);
    assert!(texts[0].contains("jobs.json"), "{texts:?}");
    let doctor = home.run(["doctor"]);
    doctor.shows("jobs.json");
    // Each wake-up reads the file again; a job that cannot run is reported too.
    let moon = json!({ "id": "m", "name": "moon", "schedule": { "kind": "moon" } });
    home.write("cron/jobs.json", json!({ "jobs": [moon] }).to_string());
    for n in 0..2 {
        added(&home, ["-m", "look", "--at", "+1s", "--to", "telegram:42"]);
        let texts = api.wait_for_texts(42, 3 + n);
        let told = texts.iter().filter(|text| text.contains("moon"));
        assert_eq!(told.count(), 1, "{texts:?}");
    }
    ends(gateway);
}

#[test]
fn a_heartbeat_is_in_the_history_only() {
    let home = Home::with(&json!({ "heartbeat": { "enabled": true } }));
    cron(&home, ["list"]).exits(0).says("no jobs").prints("");
    cron(&home, ["history", "heartbeat"])
        .exits(0)
        .says("no runs yet");
}
