//! The HTTP endpoint: OpenAI's chat completions, answered by whole turns.

use std::fs;
use std::io::Write;
use std::net::Shutdown;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::door::{Door, TOKEN, address, post, settings};
use crate::harness::{Home, Running, has_all, has_fields, merged, until};
use crate::model::{Model, Reply};

/// A gateway that serves only the endpoint.
struct Served<'h> {
    gateway: Running<'h>,
    door: Door,
}

impl Deref for Served<'_> {
    type Target = Door;

    fn deref(&self) -> &Door {
        &self.door
    }
}

fn home(model: &Model) -> Home {
    Home::asking(model, &settings())
}

fn open(home: &Home) -> Served<'_> {
    let gateway = home.bantam().arg("gateway").spawn();
    let address = address(&gateway.stderr_line("http://127.0.0.1:"));
    let door = Door { address };
    Served { gateway, door }
}

#[test]
fn a_question_runs_a_whole_turn_with_tools() {
    let model = Model::scripted([
        Reply::call("read_file", &json!({ "path": "note.txt" })).saying("Let me look."),
        Reply::text("It says 你好 🐓."),
    ]);
    let home = home(&model);
    home.write("workspace/note.txt", "hello");
    let door = open(&home);
    let answer = door.ask("What is in note.txt?").is(200);
    assert_eq!(answer.text(), "It says 你好 🐓.");
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "bantam");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["total_tokens"], 36);
    assert!(model.request(1).last("tool").contains("hello"));
    // It is not stored, but recorded in the ledger.
    assert!(
        home.files()
            .iter()
            .all(|file| !file.starts_with("sessions/")),
        "{:?}",
        home.files()
    );
    let usage = home.run(["usage", "--json"]).json();
    assert_eq!(usage["total"]["calls"], 2);
    crate::bot::ends(door.gateway);
}

#[test]
fn stream_reports_activity_only_on_request() {
    let model = Model::answering(|request, _| match request.texts("tool").len() {
        0 => Reply::call("list_dir", &json!({ "path": "." })),
        _ => Reply::text("one two three"),
    });
    let home = home(&model);
    let door = open(&home);
    let messages = json!([{ "role": "user", "content": "count" }]);
    let plain = door
        .post(&json!({ "messages": messages, "stream": true }), &[])
        .is(200);
    assert!(plain.head.contains("text/event-stream"), "{}", plain.head);
    assert_eq!(plain.streamed("content"), "one two three");
    let events = plain.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "stop"
    );
    assert_eq!(plain.streamed("reasoning_content"), "");
    assert!(!plain.body.contains("list_dir"), "{}", plain.body);
    let options = json!({ "include_usage": true, "include_progress": true });
    let told = door.post(
        &json!({ "messages": messages, "stream": true, "stream_options": options }),
        &[],
    );
    has_all(&told.streamed("reasoning_content"), ["list_dir"]);
    assert_eq!(told.events().last().unwrap()["usage"]["total_tokens"], 36);
}

#[test]
fn the_whole_conversation_is_the_clients_unless_it_names_one() {
    let model = Model::answering(|request, _| {
        Reply::text(&format!("heard {}", request.texts("user").len()))
    });
    let home = home(&model);
    let door = open(&home);
    let messages = json!([
        { "role": "system", "content": "You are a parrot." },
        { "role": "user", "content": "one" },
        { "role": "assistant", "content": "1" },
        { "role": "user", "content": "two" },
    ]);
    assert_eq!(
        door.post(&json!({ "messages": messages }), &[])
            .is(200)
            .text(),
        "heard 2"
    );
    has_all(&model.request(0).last("system"), ["You are a parrot."]);
    // In a stored conversation, only the last message is new.
    let kitchen = ["X-Session: kitchen"];
    for expected in ["heard 1", "heard 2", "heard 3"] {
        assert_eq!(
            door.post(&json!({ "messages": messages }), &kitchen)
                .is(200)
                .text(),
            expected
        );
    }
    assert!(
        home.files()
            .contains(&"sessions/http_kitchen.jsonl".to_owned()),
        "{:?}",
        home.files()
    );
    let by_user = json!({ "messages": messages, "user": "kitchen" });
    assert_eq!(door.post(&by_user, &[]).is(200).text(), "heard 2");
}

/// A connection cut without an error looks like a broken network.
#[test]
fn a_question_under_way_at_the_end_gets_a_503() {
    let model = Model::answering(|_, _| Reply::text("Too late.").held());
    let home = home(&model);
    let served = open(&home);
    let door = served.door.clone();
    let asked = std::thread::spawn(move || door.ask("hi").status);
    model.wait_for_holds(1);
    served.gateway.signal(Signal::TERM);
    assert_eq!(asked.join().unwrap(), 503);
    served.gateway.finish().exits(0);
    model.release();
}

#[test]
fn config_change_waits_for_http_turns() {
    let model = Model::answering(|_, _| Reply::text("Here.").held());
    let home = home(&model);
    let served = open(&home);
    let door = served.door.clone();
    let asked = std::thread::spawn(move || door.ask("hi"));
    model.wait_for_holds(1);
    let change = ["config", "set", "gateway.workers", "3"];
    home.run(change).exits(0);
    served.gateway.wait_for_stderr("restarting");
    let begun = Instant::now();
    until("a turn would be cut", || {
        begun.elapsed() > Duration::from_secs(4)
    });
    model.release();
    assert_eq!(asked.join().unwrap().is(200).text(), "Here.");
    served.gateway.wait_for_stderr("listening at");
    crate::bot::ends(served.gateway);
}

#[test]
fn tools_of_the_client_are_called_by_the_client() {
    let model = Model::answering(|request, _| match request.texts("tool").pop() {
        None => Reply::call("weather", &json!({ "city": "Ulm" })),
        Some(result) => Reply::text(&format!("It is {result} there.")),
    });
    // They need no approval here.
    let confirm = json!({ "tools": { "confirm": ["writes", "runs"] } });
    let home = Home::asking(&model, &merged(settings(), &confirm));
    let door = open(&home);
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    let tools = json!([{ "type": "function", "function": { "name": "weather", "parameters": parameters } }]);
    let mut messages = vec![json!({ "role": "user", "content": "Weather in Ulm?" })];
    let asked = door
        .post(&json!({ "messages": messages, "tools": tools }), &[])
        .is(200)
        .json();
    let choice = &asked["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather");
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({ "city": "Ulm" }));
    assert!(
        model.request(0).tools().contains(&"weather")
            && model.request(0).tools().contains(&"read_file")
    );
    messages.push(choice["message"].clone());
    messages.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "raining" }));
    let answer = door
        .post(&json!({ "messages": messages, "tools": tools }), &[])
        .is(200);
    assert_eq!(answer.text(), "It is raining there.");
    // The request, streamed.
    let streamed = door
        .post(
            &json!({ "messages": messages[..1], "tools": tools, "stream": true }),
            &[],
        )
        .is(200);
    let events = streamed.events();
    // Home Assistant ignores calls next to a finish_reason, and reads one call per piece.
    let [.., called, last] = events.as_slice() else {
        panic!("{}", streamed.body);
    };
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(last["choices"][0]["delta"], json!({}));
    let called = &called["choices"][0];
    assert_eq!(called["finish_reason"], json!(null));
    assert_eq!(
        called["delta"]["tool_calls"][0]["function"]["name"],
        "weather"
    );
    // A tool of bantam runs here, even if the client declares it.
    home.write("workspace/note.txt", "hello");
    let own = json!([{ "type": "function", "function": { "name": "weather" } }, { "type": "function", "function": { "name": "read_file" } }]);
    let asked = door
        .post(&json!({ "messages": messages[..1], "tools": own }), &[])
        .is(200);
    assert_eq!(asked.json()["choices"][0]["finish_reason"], "tool_calls");
    // An invalid schema is refused.
    for function in [
        json!({ "name": "a b" }),
        json!({ "name": "a", "parameters": "none" }),
    ] {
        let bad = json!([{ "type": "function", "function": function }]);
        let refused = door.post(&json!({ "messages": messages[..1], "tools": bad }), &[]);
        assert_eq!(refused.is(400).json()["error"]["param"], "tools[0]");
    }
}

#[test]
fn request_options_reach_the_model() {
    let model = Model::answering(|_, _| Reply::text("{}"));
    let home = home(&model);
    let door = open(&home);
    let format = json!({ "type": "json_object" });
    let png = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let parts = json!([{ "type": "text", "text": "see" }, { "type": "image_url", "image_url": { "url": png } }]);
    let body = json!({
        "messages": [{ "role": "user", "content": parts }],
        "max_tokens": 77, "temperature": 0.25, "response_format": format, "stop": ["a", "b"],
    });
    door.post(&body, &[]).is(200);
    let sent = model.request(0).body;
    assert_eq!(sent["temperature"], 0.25);
    assert_eq!(sent["response_format"], format);
    assert_eq!(sent["stop"], json!(["a", "b"]));
    let limit = sent
        .get("max_tokens")
        .or(sent.get("max_completion_tokens"))
        .unwrap();
    assert_eq!(limit, 77);
    assert!(sent.to_string().contains("image_url"), "{sent}");
}

#[test]
fn strangers_and_foreign_pages_are_refused() {
    let model = Model::never_asked();
    let home = home(&model);
    let door = open(&home);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let status = |headers: &[&str]| door.post(&body, headers).status;
    assert_eq!(status(&["Authorization: Bearer wrong"]), 401);
    assert_eq!(status(&["Authorization: "]), 401);
    assert_eq!(status(&["Host: evil.example"]), 421);
    assert_eq!(status(&["Origin: http://evil.example"]), 403);
    assert_eq!(status(&["Origin: null"]), 403);
    assert_eq!(status(&["Content-Type: text/plain"]), 415);
    assert_eq!(status(&["Transfer-Encoding: chunked"]), 411);
    let preflight = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n";
    assert_eq!(door.raw(preflight.as_bytes()).status, 403);
    let health = door
        .raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .is(200);
    assert!(!health.body.contains("model"), "{}", health.body);
    door.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .is(401);
    let error = door.post(&body, &["Authorization: Bearer wrong"]).json();
    assert_eq!(error["error"]["code"], "invalid_api_key");
    // bantam's output never contains the token.
    door.gateway.signal(Signal::TERM);
    let run = door.gateway.finish();
    assert!(!run.exits(0).stderr.contains(TOKEN), "{}", run.stderr);
}

#[test]
fn configured_origin_is_allowed() {
    let model = Model::answering(|_, _| Reply::text("hi"));
    let allowed = json!({ "channels": { "http": { "allow_origin": "http://page.example:8000" } } });
    let home = Home::asking(&model, &merged(settings(), &allowed));
    let door = open(&home);
    let origin = "Origin: http://page.example:8000";
    let preflight =
        format!("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{origin}\r\n\r\n");
    let granted = door.raw(preflight.as_bytes()).is(204);
    has_all(
        &granted.head,
        ["Access-Control-Allow-Origin: http://page.example:8000"],
    );
    has_all(&granted.head.to_lowercase(), ["authorization"]);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let answer = door.post(&body, &[origin]).is(200);
    has_all(
        &answer.head,
        ["Access-Control-Allow-Origin: http://page.example:8000"],
    );
    assert_eq!(
        door.post(&body, &["Origin: http://page.example"]).status,
        403
    );
}

#[test]
fn errors_are_those_that_clients_know() {
    let model = Model::answering(|_, _| Reply::error(401, "bad key"));
    let home = home(&model);
    let door = open(&home);
    let unknown = json!({ "model": "nosuch", "messages": [{ "role": "user", "content": "hi" }] });
    let error = door.post(&unknown, &[]).is(404).json();
    has_fields(
        &error,
        &json!({ "error": { "code": "model_not_found", "param": "model" } }),
    );
    let said = error["error"]["message"].as_str().unwrap();
    let listed = said.split_once("the models are ").unwrap().1;
    assert!(listed.split(", ").all(|name| !name.is_empty()), "{said}");
    let hot = json!({ "temperature": 9, "messages": [{ "role": "user", "content": "hi" }] });
    let error = door.post(&hot, &[]).is(400).json();
    let said = error["error"]["message"].as_str().unwrap();
    assert!(said.contains("temperature"), "{said}");
    assert_eq!(
        door.ask("hi").is(500).json()["error"]["type"],
        "server_error"
    );
    let streamed = json!({ "messages": [{ "role": "user", "content": "hi" }], "stream": true });
    door.post(&streamed, &[]).is(500);
    door.get("/v1/nothing").is(404);
    let delete = "DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n";
    door.raw(format!("{delete}Authorization: Bearer {TOKEN}\r\n\r\n").as_bytes())
        .is(404);
    let models = door.get("/v1/models").is(200).json();
    assert_eq!(models["data"][0]["id"], "bantam");
}

#[test]
fn a_client_chooses_any_model_that_the_command_line_takes() {
    let host = |ids: Value| {
        Model::answering(move |request, _| match request.method.as_str() {
            "GET" => Reply::json(200, &json!({ "data": ids })),
            _ => Reply::text(request.body["model"].as_str().unwrap_or_default()),
        })
    };
    let (model, server) = (host(json!([])), host(json!([{ "id": "qwen3-30b" }])));
    let mut config = merged(model.config(), &settings());
    let all = json!({ "model": "server/*", "api_base": server.base() });
    config["model_list"].as_array_mut().unwrap().push(all);
    config["agents"]["defaults"]["model_fallbacks"] = json!(["server/spare"]);
    let home = Home::with(&config);
    let door = open(&home);
    let listed = door.get("/v1/models").is(200).json();
    let ids: Vec<&str> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["id"].as_str())
        .collect();
    assert_eq!(ids, ["bantam", "test", "server/spare"]);
    for (name, id) in [
        ("test", "test-model"),
        ("server/x", "x"),
        ("qwen3-30b", "qwen3-30b"),
        ("qwen3-30b", "qwen3-30b"),
        ("spare", "spare"),
    ] {
        let ask = json!({ "model": name, "messages": [{ "role": "user", "content": "hi" }] });
        let answer = door.post(&ask, &[]).is(200).json();
        assert_eq!(answer["choices"][0]["message"]["content"], id, "{name}");
    }
    let lists = server.requests();
    let lists = lists.iter().filter(|request| request.method == "GET");
    assert_eq!(lists.count(), 1, "a name is looked up once");
    let ask = json!({ "model": "qwen3-3", "messages": [{ "role": "user", "content": "hi" }] });
    let refused = door.post(&ask, &[]).is(404);
    has_all(&refused.body, ["server/qwen3-30b"]);
}

#[test]
fn a_turn_that_acted_is_not_to_be_repeated() {
    let model = Model::answering(|request, _| match request.texts("tool").len() {
        0 if request.last("user").contains("act") => {
            Reply::call("write_file", &json!({ "path": "a", "content": "b" }))
        }
        _ => Reply::error(500, "down"),
    });
    let home = home(&model);
    let door = open(&home);
    let acted = door.ask("act").is(503);
    has_all(&acted.head, ["x-should-retry: false"]);
    let idle = door.ask("hello").is(503);
    assert!(!idle.head.contains("x-should-retry"), "{}", idle.head);
}

#[test]
fn a_client_that_hangs_up_ends_its_turn() {
    let model = Model::answering(|request, _| {
        if request.last("user").contains("again") {
            return Reply::text("Here again.");
        }
        match request.texts("tool").len() {
            0 => Reply::call("write_file", &json!({ "path": "a", "content": "b" })),
            _ => Reply::text("never heard").held(),
        }
    })
    .forgetful();
    let home = home(&model);
    let door = open(&home);
    for (n, (key, headers)) in [("", &[][..]), ("k", &["X-Session: k"])]
        .into_iter()
        .enumerate()
    {
        let body = json!({ "messages": [{ "role": "user", "content": "first" }], "stream": true });
        let mut client = door.connect();
        client.write_all(post(&body, headers).as_bytes()).unwrap();
        model.wait_for_holds(n + 1);
        client.shutdown(Shutdown::Both).unwrap();
        drop(client);
        // The request to the model also ends.
        let ended = format!("http {key}: a turn ended (cancelled)");
        door.gateway.wait_for_stderr(&ended);
    }
    // The stored part of the turn remains in its conversation.
    let body = json!({ "messages": [{ "role": "user", "content": "again" }] });
    assert_eq!(
        door.post(&body, &["X-Session: k"]).is(200).text(),
        "Here again."
    );
    let session = home.session("http_k");
    session.has_one_result_per_call();
    assert_eq!(session.texts("user").len(), 2);
    assert_eq!(session.texts("tool").len(), 1);
    model.release();
}

#[test]
fn more_turns_than_may_run_wait_and_none_is_lost() {
    let model = Model::answering(|_, _| Reply::text("ok"));
    let home = home(&model);
    let door = &open(&home);
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..50)
            .map(|n| scope.spawn(move || door.ask(&format!("question {n}"))))
            .collect();
        for answer in asked {
            assert_eq!(answer.join().unwrap().is(200).text(), "ok");
        }
    });
    assert_eq!(model.asked(), 50);
}

/// Returns settings that only enable the endpoint.
fn enabled() -> Value {
    let http = json!({ "enabled": true, "listen": "127.0.0.1:0" });
    json!({ "channels": { "http": http }, "cron": { "enabled": false } })
}

#[test]
fn requests_without_token_are_refused() {
    let model = Model::never_asked();
    let home = Home::asking(&model, &enabled());
    let served = open(&home);
    let request = |token: &str| {
        let head = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n";
        served.raw(format!("{head}{token}\r\n").as_bytes()).status
    };
    assert_eq!(request(""), 401);
    assert_eq!(request("Authorization: Bearer \r\n"), 401);
    let made = home.path("state/http_token");
    let token = &fs::read_to_string(&made).unwrap();
    assert_eq!(token.len(), 32);
    assert_eq!(request(&format!("Authorization: Bearer {token}\r\n")), 200);
    let mode = fs::metadata(&made).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    served.gateway.signal(Signal::TERM);
    let run = served.gateway.finish();
    assert!(!run.exits(0).stderr.contains(token), "{}", run.stderr);
    let status = home.run(["status"]);
    assert!(status.exits(0).stdout.contains("state/http_token"));
}

#[test]
fn unstorable_token_error_has_a_hint() {
    let model = Model::never_asked();
    let home = Home::asking(&model, &enabled());
    let gateway = home.bantam().arg("gateway");
    let run = gateway.after("trap '' XFSZ\nulimit -f 0").run();
    run.fails(1).says("BANTAM_CHANNELS_HTTP_TOKEN");
    let short = json!({ "channels": { "http": { "token": "short" } } });
    home.config(&merged(merged(model.config(), &enabled()), &short).to_string());
    let run = home.run(["gateway"]);
    run.fails(3).says("fewer than 12");
}

/// Structured output of client libraries demands a call of the client's tool.
#[test]
fn a_demanded_call_is_one_of_the_clients_tools() {
    let model = Model::answering(|_, _| Reply::call("answer", &json!({ "n": 4 })));
    let home = home(&model);
    let door = open(&home);
    let function = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let tools = json!([function("answer"), function("read_file")]);
    let allowed = |mode: &str| {
        let allowed = json!({ "mode": mode, "tools": [function("answer")] });
        json!({ "type": "allowed_tools", "allowed_tools": allowed })
    };
    let ask = |choice: Value| {
        let messages = json!([{ "role": "user", "content": "2 + 2?" }]);
        let body = json!({ "messages": messages, "tools": tools, "tool_choice": choice });
        door.post(&body, &[])
    };
    for (choice, offered) in [
        (json!("required"), &["answer", "read_file"][..]),
        (function("answer"), &["answer"]),
        (json!({ "type": "function", "name": "answer" }), &["answer"]),
        (allowed("required"), &["answer"]),
    ] {
        let answer = ask(choice.clone()).is(200).json();
        let called = &answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"];
        assert_eq!(called, "answer", "{choice}");
        let sent = model.request(model.asked() - 1);
        assert_eq!(sent.body["tool_choice"], "required", "{choice}");
        assert_eq!(sent.tools(), offered, "{choice}");
    }
    ask(allowed("auto")).is(200);
    let sent = model.request(model.asked() - 1);
    assert!(sent.body.get("tool_choice").is_none(), "{}", sent.body);
    assert!(sent.tools().contains(&"answer"), "{:?}", sent.tools());
    for wrong in [
        function("nosuch"),
        json!("always"),
        json!({ "type": "x" }),
        allowed("always"),
        json!(5),
    ] {
        let refused = ask(wrong.clone()).is(400).json();
        assert_eq!(refused["error"]["param"], "tool_choice", "{wrong}");
    }
    let none =
        json!({ "messages": [{ "role": "user", "content": "hi" }], "tool_choice": "required" });
    door.post(&none, &[]).is(400);
}

/// Anthropic's API has other names for the same.
#[test]
fn a_demanded_call_and_a_stop_are_said_in_the_words_of_the_host() {
    let model = Model::answering(|_, _| Reply::error(400, "enough"));
    let anthropic = json!({ "model_list": [{ "model": "anthropic/claude-test" }] });
    let home = Home::asking(&model, &merged(settings(), &anthropic));
    let door = open(&home);
    let tool = json!({ "type": "function", "function": { "name": "answer" } });
    let body = json!({
        "messages": [{ "role": "user", "content": "hi" }],
        "tools": [tool], "tool_choice": tool, "stop": "END",
    });
    door.post(&body, &[]);
    let sent = model.request(0).body;
    assert_eq!(sent["tool_choice"], json!({ "type": "any" }));
    assert_eq!(sent["stop_sequences"], json!(["END"]));
}

#[test]
fn a_call_in_a_clients_history_gets_an_id_that_anthropic_takes() {
    let answer = json!({ "type": "message", "content": [{ "type": "text", "text": "Sun." }], "stop_reason": "end_turn" });
    let model = Model::scripted([Reply::json(200, &answer)]);
    let claude = json!({ "model_list": [{ "model": "anthropic/claude-test" }] });
    let home = Home::asking(&model, &merged(settings(), &claude));
    let function = json!({ "name": "weather", "arguments": "{}" });
    let call = json!({ "id": "functions.weather:0", "type": "function", "function": function });
    let messages = json!([
        { "role": "user", "content": "Weather in Ulm?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "functions.weather:0", "content": "sunny" },
    ]);
    open(&home)
        .post(&json!({ "messages": messages }), &[])
        .is(200);
    let sent = &model.request(0).body["messages"];
    let id = sent[1]["content"][0]["id"].as_str().unwrap();
    assert!(id.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
    assert_eq!(sent[2]["content"][0]["tool_use_id"], id);
}
