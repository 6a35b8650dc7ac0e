//! Whole replies and tool calls, in all observed formats.

use serde_json::{Value, json};

use super::{called, case, delta, done, end, finished, stream, think, whole};
use crate::model::Reply;

fn body(body: &Value) -> Reply {
    Reply::json(200, body)
}

#[test]
fn content_comes_in_many_shapes() {
    for content in [
        json!({ "content": null }),
        json!({}),
        json!({ "content": "" }),
    ] {
        let mut message = content.clone();
        message["tool_calls"] = json!([think("a")]);
        let seen = case(
            1,
            "calls with content null, missing or empty",
            [whole(&message), done()],
        )
        .answers("Done.")
        .run();
        assert_eq!(seen.results().len(), 1, "{content}");
    }
    let parts = json!([{ "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] }, { "type": "text", "text": "Two " }, { "type": "text", "text": "parts." }]);
    case(
        2,
        "content in parts, some of them thoughts",
        [whole(&json!({ "content": parts }))],
    )
    .answers("Two parts.")
    .run();
    let data = json!({ "success": true, "data": { "choices": [ { "message": { "content": "Inside." } } ] } });
    case(5, "an answer in an envelope", [body(&data)])
        .answers("Inside.")
        .run();
    for top in [
        json!({ "output_text": "On top." }),
        json!({ "content": "On top." }),
    ] {
        case(6, "content at the top, without choices", [body(&top)])
            .answers("On top.")
            .run();
    }
    let choices = json!([
        { "index": 0, "message": { "content": "I look." }, "finish_reason": "tool_calls" },
        { "index": 1, "message": { "content": null, "tool_calls": [think("a")] }, "finish_reason": "tool_calls" },
    ]);
    let seen = case(
        8,
        "calls in another choice than the text",
        [body(&json!({ "choices": choices })), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(
        (seen.results().len(), seen.requests[1].last("assistant")),
        (1, "I look.".to_owned())
    );
    let seen = case(
        11,
        "a refusal in place of content",
        [whole(&json!({ "content": null, "refusal": "I will not." }))],
    )
    .answers("I will not.")
    .run();
    assert_eq!(seen.requests.len(), 1);
}

#[test]
fn a_reply_without_an_answer_is_an_error() {
    for choices in [
        json!({ "choices": [] }),
        json!({ "choices": null }),
        json!({}),
        json!("hello"),
    ] {
        case(3, "no choices", [body(&choices)])
            .once()
            .fails(5, "no reply in the response")
            .run();
    }
    let wrong = json!({ "error": { "code": 401, "message": "no credentials" } });
    case(4, "an error with status 200 that says 401", [body(&wrong)])
        .fails(4, "no credentials")
        .run();
    let limited = json!({ "error": { "code": 429, "message": "slow down" } });
    let seen = case(
        4,
        "an error with status 200 that says 429",
        [body(&limited), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(seen.requests.len(), 2);
    let refused = json!({ "choices": [ { "finish_reason": "error", "error": { "code": 401, "message": "no credentials" } } ] });
    case(4, "an error in a choice", [body(&refused)])
        .fails(4, "no credentials")
        .run();
    for status in [200, 404] {
        let page = Reply::html(
            status,
            "<!doctype html><html><body><h1>It works!</h1></body></html>",
        );
        let seen = case(7, "a web page", [page])
            .once()
            .fails(1, "api_base")
            .run();
        seen.run.does_not_say("<h1>");
    }
}

#[test]
fn an_answer_may_be_a_picture() {
    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let url = format!("data:image/png;base64,{PNG}");
    let image = json!({ "type": "image_url", "image_url": { "url": url } });
    let seen = case(
        2,
        "a picture beside an empty text",
        [whole(&json!({ "content": "", "images": [image] }))],
    )
    .run();
    assert_eq!(seen.requests.len(), 1);
    let session = seen.home.session("cli_default");
    let last = *session.history().last().unwrap();
    assert_eq!(last["images"][0]["mime"], "image/png");
    assert!(last["images"][0]["file"].is_string(), "{last}");
}

#[test]
fn usage_is_counted_however_it_is_written() {
    let want = json!({ "prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "cached_tokens": 3 });
    let none = json!({ "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cached_tokens": 0 });
    for (usage, want) in [
        (
            json!({ "prompt_tokens": 5.0, "completion_tokens": "2", "prompt_tokens_details": { "cached_tokens": 3 } }),
            &want,
        ),
        (
            json!({ "prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 3 }),
            &want,
        ),
        (
            json!({ "prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": "3" }),
            &want,
        ),
        (Value::Null, &none),
    ] {
        let reply =
            body(&json!({ "choices": [ { "message": { "content": "Hi." } } ], "usage": usage }));
        let seen = case(
            9,
            "usage as null, floats, texts, and cached tokens by three names",
            [reply],
        )
        .args(&["--json"])
        .run();
        assert_eq!(seen.run.json()["usage"], *want, "{usage}");
    }
}

#[test]
fn calls_of_a_filtered_reply_do_not_run() {
    let reply = || json!({ "content": "So far.", "tool_calls": [think("a")] });
    for reason in ["content_filter", "refusal", "SAFETY"] {
        let seen = case(
            10,
            "a reply that the host has filtered",
            [finished(&reply(), reason)],
        )
        .fails(1, "refused this answer")
        .says(reason)
        .run();
        assert_eq!(seen.requests.len(), 1, "{reason}");
        seen.home.session("cli_default").has_one_result_per_call();
    }
    let filtered = include_str!("../../corpus/hosts/content-filter.json");
    let filtered: Value = serde_json::from_str(filtered).unwrap();
    let seen = case(10, "half an answer, filtered", [body(&filtered)])
        .args(&["--json"])
        .exits(1)
        .run();
    let object = seen.run.json();
    assert_eq!(object["output"], "Half a ");
    let message = object["error"]["message"].as_str().unwrap();
    assert!(message.contains("content_filter: violence"), "{message}");
    for reason in [
        "stop",
        "tool_calls",
        "function_call",
        "end_turn",
        "eos",
        "something new",
        "",
    ] {
        let seen = case(
            10,
            "calls of a reply that is whole, by any name",
            [finished(&reply(), reason), done()],
        )
        .answers("Done.")
        .run();
        assert_eq!(seen.results().len(), 1, "{reason}");
    }
}

#[test]
fn thoughts_are_not_the_answer() {
    for message in [
        json!({ "content": "Four.", "reasoning": "two and two", "reasoning_content": "two and two" }),
        json!({ "content": "Four.", "reasoning_content": "two and two" }),
        json!({ "content": "<think>two and two</think>\n\nFour." }),
        json!({ "content": "two and two</think>Four." }),
    ] {
        case(
            12,
            "thoughts beside or before the answer",
            [whole(&message)],
        )
        .answers("Four.")
        .run();
        let seen = case(12, "the same, shown", [whole(&message)])
            .args(&["--show-thinking"])
            .answers("Four.")
            .run();
        assert_eq!(
            seen.run.stderr.matches("two and two").count(),
            1,
            "{message}: {}",
            seen.run.stderr
        );
    }
    let seen = case(
        12,
        "thoughts and no answer",
        [whole(&json!({ "content": "<think>hm" })), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(
        seen.requests[1].body["tool_choice"], "none",
        "asked again, for an answer"
    );
}

#[test]
fn calls_written_as_text_are_found() {
    let text = "<think>I look.</think><tool_call>\n{\"name\": \"think\", \"arguments\": {\"thought\": \"hm\"}}\n</tool_call>";
    let seen = case(
        13,
        "a call as text",
        [whole(&json!({ "content": text })), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(
        (seen.results().len(), seen.calls()[0].1.as_str()),
        (1, "think")
    );
    let form = include_str!("../../corpus/calls/fenced.txt");
    let pieces = form.chars().map(|c| delta(&json!({ "content": c })));
    let pieces = pieces.chain([end("stop")]);
    let seen = case(13, "a call as text, in pieces", [stream(pieces), done()])
        .args(&["--events"])
        .run();
    assert_eq!(seen.calls()[0].1, "read_file");
    let shown = seen.run.stdout.matches("\"delta\"").count();
    assert_eq!(shown, 1, "nothing of the call: {}", seen.run.stdout);
    let example = format!("Write it like this:\n{form}");
    case(
        13,
        "a call in words",
        [whole(&json!({ "content": example }))],
    )
    .answers(example.trim_end())
    .run();
    for text in [
        "<|python_tag|>{\"name\": \"read_file\", \"parameters\": {\"path\": \"a.txt\"}}",
        "<minimax:tool_call>\n<invoke name=\"read_file\"></invoke>",
        "I look.<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>a.txt</arg_value>",
        "functools[{\"name\": \"read_file\", \"arguments\": {\"path\": \"a.txt\"}}]",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{}<|call|>",
    ] {
        let pieces = text.chars().map(|c| delta(&json!({ "content": c })));
        let seen = case(
            13,
            "a call that its server should have parsed",
            [stream(pieces.chain([end("stop")]))],
        )
        .exits(1)
        .says("did not parse the model's tool call")
        .says("tool parser")
        .run();
        assert_eq!(seen.requests.len(), 1);
    }
}

#[test]
fn names_are_taken_for_the_tool_they_mean() {
    for name in [
        "default_api:list_dir",
        "functions.list_dir",
        "List_Dir",
        "listDir",
        " list_dir ",
    ] {
        let call =
            json!({ "id": "a", "function": { "name": name, "arguments": "{\"path\":\".\"}" } });
        let seen = case(14, "a decorated name", [called(&call), done()])
            .answers("Done.")
            .run();
        assert!(
            !seen.results()[0].contains("no tool called"),
            "{name}: {:?}",
            seen.results()
        );
        assert_eq!(
            seen.calls()[0].1,
            "list_dir",
            "what goes back is the tool's own name"
        );
    }
    for name in [Value::Null, json!("")] {
        let call = json!({ "id": "a", "function": { "name": name, "arguments": "{}" } });
        let seen = case(14, "no name", [called(&call), done()])
            .answers("Done.")
            .run();
        assert!(seen.calls().is_empty(), "it would poison the conversation");
    }
}

#[test]
fn arguments_come_in_many_shapes() {
    let with = |arguments: Value| json!({ "id": "a", "function": { "name": "think", "arguments": arguments } });
    let seen = case(
        15,
        "arguments as an object",
        [called(&with(json!({ "thought": "hm" }))), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(seen.calls()[0].2, "{\"thought\":\"hm\"}");
    for empty in [json!(""), Value::Null, json!("  "), json!("null")] {
        let call = json!({ "id": "a", "function": { "name": "list_dir", "arguments": empty } });
        let seen = case(16, "no arguments", [called(&call), done()])
            .answers("Done.")
            .run();
        assert_eq!(seen.calls()[0].2, "{}");
        assert!(
            !seen.results()[0].contains("JSON") && !seen.results()[0].contains("object"),
            "{:?}",
            seen.results()
        );
    }
    let seen = case(
        17,
        "arguments that are no object",
        [called(&with(json!("[1, 2]"))), done()],
    )
    .answers("Done.")
    .run();
    assert!(seen.results()[0].contains("must be an object"));
    assert_eq!(
        seen.calls()[0].2,
        "{}",
        "some hosts refuse the whole conversation otherwise"
    );
    let twice = with(json!("\"{\\\"thought\\\":\\\"hm\\\"}\""));
    let seen = case(17, "arguments encoded twice", [called(&twice), done()])
        .answers("Done.")
        .run();
    assert!(!seen.results()[0].contains("error"), "{:?}", seen.results());
    let nested = json!({ "id": "a", "function": { "name": "edit_file", "arguments": { "path": "none.txt", "edits": "[{\"old_text\":\"a\",\"new_text\":\"b\"}]" } } });
    let seen = case(18, "a list encoded as text", [called(&nested), done()])
        .answers("Done.")
        .run();
    assert!(
        !seen.results()[0].contains("must be a list"),
        "{:?}",
        seen.results()
    );
    for call in [
        json!({ "id": "a", "function": { "name": "think", "parameters": { "thought": "hm" } } }),
        json!({ "id": "a", "name": "think", "arguments": "{\"thought\":\"hm\"}" }),
    ] {
        let seen = case(
            19,
            "parameters for arguments, and a call without a function",
            [called(&call), done()],
        )
        .answers("Done.")
        .run();
        assert_eq!(
            (seen.calls()[0].1.as_str(), seen.calls()[0].2.as_str()),
            ("think", "{\"thought\":\"hm\"}")
        );
    }
}

#[test]
fn ids_are_unique_and_belong_to_their_results() {
    let mut anonymous = think("");
    anonymous.as_object_mut().unwrap().remove("id");
    for calls in [
        json!([anonymous, anonymous]),
        json!([think("a"), think("a")]),
    ] {
        let seen = case(
            20,
            "ids that are missing, or the same twice",
            [whole(&json!({ "tool_calls": calls })), done()],
        )
        .answers("Done.")
        .run();
        let ids: Vec<String> = seen.calls().into_iter().map(|call| call.0).collect();
        assert!(
            ids.len() == 2 && ids[0] != ids[1] && !ids[0].is_empty(),
            "{ids:?}"
        );
        let results: Vec<_> = seen.requests[1]
            .messages()
            .iter()
            .filter_map(|m| m["tool_call_id"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(results, ids);
        // The type is always present.
        assert_eq!(
            seen.requests[1].messages()[2]["tool_calls"][0]["type"],
            "function"
        );
    }
    let mut untyped = think("a");
    untyped.as_object_mut().unwrap().remove("type");
    let seen = case(22, "a call without a type", [called(&untyped), done()])
        .answers("Done.")
        .run();
    assert_eq!(
        seen.requests[1].messages()[2]["tool_calls"][0]["type"],
        "function"
    );
}

#[test]
fn signatures_go_back_where_they_came_from() {
    let mut signed = think("a");
    signed["extra_content"] = json!({ "google": { "thought_signature": "signed" } });
    let seen = case(
        23,
        "a signed call beside an unsigned one",
        [
            whole(&json!({ "tool_calls": [signed, think("b")] })),
            done(),
        ],
    )
    .answers("Done.")
    .run();
    let calls = &seen.requests[1].messages()[2]["tool_calls"];
    assert_eq!(
        calls[0]["extra_content"]["google"]["thought_signature"],
        "signed"
    );
    assert!(calls[1].get("extra_content").is_none(), "{calls}");
    let wants = Reply::error(
        400,
        "Function call is missing a thought_signature in functionCall parts.",
    );
    let seen = case(
        23,
        "a host that wants a signature on another model's calls",
        [called(&think("a")), wants, done()],
    )
    .answers("Done.")
    .run();
    let call = &seen.requests[2].messages()[2]["tool_calls"][0];
    assert_eq!(
        call["extra_content"]["google"]["thought_signature"],
        "skip_thought_signature_validator"
    );
}

#[test]
fn calls_nobody_offered_are_not_run() {
    let legacy = json!({ "content": null, "function_call": { "name": "think", "arguments": "{\"thought\":\"hm\"}" } });
    let seen = case(
        24,
        "a call of the legacy kind",
        [finished(&legacy, "function_call"), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(seen.results().len(), 1);
    let both = json!({ "content": "As far as I know.", "tool_calls": [think("a")] });
    let seen = case(25, "calls although no tools were offered", [whole(&both)])
        .args(&["--no-tools"])
        .run();
    seen.run.prints("As far as I know.\n");
    assert_eq!(seen.requests.len(), 1);
    seen.home.session("cli_default").has_one_result_per_call();
}
