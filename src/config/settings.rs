//! The sections of config.json, with a struct for each section and a field with a doc comment for each setting.
//!
//! docs/settings.md is generated from the doc comments, which need no Markdown there.
#![allow(clippy::doc_markdown)]

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::proxy::shown;
use crate::child::{Network, Sandbox};
use crate::log::Level;
use crate::message::Price;
use crate::redact::Redact;
use crate::secret::Secret;

/// Declares a section: its struct, its defaults and its JSON. A field without a default gets the default of its type. A plain
/// derived struct would also read a list, so that `"tools": ["exec"]` would set `tools.confirm`; a section accepts only
/// objects, and null for its defaults.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident {$(
        $(#[$note:meta])*
        $field:ident: $type:ty $(= $default:expr)?,
    )*}) => {
        $(#[$meta])*
        #[derive(Clone, serde::Deserialize, serde::Serialize)]
        #[serde(default, remote = "Self")]
        pub(crate) struct $name {$(
            $(#[$note])*
            pub $field: $type,
        )*}

        impl Default for $name {
            fn default() -> Self {
                Self {$($field: section!(@default $($default)?),)*}
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
                struct Object;

                impl<'de> Visitor<'de> for Object {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_unit<E>(self) -> Result<$name, E> {
                        Ok($name::default())
                    }

                    fn visit_map<A: MapAccess<'de>>(self, json: A) -> Result<$name, A::Error> {
                        <$name>::deserialize(MapAccessDeserializer::new(json))
                    }
                }

                json.deserialize_any(Object)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, json: S) -> Result<S::Ok, S::Error> {
                <$name>::serialize(self, json)
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

section! {
    /// All settings. Each has a default, so fields need no `Option`.
    Config {
        agents: Agents,
        model_list: Vec<ModelEntry>,
        channels: Channels,
        tools: Tools,
        #[serde(rename = "mcpServers")]
        mcp_servers: BTreeMap<String, McpServer>,
        memory: Memory,
        session: Session,
        cron: Cron,
        heartbeat: Heartbeat,
        gateway: Gateway,
        budget: DailyBudget,
        log: Log,
        #[serde(skip)]
        has_file: bool,
    }
}

section! {
    Agents {
        defaults: Defaults,
    }
}

section! {
    Defaults {
        /// where the agent works; empty: workspace/ in the home
        workspace: String,
        /// false: tools see what you see, except the home
        restrict_to_workspace: bool = true,
        /// a model_list name, or vendor/model
        model_name: String,
        /// models to try in turn when the first one fails
        #[serde(deserialize_with = "list")]
        model_fallbacks: Vec<String>,
        /// longest reply, in tokens
        max_tokens: u64 = 8192,
        /// what the model can read at once, in tokens
        context_window: u64 = 131_072,
        /// sent only when set
        temperature: Option<f64>,
        /// steps of one turn; the last is asked without tools
        max_tool_iterations: u32 = 25,
        /// model calls for one message, with tasks and subagents
        max_calls: u32 = 500,
        /// seconds one turn may take, with all retries and tools
        timeout: u64 = 600,
        /// retries after a temporary failure
        max_retries: u32 = 3,
        /// seconds before the first retry, at most; then doubled
        retry_initial_delay: f64 = 1.0,
    }
}

section! {
    ModelEntry {
        /// your name for it
        model_name: String,
        /// vendor/model; with an api_base, any name the host knows; vendor/* stands for every model of the vendor
        model: String,
        /// address to use instead of the vendor's own; models that are not listed use their vendor's first entry
        #[serde(serialize_with = "hide_user")]
        api_base: String,
        /// a key, ${VARIABLE}, file:PATH or cmd:COMMAND; empty: the vendor's variable
        api_key: Secret,
        /// more keys; each replaces one that is refused, rate-limited or used up
        #[serde(deserialize_with = "list")]
        api_keys: Vec<Secret>,
        /// sent with every request
        headers: BTreeMap<String, Secret>,
        /// fields added to every request
        #[serde(serialize_with = "hide")]
        extra_body: Map<String, Value>,
        /// give up after this many seconds without content; 0: 90, and on this machine or a private network as long as the turn before the first content
        request_timeout: u64,
        /// http://HOST:PORT or socks5h://HOST:PORT; empty: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY decide
        #[serde(serialize_with = "hide_user")]
        proxy: String,
        /// 0: as in agents.defaults
        context_window: u64,
        /// 0: as in agents.defaults
        max_tokens: u64,
        /// null: as in agents.defaults
        temperature: Option<f64>,
        /// how much the model thinks: none, minimal, low, medium, high or xhigh; empty: its host decides
        reasoning_effort: String,
        /// dollars per million tokens: input, output and cached (read from a cache; null: as input)
        price: Price,
    }
}

section! {
    Channels {
        telegram: Telegram,
        http: Endpoint,
    }
}

section! {
    Telegram {
        /// run the bot; a token switches it on, unless this is false
        enabled: Option<bool>,
        /// from @BotFather
        token: Secret,
        /// numeric ids of the users who may talk to it; the first is the owner
        #[serde(deserialize_with = "list")]
        allow_from: Vec<String>,
        /// a Bot API server of your own
        #[serde(serialize_with = "hide_user")]
        api_base: String,
        /// for the bot alone
        #[serde(serialize_with = "hide_user")]
        proxy: String,
        /// show drafts while an answer is written
        streaming: bool = true,
        /// which group messages to answer: mention or all
        group_trigger: GroupTrigger,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GroupTrigger {
    #[default]
    Mention,
    All,
}

section! {
    Endpoint {
        /// let the gateway answer OpenAI's chat API
        enabled: bool,
        /// ADDRESS:PORT
        listen: String = "127.0.0.1:7475".to_owned(),
        /// what clients send as their API key; empty: the gateway makes one, in state/http_token
        token: Secret,
        /// the one web origin whose pages may use it: https://chat.example.org
        allow_origin: String,
    }
}

section! {
    Tools {
        /// ask before these calls: tools, MCP servers, `writes`, `runs`
        #[serde(deserialize_with = "list")]
        confirm: Vec<String>,
        /// directories outside the workspace that tools may read
        #[serde(deserialize_with = "list")]
        read_paths: Vec<String>,
        /// directories outside the workspace that tools may change
        #[serde(deserialize_with = "list")]
        write_paths: Vec<String>,
        /// what is removed from tools' results. secrets: keys, tokens and passwords; keys: keys of known shapes; off: bantam's own
        redact: Redact,
        /// most KB that the tools of MCP servers may add to each request
        mcp_kb: u64 = 64,
        exec: Exec,
        web: Web,
        transcribe: Transcribe,
    }
}

section! {
    Exec {
        /// offer the exec tool
        enabled: bool = true,
        /// seconds, unless the call asks for another limit
        timeout: u64 = 60,
        /// what a command can reach: none, guarded or full
        network: Network = Network::None,
        /// auto, require or off (commands run with all your rights)
        sandbox: Sandbox = Sandbox::Auto,
        /// data memory of each process; 0: no limit
        memory_mb: u64 = 512,
        /// your variables that commands get
        #[serde(deserialize_with = "list")]
        pass_env: Vec<String>,
    }
}

section! {
    Web {
        search: Search,
        fetch: Fetch,
    }
}

section! {
    Search {
        /// search engine: auto, brave, tavily, serper, searxng or duckduckgo
        provider: String = "auto".to_owned(),
        /// a key or ${VARIABLE}, for engines that need one; empty: TAVILY_API_KEY, BRAVE_API_KEY or SERPER_API_KEY
        api_key: Secret,
        /// your own SearXNG; or the engine's address, if not its own
        #[serde(serialize_with = "hide_user")]
        base_url: String,
        /// results of one search
        max_results: u64 = 5,
    }
}

section! {
    Fetch {
        /// longest page
        max_chars: usize = 50_000,
        /// seconds for one page
        timeout: u64 = 30,
        /// let it reach your own network
        allow_private: bool,
    }
}

section! {
    Transcribe {
        /// vendor/model that transcribes recordings, for example groq/whisper-large-v3-turbo; empty: recordings stay as they are
        model: String,
    }
}

section! {
    /// A server of tools: a program to start, or an address.
    McpServer {
        /// program of a local server
        command: String,
        /// its arguments
        #[serde(deserialize_with = "list")]
        args: Vec<String>,
        /// its environment; values may name variables: ${NAME}
        env: BTreeMap<String, Secret>,
        /// where it starts; empty: a directory of its own
        cwd: String,
        /// address of a remote server
        #[serde(serialize_with = "hide_path")]
        url: String,
        /// sent to it; values may name variables: ${NAME}
        headers: BTreeMap<String, Secret>,
        /// directories it may read
        #[serde(deserialize_with = "list")]
        read: Vec<String>,
        /// directories it may change
        #[serde(deserialize_with = "list")]
        write: Vec<String>,
        /// let it reach the internet, this machine's ports and your local network
        network: bool = true,
        /// its data memory; 0: no limit
        memory_mb: u64,
        /// offer its tools
        enabled: bool = true,
        /// the opposite of enabled, as in other clients' files
        disabled: bool,
        /// as in other clients' files; not used
        r#type: String,
        /// names of its tools to offer; empty: all
        #[serde(deserialize_with = "list")]
        tools: Vec<String>,
    }
}

section! {
    Memory {
        /// vendor/model by which memory search also compares meanings; empty: notes are found by their words alone
        embedding_model: String,
    }
}

section! {
    Session {
        /// summarize old turns at this share of the model's window, 0.1 to 1
        compact_at: f64 = 0.8,
        /// start over after this many idle hours; 0: never
        ttl_hours: f64,
        /// most messages sent to the model; 0: all that fit
        history_limit: usize,
        /// days until unused conversations without a name, those of jobs, and archived parts are deleted; 0: never
        keep_days: u64 = 30,
    }
}

section! {
    Cron {
        /// run jobs in the gateway
        enabled: bool = true,
        /// a run that is later than this is recorded as missed
        grace_minutes: u64 = 60,
    }
}

section! {
    Heartbeat {
        /// let the agent work through HEARTBEAT.md regularly
        enabled: bool,
        /// how often
        interval_minutes: u64 = 30,
        /// telegram:CHAT; empty: the owner's last chat
        to: String,
    }
}

section! {
    Gateway {
        /// conversations served at once
        workers: usize = 4,
    }
}

section! {
    /// What may be spent per day; 0 is no limit.
    #[derive(Copy)]
    DailyBudget {
        /// most tokens per day, over everything in this home; 0: no limit
        daily_tokens: u64,
        /// most dollars per day, by the host's prices or model_list[].price; 0: no limit
        daily_cost: f64,
    }
}

section! {
    Log {
        /// what the gateway logs: error, warn, info or debug
        level: Level = Level::Info,
        /// log JSON Lines
        json: bool,
    }
}

/// Reads a list of strings and numbers, or a single one.
fn list<'de, D: Deserializer<'de>, T: From<String>>(json: D) -> Result<Vec<T>, D::Error> {
    let items = match Value::deserialize(json)? {
        Value::Array(items) => items,
        // Refuses broken JSON; a path, id or key never begins like this.
        Value::String(text) if text.trim_start().starts_with(['[', '{', '"']) => {
            return Err(D::Error::custom(
                "invalid type: string, expected a sequence",
            ));
        }
        single => vec![single],
    };
    let text = |item| match item {
        Value::String(text) => Ok(T::from(text)),
        Value::Number(number) => Ok(T::from(number.to_string())),
        _ => Err(D::Error::custom("invalid type: entry, expected a sequence")),
    };
    items.into_iter().map(text).collect()
}

/// Writes names with their values hidden, which may contain keys.
fn hide<S: Serializer>(values: &Map<String, Value>, json: S) -> Result<S::Ok, S::Error> {
    json.collect_map(values.keys().map(|name| (name, "(set)")))
}

/// Writes an address without its user, password and query.
fn hide_user<S: Serializer>(address: &str, json: S) -> Result<S::Ok, S::Error> {
    json.serialize_str(&shown(address))
}

/// Writes an address without its path, where some servers put keys.
fn hide_path<S: Serializer>(address: &str, json: S) -> Result<S::Ok, S::Error> {
    let address = shown(address);
    let (scheme, rest) = address.split_once("://").unwrap_or(("", &address));
    match rest.split_once('/') {
        Some((host, path)) if !path.is_empty() => {
            json.serialize_str(&format!("{scheme}://{host}/..."))
        }
        _ => json.serialize_str(&address),
    }
}
