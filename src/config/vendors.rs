//! The vendors of models: address, variables for the key, and default models.
//!
//! Addresses are the documented OpenAI-compatible ones. Unlisted vendors work with an `api_base`.

use super::Env;

/// Protocol of requests to a vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The OpenAI chat completions API.
    OpenAi,
    /// The OpenAI API with another header for the key, and the model's name in the address.
    Azure,
    /// Anthropic's Messages API.
    Anthropic,
    /// The built-in demo.
    Demo,
}

pub(crate) struct Vendor {
    pub name: &'static str,
    pub protocol: Protocol,
    /// Base address; empty if every customer has their own.
    pub base: &'static str,
    /// Variables of the key, of which the first set one is used; empty if no key is needed.
    pub keys: &'static [&'static str],
    /// Models of the preferred families, the best first; the newest of a family is the default.
    pub prefer: &'static [&'static str],
}

impl Vendor {
    /// Returns the variable of the key for messages; empty if no key is needed.
    pub(crate) fn key_env(&self) -> &'static str {
        self.keys.first().copied().unwrap_or_default()
    }

    /// Returns the variable that is set to a key.
    pub(crate) fn set_key(&self, env: &Env) -> Option<&'static str> {
        let is_set = |name: &&&str| env.get(**name).is_some_and(|key| !key.trim().is_empty());
        self.keys.iter().find(is_set).copied()
    }
}

/// Makes a table of vendors: protocol, name, address, variables for the key, and preferred models.
macro_rules! vendors {
    ($($protocol:ident $name:literal $base:literal [$($key:literal),*] [$($model:literal),*];)*) => {
        &[$(Vendor {
            protocol: Protocol::$protocol,
            name: $name,
            base: $base,
            keys: &[$($key),*],
            prefer: &[$($model),*],
        }),*]
    };
}

/// Vendors in the order in which their key variables are tried.
pub(crate) const VENDORS: &[Vendor] = vendors! {
    OpenAi "openai" "https://api.openai.com/v1"
        ["OPENAI_API_KEY"] ["gpt-6-luna", "gpt-5-mini", "gpt-5"];
    Anthropic "anthropic" "https://api.anthropic.com" ["ANTHROPIC_API_KEY"] ["claude-sonnet-4-5"];
    OpenAi "openrouter" "https://openrouter.ai/api/v1" ["OPENROUTER_API_KEY"] ["openrouter/auto"];
    OpenAi "deepseek" "https://api.deepseek.com/v1"
        ["DEEPSEEK_API_KEY"] ["deepseek-flash", "deepseek-v4-flash"];
    OpenAi "zhipu" "https://open.bigmodel.cn/api/paas/v4" ["ZHIPU_API_KEY"] ["glm-4.6"];
    OpenAi "zai" "https://api.z.ai/api/paas/v4" ["ZAI_API_KEY"] ["glm-4.6"];
    OpenAi "moonshot" "https://api.moonshot.ai/v1" ["MOONSHOT_API_KEY"] ["kimi-k2"];
    OpenAi "minimax" "https://api.minimax.io/v1" ["MINIMAX_API_KEY"] ["MiniMax-M2"];
    OpenAi "qwen" "https://dashscope.aliyuncs.com/compatible-mode/v1"
        ["DASHSCOPE_API_KEY"] ["qwen-plus"];
    OpenAi "groq" "https://api.groq.com/openai/v1" ["GROQ_API_KEY"] ["gpt-oss-120b"];
    OpenAi "mistral" "https://api.mistral.ai/v1" ["MISTRAL_API_KEY"] ["mistral-small-latest"];
    OpenAi "gemini" "https://generativelanguage.googleapis.com/v1beta/openai"
        ["GEMINI_API_KEY", "GOOGLE_API_KEY"] ["gemini-flash-latest", "gemini-2.5-flash"];
    OpenAi "xai" "https://api.x.ai/v1" ["XAI_API_KEY"] ["grok-4"];
    OpenAi "cerebras" "https://api.cerebras.ai/v1" ["CEREBRAS_API_KEY"] ["gpt-oss-120b"];
    OpenAi "nvidia" "https://integrate.api.nvidia.com/v1" ["NVIDIA_API_KEY"] ["gpt-oss-120b"];
    OpenAi "together" "https://api.together.xyz/v1" ["TOGETHER_API_KEY"] ["gpt-oss-120b"];
    OpenAi "opencode" "https://opencode.ai/zen/v1"
        ["OPENCODE_API_KEY"] ["gpt-6-luna", "gpt-5-mini", "gpt-5"];
    OpenAi "huggingface" "https://router.huggingface.co/v1" ["HF_TOKEN"] ["gpt-oss-120b"];
    OpenAi "ollama" "http://localhost:11434/v1" [] [];
    OpenAi "lmstudio" "http://localhost:1234/v1" [] [];
    OpenAi "llamacpp" "http://localhost:8080/v1" [] [];
    OpenAi "vllm" "http://localhost:8000/v1" [] [];
    OpenAi "litellm" "http://localhost:4000/v1" [] [];
    Azure "azure" "" ["AZURE_OPENAI_API_KEY"] [];
    Demo "demo" "" [] ["demo"];
};

/// Other names of vendors, in other programs' files and in names of models.
const ALIASES: [(&str, &str); 7] = [
    ("claude", "anthropic"),
    ("glm", "zhipu"),
    ("kimi", "moonshot"),
    ("google", "gemini"),
    ("grok", "xai"),
    ("lm-studio", "lmstudio"),
    ("llama.cpp", "llamacpp"),
];

pub(crate) fn find(name: &str) -> Option<&'static Vendor> {
    let name = canonical(name);
    VENDORS.iter().find(|v| v.name == name)
}

/// Returns the address of a vendor's API. `OLLAMA_HOST` overrides Ollama's, as in its other clients.
pub(crate) fn base(vendor: &Vendor, env: &Env) -> String {
    match env.get("OLLAMA_HOST").map(|host| host.trim()) {
        Some(host) if vendor.name == "ollama" && !host.is_empty() => ollama_base(host),
        _ => vendor.base.to_owned(),
    }
}

/// Parses `HOST`, `HOST:PORT`, `:PORT` or a URL (<https://docs.ollama.com/faq>), each with a path or without. A server that
/// listens on 0.0.0.0 is reached at localhost.
fn ollama_base(host: &str) -> String {
    let (scheme, rest) = host.split_once("://").unwrap_or(("", host));
    let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_end_matches('/').trim_end_matches("v1");
    let parts = place.rsplit_once(':');
    let (name, port) = match parts.filter(|(_, port)| !port.ends_with(']')) {
        Some((name, port)) => (name, format!(":{port}")),
        None if scheme.is_empty() => (place, ":11434".to_owned()),
        None => (place, String::new()),
    };
    let scheme = if scheme.is_empty() { "http" } else { scheme };
    let name = match name {
        "" | "0.0.0.0" | "[::]" => "localhost",
        name => name,
    };
    let root = format!("{scheme}://{name}{port}/{path}");
    format!("{}/v1", root.trim_end_matches('/'))
}

/// Returns the table's name for a vendor; for others, the name in lower case.
pub(super) fn canonical(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase();
    let dashed = name.replace('_', "-");
    let known = ALIASES.iter().find(|(alias, _)| *alias == dashed);
    known.map_or(name, |(_, vendor)| (*vendor).to_owned())
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
        assert_eq!(find("LM_Studio").map(|v| v.name), Some("lmstudio"));
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
            ("http://nas:8080/v1", "http://nas:8080/v1"),
            ("http://0.0.0.0:11434", "http://localhost:11434/v1"),
            ("http://nas:11434/v1/", "http://nas:11434/v1"),
            ("nas:11434/v1/", "http://nas:11434/v1"),
            ("https://nas/ollama/", "https://nas/ollama/v1"),
        ] {
            assert_eq!(moved("ollama", host), expected, "{host}");
        }
        assert_eq!(moved("lmstudio", "nas"), "http://localhost:1234/v1");
    }
}
