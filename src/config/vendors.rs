//! The vendors of models: address, variable for the key, default model.
//!
//! Addresses are the documented OpenAI-compatible ones. A vendor that is not listed works with an `api_base`.

use super::Env;

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

const fn openai(
    name: &'static str,
    base: &'static str,
    key_env: &'static str,
    default_model: &'static str,
) -> Vendor {
    Vendor {
        name,
        protocol: Protocol::OpenAi,
        base,
        key_env,
        default_model,
    }
}

/// In the order in which their key variables are tried.
pub(crate) const VENDORS: &[Vendor] = &[
    openai(
        "openai",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        "gpt-5-mini",
    ),
    Vendor {
        name: "anthropic",
        protocol: Protocol::Anthropic,
        base: "https://api.anthropic.com",
        key_env: "ANTHROPIC_API_KEY",
        default_model: "claude-sonnet-4-5",
    },
    openai(
        "openrouter",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        "openrouter/auto",
    ),
    openai(
        "deepseek",
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        "deepseek-chat",
    ),
    openai(
        "zhipu",
        "https://open.bigmodel.cn/api/paas/v4",
        "ZHIPU_API_KEY",
        "glm-4.6",
    ),
    openai(
        "moonshot",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        "kimi-k2-0905-preview",
    ),
    openai(
        "qwen",
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        "DASHSCOPE_API_KEY",
        "qwen-plus",
    ),
    openai(
        "groq",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        "openai/gpt-oss-20b",
    ),
    openai(
        "mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        "mistral-small-latest",
    ),
    openai(
        "gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
        "gemini-2.5-flash",
    ),
    openai("xai", "https://api.x.ai/v1", "XAI_API_KEY", "grok-4-fast"),
    openai("ollama", "http://localhost:11434/v1", "", ""),
    openai("lmstudio", "http://localhost:1234/v1", "", ""),
    openai("llamacpp", "http://localhost:8080/v1", "", ""),
    openai("vllm", "http://localhost:8000/v1", "", ""),
    openai("litellm", "http://localhost:4000/v1", "", ""),
    Vendor {
        name: "azure",
        protocol: Protocol::Azure,
        base: "",
        key_env: "AZURE_OPENAI_API_KEY",
        default_model: "",
    },
    Vendor {
        name: "demo",
        protocol: Protocol::Demo,
        base: "",
        key_env: "",
        default_model: "demo",
    },
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

/// Where a vendor's API is: Ollama's own variable moves Ollama, as it does for Ollama's other clients.
pub(crate) fn base(vendor: &Vendor, env: &Env) -> String {
    match env
        .get("OLLAMA_HOST")
        .map(|host| host.trim().trim_end_matches('/'))
    {
        Some(host) if vendor.name == "ollama" && !host.is_empty() => ollama_base(host),
        _ => vendor.base.to_owned(),
    }
}

/// Reads `HOST`, `HOST:PORT`, `:PORT` or a URL (<https://docs.ollama.com/faq>). A server listens on 0.0.0.0 for everybody;
/// a client finds it at localhost.
fn ollama_base(host: &str) -> String {
    if host.starts_with("http://") || host.starts_with("https://") {
        return format!("{host}/v1");
    }
    let (name, port) = host
        .rsplit_once(':')
        .filter(|(_, port)| !port.ends_with(']'))
        .unwrap_or((host, "11434"));
    let name = if matches!(name, "" | "0.0.0.0" | "[::]") {
        "localhost"
    } else {
        name
    };
    format!("http://{name}:{port}/v1")
}

/// The vendor whose models' names begin like this one: `gpt-5` is by `openai`.
pub(crate) fn by_model(model: &str) -> Option<&'static Vendor> {
    let end = model
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(model.len());
    find(&model[..end])
}

/// The table's name for a vendor; for others, the name in lower case.
pub(crate) fn canonical(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase();
    let dashed = name.replace('_', "-");
    ALIASES
        .iter()
        .find(|(alias, _)| *alias == dashed)
        .map_or(name, |(_, vendor)| (*vendor).to_owned())
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

    #[test]
    fn ollamas_variable_moves_ollama_and_nothing_else() {
        let moved = |name: &str, host: &str| {
            base(
                find(name).unwrap(),
                &Env::from([("OLLAMA_HOST".to_owned(), host.to_owned())]),
            )
        };
        for (host, expected) in [
            ("", "http://localhost:11434/v1"),
            ("nas", "http://nas:11434/v1"),
            ("192.168.1.20:8080", "http://192.168.1.20:8080/v1"),
            (":8080", "http://localhost:8080/v1"),
            ("0.0.0.0", "http://localhost:11434/v1"),
            ("[fd00::7]", "http://[fd00::7]:11434/v1"),
            ("[::]:8080", "http://localhost:8080/v1"),
            (
                "https://ollama.example.com/",
                "https://ollama.example.com/v1",
            ),
            ("http://nas:8080", "http://nas:8080/v1"),
        ] {
            assert_eq!(moved("ollama", host), expected, "{host}");
        }
        assert_eq!(moved("lmstudio", "nas"), "http://localhost:1234/v1");
    }
}
