//! Model lists in the formats of the hosts, and the default of each list.

use super::*;
use serde_json::json;

#[test]
fn a_model_is_described_in_every_hosts_own_words() {
    for (told, window, tools, images) in [
        (json!({"id": "m"}), None, None, None),
        (
            json!({
                "id": "m", "context_length": 131_072,
                "supported_parameters": ["tools", "top_p"], "architecture": {"input_modalities": ["text", "image"]},
            }),
            Some(131_072),
            Some(true),
            Some(true),
        ),
        (
            json!({"id": "m", "max_model_len": 8192}),
            Some(8192),
            None,
            None,
        ),
        (
            json!({"id": "m", "context_window": 8192}),
            Some(8192),
            None,
            None,
        ),
        (
            json!({"id": "m", "max_context_length": 32_768, "loaded_context_length": 4096}),
            Some(4096),
            None,
            None,
        ),
        (
            json!({"name": "m", "model": "m", "capabilities": ["completion", "tools"]}),
            None,
            Some(true),
            Some(false),
        ),
        (
            json!({"name": "models/m", "max_input_tokens": 5000}),
            Some(5000),
            None,
            None,
        ),
    ] {
        assert_eq!(
            offer(&told),
            Some(Offer {
                id: "m".to_owned(),
                window,
                tools,
                images,
                ..Offer::default()
            }),
            "{told}"
        );
    }
    assert_eq!(offer(&json!({"object": "model"})), None);
}

/// Returns the default of a list of ids and creation times.
fn picked(vendor: &str, list: &[(&str, u64)]) -> Option<String> {
    let row = |(id, created): &(&str, u64)| offer(&json!({"id": id, "created": created}));
    let offers: Vec<Offer> = list.iter().filter_map(row).collect();
    let prefer = vendors::find(vendor).map_or(&[][..], |vendor| vendor.prefer);
    pick(&offers, prefer).map(|offer| offer.id.clone())
}

type List = &'static [(&'static str, u64)];

/// Vendor, expected default, and list.
const LISTS: [(&str, &str, List); 19] = [
    (
        "openai",
        "gpt-5-mini",
        &[
            ("gpt-4o-mini", 1_721_172_741),
            ("gpt-4.1-mini", 1_744_318_173),
            ("gpt-5", 1_754_425_777),
            ("gpt-5-mini-2025-08-07", 1_754_425_867),
            ("gpt-5-mini", 1_754_425_928),
            ("gpt-5-codex", 1_757_527_818),
            ("gpt-4o-mini-tts", 1_742_403_959),
            ("gpt-realtime-mini", 1_759_517_133),
            ("text-embedding-3-small", 1_705_948_997),
        ],
    ),
    (
        "openai",
        "gpt-6-luna",
        &[("gpt-5-mini", 9), ("gpt-6-luna", 10), ("gpt-6", 11)],
    ),
    (
        "openai",
        "gpt-5.1",
        &[
            ("gpt-5", 1),
            ("gpt-5.1", 2),
            ("gpt-5-pro", 3),
            ("gpt-5-search-api", 4),
        ],
    ),
    (
        "anthropic",
        "claude-sonnet-4-5-20250929",
        &[
            ("claude-haiku-4-5-20251001", 0),
            ("claude-sonnet-4-5-20250929", 0),
            ("claude-opus-4-1-20250805", 0),
            ("claude-sonnet-4-20250514", 0),
            ("claude-3-7-sonnet-20250219", 0),
        ],
    ),
    (
        "anthropic",
        "claude-sonnet-5",
        &[("claude-sonnet-4-5-20250929", 0), ("claude-sonnet-5", 0)],
    ),
    (
        "openrouter",
        "openrouter/auto",
        &[("openai/gpt-5-mini", 9), ("openrouter/auto", 1)],
    ),
    (
        "deepseek",
        "deepseek-v4-flash",
        &[("deepseek-v4-flash", 0), ("deepseek-v4-pro", 0)],
    ),
    (
        "zhipu",
        "glm-4.6",
        &[("glm-4.5", 1), ("glm-4.5-air", 2), ("glm-4.6", 3)],
    ),
    (
        "zai",
        "glm-5",
        &[("glm-4.7", 1), ("glm-5", 3), ("glm-image", 4)],
    ),
    (
        "moonshot",
        "kimi-k2.5",
        &[
            ("moonshot-v1-8k", 1),
            ("kimi-k2-0905-preview", 2),
            ("kimi-k2-thinking", 9),
            ("kimi-k2.5", 3),
        ],
    ),
    (
        "minimax",
        "MiniMax-M2.1",
        &[("MiniMax-M2", 1), ("MiniMax-M2.1", 2), ("speech-2.6-hd", 3)],
    ),
    (
        "qwen",
        "qwen-plus",
        &[
            ("qwen-max", 1),
            ("qwen-plus-2025-07-28", 3),
            ("qwen-plus", 1),
            ("qwen3-asr-flash", 4),
        ],
    ),
    (
        "groq",
        "openai/gpt-oss-120b",
        &[
            ("llama-3.3-70b-versatile", 1_733_447_754),
            ("openai/gpt-oss-20b", 1_754_407_957),
            ("whisper-large-v3", 1_693_721_698),
            ("openai/gpt-oss-120b", 1_754_408_224),
            ("openai/gpt-oss-safeguard-20b", 1_761_708_789),
        ],
    ),
    (
        "mistral",
        "mistral-small-latest",
        &[
            ("mistral-large-latest", 5),
            ("mistral-small-latest", 5),
            ("mistral-ocr-latest", 6),
        ],
    ),
    (
        "gemini",
        "gemini-flash-latest",
        &[
            ("models/gemini-2.5-flash", 0),
            ("models/gemini-flash-latest", 0),
            ("models/gemini-embedding-001", 0),
        ],
    ),
    (
        "gemini",
        "gemini-2.5-flash",
        &[
            ("models/gemini-2.0-flash", 0),
            ("models/gemini-2.5-flash-preview-05-20", 0),
            ("models/gemini-2.5-flash", 0),
            ("models/gemini-2.5-flash-image", 0),
            ("models/gemini-2.5-flash-lite", 0),
        ],
    ),
    (
        "xai",
        "grok-4",
        &[
            ("grok-3", 1_743_724_800),
            ("grok-4", 1_752_019_200),
            ("grok-code-fast-1", 1_755_993_600),
            ("grok-2-image-1212", 1_736_726_400),
        ],
    ),
    (
        "cerebras",
        "gpt-oss-120b",
        &[("llama3.1-8b", 0), ("gpt-oss-120b", 0), ("qwen-3-32b", 0)],
    ),
    (
        "together",
        "openai/gpt-oss-120b",
        &[
            ("openai/gpt-oss-20b", 0),
            ("openai/gpt-oss-120b", 0),
            ("meta-llama/Llama-Guard-4-12B", 0),
        ],
    ),
];

#[test]
fn default_of_each_vendors_list() {
    for (vendor, id, list) in LISTS {
        assert_eq!(picked(vendor, list).as_deref(), Some(id), "{vendor}");
    }
    assert_eq!(
        picked("acme", &[("embedder", 0), ("a", 1), ("b", 2)]).as_deref(),
        Some("a")
    );
    assert_eq!(picked("openai", &[("o5", 1)]), None);
}
