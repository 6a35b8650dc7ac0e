//! List prices of common models, for those whose entry has none. They are the vendors' own, in dollars per million tokens, of
//! [`DATE`]. On 2026-11-23 each row was the same in the price table of `litellm` 1.109.1 on `PyPI`
//! (`model_prices_and_context_window_backup.json`), and a model that it does not have was dropped. The vendors' pages:
//!
//! - Anthropic: <https://platform.claude.com/docs/en/about-claude/pricing>
//! - `OpenAI`: <https://platform.openai.com/docs/pricing>, and as GitHub repeats them in `data/tables/copilot/models-and-pricing.yml`
//!   of its documentation
//! - Google, for prompts of up to 200,000 tokens: <https://ai.google.dev/gemini-api/docs/pricing>
//!
//! A vendor or a model whose price could not be compared is not here.

use crate::message::Price;

/// When the prices were compared.
pub(crate) const DATE: &str = "2026-11";

/// Vendor, model, input, cached input, output.
const PRICES: [(&str, &str, f64, f64, f64); 21] = [
    ("anthropic", "claude-opus-5", 5.0, 0.5, 25.0),
    ("anthropic", "claude-opus-4-8", 5.0, 0.5, 25.0),
    ("anthropic", "claude-opus-4-7", 5.0, 0.5, 25.0),
    ("anthropic", "claude-opus-4-6", 5.0, 0.5, 25.0),
    ("anthropic", "claude-opus-4-5", 5.0, 0.5, 25.0),
    ("anthropic", "claude-sonnet-5", 2.0, 0.2, 10.0),
    ("anthropic", "claude-sonnet-4-5", 3.0, 0.3, 15.0),
    ("anthropic", "claude-haiku-4-5", 1.0, 0.1, 5.0),
    ("openai", "gpt-5.5", 5.0, 0.5, 30.0),
    ("openai", "gpt-5.4", 2.5, 0.25, 15.0),
    ("openai", "gpt-5.4-mini", 0.75, 0.075, 4.5),
    ("openai", "gpt-5.4-nano", 0.2, 0.02, 1.25),
    ("openai", "gpt-5.2", 1.75, 0.175, 14.0),
    ("openai", "gpt-5", 1.25, 0.125, 10.0),
    ("openai", "gpt-5-mini", 0.25, 0.025, 2.0),
    ("openai", "gpt-5-nano", 0.05, 0.005, 0.4),
    ("openai", "gpt-4.1", 2.0, 0.5, 8.0),
    ("openai", "gpt-4o-mini", 0.15, 0.075, 0.6),
    ("gemini", "gemini-2.5-pro", 1.25, 0.125, 10.0),
    ("gemini", "gemini-2.5-flash", 0.3, 0.03, 2.5),
    ("gemini", "gemini-2.5-flash-lite", 0.1, 0.01, 0.4),
];

/// The list price of a vendor's model, also of a dated version of it (`gpt-5-2025-08-07`).
pub(crate) fn of(vendor: &str, model: &str) -> Option<Price> {
    let is_version = |rest: &str| {
        let dated = rest
            .strip_prefix('-')
            .is_some_and(|date| date.starts_with("20"));
        rest.is_empty() || dated && rest.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    };
    let row = PRICES
        .iter()
        .find(|(of, name, ..)| *of == vendor && model.strip_prefix(name).is_some_and(is_version));
    row.map(|(_, _, input, cached, output)| Price {
        input: Some(*input),
        output: Some(*output),
        cached: Some(*cached),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_and_its_dated_versions_have_one_price_and_its_kin_another() {
        let output = |model| of("openai", model).and_then(|price| price.output);
        assert_eq!(output("gpt-5"), Some(10.0));
        assert_eq!(output("gpt-5-2025-08-07"), Some(10.0));
        assert_eq!(output("gpt-5-mini"), Some(2.0));
        assert_eq!(output("gpt-5-pro"), None);
        assert!(of("anthropic", "claude-sonnet-4-5-20250929").is_some());
        assert!(of("groq", "gpt-5").is_none());
    }
}
