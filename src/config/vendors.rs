//! The vendors of models: address, variable for the key, default model.
//!
//! Addresses are the documented OpenAI-compatible ones. A vendor that is not listed works with an `api_base`.

/// How requests to a vendor are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The OpenAI chat completions API.
    OpenAi,
    /// The same, with another header for the key, and the model's name in the address.
    Azure,
    /// Anthropic's Messages API.
    Anthropic,
    /// The built-in demo.
    Demo,
}

pub(crate) struct Vendor {
    pub name: &'static str,
    pub protocol: Protocol,
    /// Empty where every customer has their own.
    pub base: &'static str,
    /// Empty if no key is needed.
    pub key_env: &'static str,
    /// Empty if it depends on the installation.
    pub default_model: &'static str,
}

const fn openai(name: &'static str, base: &'static str, key_env: &'static str, default_model: &'static str) -> Vendor {
    Vendor { name, protocol: Protocol::OpenAi, base, key_env, default_model }
}

/// In the order in which their key variables are tried.
pub(crate) const VENDORS: &[Vendor] = &[
    openai("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-5-mini"),
    Vendor {
        name: "anthropic",
        protocol: Protocol::Anthropic,
        base: "https://api.anthropic.com",
        key_env: "ANTHROPIC_API_KEY",
        default_model: "claude-sonnet-4-5",
    },
    openai("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "openrouter/auto"),
    openai("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek-chat"),
    openai("zhipu", "https://open.bigmodel.cn/api/paas/v4", "ZHIPU_API_KEY", "glm-4.6"),
    openai("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "kimi-k2-0905-preview"),
    openai("qwen", "https://dashscope.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY", "qwen-plus"),
    openai("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "openai/gpt-oss-20b"),
    openai("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", "mistral-small-latest"),
    openai("gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", "gemini-2.5-flash"),
    openai("xai", "https://api.x.ai/v1", "XAI_API_KEY", "grok-4-fast"),
    openai("ollama", "http://localhost:11434/v1", "", ""),
    openai("lmstudio", "http://localhost:1234/v1", "", ""),
    openai("llamacpp", "http://localhost:8080/v1", "", ""),
    openai("vllm", "http://localhost:8000/v1", "", ""),
    openai("litellm", "http://localhost:4000/v1", "", ""),
    Vendor { name: "azure", protocol: Protocol::Azure, base: "", key_env: "AZURE_OPENAI_API_KEY", default_model: "" },
    Vendor { name: "demo", protocol: Protocol::Demo, base: "", key_env: "", default_model: "demo" },
];

/// Other names of vendors: in other programs' files, and how their models' names begin.
const ALIASES: [(&str, &str); 15] = [
    ("gpt", "openai"),
    ("claude", "anthropic"),
    ("anthropic-messages", "anthropic"),
    ("glm", "zhipu"),
    ("z-ai", "zhipu"),
    ("kimi", "moonshot"),
    ("dashscope", "qwen"),
    ("aliyun", "qwen"),
    ("google", "gemini"),
    ("grok", "xai"),
    ("azure-openai", "azure"),
    ("lm-studio", "lmstudio"),
    ("llama.cpp", "llamacpp"),
    ("llama-cpp", "llamacpp"),
    ("ollama-local", "ollama"),
];

pub(crate) fn find(name: &str) -> Option<&'static Vendor> {
    let name = canonical(name);
    VENDORS.iter().find(|v| v.name == name)
}

/// The vendor whose models' names begin like this one: `gpt-5` is by `openai`.
pub(crate) fn by_model(model: &str) -> Option<&'static Vendor> {
    let end = model.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(model.len());
    find(&model[..end])
}

/// The table's name for a vendor; for others, the name in lower case.
pub(crate) fn canonical(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase();
    let dashed = name.replace('_', "-");
    ALIASES.iter().find(|(alias, _)| *alias == dashed).map_or(name, |(_, vendor)| (*vendor).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alias_leads_to_a_vendor_and_hides_none() {
        for (alias, vendor) in ALIASES {
            assert!(VENDORS.iter().any(|v| v.name == vendor), "{vendor}");
            assert!(VENDORS.iter().all(|v| v.name != alias), "{alias}");
        }
        assert_eq!(find("Azure_OpenAI").map(|v| v.name), Some("azure"));
        assert_eq!(canonical("Acme_X"), "acme_x");
    }
}
