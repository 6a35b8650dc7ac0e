//! What is learned from refusals.

use super::*;

/// A request that has everything that can be refused.
fn sent() -> Value {
    json!({
        "model": "m", "max_tokens": 4096, "temperature": 1, "stream": true, "stream_options": {},
        "prompt_cache_key": "k", "tools": [{}], "thinking": {"type": "enabled", "budget_tokens": 2048},
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
            ]},
            {"role": "assistant", "content": null, "reasoning_content": "r", "reasoning_details": [1], "tool_calls": [
                {"id": "functions.list_dir:0", "extra_content": {"google": 1}}, {"id": "abcdefgh1"},
            ]},
            {"role": "tool", "tool_call_id": "functions.list_dir:0", "content": "x"},
            {"role": "assistant", "content": "seen", "tool_calls": [{"id": "b"}]},
        ],
    })
}

#[test]
fn a_refusal_teaches_what_to_change_and_the_same_one_only_once() {
    let without = |field: &str| Quirk::Without(field.to_owned());
    let cases = [
        ("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", Quirk::MaxCompletionTokens),
        ("Unsupported value: 'temperature' does not support 0.2", without("temperature")),
        ("invalid temperature: only 1 is allowed for this model", without("temperature")),
        ("Extra inputs are not permitted: stream_options", without("stream_options")),
        ("Extra inputs are not permitted; extra_forbidden; body.prompt_cache_key", without("prompt_cache_key")),
        ("Unrecognized request argument supplied: prompt_cache_key", without("prompt_cache_key")),
        ("Unknown name \"stream_options\": Cannot find field.", without("stream_options")),
        ("The reasoning_content in the thinking mode must be passed back", Quirk::EmptyReasoning),
        ("reasoning_content is not allowed here", Quirk::NoReasoning),
        ("'messages.2' : property 'reasoning_details' is unsupported", Quirk::NoReasoning),
        ("No endpoints found that support image input", Quirk::NoImages),
        ("messages[3]: unknown variant `image_url`, expected `text`", Quirk::NoImages),
        ("This model does not support images", Quirk::NoImages),
        ("Image input is not enabled for this model", Quirk::NoImages),
        ("qwen3-8b is not a multimodal model", Quirk::NoImages),
        ("Invalid content type. image_url is only supported by certain models.", Quirk::NoImages),
        ("registry.ollama.ai/library/gemma2:2b does not support tools", Quirk::NoTools),
        ("System role not supported", Quirk::NoSystem),
        ("invalid params, invalid role: system", Quirk::NoSystem),
        ("messages[0].role does not support 'system' with this model", Quirk::NoSystem),
        ("Developer instruction is not enabled for models/gemma-3", Quirk::NoSystem),
        ("invalid message content type: <nil>", Quirk::NoNull),
        ("Type mismatch of '/messages/2/content', 'string' not in 'null'", Quirk::NoNull),
        ("Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.", Quirk::ShortIds),
        ("Invalid 'messages[2].tool_calls[0].id': string too long. Expected a maximum length 40", Quirk::ShortIds),
        ("Function call is missing a thought_signature in functionCall parts.", Quirk::Signatures),
        ("Function tools with reasoning_effort are not supported: set reasoning_effort to 'none'", Quirk::NoEffort),
        ("\"thinking.type.enabled\" is not supported. Use \"thinking.type.adaptive\"", Quirk::AdaptiveThinking),
    ];
    for (refusal, quirk) in cases.clone() {
        let (mut learned, mut tried) = (Learned::default(), Vec::new());
        assert!(learned.learn(refusal, &sent(), &mut tried), "{refusal}");
        assert_eq!(learned.known, [quirk], "{refusal}");
        let mut body = sent();
        learned.apply(&mut body);
        assert_ne!(body, sent(), "{refusal}");
        assert!(!Learned::default().learn(refusal, &sent(), &mut tried), "{refusal}");
    }
    for refusal in ["model not found", "unknown model m", "the stream_options of life", "messages: not allowed", ""] {
        assert!(!Learned::default().learn(refusal, &sent(), &mut Vec::new()), "{refusal}");
    }
    // Nor does one of what was not sent.
    let bare = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (refusal, _) in &cases[1..27] {
        let learned = Learned::default().learn(refusal, &bare, &mut Vec::new());
        assert!(!learned || refusal.contains("'none'"), "{refusal}");
    }
}

#[test]
fn what_was_learned_last_is_kept_and_its_opposite_is_not() {
    let kept = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let save = kept.clone();
    let before = vec![Quirk::NoStream, Quirk::MaxTokens, Quirk::Window(5)];
    let mut learned = Learned::new(before, Box::new(move |all| *save.lock().unwrap() = all.to_vec()));
    assert!(learned.learn("not max_tokens but max_completion_tokens", &sent(), &mut Vec::new()));
    learned.add(Quirk::Window(7));
    learned.save();
    assert_eq!(*kept.lock().unwrap(), [Quirk::NoStream, Quirk::MaxCompletionTokens, Quirk::Window(7)]);
    assert_eq!(learned.known, *kept.lock().unwrap());
}

#[test]
fn every_quirk_has_a_name_and_words_of_its_own() {
    for (quirk, name, words, _) in &ROWS {
        assert_eq!((Quirk::named(name).as_ref(), quirk.name().as_ref()), (Some(quirk), *name));
        assert_eq!(quirk.words(), *words);
    }
    for quirk in [Quirk::Without("top_k".to_owned()), Quirk::Window(8192)] {
        assert_eq!(Quirk::named(&quirk.name()), Some(quirk));
    }
    assert_eq!(Quirk::named("window of opportunity"), None);
    assert_eq!(Quirk::named("such thing"), None);
}

#[test]
fn what_was_learned_changes_the_request() {
    let changed = |quirk| {
        let mut body = sent();
        apply(&quirk, body.as_object_mut().unwrap());
        body
    };
    assert_eq!(changed(Quirk::MaxCompletionTokens)["max_completion_tokens"], 4096);
    assert_eq!(changed(Quirk::Without("temperature".to_owned())).get("temperature"), None);
    assert_eq!(changed(Quirk::NoStream).get("stream_options"), None);
    assert_eq!(changed(Quirk::NoImages)["messages"][1]["content"], format!("look\n\n{IMAGE_LEFT_OUT}"));
    let plain = &changed(Quirk::NoReasoning)["messages"][2];
    assert!(["reasoning_content", "reasoning_details"].iter().all(|name| plain.get(name).is_none()), "{plain}");
    assert_eq!(plain["tool_calls"][0], json!({"id": "functions.list_dir:0"}));
    assert_eq!(changed(Quirk::EmptyReasoning)["messages"][4]["reasoning_content"], "");
    assert_eq!(changed(Quirk::EmptyReasoning)["messages"][2]["reasoning_content"], "r");
    assert_eq!(changed(Quirk::NoNull)["messages"][2]["content"], "");
    let thinking = changed(Quirk::AdaptiveThinking);
    assert_eq!(
        (&thinking["thinking"], &thinking["output_config"]),
        (&json!({"type": "adaptive"}), &json!({"effort": "high"}))
    );
    let signed = changed(Quirk::Signatures)["messages"][4]["tool_calls"][0].clone();
    assert_eq!(signed["extra_content"]["google"]["thought_signature"], "skip_thought_signature_validator");
    let joined = changed(Quirk::NoSystem)["messages"].clone();
    assert_eq!((&joined[0]["role"], &joined[0]["content"][0]["text"]), (&json!("user"), &json!("be kind")));
    let short = changed(Quirk::ShortIds)["messages"].clone();
    let id = short[2]["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
    assert_eq!((&short[3]["tool_call_id"], &short[2]["tool_calls"][1]["id"]), (&json!(id), &json!("abcdefgh1")));
}

#[test]
fn images_are_left_out_of_blocks_and_the_other_blocks_stay() {
    let image = json!({"type": "image", "source": {}});
    let mut body = json!({"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "r"}, image]}, image,
    ]}]});
    apply(&Quirk::NoImages, body.as_object_mut().unwrap());
    let content = &body["messages"][0]["content"];
    assert_eq!(content[0]["content"], format!("r\n\n{IMAGE_LEFT_OUT}"));
    assert_eq!((&content[0]["tool_use_id"], &content[1]["text"]), (&json!("a"), &json!(IMAGE_LEFT_OUT)));
}
