//! Background tasks: they run during the conversation, and their reports arrive as messages.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::bot::{dies, ends, home, start};
use crate::botapi::Fault;
use crate::harness::{Home, has_all, has_fields, until};
use crate::model::{Call, Model, Reply, Request, USAGE, call};
use crate::stored::sent_items;

const OWNER: i64 = 42;

/// Returns the report that a request must answer.
fn report_of(request: &Request) -> Option<String> {
    let said = request.texts("user").pop()?;
    let (_, report) = said.split_once("[The background task ")?;
    Some(report.to_owned())
}

fn spawn(id: &str, task: &str) -> Call {
    call(id, "subagent", &json!({ "task": task, "background": true }))
}

/// Returns a model that starts these tasks when it is asked `go`, and repeats their reports.
fn spawning(
    tasks: &'static [&'static str],
    work: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> Model {
    Model::answering(move |request, _| {
        if let Some(task) = request.task() {
            return work(&task);
        }
        if let Some(report) = report_of(request) {
            return Reply::text(&format!("Heard of {}", report.replace('\n', " ")));
        }
        let last = request
            .messages()
            .last()
            .map(|message| message["role"].clone());
        match request.last("user") {
            said if said.contains("go") && last == Some("user".into()) => Reply::calls(
                tasks
                    .iter()
                    .enumerate()
                    .map(|(n, task)| spawn(&format!("c{n}"), task)),
            ),
            _ if last == Some("tool".into()) => {
                Reply::text(&format!("Begun: {}", request.last("tool")))
            }
            _ => Reply::text("Here I am."),
        }
    })
}

#[test]
fn a_one_shot_waits_for_its_tasks_and_answers_their_reports() {
    let model = spawning(&["the moon"], |task| {
        Reply::text(&format!("{task} is grey"))
    });
    let home = Home::with(&model.config());
    let run = home.agent(["-m", "go"]);
    run.exits(0);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(
        lines[0].starts_with("Begun: Started the background task \"the moon\"."),
        "{}",
        run.stdout
    );
    let heard = "Heard of “the moon” has ended. Its report:] ``` the moon is grey ```";
    assert_eq!(lines[1..], ["", heard], "{}", run.stdout);
    let asked = model
        .requests()
        .iter()
        .filter_map(Request::task)
        .collect::<Vec<_>>();
    assert_eq!(asked, ["the moon"]);
    home.session("cli_default").has_one_result_per_call();
    // A process that waits for the end needs no journal of the task.
    assert!(
        !home.files().iter().any(|file| file.contains("queue")),
        "{:?}",
        home.files()
    );
}

#[test]
fn json_is_one_object_that_adds_up() {
    let model = spawning(&["a", "b"], |task| Reply::text(&format!("report {task}")));
    let home = Home::with(&model.config());
    let told = home.agent(["-m", "go", "--json"]).exits(0).json();
    let output = told["output"].as_str().unwrap();
    assert!(output.starts_with("Begun"), "{output}");
    has_all(output, ["report a", "report b"]);
    // Two steps, one for each report; and a request for each task.
    has_fields(&told, &json!({ "steps": 4, "stop": "done" }));
    assert_eq!(told["usage"]["total_tokens"], 6 * USAGE.2);
    assert_eq!(told["tool_calls"].as_array().unwrap().len(), 2);
    let rows = home.run(["usage", "--json"]);
    assert_eq!(
        rows.json()["total"]["total_tokens"],
        6 * USAGE.2,
        "the ledger has the tasks, too"
    );
}

#[test]
fn four_are_under_way_at_once_and_the_others_wait() {
    let model = spawning(&["1", "2", "3", "4", "5", "6"], |task| {
        Reply::text(&format!("report {task}")).held()
    });
    let home = Home::with(&model.config());
    let run = home.bantam().args(["agent", "-m", "go", "--json"]).spawn();
    model.wait_for_holds(4);
    let tasks = || model.requests().iter().filter_map(Request::task).count();
    assert_eq!(tasks(), 4);
    for n in 5..=6 {
        model.release();
        model.wait_for_holds(n);
    }
    (0..4).for_each(|_| model.release());
    let run = run.finish();
    let told = run.exits(0).json();
    assert!(
        (1..=6).all(|n| told["output"]
            .as_str()
            .unwrap()
            .contains(&format!("report {n}"))),
        "{told}"
    );
}

#[test]
fn a_failed_task_is_told_and_a_stop_ends_the_waiting() {
    let model = spawning(&["broken"], |_| Reply::error(400, "no such thing"));
    let home = Home::with(&model.config());
    let run = home.agent(["-m", "go"]);
    has_all(&run.exits(0).stdout, ["“broken” failed:"]);

    let model = spawning(&["slow"], |_| Reply::text("never").held());
    let home = Home::with(&model.config());
    let run = home.bantam().args(["agent", "-m", "go", "--json"]).spawn();
    model.wait_for_holds(1);
    // The turn itself has ended when the second line of its session exists.
    until("the first answer is stored", || {
        home.files()
            .iter()
            .any(|file| file.ends_with("cli_default.jsonl"))
            && home.session("cli_default").history().iter().any(|message| {
                message["role"] == "assistant"
                    && message["content"]
                        .as_str()
                        .is_some_and(|text| text.contains("Begun"))
            })
    });
    run.signal(Signal::INT);
    let started = Instant::now();
    let run = run.finish();
    let told = run.exits(130).json();
    assert!(started.elapsed() < Duration::from_secs(40));
    assert_eq!(
        (
            &told["stop"],
            told["output"].as_str().unwrap().starts_with("Begun")
        ),
        (&json!("cancelled"), true)
    );
}

#[test]
fn time_and_tokens_bound_the_whole() {
    let model = spawning(&["slow"], |_| Reply::text("never").held());
    let home = Home::with(&model.config());
    let started = Instant::now();
    home.agent(["-m", "go", "--timeout", "2"]).exits(6);
    assert!(
        started.elapsed() < Duration::from_secs(40),
        "{:?}",
        started.elapsed()
    );

    for background in [true, false] {
        let (model, home) = Home::of(Model::answering(move |request, _| {
            let depth = json!({ "path": ".", "depth": request.messages().len() });
            let task = |id| json!({ "task": id, "background": background });
            let reply = match request.task() {
                Some(_) => Reply::call("list_dir", &depth),
                None if request.texts("tool").is_empty() => {
                    Reply::calls(["a", "b"].map(|id| call(id, "subagent", &task(id))))
                }
                None => Reply::text("Begun."),
            };
            reply.counted(4000, 0)
        }));
        let run = home.agent(["-m", "go", "--budget-tokens", "33000"]);
        run.fails(6);
        // Each task had at most one running request when the budget was used up.
        let asked = model.requests().len();
        assert!((8..=10).contains(&asked), "{background}: {asked}");
    }
}

/// Waits until the gateway has recorded this many sent messages.
fn noted(home: &Home, count: usize) {
    until("what was sent is noted", || {
        sent_items(&home.path("")) >= count
    });
}

#[test]
fn chat_continues_during_a_task() {
    let model = spawning(&["the moon"], |_| Reply::text("grey").held());
    let (api, home) = home(&model);
    let gateway = start(&home);
    api.text(OWNER, "go");
    assert!(api.wait_for_texts(OWNER, 1)[0].starts_with("Begun"));
    model.wait_for_holds(1);
    api.text(OWNER, "hello");
    assert_eq!(api.wait_for_texts(OWNER, 2)[1], "Here I am.");
    api.text(OWNER, "/status");
    has_all(&api.wait_for_texts(OWNER, 3)[2], ["background tasks: 1"]);
    model.release();
    has_all(
        &api.wait_for_texts(OWNER, 4)[3],
        ["Heard of “the moon” has ended"],
    );
    ends(gateway);
    home.session("telegram_42").has_one_result_per_call();
    // The next start finds no leftover.
    let asked = model.requests().len();
    let gateway = start(&home);
    api.text(OWNER, "hello");
    api.wait_for_texts(OWNER, 5);
    ends(gateway);
    assert_eq!(model.requests().len(), asked + 1);
}

#[test]
fn stop_new_and_undo_end_tasks() {
    let model = spawning(&["a", "b"], |_| Reply::text("never").held());
    let (api, home) = home(&model);
    let gateway = start(&home);
    for (n, (command, answer)) in [
        ("/stop", "Stopped 2 background tasks."),
        (
            "/new",
            "This is a new conversation.\nStopped 2 background tasks.",
        ),
        ("/undo", "Undone: go\nStopped 2 background tasks."),
    ]
    .iter()
    .enumerate()
    {
        api.text(OWNER, "go");
        api.wait_for_texts(OWNER, 4 * n + 1);
        model.wait_for_holds(2 * (n + 1));
        api.text(OWNER, command);
        assert_eq!(&api.wait_for_texts(OWNER, 4 * n + 2)[4 * n + 1], answer);
        api.text(OWNER, "/status");
        assert!(api.wait_for_texts(OWNER, 4 * n + 3)[4 * n + 2].contains("background tasks: 0"));
        api.text(OWNER, "hello");
        api.wait_for_texts(OWNER, 4 * n + 4);
    }
    ends(gateway);
}

#[test]
fn too_many_are_refused() {
    const MANY: [&str; 16] = [
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p",
    ];
    let model = spawning(&MANY, |_| Reply::text("never").held());
    let (api, home) = home(&model);
    let gateway = start(&home);
    api.text(OWNER, "go");
    has_all(&api.wait_for_texts(OWNER, 1)[0], ["Started the background"]);
    api.text(OWNER, "go on");
    has_all(
        &api.wait_for_texts(OWNER, 2)[1],
        ["20 background tasks of this conversation are open"],
    );
    model.wait_for_holds(4);
    // A task that waits may still begin while others are being stopped.
    assert_eq!(model.requests().iter().filter_map(Request::task).count(), 4);
    api.text(OWNER, "/stop");
    assert_eq!(
        api.wait_for_texts(OWNER, 3)[2],
        "Stopped 20 background tasks."
    );
    ends(gateway);
}

#[test]
fn crashed_task_is_reported_and_not_rerun() {
    let model = spawning(&["the moon"], |_| Reply::text("grey").held());
    let (api, home) = home(&model);
    let gateway = start(&home);
    api.text(OWNER, "go");
    api.wait_for_texts(OWNER, 1);
    model.wait_for_holds(1);
    noted(&home, 1);
    dies(gateway);
    let gateway = start(&home);
    let texts = api.wait_for_texts(OWNER, 2);
    has_all(
        &texts[1],
        ["“the moon” was interrupted when the program ended"],
    );
    ends(gateway);
    assert_eq!(model.requests().iter().filter_map(Request::task).count(), 1);
    let gateway = start(&home);
    api.text(OWNER, "hello");
    api.wait_for_texts(OWNER, 3);
    // It is in the conversation, next to the other messages.
    has_all(
        &model.requests().last().unwrap().texts("user").concat(),
        ["was interrupted when the program ended"],
    );
    ends(gateway);
}

#[test]
fn a_report_outlives_a_crash_before_and_after_it_is_posted() {
    // During its answer; and when it was posted instead, but not sent.
    let model = Model::answering(
        |request, number| match (request.task(), report_of(request)) {
            (Some(_), _) => Reply::text("grey"),
            (_, Some(_)) if number == 3 => Reply::text("lost").held(),
            (_, Some(_)) => Reply::text("asked again"),
            _ if request.messages().last().unwrap()["role"] == "tool" => Reply::text("Begun."),
            _ => Reply::calls([spawn("c", "the moon")]),
        },
    );
    let (api, home) = home(&model);
    let gateway = start(&home);
    api.text(OWNER, "go");
    api.wait_for_texts(OWNER, 1);
    model.wait_for_holds(1);
    noted(&home, 1);
    dies(gateway);
    api.fault("sendMessage", Fault::Silence);
    let gateway = start(&home);
    api.wait_for_texts(OWNER, 2);
    dies(gateway);
    let asked = model.requests().len();
    let gateway = start(&home);
    // The fault was after the effect, so the message is there twice; the model was not asked again.
    let texts = api.wait_for_texts(OWNER, 3);
    has_all(&texts[1], ["“the moon” has ended", "grey"]);
    assert_eq!(texts[1], texts[2]);
    ends(gateway);
    assert_eq!(model.requests().len(), asked);
    let queue = home.read("state/queue.jsonl");
    let notes = queue
        .lines()
        .filter(|line| line.contains("\"kind\":\"deferred\""));
    assert_eq!(notes.count(), 1, "{queue}");
}

#[test]
fn a_report_arrives_although_the_model_cannot_answer_it() {
    let model = Model::answering(|request, _| match (request.task(), report_of(request)) {
        (Some(_), _) => Reply::text("grey"),
        (_, Some(_)) => Reply::error(400, "no such thing"),
        _ if request.messages().last().unwrap()["role"] == "tool" => Reply::text("Begun."),
        _ => Reply::calls([spawn("c", "the moon")]),
    });
    let (api, home) = home(&model);
    let gateway = start(&home);
    api.text(OWNER, "go");
    let texts = api.wait_for_texts(OWNER, 2);
    has_all(&texts[1], ["grey", "no such thing"]);
    ends(gateway);
}

#[test]
fn a_job_has_no_background() {
    let model =
        Model::answering(
            |request, _| match request.messages().last().unwrap()["role"].as_str() {
                Some("tool") => Reply::text(&request.last("tool")),
                _ => Reply::calls([spawn("c", "the moon")]),
            },
        );
    let home = Home::with(&model.config());
    home.run(["cron", "add", "-m", "look", "-e", "3600", "-n", "look"])
        .exits(0);
    let run = home.run(["cron", "run", "look"]);
    run.exits(0);
    has_all(&run.stdout, ["a job has no background"]);
}
