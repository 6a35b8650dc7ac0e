//! Replies in pieces and in unusual formats.

use std::cell::RefCell;

use super::*;
use crate::provider::openai::read;

/// Text and thoughts of a reply that were shown.
#[derive(Default)]
struct Shown {
    text: RefCell<String>,
    thought: RefCell<String>,
}

impl Shown {
    fn add(&self, event: Event) {
        match event {
            Event::Delta(text) => self.text.borrow_mut().push_str(&text),
            Event::Thought(text) => self.thought.borrow_mut().push_str(&text),
            _ => {}
        }
    }
}

fn delta(delta: &Value) -> String {
    json!({"choices": [{"delta": delta}]}).to_string()
}

/// Returns the reply in these deltas, and the shown text.
fn streamed(deltas: &[Value]) -> (Reply, String) {
    let shown = Shown::default();
    let sink = |event| shown.add(event);
    let mut builder = ReplyBuilder::new(&[], &sink);
    for event in deltas {
        read(&delta(event), &mut builder).unwrap();
        builder.show();
    }
    (builder.finish().unwrap(), shown.text.take())
}

#[test]
fn a_pair_split_over_two_events_is_a_character() {
    let two = |first: &str, second: &str| {
        let shown = Shown::default();
        let sink = |event| shown.add(event);
        let mut builder = ReplyBuilder::new(&[], &sink);
        for delta in [first, second] {
            let event = format!(r#"{{"choices":[{{"delta":{{{delta}}}}}]}}"#);
            read(&event, &mut builder).unwrap();
            builder.show();
        }
        let reply = builder.finish().unwrap();
        assert_eq!(shown.text.take(), reply.text);
        assert_eq!(shown.thought.take(), reply.reasoning);
        reply
    };
    for (first, second, whole) in [
        (r"a\ud83d", r"\ude00b", "a😀b"),
        (r"\uD83E", r"\uDD14\ud83d", "🤔\u{fffd}"),
        (r"a\ud83d", "b", "a\u{fffd}b"),
        ("a", r"\ude00b", "a\u{fffd}b"),
        (
            r"half \ud83d of",
            r" one\ude00",
            "half \u{fffd} of one\u{fffd}",
        ),
    ] {
        let text = |text: &str| format!(r#""content":"{text}""#);
        assert_eq!(two(&text(first), &text(second)).text, whole);
        let thought = |text: &str| format!(r#""reasoning_content":"{text}""#);
        assert_eq!(two(&thought(first), &thought(second)).reasoning, whole);
        let call = |text: &str| {
            format!(
                r#""tool_calls":[{{"index":0,"function":{{"name":"f","arguments":"{text}"}}}}]"#
            )
        };
        assert_eq!(two(&call(first), &call(second)).calls[0].arguments, whole);
    }
}

fn stopped(reason: &str) -> Reply {
    let mut builder = ReplyBuilder::new(&[], &|_| ());
    let end = json!({"choices": [{"delta": {"content": "a"}, "finish_reason": reason}]});
    read(&end.to_string(), &mut builder).unwrap();
    builder.finish().unwrap()
}

#[test]
fn a_refusal_by_the_host_is_named_in_any_wording() {
    for reason in [
        "content_filter",
        "SAFETY",
        "RECITATION",
        "PROHIBITED_CONTENT",
        "content_filter: PROHIBITED_CONTENT",
        "blocklist",
        "IMAGE_SAFETY",
        "Content-Filtered",
        "guardrail_intervened",
    ] {
        let reply = stopped(reason);
        assert_eq!((reply.stop, &*reply.refused), (Stop::Refused, reason));
    }
    for reason in ["length", "MAX_TOKENS", "max_output_tokens", "maxTokens"] {
        assert_eq!(stopped(reason).stop, Stop::Length, "{reason}");
    }
    for reason in ["model_context_window_exceeded", "model_length"] {
        assert_eq!(stopped(reason).stop, Stop::Window, "{reason}");
    }
    for reason in ["stop", "STOP", "tool_calls", "end_turn", "OTHER", "eos"] {
        assert_eq!(stopped(reason).stop, Stop::Done, "{reason}");
    }
}

#[test]
fn an_event_is_an_error_only_if_it_says_so() {
    for (event, is_error) in [
        (r#"{"type":"error","message":"all is lost"}"#, true),
        (r#"{"object":"error","message":"all is lost"}"#, true),
        (r#"{"code":503,"message":"all is lost"}"#, true),
        (r#"{"type":"status","message":"queued"}"#, false),
        (r#"{"code":200,"message":"ok"}"#, false),
        (r#"{"output_text":"Hi","message":"ok"}"#, false),
    ] {
        let got = read(event, &mut ReplyBuilder::new(&[], &|_| ()));
        assert_eq!(got.is_err(), is_error, "{event}");
    }
}

#[test]
fn pictures_are_part_of_the_reply() {
    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let url = format!("data:image/png;base64,{PNG}");
    let part = json!({"type": "image_url", "image_url": {"url": url}});
    for message in [
        json!({"content": null, "images": [part]}),
        json!({"content": [part]}),
        json!({"content": [{"b64_json": PNG}]}),
        json!({"images": [{"type": "image_url", "image_url": url}, part]}),
    ] {
        let (reply, _) = streamed(&[message.clone(), message]);
        assert_eq!((reply.text.as_str(), reply.images.len()), ("", 1));
        let [image] = &reply.images[..] else { return };
        assert_eq!((&*image.mime, &*image.base64), ("image/png", PNG));
    }
    let linked = json!({"images": [{"image_url": {"url": "https://h/a.png"}}]});
    assert_eq!(streamed(&[linked]).0.text.trim(), "https://h/a.png");
    let odd = json!({"images": [{"image_url": {"url": "data:image/x;base64,AAAA"}}]});
    assert!(!streamed(&[odd]).0.text.is_empty());
}

#[test]
fn a_call_lost_in_thoughts_is_an_error() {
    let offer = ToolOffer {
        name: "f".into(),
        description: "".into(),
        schema: "{}".into(),
    };
    for delta_of in [
        json!({"reasoning": "I look. <tool_call>f<arg_key>x</arg_key></tool_call>"}),
        json!({"reasoning_content": "<tool_call>{\"name\":\"f\"}</tool_call>"}),
        json!({"content": "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"}),
        json!({"content": "assistant<|channel|>read_file"}),
    ] {
        let mut builder = ReplyBuilder::new(std::slice::from_ref(&offer), &|_| ());
        read(&delta(&delta_of), &mut builder).unwrap();
        builder.show();
        let error = builder.finish().err();
        assert!(
            matches!(error, Some(ProviderError::Rejected { .. })),
            "{delta_of}"
        );
    }
}
