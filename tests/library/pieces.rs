//! The agent's parts, used by a program.

use bantam::MemoryStore;
use bantam::{
    Agent, Anthropic, CallContext, Chain, ErrorKind, Function, Limits, Message, ModelOptions,
    OpenAi, Price, Request, Result, Retry, Risk, Sampling,
};
use serde_json::{Value, json};

use crate::Test;
use crate::support::harness::{Home, has_all, has_none};
use crate::support::model::{Model, Reply};
use crate::support::tunnel::Proxy;

pub const TESTS: &[Test] = tests!(
    pieces,
    [
        a_model_is_asked_as_the_code_says,
        a_reply_that_is_cut_has_no_known_cost,
        the_next_model_answers_when_the_first_fails,
        a_model_has_several_keys_and_a_proxy,
        a_model_may_speak_anthropics_api,
        a_session_has_values_and_a_title,
        tools_are_listed_chosen_and_added,
        the_prompt_sees_the_conversation,
        each_request_has_the_messages_that_a_filter_leaves,
        a_program_may_leave_out_the_times,
        sandboxed_tools_need_init
    ]
);

const EMPTY: &str = r#"{"type":"object","properties":{}}"#;

fn a_model_is_asked_as_the_code_says() {
    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let options = ModelOptions {
        name: "acme/x".to_owned(),
        headers: [("x-team".to_owned(), "blue".to_owned())].into(),
        extra_body: json!({"top_k": 7}).as_object().unwrap().clone(),
        max_tokens: 99,
        temperature: Some(0.5),
        price: Price {
            input: Some(1.0),
            output: Some(10.0),
            cached: None,
        },
        ..ModelOptions::default()
    };
    let key = "not-a-real-key-0001";
    let model_x = OpenAi::with(&model.base(), key, "x", options);
    let agent = Agent::builder().provider(model_x).build().unwrap();
    let mut request = Request::new("Go!", "notes");
    let response = agent.run(&request, &|_| ());
    assert_eq!(response.model, "acme/x");
    // 11 prompt tokens and 7 reply tokens.
    assert_eq!(response.cost, Some(0.000_081));
    request.sampling = Sampling {
        temperature: Some(0.0),
        max_tokens: Some(5),
        extra_body: json!({"top_k": 8, "seed": 3}).as_object().unwrap().clone(),
        ..Sampling::default()
    };
    agent.run(&request, &|_| ());
    let [first, second] = [0, 1].map(|n| model.request(n));
    assert_eq!(first.header("x-team"), Some("blue"));
    assert_eq!(
        first.header("authorization"),
        Some("Bearer not-a-real-key-0001")
    );
    let sent = |body: &Value| {
        ["top_k", "max_tokens", "temperature", "seed"].map(|name| body[name].clone())
    };
    assert_eq!(
        sent(&first.body),
        [json!(7), json!(99), json!(0.5), json!(null)]
    );
    assert_eq!(
        sent(&second.body),
        [json!(8), json!(5), json!(0.0), json!(3)]
    );
}

/// The host counts tokens at the end.
fn a_reply_that_is_cut_has_no_known_cost() {
    let model = Model::scripted([Reply::text("One two three.").cut_after(2)]);
    let options = ModelOptions {
        price: Price {
            input: Some(1.0),
            output: Some(10.0),
            cached: None,
        },
        ..ModelOptions::default()
    };
    let limits = Limits {
        retry: Retry {
            max: 0,
            ..Limits::default().retry
        },
        ..Limits::default()
    };
    let agent = Agent::builder().provider(OpenAi::with(&model.base(), "", "x", options));
    let agent = agent.limits(limits).build().unwrap();
    let response = agent.run(&Request::new("Count!", "notes"), &|_| ());
    assert!(response.partial && response.error.is_some());
    assert_eq!(response.cost, None);
}

fn the_next_model_answers_when_the_first_fails() {
    let key = "not-a-real-key-0002";
    let refusing = Model::answering(move |_, _| Reply::error(401, &format!("{key} is refused")));
    let second = Model::answering(|_, _| Reply::text("Here."));
    let named = ModelOptions {
        name: "here/b".to_owned(),
        ..ModelOptions::default()
    };
    let chain = Chain::default()
        .then(OpenAi::new(&refusing.base(), key, "a"))
        .then(OpenAi::with(&second.base(), "", "b", named));
    let agent = Agent::builder().chain(chain).build().unwrap();
    let warnings = std::sync::Mutex::new(Vec::new());
    let response = agent.run(&Request::new("Go!", "notes"), &|event| {
        if let bantam::Event::Warning(text) = event {
            warnings.lock().unwrap().push(text);
        }
    });
    assert_eq!(
        (response.output.as_str(), response.model.as_str()),
        ("Here.", "here/b")
    );
    let warnings = warnings.into_inner().unwrap().join("\n");
    has_all(&warnings, ["asking here/b"]);
    has_none(&warnings, [key]);
    let run = |model: &str| {
        let model = model.to_owned();
        let question = Request::new("Go!", "notes");
        agent.run(&Request { model, ..question }, &|_| ())
    };
    let before = refusing.asked();
    for model in ["here/b", "b"] {
        assert_eq!(run(model).output, "Here.");
    }
    assert_eq!(refusing.asked(), before);
    let unknown = run("c").error.unwrap();
    assert_eq!(unknown.kind, ErrorKind::Usage);
    assert!(unknown.hint.unwrap().contains("here/b"));
}

fn a_model_has_several_keys_and_a_proxy() {
    let model = Model::answering(|request, _| match request.header("authorization") {
        Some("Bearer not-a-real-key-0005") => Reply::text("Here."),
        _ => Reply::error(401, "no"),
    });
    let proxy = Proxy::to(&model);
    let options = ModelOptions {
        proxy: proxy.url(),
        ..ModelOptions::default()
    };
    let keys = ["not-a-real-key-0004", "not-a-real-key-0005"];
    let models =
        keys.map(|key| OpenAi::with("http://model.internal/v1", key, "x", options.clone()));
    let chain = Chain::default().then_keys(models);
    let agent = Agent::builder().chain(chain).build().unwrap();
    assert_eq!(agent.ask("Go!").unwrap(), "Here.");
    let asked = proxy.asked();
    let through = "CONNECT model.internal:80 HTTP/1.1";
    assert!(
        !asked.is_empty() && asked.iter().all(|line| line == through),
        "{asked:?}"
    );
}

fn a_model_may_speak_anthropics_api() {
    let model = Model::answering(|_, _| {
        Reply::json(
            200,
            &json!({
                "content": [{"type": "text", "text": "Hello."}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 5, "output_tokens": 2},
            }),
        )
    });
    let base = model.base().trim_end_matches("/v1").to_owned();
    let key = "not-a-real-key-0006";
    let builder = Agent::builder().provider(Anthropic::new(&base, key, "x"));
    let agent = builder.stream(false).build().unwrap();
    let response = agent.run(&Request::new("Hello?", "notes"), &|_| ());
    assert_eq!((&*response.output, response.usage.total()), ("Hello.", 7));
    let request = model.request(0);
    assert_eq!(
        (&*request.path, request.header("x-api-key")),
        ("/v1/messages", Some(key))
    );
}

/// Returns a tool that counts its calls in the conversation.
fn counter() -> Function {
    Function::new(
        "count",
        "Counts.",
        EMPTY,
        |_: Value, turn: &CallContext| -> Result<String> {
            let calls = turn
                .values
                .get("calls")
                .and_then(|n| n.as_u64())
                .unwrap_or(0)
                + 1;
            turn.values.set("calls", calls);
            turn.values.remove("draft");
            Ok(calls.to_string())
        },
    )
}

fn a_session_has_values_and_a_title() {
    let turn = || [Reply::call("count", &json!({})), Reply::text("Counted.")];
    let model = Model::scripted(turn().into_iter().chain(turn()));
    let store = MemoryStore::default();
    let build = || {
        let builder = Agent::builder().provider(OpenAi::new(&model.base(), "", "x"));
        builder
            .tool(counter())
            .store(store.clone())
            .build()
            .unwrap()
    };
    let mut request = Request::new("Count, please.", "");
    request.metadata.insert("user".to_owned(), "7".to_owned());
    let agent = build();
    let response = agent.run(&request, &|_| ());
    let key = response.session;
    assert!(key.starts_with("library_"), "{key}");
    assert_eq!(response.metadata["user"], "7");
    let roles = response.stored.iter().map(|message| match message {
        Message::User(_) => "user",
        Message::Assistant(_) => "assistant",
        Message::ToolResult(_) => "tool",
        Message::System(_) => "system",
    });
    assert_eq!(
        roles.collect::<Vec<_>>(),
        ["user", "assistant", "tool", "assistant"]
    );
    agent.set(&key, "draft", json!({"pages": 3})).unwrap();
    assert_eq!(agent.session(&key).unwrap().values["draft"]["pages"], 3);
    let again = build().run(&Request::new("Again.", &*key), &|_| ());
    assert_eq!((again.stored.len(), again.output.as_str()), (4, "Counted."));
    let session = agent.session(&key).unwrap();
    assert_eq!(session.title, "Count, please.");
    assert_eq!(Value::Object(session.values), json!({"calls": 2}));
    assert!(session.created.starts_with("20") && session.last >= session.created);
}

fn tools_are_listed_chosen_and_added() {
    let named =
        |name: &'static str| Function::new(name, "x", EMPTY, |_: Value, _: &CallContext| Ok(""));
    let builder = Agent::builder().provider(OpenAi::new("http://127.0.0.1:9", "", "x"));
    let agent = builder
        .tool(named("a"))
        .tool(named("b").risk(Risk::Safe))
        .build()
        .unwrap();
    let names = |agent: &Agent| {
        agent
            .tools()
            .specs()
            .map(|spec| spec.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&agent), ["a", "b"]);
    let mut tools = agent.tools().only(&["b"]).unwrap();
    assert_eq!(names(&agent.with_tools(tools.clone())), ["b"]);
    tools.add(named("c")).unwrap();
    assert_eq!(names(&agent.with_tools(tools.without(&["b"]))), ["c"]);
    assert!(agent.tools().only(&["z"]).is_err());
    assert_eq!(tools.add(named("c")).unwrap_err().kind, ErrorKind::Usage);
    let specs: Vec<_> = agent.tools().specs().cloned().collect();
    assert_eq!(
        (specs[1].risk, &*specs[1].source),
        (Risk::Safe, "this program")
    );
    for schema in ["{", r#"{"type":"string"}"#] {
        let bad = Function::new("bad", "x", schema, |_: Value, _: &CallContext| Ok(""));
        let refused = Agent::builder()
            .provider(OpenAi::new("", "", "x"))
            .tool(bad)
            .build();
        let refused = refused.err().unwrap();
        assert!(refused.message.contains("not a JSON object"), "{refused}");
    }
}

fn the_prompt_sees_the_conversation() {
    let model = Model::answering(|_, _| Reply::text("Yes."));
    let builder = Agent::builder().provider(OpenAi::new(&model.base(), "", "x"));
    let agent = builder.context("STATE", |session, request| {
        let user = request
            .metadata
            .get("user")
            .map_or("nobody", String::as_str);
        format!("{user} has said {} things.", session.messages.len() / 2)
    });
    let agent = agent.build().unwrap();
    for user in ["Ada", "Ben"] {
        let mut request = Request::new("Hello?", "notes");
        request.metadata.insert("user".to_owned(), user.to_owned());
        agent.run(&request, &|_| ());
    }
    assert!(model.request(0).texts("system")[0].contains("Ada has said 0 things."));
    assert!(model.request(1).texts("system")[0].contains("Ben has said 1 things."));
}

fn each_request_has_the_messages_that_a_filter_leaves() {
    let model = Model::answering(|_, _| Reply::text("Yes."));
    let builder = Agent::builder().provider(OpenAi::new(&model.base(), "", "x"));
    let newest = |mut messages: Vec<Message>| messages.split_off(messages.len() - 1);
    let agent = builder.history_filter(newest).build().unwrap();
    for question in ["One?", "Two?"] {
        agent.run(&Request::new(question, "notes"), &|_| ());
    }
    let seen = model.request(1).texts("user");
    assert!(seen.len() == 1 && seen[0].ends_with("Two?"), "{seen:?}");
    assert!(model.request(1).texts("assistant").is_empty());
    assert_eq!(agent.session("notes").unwrap().messages.len(), 4);
}

fn a_program_may_leave_out_the_times() {
    let model = Model::answering(|_, _| Reply::text("Yes."));
    let builder = || Agent::builder().provider(OpenAi::new(&model.base(), "", "x"));
    let ask = |agent: Agent| {
        for question in ["One?", "Two?"] {
            agent.run(&Request::new(question, "notes"), &|_| ());
        }
        model.requests().pop().unwrap().texts("user")
    };
    let timed = ask(builder().build().unwrap());
    assert!(
        timed[0].starts_with('[') && timed[0].ends_with("]\nOne?"),
        "{timed:?}"
    );
    let untime = |mut messages: Vec<Message>| {
        for message in &mut messages {
            if let Message::User(user) = message {
                (user.time, user.local_time) = (String::new(), String::new());
            }
        }
        messages
    };
    let untimed = ask(builder().history_filter(untime).build().unwrap());
    assert_eq!(untimed, ["One?", "Two?"]);
}

fn sandboxed_tools_need_init() {
    let home = Home::empty();
    let tools = bantam::Home::at(home.path(""), &json!({})).unwrap();
    let refused = tools.exec().err().unwrap();
    assert_eq!(refused.kind, ErrorKind::Config);
    assert_eq!(
        refused.hint.unwrap(),
        "write bantam::init(); as the first line of main"
    );
}
