//! Unusual inputs from programs, and rarely used parts of the agent.

use std::fs;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use bantam::FileStore;
use bantam::{Agent, Demo, ErrorKind, OpenAi, Request, TaskReport, Tasks};

use crate::Test;
use crate::support::harness::Home;
use crate::support::model::{Model, Reply};
use serde_json::json;

pub const TESTS: &[Test] = tests!(
    edges,
    [
        a_key_leads_to_no_other_file,
        another_id_is_another_question,
        two_homes_live_in_one_program,
        a_background_task_reports_to_its_program,
        a_conversation_of_the_caller_is_stored_nowhere
    ]
);

fn a_key_leads_to_no_other_file() {
    let home = Home::empty();
    let inner = home.path("inner");
    // Links that would lead to the keys.
    for dir in ["inner/sessions/a", "sessions", "state/locks"] {
        fs::create_dir_all(home.path(dir)).unwrap();
    }
    let agent = |store| {
        Agent::builder()
            .provider(Demo)
            .store(store)
            .build()
            .unwrap()
    };
    let agent = agent(FileStore::at(&inner));
    let absolute = home.path("x").display().to_string();
    let long = "x".repeat(300);
    for key in [
        "../x", "a/b", "/../x", "../../x", &*absolute, "..", "a.1", "a\nb", "a\0b", "a\\b", &long,
    ] {
        let refused = agent.run(&Request::new("time", key), &|_| ()).error;
        let refused = [
            refused,
            agent.session(key).err(),
            agent.set(key, "name", 1).err(),
            agent.reset(key).err(),
            agent.window_use(key).err(),
        ];
        for (n, refused) in refused.into_iter().enumerate() {
            let kind = refused.map(|e| e.kind);
            assert_eq!(kind, Some(ErrorKind::Usage), "{key:?} {n}");
        }
    }
    let below = |dir: &str| fs::read_dir(home.path(dir)).map_or(0, Iterator::count);
    for (dir, there) in [
        ("", 3),
        ("sessions", 0),
        ("state/locks", 0),
        ("inner/sessions/a", 0),
        ("inner/state/locks", 0),
    ] {
        assert_eq!(below(dir), there, "{dir}");
    }
    for key in ["tcp_ada@x", "日本 1", "a%2Eb", "-"] {
        let said = agent.run(&Request::new("time", key), &|_| ());
        assert!(said.error.is_none(), "{key}: {:?}", said.error);
    }
}

fn another_id_is_another_question() {
    let model = Model::answering(|_, n| Reply::text(&format!("Answer {n}.")));
    let agent = Agent::builder().provider(OpenAi::new(&model.base(), "", "x"));
    let agent = agent.build().unwrap();
    let ask = |id: &str| {
        let request = Request {
            ids: vec![id.to_owned()],
            ..Request::new(format!("Question {id}?"), "notes")
        };
        agent.run(&request, &|_| ()).output
    };
    assert_eq!(ask("b"), "Answer 0.");
    assert_eq!(ask("a+b"), "Answer 1.");
    assert_eq!(ask("a+b"), "Answer 1.");
    assert_eq!(ask("a"), "Answer 2.");
}

fn two_homes_live_in_one_program() {
    let homes = [Home::empty(), Home::empty()];
    let agents = ["one", "two"].map(|name| {
        let home = &homes[usize::from(name == "two")];
        let model = Model::answering(move |_, n| Reply::text(&format!("{name} {n}")));
        let agent = Agent::builder()
            .provider(OpenAi::new(&model.base(), "", name))
            .store(FileStore::at(home.path("")))
            .build()
            .unwrap();
        (agent, model)
    });
    thread::scope(|scope| {
        for ((agent, _), name) in agents.iter().zip(["one", "two"]) {
            scope.spawn(move || {
                for n in 0..3 {
                    let said = agent.run(&Request::new(format!("I am {name}."), "same"), &|_| ());
                    assert_eq!(said.output, format!("{name} {n}"));
                    assert_eq!(said.model, name);
                }
                agent.set("same", "name", name).unwrap();
            });
        }
    });
    for ((agent, model), name) in agents.iter().zip(["one", "two"]) {
        let session = agent.session("same").unwrap();
        assert_eq!(session.values["name"], name);
        assert_eq!((session.messages.len(), model.asked()), (6, 3));
        let other = if name == "one" { "two" } else { "one" };
        for message in &session.messages {
            let text = message.to_json()["content"].to_string();
            assert!(!text.contains(other), "{text}");
        }
    }
    agents[0].0.reset("same").unwrap();
    assert!(agents[0].0.session("same").unwrap().messages.is_empty());
    assert_eq!(agents[1].0.session("same").unwrap().messages.len(), 6);
}

/// Maximum time to wait for an event.
const WAIT: Duration = Duration::from_secs(60);

/// Returns a turn that has started a background task, whose model replies by `work`.
fn with_a_task(work: fn() -> Reply) -> (Model, Agent, Tasks, Receiver<TaskReport>) {
    let model = Model::answering(move |request, _| {
        let said = request.texts("user");
        let last = said.last().unwrap();
        if last.contains("The task:\n\n") {
            work()
        } else if last.contains("background task") {
            Reply::text("It has counted seven.")
        } else if request.texts("tool").is_empty() {
            let task = json!({ "task": "Count the boats.", "background": true });
            Reply::call("subagent", &task)
        } else {
            Reply::text("Begun.")
        }
    });
    let agent = Agent::builder()
        .provider(OpenAi::new(&model.base(), "", "small"))
        .subagents()
        .build()
        .unwrap();
    let (tasks, reports) = Tasks::new();
    let begun = agent.run(
        &Request {
            tasks: Some(tasks.clone()),
            ..Request::new("Count the boats meanwhile.", "harbour")
        },
        &|_| (),
    );
    assert_eq!(begun.output, "Begun.", "{:?}", begun.error);
    (model, agent, tasks, reports)
}

fn a_background_task_reports_to_its_program() {
    let (model, agent, tasks, reports) = with_a_task(|| Reply::text("Seven boats."));
    let report = reports.recv_timeout(WAIT).unwrap();
    let told = (&*report.label, &*report.session);
    assert_eq!(told, ("Count the boats.", "harbour"));
    assert!(report.text.contains("Seven boats."), "{}", report.text);
    assert_eq!(tasks.open(Some("harbour")), 1);
    let answer = agent.run(&Request::from(&report), &|_| ());
    tasks.close(&report.id).unwrap();
    assert_eq!(answer.output, "It has counted seven.");
    assert_eq!((tasks.open(None), model.asked()), (0, 4));
    // One conversation contains the question, a call, its result, two answers and the report.
    assert_eq!(agent.session("harbour").unwrap().messages.len(), 6);
}

fn a_conversation_of_the_caller_is_stored_nowhere() {
    let model = Model::answering(|_, _| Reply::text("Zora."));
    let agent = Agent::builder()
        .provider(OpenAi::new(&model.base(), "", "small"))
        .build()
        .unwrap();
    let mut history = Vec::new();
    for question in ["My name is Zora.", "What is my name?"] {
        let request = Request {
            history: Some(history.clone()),
            ..Request::new(question, "mine")
        };
        let response = agent.run(&request, &|_| ());
        assert_eq!(response.output, "Zora.", "{:?}", response.error);
        history.extend(response.stored);
    }
    let said = model.request(1).texts("user");
    assert_eq!(said.len(), 2);
    assert!(said[0].contains("My name is Zora."), "{said:?}");
    assert_eq!(history.len(), 4);
    assert!(agent.sessions().unwrap().is_empty());
}
