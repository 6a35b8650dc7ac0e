//! OpenAI's Responses API, with a stand-in that holds to the rules of its reference.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Home, has_fields, merged};
use crate::model::{Model, Reply, Request, call};

/// Returns a configuration that names this model `test` and sets its API.
fn config(model: &Model) -> Value {
    merged(
        model.config(),
        &json!({ "model_list": [ { "api": "responses" } ] }),
    )
}

fn event(data: &Value) -> String {
    format!(
        "event: {}\ndata: {data}\n\n",
        data["type"].as_str().unwrap()
    )
}

fn message(text: &str) -> Value {
    let part = json!({ "type": "output_text", "text": text, "annotations": [] });
    json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part] })
}

fn wanted(id: &str, name: &str, arguments: &Value) -> Value {
    json!({
        "type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name,
        "arguments": arguments.to_string(), "status": "completed"
    })
}

fn thought(words: &str) -> Value {
    let summary = json!([{ "type": "summary_text", "text": words }]);
    json!({ "type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": format!("sealed {words}") })
}

/// Returns the response object of these items.
fn response(status: &str, output: &[Value]) -> Value {
    let usage = json!({
        "input_tokens": 28, "input_tokens_details": { "cached_tokens": 20 },
        "output_tokens": 9, "output_tokens_details": { "reasoning_tokens": 4 }
    });
    json!({
        "id": "resp_1", "object": "response", "status": status, "output": output, "usage": usage,
        "error": null, "incomplete_details": null
    })
}

/// Returns the events of one item, its text and arguments in two pieces.
fn events_of(index: usize, item: &Value) -> Vec<Value> {
    let mut begun = item.clone();
    begun["status"] = json!("in_progress");
    let (kind, whole) = match item["type"].as_str() {
        Some("message") => {
            begun["content"] = json!([]);
            let text = item["content"][0]["text"].as_str();
            ("response.output_text.delta", text)
        }
        Some("function_call") => {
            begun["arguments"] = json!("");
            let arguments = item["arguments"].as_str();
            ("response.function_call_arguments.delta", arguments)
        }
        _ => {
            begun["encrypted_content"] = json!("not yet");
            let words = item["summary"][0]["text"].as_str();
            ("response.reasoning_summary_text.delta", words)
        }
    };
    let whole = whole.unwrap_or_default();
    let (first, second) = whole.split_at(whole.len() / 2);
    let delta = |piece: &str| json!({ "type": kind, "output_index": index, "item_id": item["id"], "delta": piece });
    vec![
        json!({ "type": "response.output_item.added", "output_index": index, "item": begun }),
        delta(first),
        delta(second),
        json!({ "type": "response.output_item.done", "output_index": index, "item": item }),
    ]
}

/// Returns a streamed or whole reply of these items, as the request asks.
fn replying(request: &Request, output: &[Value]) -> Reply {
    let whole = response("completed", output);
    if !request.is_streamed() {
        return Reply::json(200, &whole);
    }
    let mut events =
        vec![json!({ "type": "response.created", "response": response("in_progress", &[]) })];
    for (index, item) in output.iter().enumerate() {
        events.extend(events_of(index, item));
    }
    events.push(json!({ "type": "response.completed", "response": whole }));
    Reply::stream(events.iter().map(event))
}

/// Returns the API's refusal of a request that breaks its rules.
fn refusal(request: &Request) -> Option<Reply> {
    let body = &request.body;
    let refuse = |says: &str| Some(Reply::error(400, says));
    let known = "model input instructions tools tool_choice stream store include reasoning \
        max_output_tokens temperature";
    let mut fields = body.as_object().unwrap().keys();
    if let Some(field) = fields.find(|field| !known.split(' ').any(|known| known == *field)) {
        return refuse(&format!("Unknown parameter: '{field}'."));
    }
    let tools = body["tools"].as_array().into_iter().flatten();
    if tools
        .into_iter()
        .any(|tool| tool["strict"] != false || tool["name"].is_null())
    {
        return refuse("Invalid schema: 'additionalProperties' is required to be false.");
    }
    let mut open = BTreeSet::new();
    let items: Vec<&Value> = body["input"].as_array().unwrap().iter().collect();
    for (n, item) in items.iter().enumerate() {
        match item["type"].as_str().unwrap() {
            "function_call" => drop(open.insert(item["call_id"].clone().to_string())),
            "function_call_output" if !open.remove(&item["call_id"].to_string()) => {
                return refuse("No tool call found for function call output.");
            }
            "reasoning" => {
                let next = items.get(n + 1).map(|next| &next["type"]);
                if next.is_none_or(|kind| kind == "function_call_output")
                    || !item["summary"].is_array()
                {
                    return refuse("Item 'rs_1' was provided without its required following item.");
                }
            }
            _ => {}
        }
    }
    (!open.is_empty()).then(|| Reply::error(400, "No tool output found for function call."))
}

/// Returns a stand-in that gives each request in turn these items, and refuses what the API refuses.
fn stand_in(outputs: Vec<Vec<Value>>) -> Model {
    Model::answering(move |request, n| {
        if request.path != "/v1/responses" {
            return Reply::error(404, "no such page");
        }
        refusal(request).unwrap_or_else(|| replying(request, &outputs[n]))
    })
}

/// Returns the items of a request of this type.
fn items(request: &Request, kind: &str) -> Vec<Value> {
    let items = request.body["input"].as_array().unwrap().iter();
    items.filter(|item| item["type"] == kind).cloned().collect()
}

#[test]
fn a_question_is_asked_and_answered() {
    let model = stand_in(vec![vec![message("Hello.")], vec![message("Again.")]]);
    let entry = json!({ "model_list": [ { "api": "responses", "reasoning_effort": "low", "temperature": 0.5 } ] });
    let home = Home::asking(&model, &entry);
    let run = home.agent(["--json", "-m", "hi"]);
    let answer = run.exits(0).is_quiet().json();
    assert_eq!(answer["output"], "Hello.");
    assert_eq!(
        answer["usage"],
        json!({ "prompt_tokens": 28, "completion_tokens": 9, "total_tokens": 37, "cached_tokens": 20 })
    );
    let body = model.request(0).body;
    assert_eq!(body["reasoning"], json!({ "effort": "low" }));
    has_fields(&body, &json!({ "max_output_tokens": 8192, "store": false }));
    home.agent(["-s", "x", "-m", "and now?"]).prints("Again.\n");
}

#[test]
fn parallel_calls_are_run_and_answered() {
    let list = |id: &str| wanted(id, "list_dir", &json!({ "path": "." }));
    let model = stand_in(vec![
        vec![thought("look"), list("call_1"), list("call_2")],
        vec![message("Two lists.")],
    ]);
    let home = Home::with(&config(&model));
    home.agent(["-m", "go"]).answers("Two lists.\n");
    let second = model.request(1);
    let ids = |kind: &str| -> Vec<Value> {
        let items = items(&second, kind);
        items.iter().map(|item| item["call_id"].clone()).collect()
    };
    assert_eq!(ids("function_call"), [json!("call_1"), json!("call_2")]);
    assert_eq!(ids("function_call"), ids("function_call_output"));
}

#[test]
fn thoughts_go_back_as_they_came() {
    let list = wanted("call_1", "list_dir", &json!({ "path": "." }));
    let model = stand_in(vec![
        vec![thought("look"), list],
        vec![thought("done"), message("Nothing.")],
        vec![message("Still nothing.")],
    ]);
    let home = Home::with(&config(&model));
    home.agent(["-s", "x", "-m", "go"]).answers("Nothing.\n");
    home.agent(["-s", "x", "-m", "and now?"])
        .answers("Still nothing.\n");
    let sealed: Vec<Value> = items(&model.request(2), "reasoning")
        .iter()
        .map(|item| item["encrypted_content"].clone())
        .collect();
    assert_eq!(sealed, [json!("sealed look"), json!("sealed done")]);
}

#[test]
fn a_picture_and_a_file_are_sent() {
    let model = stand_in(vec![vec![message("A cat.")]]);
    let home = Home::with(&config(&model));
    let picture = home.write("cat.gif", b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;");
    let file = home.write("plan.pdf", crate::pdf::pdf());
    let mut run = home.bantam();
    run = run.args(["agent", "-m", "what is this?"]);
    run = run.arg("-a").arg(&picture).arg("-a").arg(&file);
    run.run().answers("A cat.\n");
    let content = items(&model.request(0), "message")[0]["content"].to_string();
    for part in ["input_image", "input_file", "data:application/pdf;base64"] {
        assert!(content.contains(part), "{part}: {content}");
    }
}

#[test]
fn an_end_without_an_answer_is_told() {
    let failed = |code: &str, says: &str| {
        let mut failed = response("failed", &[]);
        failed["error"] = json!({ "code": code, "message": says });
        json!({ "type": "response.failed", "response": failed })
    };
    let incomplete = |reason: &str| {
        let mut cut = response("incomplete", &[]);
        cut["incomplete_details"] = json!({ "reason": reason });
        json!({ "type": "response.incomplete", "response": cut })
    };
    let error =
        json!({ "type": "error", "code": "server_error", "message": "all is lost", "param": null });
    for (end, code, says) in [
        (failed("server_error", "it broke"), 5, "it broke"),
        (
            failed(
                "context_length_exceeded",
                "Your input exceeds the context window of this model.",
            ),
            1,
            "context window",
        ),
        (error, 5, "all is lost"),
        (
            json!({ "type": "response.failed", "response": response("failed", &[]) }),
            5,
            "failed",
        ),
        (incomplete("content_filter"), 1, "content_filter"),
    ] {
        let events = [
            json!({ "type": "response.created", "response": response("in_progress", &[]) }),
            end,
        ];
        let events = events.map(|data| event(&data));
        let model = Model::answering(move |_, _| Reply::stream(events.clone()));
        let home = Home::with(&merged(
            config(&model),
            &json!({ "agents": { "defaults": { "max_retries": 0 } } }),
        ));
        home.agent(["-m", "hi"]).exits(code).says(says);
    }
}

#[test]
fn a_cut_call_is_told_to_the_model() {
    let write = wanted(
        "call_1",
        "write_file",
        &json!({ "path": "a", "content": "abc" }),
    );
    let model = Model::answering(move |request, n| {
        if n > 0 {
            let said = [message("In parts, then.")];
            return refusal(request).unwrap_or_else(|| replying(request, &said));
        }
        let mut cut = response("incomplete", &[]);
        cut["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        let mut events = events_of(0, &write);
        events.truncate(2);
        events.push(json!({ "type": "response.incomplete", "response": cut }));
        Reply::stream(events.iter().map(event))
    });
    let home = Home::with(&config(&model));
    home.agent(["-m", "write"]).answers("In parts, then.\n");
    let result = items(&model.request(1), "function_call_output")[0]["output"].to_string();
    assert!(result.contains("cut"), "{result}");
    assert!(!home.path("workspace/a").exists());
}

/// What OpenAI says when a model takes tools only here; three wordings.
const ONLY_HERE: [(u16, &str); 3] = [
    (
        400,
        "Function tools with reasoning_effort are not supported for gpt-5.4 in /v1/chat/completions. Please use /v1/responses instead.",
    ),
    (
        400,
        "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
    ),
    (
        404,
        "This model is only supported in v1/responses and not in v1/chat/completions.",
    ),
];

#[test]
fn refusal_of_chat_completions_is_met_once() {
    for (status, says) in ONLY_HERE {
        let model = Model::answering(move |request, _| match request.path.as_str() {
            "/v1/responses" => refusal(request)
                .unwrap_or_else(|| replying(request, &[thought("hm"), message("Here.")])),
            _ => Reply::error(status, says),
        });
        let entry = json!({ "model_list": [ { "reasoning_effort": "low" } ] });
        let home = Home::asking(&model, &entry);
        for asked in [2, 3, 4] {
            home.agent(["-s", "x", "-m", "hi"])
                .answers("Here.\n")
                .is_quiet();
            assert_eq!(model.asked(), asked, "{says}");
        }
        let run = home.run(["status"]);
        run.exits(0).shows("Responses API");
    }
}

/// Servers of others leave out indices and seals.
#[test]
fn calls_without_an_index_are_told_apart() {
    let list = |id: &str| wanted(id, "list_dir", &json!({ "path": "." }));
    let mut open = thought("look");
    open["encrypted_content"] = json!("");
    let output = [open, list("call_1"), list("call_2")];
    let mut events: Vec<Value> = Vec::new();
    for item in &output {
        events.extend([
            json!({ "type": "response.output_item.added", "item": item }),
            json!({ "type": "response.output_item.done", "item": item }),
        ]);
    }
    events.push(json!({ "type": "response.completed", "response": response("completed", &[]) }));
    let model = Model::answering(move |request, n| match n {
        0 => Reply::stream(events.iter().map(event)),
        _ => refusal(request).unwrap_or_else(|| replying(request, &[message("Two lists.")])),
    });
    let home = Home::with(&config(&model));
    home.agent(["-m", "go"]).answers("Two lists.\n");
    assert_eq!(items(&model.request(1), "function_call_output").len(), 2);
    assert!(items(&model.request(1), "reasoning").is_empty());
}

#[test]
fn three_apis_continue_one_conversation() {
    let chat = Model::answering(|request, _| {
        if request.texts("tool").is_empty() {
            return Reply::calls([call("a", "list_dir", &json!({ "path": "." }))]);
        }
        Reply::text("From chat.")
    });
    let responses = Model::answering(|request, n| {
        let list = wanted(&format!("call_{n}"), "list_dir", &json!({ "path": "." }));
        let output = if n.is_multiple_of(2) {
            vec![thought("look"), list]
        } else {
            vec![message("From responses.")]
        };
        refusal(request).unwrap_or_else(|| replying(request, &output))
    });
    let anthropic = Model::answering(|_, _| {
        let content = json!([{ "type": "text", "text": "From Anthropic." }]);
        Reply::json(
            200,
            &json!({ "content": content, "stop_reason": "end_turn", "usage": { "input_tokens": 1, "output_tokens": 1 } }),
        )
    });
    let entry = |name: &str, model: &str, of: &Model, api: &str| json!({ "model_name": name, "model": model, "api_base": of.base(), "api_key": "key", "api": api });
    let home = Home::with(&json!({
        "agents": { "defaults": { "model_name": "chat" } },
        "model_list": [
            entry("chat", "openai/one", &chat, ""),
            entry("responses", "openai/two", &responses, "responses"),
            entry("claude", "anthropic/three", &anthropic, ""),
        ]
    }));
    for (name, says) in [
        ("responses", "From responses.\n"),
        ("chat", "From chat.\n"),
        ("claude", "From Anthropic.\n"),
        ("responses", "From responses.\n"),
        ("claude", "From Anthropic.\n"),
        ("chat", "From chat.\n"),
    ] {
        let run = home.agent(["-s", "x", "--model", name, "-m", "go on"]);
        run.answers(says);
    }
    let sealed = |model: &Model| {
        let last = model.requests().pop().unwrap();
        last.body.to_string().contains("sealed")
    };
    assert!(sealed(&responses), "its thoughts go back to it");
    assert!(!sealed(&chat) && !sealed(&anthropic), "and to nobody else");
}
