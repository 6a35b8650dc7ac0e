//! A host's refusals are learned once, and not repeated by the next run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, has_none, merged};
use crate::model::{Model, Reply, Request};
use crate::pdf::pdf;

/// A second of silence has more bytes, but no host here listens.
const WAV: &[u8] =
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\0\0\0\0";
const NO_MAX_TOKENS: &str = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";

/// Returns a host that refuses each of these fields, like real hosts.
fn strict(refused: &'static [(&'static str, &'static str)]) -> Model {
    Model::answering(move |request, _| answer(request, refused))
}

fn answer(request: &Request, refused: &[(&str, &str)]) -> Reply {
    let found = refused
        .iter()
        .find(|(field, _)| request.body.get(*field).is_some());
    found.map_or_else(|| Reply::text("Here."), |(_, says)| Reply::error(400, says))
}

fn rows(home: &Home) -> Vec<Value> {
    let text = fs::read_to_string(home.path("state/hosts.json")).unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(value["models"].take()).unwrap()
}

#[test]
fn a_refusal_is_met_once_and_not_by_the_next_run() {
    let model = strict(&[
        ("max_tokens", NO_MAX_TOKENS),
        (
            "stream_options",
            "Extra inputs are not permitted: stream_options",
        ),
    ]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).answers("Here.\n").is_quiet();
    assert_eq!(model.requests().len(), 3, "two refusals, and an answer");
    home.agent(["-m", "hi"]).answers("Here.\n").is_quiet();
    home.agent(["--no-session", "-m", "hi"]).answers("Here.\n");
    assert_eq!(model.requests().len(), 5, "none any more");
    let body = model.request(3).body;
    assert_eq!(
        (body.get("max_tokens"), &body["max_completion_tokens"]),
        (None, &json!(8192))
    );

    let path = home.path("state/hosts.json");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(!fs::read_to_string(&path).unwrap().contains(CANARY));
    let run = home.agent(["--dry-run", "-m", "hi"]);
    assert!(
        run.stdout.contains("max_completion_tokens"),
        "it shows what would go out: {}",
        run.stdout
    );

    let host = model.base().replace("http://", "").replace("/v1", "");
    let run = home.run(["status"]);
    run.exits(0);
    let line = format!(
        "learned    test-model at {host}: requires max_completion_tokens instead of max_tokens (since 20"
    );
    assert!(
        run.stdout.contains(&line) && run.stdout.contains("hosts.json"),
        "{}",
        run.stdout
    );
    let object = home.run(["status", "--json"]).json();
    let told: Vec<&Value> = object["learned"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["says"])
        .collect();
    let says = [
        "requires max_completion_tokens instead of max_tokens",
        "does not support stream_options",
    ];
    assert_eq!(told, says);

    // After the file is removed, the refusal is learned again.
    fs::remove_file(path).unwrap();
    home.agent(["-m", "hi"]).exits(0);
    assert_eq!(model.requests().len(), 8);
}

#[test]
fn quirks_expire_after_30_days() {
    let model = strict(&[("max_tokens", NO_MAX_TOKENS)]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0);
    let [mut row] = rows(&home).try_into().unwrap();
    let at = row["at"].as_u64().unwrap();
    // A limit that no answer fits into is not believed.
    row["max_tokens"] = json!(1);
    for (days, requests) in [(29, 1), (31, 2)] {
        row["at"] = json!(at - days * 86_400);
        home.write("state/hosts.json", json!({ "models": [row] }).to_string());
        let before = model.requests().len();
        home.agent(["-m", "hi"]).exits(0);
        assert_eq!(
            model.requests().len() - before,
            requests,
            "after {days} days"
        );
        let sent = model.requests().pop().unwrap().body;
        assert_eq!(sent["max_completion_tokens"], 8192);
    }
    assert!(
        rows(&home)[0]["at"].as_u64() >= Some(at),
        "it is learned anew"
    );
}

/// One pixel.
const GIF: &[u8] = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;";

fn has_image(request: &Request) -> bool {
    request.body.to_string().contains("image_url")
}

#[test]
fn model_without_images_is_asked_without_them() {
    let (model, home) = Home::of(Model::answering(move |request, _| {
        if has_image(request) {
            Reply::error(404, "No endpoints found that support image input")
        } else {
            Reply::text("Seen.")
        }
    }));
    let pixel = home.write("pixel.gif", GIF);
    let look = || {
        home.bantam()
            .args(["agent", "-m", "what is this?", "-a"])
            .arg(&pixel)
            .run()
    };
    look().answers("Seen.\n").says("does not support images");
    assert_eq!(model.requests().len(), 2);
    let asked = model.request(1).last("user");
    assert!(asked.contains("left out"), "{asked}");
    home.agent(["-m", "and now?"]).exits(0).is_quiet();
    look().exits(0).says("does not support images");
    assert_eq!(model.requests().len(), 4, "none is refused again");
}

/// Returns the names of the tools in a request.
fn tools(request: &Request) -> Vec<String> {
    let tools = request.body["tools"].as_array().into_iter().flatten();
    let name = |tool: &Value| tool["function"]["name"].as_str().map(str::to_owned);
    tools.filter_map(name).collect()
}

fn max_tokens(request: &Request) -> u64 {
    request.body["max_tokens"].as_u64().unwrap_or_default()
}

/// Returns the refusal of a request, if it is refused.
type Refuse = fn(&Request) -> Option<Reply>;

fn error_of(message: &str, param: &str) -> Reply {
    let error = json!({ "error": { "message": message, "param": param, "code": "invalid" } });
    Reply::json(400, &error)
}

/// A host's rule for each kind of change.
const RULES: [(&str, Refuse); 12] = [
    ("role of the prompt", |request| {
        let says = "System role not supported";
        let role = &request.messages()[0]["role"];
        (role == "system").then(|| Reply::error(400, says))
    }),
    ("tools without a flag of the server", |request| {
        let says = "tools param requires --jinja flag";
        (!tools(request).is_empty()).then(|| Reply::error(500, says))
    }),
    ("limit of the reply", |request| {
        let says =
            "max_tokens is too large: 8192. This model supports at most 4096 completion tokens";
        (max_tokens(request) > 4096).then(|| error_of(says, "max_tokens"))
    }),
    ("window", |request| {
        let says = "This model's maximum context length is 8192 tokens and your request has 1000 input tokens";
        (max_tokens(request) > 7000).then(|| error_of(says, ""))
    }),
    ("length of the reply, below a number", |request| {
        (max_tokens(request) > 4096).then(|| error_of("max_tokens must be less than 4097", ""))
    }),
    ("number of tools", |request| {
        let count = tools(request).len();
        let says = format!(
            "Invalid 'tools': array too long. Expected an array with maximum length 5, but got an array with length {count} instead."
        );
        (count > 5).then(|| error_of(&says, "tools"))
    }),
    ("one tool by its place", |request| {
        let at = tools(request).iter().position(|name| name == "exec")?;
        Some(error_of(
            "object schema missing properties",
            &format!("tools[{at}].function.parameters"),
        ))
    }),
    ("one tool by its name", |request| {
        let says =
            "Invalid schema for function 'exec': In context=(), object schema missing properties.";
        tools(request)
            .contains(&"exec".to_owned())
            .then(|| Reply::error(400, says))
    }),
    ("field", |request| {
        let says = "Unsupported parameter: 'stream_options'";
        request
            .body
            .get("stream_options")
            .map(|_| Reply::error(400, says))
    }),
    ("name of a field", |request| {
        request
            .body
            .get("max_tokens")
            .map(|_| Reply::error(400, NO_MAX_TOKENS))
    }),
    ("streaming", |request| {
        let says = "Your organization must be verified to stream this model.";
        request.is_streamed().then(|| error_of(says, "stream"))
    }),
    ("reasoning in each reply", |request| {
        let says = "The reasoning_content in the thinking mode must be passed back to the API.";
        let replies = request.messages();
        let mut replies = replies
            .iter()
            .filter(|message| message["role"] == "assistant");
        replies
            .any(|reply| reply.get("reasoning_content").is_none())
            .then(|| Reply::error(400, says))
    }),
];

#[test]
fn change_is_made_once_and_keeps_the_users_message() {
    for (what, refuse) in RULES {
        let refused = Arc::new(AtomicUsize::new(0));
        let count = refused.clone();
        let model = Model::answering(move |request, _| match refuse(request) {
            Some(reply) => {
                count.fetch_add(1, Ordering::SeqCst);
                reply
            }
            None => Reply::text("Yes."),
        });
        let home = Home::with(&model.config());
        home.agent(["-m", "my name is Zora"]).answers("Yes.\n");
        for question in ["who am I?", "and now?"] {
            home.agent(["-m", question]).answers("Yes.\n");
        }
        assert_eq!(refused.load(Ordering::SeqCst), 1, "{what}");
        let said = model.requests().pop().unwrap().texts("user").join(" ");
        assert!(said.contains("Zora"), "{what}: {said}");
    }
}

/// A host's rules for what a model has said before.
const RULES_OF_REPLIES: [(&str, Refuse); 3] = [
    ("no text beside calls", |request| {
        let messages = request.messages();
        let mut calls = messages.iter().filter(|message| has_calls(message));
        calls
            .any(|message| message["content"].is_null())
            .then(|| Reply::error(400, "content cannot be null"))
    }),
    ("thoughts of an earlier reply", |request| {
        let messages = request.messages();
        let mut messages = messages.iter();
        messages
            .any(|message| message.get("reasoning_content").is_some())
            .then(|| Reply::error(400, "property 'reasoning_content' is unsupported"))
    }),
    ("recordings", |request| {
        let body = request.body.to_string();
        body.contains("input_audio")
            .then(|| Reply::error(400, "this model does not support audio input"))
    }),
];

#[test]
fn rule_about_earlier_replies_is_learned_once() {
    for (what, refuse) in RULES_OF_REPLIES {
        let refused = Arc::new(AtomicUsize::new(0));
        let count = refused.clone();
        let model = Model::answering(move |request, n| {
            if let Some(reply) = refuse(request) {
                count.fetch_add(1, Ordering::SeqCst);
                return reply;
            }
            let messages = request.messages();
            if messages.last().is_some_and(|last| last["role"] == "tool") {
                return Reply::text("Listed.");
            }
            let function = json!({ "name": "list_dir", "arguments": "{\"path\":\".\"}" });
            let call =
                json!({ "id": format!("call{n:05}"), "type": "function", "function": function });
            let message = json!({ "role": "assistant", "content": null, "reasoning_content": "Look.", "tool_calls": [call] });
            let choice = json!({ "index": 0, "message": message, "finish_reason": "tool_calls" });
            Reply::json(200, &json!({ "choices": [choice] }))
        });
        let home = Home::with(&model.config());
        let sound = home.write("hello.wav", WAV);
        for question in ["one", "two", "three"] {
            let mut run = home.bantam().args(["agent", "-s", "x", "-m", question]);
            run = run.arg("-a").arg(&sound);
            run.run().answers("Listed.\n");
        }
        assert_eq!(refused.load(Ordering::SeqCst), 1, "{what}");
    }
}

/// Whether a message is a model's reply with tool calls.
fn has_calls(message: &Value) -> bool {
    message["tool_calls"].is_array()
}

#[test]
fn demanded_signature_is_sent_by_the_next_run() {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let model = Model::answering(move |request, _| {
        let messages = request.messages();
        let called: Vec<&&Value> = messages
            .iter()
            .filter(|message| has_calls(message))
            .collect();
        let is_unsigned = |reply: &&&Value| reply["tool_calls"][0]["extra_content"].is_null();
        if called.iter().any(is_unsigned) {
            count.fetch_add(1, Ordering::SeqCst);
            let says = "Function call is missing a thought_signature in functionCall parts.";
            return Reply::error(400, says);
        }
        if called.is_empty() {
            Reply::call("list_dir", &json!({ "path": "." }))
        } else {
            Reply::text("Yes.")
        }
    });
    let home = Home::with(&model.config());
    for question in ["my name is Zora", "who am I?"] {
        home.agent(["-m", question]).answers("Yes.\n");
    }
    assert_eq!(refused.load(Ordering::SeqCst), 1);
    let said = model.requests().pop().unwrap().texts("user").join(" ");
    assert!(said.contains("Zora"), "{said}");
}

#[test]
fn stale_thoughts_are_left_out_of_one_request() {
    let thoughts = json!([{ "type": "reasoning.encrypted", "data": "abc" }]);
    let model = Model::answering(move |request, n| {
        let messages = request.messages();
        let has_thoughts = messages
            .iter()
            .any(|message| !message["reasoning_details"].is_null());
        match n {
            0 => Reply::json(
                200,
                &json!({ "choices": [{ "finish_reason": "tool_calls", "message": {
                    "role": "assistant", "content": null, "reasoning_details": thoughts,
                    "tool_calls": [{ "id": "a", "type": "function",
                        "function": { "name": "list_dir", "arguments": "{\"path\":\".\"}" } }],
                } }] }),
            ),
            // The host has forgotten them by the next turn.
            2.. if has_thoughts && request.last("user").contains("who am I?") => {
                Reply::error(400, "Invalid `signature` in `thinking` block")
            }
            _ => Reply::text("Yes."),
        }
    });
    let home = Home::with(&model.config());
    home.agent(["-m", "my name is Zora"]).answers("Yes.\n");
    home.agent(["-m", "who am I?"]).answers("Yes.\n");
    let last = model.requests().pop().unwrap();
    assert!(last.texts("user").join(" ").contains("Zora"));
    has_none(&last.body["messages"].to_string(), ["reasoning_details"]);
}

/// Ends of a question that a host answers with this status and these words: the exit code.
const ENDS: [(u16, &str, i32); 7] = [
    (403, "Your input was flagged by our moderation", 1),
    (403, "Country, region, or territory not supported", 1),
    (403, "Project `p` does not have access to model `m`", 3),
    (403, "This key may not be used here", 4),
    (
        500,
        "model requires more system memory (9.8 GiB) than is available",
        1,
    ),
    (503, "CUDA error: out of memory", 1),
    (413, "<html><h1>413 Request Entity Too Large</h1></html>", 1),
];

#[test]
fn refusal_ends_with_the_hosts_words_and_no_second_request() {
    for (status, says, code) in ENDS {
        let (model, home) = Home::of(Model::answering(move |_, _| match status {
            413 => Reply::html(status, says),
            _ => Reply::error(status, says),
        }));
        let run = home.agent(["-m", "hi"]);
        run.exits(code)
            .says(if status == 413 { "too large" } else { says });
        assert_eq!(model.asked(), 1, "{says}");
    }
}

/// Refusals that ask for nothing a host may ask for, or for what changes no request, and the exit code.
const NO_CHANGE: [(u16, &str, i32); 7] = [
    (400, "set 'messages' to 'x'", 1),
    (400, "set 'model' to 'dear-model'", 1),
    (400, "set `tools` to 'none'", 1),
    (402, "You requested up to 8192, but can only afford 133.", 4),
    (400, "the maximum context length is 300 tokens", 1),
    (400, "see v1/chat/completions", 1),
    (422, "set 'temperature_range' to '9'", 1),
];

#[test]
fn refusal_that_changes_no_request_is_met_once_and_teaches_nothing() {
    for (status, says, code) in NO_CHANGE {
        let (model, home) = Home::of(Model::answering(move |_, _| Reply::error(status, says)));
        home.agent(["-m", "hi"]).exits(code).says(says);
        assert_eq!(model.asked(), 1, "{says}");
        assert!(!home.path("state/hosts.json").exists(), "{says}");
        home.agent(["--new", "-m", "hi"]).exits(code);
        assert_eq!(model.asked(), 2, "{says}: the host is asked again");
    }
}

#[test]
fn length_in_the_users_own_fields_is_not_shortened() {
    let says = "max_tokens is too large: 9000. This model supports at most 4096 completion tokens";
    let model = Model::answering(move |_, _| Reply::error(400, says));
    let own = json!({ "model_list": [ { "extra_body": { "max_tokens": 9000 } } ] });
    let home = Home::with(&merged(model.config(), &own));
    home.agent(["-m", "hi"]).exits(1).says("too large");
    assert_eq!(model.asked(), 1, "no request is repeated without a change");
}

/// What a model wrote that its host refused, and what becomes of it.
const SAMPLES: [(&str, &str); 6] = [
    (r#"<function=list_dir>{"path": "."}</function>"#, "a call"),
    (r#"<function=list_dir{"path": "."}</function>"#, "a call"),
    (
        r#"I look. <function=list_dir>{"path": "."}</function>"#,
        "a call",
    ),
    (
        r#"[{"name": "list_dir", "parameters": {"path": "."}}]"#,
        "a call",
    ),
    ("I need no tool for that.", "the answer"),
    (
        r#"<function=list_dir>{"path": </function>"#,
        "another sample",
    ),
];

#[test]
fn reply_is_shortened_to_what_the_request_leaves() {
    let says = "input length and `max_tokens` exceed context limit: 193000 + 8192 > 200000, decrease input length or `max_tokens` and try again";
    let model = Model::answering(move |request, _| {
        if max_tokens(request) > 7000 {
            Reply::error(400, says)
        } else {
            Reply::text("Yes.")
        }
    });
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).answers("Yes.\n");
    assert_eq!((model.asked(), max_tokens(&model.request(1))), (2, 7000));
    let [row] = rows(&home).try_into().unwrap();
    assert_eq!(row["window"], 200_000);
    assert!(
        row.get("max_tokens").is_none(),
        "of this request only: {row}"
    );
}

/// Returns the roles of a request without the prompt.
fn roles(request: &Request) -> Vec<String> {
    let messages = request.messages();
    let roles = messages
        .iter()
        .filter_map(|message| message["role"].as_str());
    let roles = roles.filter(|role| *role != "system");
    roles.map(str::to_owned).collect()
}

#[test]
fn results_are_sent_as_text_to_a_template_without_their_role() {
    for (status, says) in [
        (
            500,
            "Conversation roles must alternate user/assistant/user/assistant/...",
        ),
        (400, "Only user and assistant roles are supported!"),
    ] {
        let model = Model::answering(move |request, n| {
            let roles = roles(request);
            let is_odd = |(at, role): (usize, &String)| *role != ["user", "assistant"][at % 2];
            match n {
                0 => Reply::call("list_dir", &json!({})).saying("I look."),
                _ if roles.iter().enumerate().any(is_odd) => Reply::error(status, says),
                _ => Reply::text(&request.last("user")),
            }
        });
        let home = Home::with(&model.config());
        home.write("workspace/here.txt", "");
        let run = home.agent(["-m", "what is here?"]);
        assert!(run.stdout.contains("here.txt"), "{}", run.stdout);
        home.agent(["-m", "and now?"]).exits(0);
        assert_eq!(model.asked(), 4, "learned once");
    }
}

#[test]
fn results_that_are_sent_as_text_name_the_images_left_out() {
    let model = Model::answering(|request, n| match n {
        0 => Reply::call("read_file", &json!({ "path": "pixel.gif" })),
        _ if has_image(request) => Reply::error(400, "image input is not supported"),
        _ if roles(request).contains(&"tool".to_owned()) => {
            Reply::error(400, "Only user and assistant roles are supported!")
        }
        _ => Reply::text(&request.last("user")),
    });
    let home = Home::with(&model.config());
    home.write("workspace/pixel.gif", GIF);
    let run = home.agent(["-m", "look"]);
    assert!(run.stdout.contains("left out"), "{}", run.stdout);
}

#[test]
fn message_is_not_blamed_for_a_refusal_without_words() {
    let page = "<html>The plain HTTP request was sent to HTTPS port</html>";
    for refusal in [
        Reply::html(400, page),
        Reply::json(400, &json!({})),
        Reply::error(400, "Client sent an HTTP request to an HTTPS server."),
    ] {
        let model = Model::answering(move |_, n| match n {
            0 => refusal.clone(),
            _ => Reply::text("Yes."),
        });
        let home = Home::with(&model.config());
        home.agent(["-m", "my name is Zora"])
            .fails(1)
            .says("https://");
        home.agent(["-m", "hi"]).answers("Yes.\n");
        let said = model.request(1).texts("user").join(" ");
        assert!(said.contains("Zora"), "{said}");
    }
}

#[test]
fn image_of_a_tool_follows_a_reply_where_the_host_demands_it() {
    let model = Model::answering(|request, n| {
        let roles = roles(request);
        let is_refused = roles.windows(2).any(|pair| pair == ["tool", "user"]);
        match n {
            0 => Reply::call("read_file", &json!({ "path": "pixel.gif" })),
            _ if is_refused => Reply::error(400, "Unexpected role 'user' after role 'tool'"),
            _ => Reply::text(if has_image(request) {
                "Seen."
            } else {
                "Not seen."
            }),
        }
    });
    let home = Home::with(&model.config());
    home.write("workspace/pixel.gif", GIF);
    home.agent(["-m", "look"]).answers("Seen.\n");
}

#[test]
fn tools_are_omitted_if_the_model_calls_them_while_they_are_withheld() {
    let model = Model::answering(|request, _| {
        let says = "Tool choice is none, but model called a tool";
        let error = json!({ "error": { "message": says, "code": "tool_use_failed" } });
        if request.body["tool_choice"] == "none" {
            Reply::json(400, &error)
        } else {
            Reply::text("In words.")
        }
    });
    let home = Home::with(&model.config());
    for asked in [2, 3] {
        let run = home.agent(["--max-steps", "1", "-m", "hi"]);
        run.answers("In words.\n");
        assert_eq!(model.asked(), asked);
    }
}

#[test]
fn refused_sample_is_read_or_asked_for_again() {
    for (sample, what) in SAMPLES {
        let model = Model::answering(move |request, n| {
            let says = "Failed to call a function. Please adjust your prompt.";
            let error = json!({ "error": { "message": says, "code": "tool_use_failed", "failed_generation": sample } });
            match n {
                0 => Reply::json(400, &error),
                _ if request.texts("tool").is_empty() => Reply::text("Without."),
                _ => Reply::text("With."),
            }
        });
        let mut config = model.config();
        config["agents"]["defaults"]["retry_initial_delay"] = json!(0.01);
        let home = Home::with(&config);
        let (printed, asked) = match what {
            "a call" => ("With.\n", 2),
            "the answer" => ("I need no tool for that.\n", 1),
            _ => ("Without.\n", 2),
        };
        home.agent(["-m", "hi"]).answers(printed);
        assert_eq!(model.asked(), asked, "{sample}");
        home.agent(["-m", "and now?"]).exits(0);
        let said = model.requests().pop().unwrap().texts("user").join(" ");
        assert!(said.contains("hi"), "{sample}: {said}");
    }
}

#[test]
fn host_that_takes_no_files_gets_their_text() {
    let model = Model::answering(|request, _| {
        let has_file = request.body.to_string().contains("file_data");
        if has_file {
            Reply::error(400, "Invalid content type: file is not supported")
        } else {
            Reply::text("Read.")
        }
    });
    let home = Home::with(&model.config());
    let file = home.write("plan.pdf", pdf());
    for asked in [2, 3] {
        let run = home.bantam();
        let run = run.args(["agent", "--new", "-m", "what is this?", "-a"]);
        run.arg(&file).run().answers("Read.\n");
        assert_eq!(model.asked(), asked);
    }
}

#[test]
fn payment_error_limits_reply_length() {
    let model = Model::answering(|request, n| {
        let says = "This request requires more credits, or fewer max_tokens. You requested up to 8192 tokens, but can only afford 2417.";
        if n == 0 && max_tokens(request) > 2417 {
            Reply::error(402, says)
        } else {
            Reply::text("Yes.")
        }
    });
    let home = Home::with(&model.config());
    for _ in 0..2 {
        home.agent(["-m", "hi"]).exits(0);
    }
    let sent: Vec<u64> = model.requests().iter().map(max_tokens).collect();
    assert_eq!(sent, [8192, 2417, 8192]);
}

#[test]
fn key_in_an_error_is_removed_before_the_error_is_cut() {
    for padding in [0, 250, 275, 290] {
        let says = format!("{}{CANARY}", "x".repeat(padding));
        let model = Model::scripted([Reply::error(400, &says)]);
        let run = Home::with(&model.config()).agent(["-m", "hi"]);
        run.exits(1).does_not_say(&CANARY[..6]);
    }
}

/// Returns a host with this list, which has only the models of the list.
fn listing(ids: &'static [&'static [&'static str]]) -> (Model, Arc<AtomicUsize>) {
    let now = Arc::new(AtomicUsize::new(0));
    let at = now.clone();
    let model = Model::answering(move |request, _| {
        let ids = ids[at.load(Ordering::SeqCst)];
        if request.method == "GET" {
            let rows: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
            return Reply::json(200, &json!({ "data": rows }));
        }
        let id = request.body["model"].as_str().unwrap_or_default();
        if ids.contains(&id) {
            Reply::text(id)
        } else {
            Reply::error(404, "The model does not exist")
        }
    });
    (model, now)
}

#[test]
fn default_model_is_found_remembered_and_replaced() {
    let (model, now) = listing(&[
        &["gpt-4.1-mini", "gpt-5-mini", "gpt-5"],
        &["gpt-5", "gpt-6-mini"],
    ]);
    let entry = json!({ "model": "openai/*", "api_base": model.base(), "api_key": CANARY });
    let home = Home::with(&json!({ "model_list": [entry] }));
    home.agent(["--dry-run", "-m", "hi"]).exits(0);
    assert_eq!(model.requests().len(), 0, "a choice asks nobody");
    for _ in 0..2 {
        home.agent(["-m", "hi"]).answers("gpt-5-mini\n").is_quiet();
    }
    assert_eq!(model.requests().len(), 3, "the list is asked for once");
    now.store(1, Ordering::SeqCst);
    home.agent(["-m", "hi"])
        .answers("gpt-6-mini\n")
        .says("gpt-5-mini is no longer available; using openai/gpt-6-mini");
    home.agent(["-m", "hi"]).answers("gpt-6-mini\n").is_quiet();
    // A model chosen by the user is never replaced.
    home.agent(["--model", "openai/gpt-5-mini", "-m", "hi"])
        .exits(3);
}

/// Returns the vendors of docs/settings.md with a variable for their key: name, variables, and default models.
fn vendors() -> Vec<[String; 3]> {
    let page = include_str!("../../docs/settings.md");
    let rows = page.lines().filter(|line| line.matches('|').count() == 5);
    let vendors: Vec<[String; 3]> = rows
        .map(|row| {
            let mut cells = row.split('|').map(|cell| cell.trim().replace('`', ""));
            [1, 0, 0].map(|skip| cells.nth(skip).unwrap_or_default())
        })
        .filter(|[_, variables, _]| variables.ends_with("_KEY") || variables.ends_with("_TOKEN"))
        .collect();
    assert!(vendors.len() >= 17, "{vendors:?}");
    vendors
}

#[test]
fn each_vendors_variable_is_enough_for_the_first_question() {
    for [vendor, variables, models] in vendors() {
        for variable in variables.split_whitespace() {
            let ids = models.split_whitespace().map(str::to_owned);
            let ids: Vec<String> = ids.collect();
            let wanted = ids.first().cloned();
            let anthropic = vendor == "anthropic";
            let model = Model::answering(move |request, _| {
                if request.method == "GET" {
                    let rows: Vec<Value> = ids.iter().rev().map(|id| json!({ "id": id })).collect();
                    return Reply::json(200, &json!({ "data": rows }));
                }
                let id = request.body["model"].as_str().unwrap_or_default();
                if anthropic {
                    return Reply::json(
                        200,
                        &json!({ "role": "assistant", "content": [{ "type": "text", "text": id }],
                            "stop_reason": "end_turn", "usage": {} }),
                    );
                }
                Reply::text(id)
            });
            let entry = json!({ "model": format!("{vendor}/*"), "api_base": model.base() });
            let home = Home::with(&json!({ "model_list": [entry] }));
            let ask = home.bantam().env(variable, CANARY);
            let run = ask.args(["agent", "-m", "hi"]).run();
            match wanted {
                Some(id) => run.answers(&format!("{id}\n")).is_quiet(),
                // Its models have names chosen by the user.
                None => run.fails(3),
            };
            let asked = model.requests();
            let sent = asked
                .iter()
                .all(|request| format!("{:?}", request.headers).contains(CANARY));
            assert!(sent, "{vendor} {variable}");
        }
    }
}
