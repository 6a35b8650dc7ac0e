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
const LISTS: [(&str, &str, List); 10] = [
    // The first family that is there, by its newest model, without a date.
    (
        "openai",
        "gpt-5-mini",
        &[
            ("gpt-4o-mini", 1_721_172_741),
            ("gpt-4.1-mini", 1_744_318_173),
            ("gpt-5", 1_754_425_777),
            ("gpt-5-mini-2025-08-07", 1_754_425_867),
            ("gpt-5-mini", 1_754_425_928),
            ("gpt-4o-mini-tts", 1_742_403_959),
            ("gpt-realtime-mini", 1_759_517_133),
        ],
    ),
    ("openai", "gpt-7-luna", &[("gpt-8", 11), ("gpt-7-luna", 10)]),
    (
        "openai",
        "gpt-5.1",
        &[("gpt-5", 1), ("gpt-5.1", 2), ("gpt-5-pro", 3)],
    ),
    // Without times, by the version, which is no date.
    (
        "anthropic",
        "claude-sonnet-4-5-20250929",
        &[
            ("claude-opus-4-1-20250805", 0),
            ("claude-sonnet-4-5-20250929", 0),
            ("claude-sonnet-4-20250514", 0),
        ],
    ),
    (
        "openrouter",
        "openrouter/auto",
        &[("openai/gpt-5-mini", 9), ("openrouter/auto", 1)],
    ),
    (
        "moonshot",
        "kimi-k2.5",
        &[("kimi-k2-thinking", 9), ("kimi-k2.5", 3), ("kimi-k2", 3)],
    ),
    (
        "qwen",
        "qwen-plus",
        &[("qwen-plus-2025-07-28", 3), ("qwen-plus", 1)],
    ),
    (
        "groq",
        "openai/gpt-oss-120b",
        &[
            ("openai/gpt-oss-20b", 0),
            ("openai/gpt-oss-120b", 0),
            ("openai/gpt-oss-safeguard-20b", 1),
        ],
    ),
    (
        "gemini",
        "gemini-flash-latest",
        &[
            ("models/gemini-3-flash", 0),
            ("models/gemini-flash-latest", 0),
        ],
    ),
    (
        "xai",
        "grok-4",
        &[("grok-3", 1), ("grok-4", 2), ("grok-code-fast-1", 3)],
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
