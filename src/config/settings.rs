//! The sections of config.json, with a struct for each section and a field with a doc comment for each setting.
//!
//! docs/settings.md is generated from the doc comments, which need no Markdown there.
#![allow(clippy::doc_markdown)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::proxy::redact_url;
use crate::child::{Network, Sandbox};
use crate::log::Level;
use crate::message::Price;
use crate::redact::Redact;
use crate::secret::Secret;

/// Declares the sections: their structs and defaults. A field without a default gets the default of its type.
macro_rules! sections {
    ($($(#[$meta:meta])* $name:ident {$(
        $(#[$note:meta])*
        $field:ident: $type:ty $(= $default:expr)?,
    )*})*) => {$(
        $(#[$meta])*
        #[derive(Clone, Deserialize, Serialize)]
        #[serde(default, deny_unknown_fields)]
        pub(crate) struct $name {$(
            $(#[$note])*
            pub $field: $type,
        )*}

        impl Default for $name {
            fn default() -> Self {
                Self {$($field: sections!(@default $($default)?),)*}
            }
        }
    )*};
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

sections! {
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

    Agents {
        defaults: Defaults,
    }

    Defaults {
        /// where the agent works; empty: workspace/ in the home
        workspace: String,
        /// false: tools can access everything you can, except bantam's own files; they cannot create or replace files directly in a directory that contains bantam's home, such as ~
        restrict_to_workspace: bool = true,
        /// the model that answers: a model_list name, or provider/model
        model_name: String,
        /// fallback models, tried in order when the first one fails
        model_fallbacks: Vec<String>,
        /// maximum reply length, in tokens
        max_tokens: u64 = 8192,
        /// context window, in tokens
        context_window: u64 = 131_072,
        /// sampling temperature; sent only if set
        temperature: Option<f64>,
        /// model requests per turn; the last one gets no tools
        max_tool_iterations: u32 = 25,
        /// maximum model requests per message, including tasks and subagents
        max_calls: u32 = 500,
        /// time limit of one turn, in seconds, including retries and tools
        timeout: u64 = 600,
        /// maximum retries after a temporary failure
        max_retries: u32 = 3,
        /// maximum delay before the first retry, in seconds; doubled for each further retry
        retry_initial_delay: f64 = 1.0,
    }

    ModelEntry {
        /// your name for the model
        model_name: String,
        /// provider/model, or with an api_base any name that the server knows; provider/* means every model of the provider
        model: String,
        /// address to use instead of the provider's; unlisted models use their provider's first entry
        #[serde(serialize_with = "hide_user")]
        api_base: String,
        /// "responses" uses OpenAI's Responses API; empty: chat completions, or the Responses API once the provider requires it
        api: String,
        /// key, ${VARIABLE}, file:PATH or cmd:COMMAND; empty: the provider's variable
        api_key: Secret,
        /// more keys; each replaces a key that is refused, rate-limited or used up
        api_keys: Vec<Secret>,
        /// headers sent with every request
        headers: BTreeMap<String, Secret>,
        /// fields added to every request
        #[serde(serialize_with = "hide")]
        extra_body: Map<String, Value>,
        /// time limit without content, in seconds; 0: 90, or the turn's limit before the first content on this machine or a private network
        request_timeout: u64,
        /// http://HOST:PORT or socks5h://HOST:PORT; empty: use HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY
        #[serde(serialize_with = "hide_user")]
        proxy: String,
        /// context window, in tokens; 0: as in agents.defaults
        context_window: u64,
        /// maximum reply length, in tokens; 0: as in agents.defaults
        max_tokens: u64,
        /// null: as in agents.defaults
        temperature: Option<f64>,
        /// how much the model thinks: none, minimal, low, medium, high or xhigh; empty: the provider's default
        reasoning_effort: String,
        /// dollars per million tokens: input, output and cached (read from a cache; default: same as input)
        price: Price,
    }

    Channels {
        telegram: Telegram,
        http: Endpoint,
    }

    Telegram {
        /// run the bot; by default, a token enables it
        enabled: Option<bool>,
        /// token from @BotFather
        token: Secret,
        /// numeric ids of the users who may talk to the bot; the first is the owner
        allow_from: Vec<String>,
        /// address of your own Bot API server
        #[serde(serialize_with = "hide_user")]
        api_base: String,
        /// proxy of the bot only
        #[serde(serialize_with = "hide_user")]
        proxy: String,
        /// show drafts while an answer is written
        streaming: bool = true,
        /// group messages to answer: mention or all
        group_trigger: GroupTrigger,
    }

    Endpoint {
        /// serve OpenAI's chat API from the gateway
        enabled: bool,
        /// ADDRESS:PORT
        listen: String = "127.0.0.1:7475".to_owned(),
        /// API key that clients must send; empty: the gateway generates one in state/http_token
        token: Secret,
        /// web origin whose pages may use the endpoint, such as https://chat.example.org
        allow_origin: String,
    }

    Tools {
        /// ask before these calls: tools, MCP servers, `writes`, `runs`
        confirm: Vec<String>,
        /// directories outside the workspace that tools may read
        read_paths: Vec<String>,
        /// directories outside the workspace that tools may change
        write_paths: Vec<String>,
        /// data to remove from tool results. secrets: keys, tokens, passwords; keys: known key formats; off: only bantam's own
        redact: Redact,
        /// maximum size of MCP tool definitions per request, in KB
        mcp_kb: u64 = 64,
        exec: Exec,
        web: Web,
        transcribe: Transcribe,
    }

    Exec {
        /// offer the exec tool
        enabled: bool = true,
        /// time limit in seconds, unless the call sets another one
        timeout: u64 = 60,
        /// network access of shell commands: none, guarded or full
        network: Network = Network::None,
        /// auto, require or off (shell commands run with all your rights)
        sandbox: Sandbox = Sandbox::Auto,
        /// maximum data memory of each process, in MB; 0: no limit
        memory_mb: u64 = 512,
        /// names of your variables to pass to shell commands
        pass_env: Vec<String>,
    }

    Web {
        search: Search,
        fetch: Fetch,
    }

    Search {
        /// search engine: auto, brave, tavily, serper, searxng or duckduckgo
        provider: String = "auto".to_owned(),
        /// key or ${VARIABLE}, for engines that need one; empty: TAVILY_API_KEY, BRAVE_API_KEY or SERPER_API_KEY
        api_key: Secret,
        /// address of your own SearXNG, or another address of the engine
        #[serde(serialize_with = "hide_user")]
        base_url: String,
        /// number of results per search
        max_results: u64 = 5,
    }

    Fetch {
        /// maximum length of a page, in characters
        max_chars: usize = 50_000,
        /// time limit for one page, in seconds
        timeout: u64 = 30,
        /// allow addresses in your own network
        allow_private: bool,
    }

    Transcribe {
        /// provider/model that transcribes audio, such as groq/whisper-large-v3-turbo; empty: audio is not transcribed
        model: String,
    }

    /// An MCP server: a program to start, or an address.
    McpServer {
        /// program of a local server
        command: String,
        /// arguments of the program; command, args, url, env and headers may contain variables: ${NAME}
        args: Vec<String>,
        /// environment of the program
        env: BTreeMap<String, Secret>,
        /// working directory; empty: a private directory
        cwd: String,
        /// address of a remote server
        #[serde(serialize_with = "hide_path")]
        url: String,
        /// headers sent to the server
        headers: BTreeMap<String, Secret>,
        /// directories and files the server may read
        read: Vec<String>,
        /// directories and files the server may change
        write: Vec<String>,
        /// allow access to the internet, this machine's ports and your local network
        network: bool = true,
        /// maximum data memory of each process, in MB; 0: no limit
        memory_mb: u64,
        /// offer the server's tools
        enabled: bool = true,
        /// opposite of enabled, as in other clients' files
        disabled: bool,
        /// accepted from other clients' files, but not used
        r#type: String,
        /// names of the tools to offer; empty: all
        tools: Vec<String>,
    }

    Memory {
        /// provider/model for memory search by meaning; empty: search by words only
        embedding_model: String,
    }

    Session {
        /// summarize old turns at this share of the model's window, 0.1 to 1
        compact_at: f64 = 0.8,
        /// start the conversation over after this many idle hours; 0: never
        ttl_hours: f64,
        /// maximum number of messages sent to the model, the question included; 0: all that fit
        history_limit: usize,
        /// delete unused unnamed and job conversations, and archived parts, after this many days; 0: never
        keep_days: u64 = 30,
    }

    Cron {
        /// run jobs in the gateway
        enabled: bool = true,
        /// skip a run that is later than this many minutes
        grace_minutes: u64 = 60,
    }

    Heartbeat {
        /// let the agent work through HEARTBEAT.md regularly
        enabled: bool,
        /// interval in minutes
        interval_minutes: u64 = 30,
        /// telegram:CHAT; empty: the owner's last chat
        to: String,
    }

    Gateway {
        /// maximum number of conversations answered at the same time
        workers: usize = 4,
    }

    /// Daily budget; 0 for no limit.
    #[derive(Copy)]
    DailyBudget {
        /// maximum tokens per day, for everything in this home; 0: no limit
        daily_tokens: u64,
        /// maximum dollars per day, by the provider's prices or model_list[].price; 0: no limit
        daily_cost: f64,
    }

    Log {
        /// minimum level of the gateway's log: error, warn, info or debug
        level: Level = Level::Info,
        /// write the log as JSON Lines
        json: bool,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GroupTrigger {
    #[default]
    Mention,
    All,
}

/// Writes names without their values, which may contain keys.
fn hide<S: Serializer>(values: &Map<String, Value>, json: S) -> Result<S::Ok, S::Error> {
    json.collect_map(values.keys().map(|name| (name, "(set)")))
}

/// Writes an address without its user, password and query.
fn hide_user<S: Serializer>(address: &str, json: S) -> Result<S::Ok, S::Error> {
    json.serialize_str(&redact_url(address))
}

/// Writes an address without its path, where some servers put keys.
fn hide_path<S: Serializer>(address: &str, json: S) -> Result<S::Ok, S::Error> {
    let address = redact_url(address);
    let (scheme, rest) = address.split_once("://").unwrap_or(("", &address));
    match rest.split_once('/') {
        Some((host, path)) if !path.is_empty() => {
            json.serialize_str(&format!("{scheme}://{host}/..."))
        }
        _ => json.serialize_str(&address),
    }
}
