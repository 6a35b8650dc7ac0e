//! Reads values of a host's JSON in all observed formats: a text in parts, a number as text, a call without a function. A
//! value of any other type counts as absent.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::message::{Media, ToolCall, Usage};

/// Field of a call with Gemini's signature, which goes back unchanged.
pub(super) const SIGNED: &str = "extra_content";
/// Field of a call's function with the signature alone, as some gateways send it.
pub(super) const SIGNATURE: &str = "thought_signature";

/// Returns a text, which may be a list of parts whose texts may consist of parts again.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text_of).collect(),
        Value::Object(part) => part.get("text").map(text_of).unwrap_or_default(),
        _ => String::new(),
    }
}

/// Returns an amount, written as an integer, a float or a text.
pub(super) fn amount(value: &Value) -> Option<f64> {
    let text = value.as_str().and_then(|text| text.trim().parse().ok());
    value.as_f64().or(text)
}

/// Returns a count; a negative one is 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // casts to int saturate
pub(super) fn count(value: &Value) -> Option<u64> {
    amount(value).map(|amount| amount.max(0.0) as u64)
}

/// Returns the elements of a list; none if the value is something else.
pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns a string; empty if the value is something else.
pub(super) fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Reads the picture in a part, as `{"image_url":{"url":..}}` or `{"b64_json":..}`; `None` if it has none. A text stands for one
/// at another address, or in an unknown format.
pub(super) fn picture_in(part: &Value) -> Option<Result<Media, String>> {
    let url = [&part["image_url"]["url"], &part["image_url"]];
    let url = url.into_iter().find_map(Value::as_str);
    let base64 = match url {
        None => part["b64_json"].as_str()?,
        Some(url) if !url.starts_with("data:") => return Some(Err(url.to_owned())),
        Some(url) => url.split_once(',').unwrap_or_default().1,
    };
    let image = STANDARD.decode(base64.trim()).ok();
    let image = image.and_then(|bytes| Media::image(&bytes));
    Some(image.ok_or_else(|| "[an image in an unknown format]".to_owned()))
}

/// Reads a call, or a delta of one. Name and arguments are in `function` or at the top; some hosts send `parameters`.
pub(super) fn read_call(piece: &Value) -> ToolCall {
    let function = &piece["function"];
    let places = [function, piece];
    let name = places.iter().find_map(|place| place["name"].as_str());
    let arguments = places.iter();
    let arguments = arguments.flat_map(|place| [&place["arguments"], &place["parameters"]]);
    let signed = [(SIGNED, &piece[SIGNED]), (SIGNATURE, &function[SIGNATURE])];
    let signed = signed.into_iter().find(|(_, value)| !value.is_null());
    ToolCall {
        id: string(&piece["id"]).to_owned(),
        name: name.unwrap_or_default().to_owned(),
        arguments: match arguments.into_iter().find(|value| !value.is_null()) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        },
        extra: signed
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect(),
    }
}

/// Updates the token counts of a reply by those that a host sends, under all known names.
pub(super) fn update_usage(usage: &mut Usage, counts: &Value) {
    let first = |names: &[&str]| names.iter().find_map(|name| count(&counts[*name]));
    let prompt = first(&["prompt_tokens"]).or_else(|| {
        // Anthropic excludes tokens read from or written to the cache; `prompt_tokens` includes them.
        let apart = ["cache_read_input_tokens", "cache_creation_input_tokens"];
        let apart = apart.into_iter().filter_map(|name| count(&counts[name]));
        Some(apart.fold(first(&["input_tokens"])?, u64::saturating_add))
    });
    let details = ["prompt_tokens_details", "input_tokens_details"];
    let mut details = details.iter().map(|name| &counts[*name]["cached_tokens"]);
    let cached = details.find_map(count).or_else(|| {
        first(&[
            "cached_tokens",
            "prompt_cache_hit_tokens",
            "cache_read_input_tokens",
        ])
    });
    *usage = Usage {
        prompt_tokens: prompt.unwrap_or(usage.prompt_tokens),
        completion_tokens: first(&["completion_tokens", "output_tokens"])
            .unwrap_or(usage.completion_tokens),
        cached_tokens: cached.unwrap_or(usage.cached_tokens),
    };
}
