//! The sections of config.json with all their settings, and the settings that a path leads to.

use std::collections::BTreeMap;

use serde::de::MapAccess;
use serde_json::{Map, Value};

use super::read::{Field, Members, Section};
pub(crate) use super::setting::{Setting, Type};
use crate::child::{Network, Sandbox};
use crate::message::Price;
use crate::redact::Redact;
use crate::secret::Secret;
use crate::text::nearest;

/// Declares the sections. It generates the struct of each one with its defaults, reads its settings from JSON, and makes a row
/// of [`SETTINGS`] for each. A field with a type and a help text is a setting, one without is a section, a list or a map of
/// sections; a section in `{...}` has its struct elsewhere.
macro_rules! sections {
    ($(
        $(#[$meta:meta])*
        $name:ident at $path:literal {$(
            $(#[$note:meta])*
            $field:ident: $type:ty
                $(= $kind:ident $(($($limit:expr),*))?, $help:literal)?
                $({$($inner:ident = $inner_kind:ident, $inner_help:literal;)*})?;
        )*}
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone)]
            pub(crate) struct $name {$(
                $(#[$note])*
                pub $field: $type,
            )*}

            impl Default for $name {
                fn default() -> Self {
                    Self {$(
                        $field: sections!(@default $($kind $(($($limit),*))?)?),
                    )*}
                }
            }

            sections!(@section $name {$(
                $field $(= $kind $(($($limit),*))?)?;
            )*});

            $($(sections!(@section $type {$(
                $inner = $inner_kind;
            )*});)?)*
        )*

        /// The table of every setting, for what looks at settings by their paths: names of variables, unknown settings, where a
        /// value came from, what may be written, and the reference in docs/settings.md.
        pub(crate) const SETTINGS: &[Setting] = &[$($(
            $(Setting {
                path: concat!($path, ".", stringify!($field)),
                kind: Type::$kind $(($($limit),*))?,
                help: $help,
            },)?
            $($(Setting {
                path: concat!($path, ".", stringify!($field), ".", stringify!($inner)),
                kind: Type::$inner_kind,
                help: $inner_help,
            },)*)?
        )*)*];
    };

    (@section $name:ty {$(
        $field:ident $(= $kind:ident $(($($limit:expr),*))?)?;
    )*}) => {
        impl Section for $name {
            fn read<'de, A: MapAccess<'de>>(
                &mut self,
                name: &str,
                members: &mut Members<'_, A>,
            ) -> Result<(), A::Error> {
                $(if same_name(name, stringify!($field)) {
                    sections!(@read self.$field, members $(, $kind $(($($limit),*))?)?);
                    return Ok(());
                })*
                members.unknown()
            }
        }
    };

    (@default TextOr($default:expr)) => { $default.to_owned() };
    (@default Bool($default:expr)) => { $default };
    (@default Whole($least:expr, $default:expr)) => { $default };
    (@default Number($least:expr, $default:expr)) => { $default };
    (@default OneOf($default:expr, $words:expr)) => { Field::from_checked($default.into()) };
    (@default $($empty:ident)?) => { Default::default() };

    (@read $place:expr, $members:ident) => { $members.section(&mut $place)? };
    (@read $place:expr, $members:ident, $kind:ident $(($($limit:expr),*))?) => {
        if let Some(value) = $members.setting(Type::$kind $(($($limit),*))?)? {
            $place = Field::from_checked(value);
        }
    };
}

/// The values that the program uses. Each has a default, so none is optional here.
#[derive(Clone, Default)]
pub(crate) struct Config {
    pub agents: Agents,
    pub model_list: Vec<ModelEntry>,
    pub channels: Channels,
    pub tools: Tools,
    pub mcp_servers: BTreeMap<String, McpServer>,
    pub memory: Memory,
    pub session: Session,
    pub cron: Cron,
    pub heartbeat: Heartbeat,
    pub gateway: Gateway,
    pub budget: Budget,
    pub log: Log,
    /// There is a config.json.
    pub has_file: bool,
    /// The model that a flag or a variable replaces; empty if there is none.
    pub replaced_model: String,
}

sections!(@section Config {
    agents;
    model_list;
    channels;
    tools;
    mcp_servers;
    memory;
    session;
    cron;
    heartbeat;
    gateway;
    budget;
    log;
});

sections! {
    Agents at "agents" {
        defaults: Defaults;
    }

    Defaults at "agents.defaults" {
        workspace: String = Text, "where the agent works; empty: workspace/ in the home";
        restrict_to_workspace: bool = Bool(true), "false: tools see what you see, except the home";
        model_name: String = Text, "a model_list name, or vendor/model";
        model_fallbacks: Vec<String> = Texts, "models to try in turn when the first one fails";
        max_tokens: u64 = Whole(1, 8192), "longest reply, in tokens";
        context_window: u64 = Whole(1024, 131_072), "what the model can read at once, in tokens";
        temperature: Option<f64> = Optional, "sent only when set";
        max_tool_iterations: u32 = Whole(1, 25), "steps of one turn; the last is asked without tools";
        max_calls: u32 = Whole(1, 500), "model calls for one message, with tasks and subagents";
        timeout: u64 = Whole(1, 600), "seconds one turn may take, with all retries and tools";
        max_retries: u32 = Whole(0, 3), "retries after a temporary failure";
        retry_initial_delay: f64 = Number(0.0, 1.0), "seconds before the first retry, at most; then doubled";
    }

    ModelEntry at "model_list[]" {
        model_name: String = Text, "your name for it";
        model: String = Text,
            "vendor/model; with an api_base, any name the host knows; vendor/* stands for every model of the vendor";
        api_base: String = Text,
            "address to use instead of the vendor's own; models that are not listed use their vendor's first entry";
        api_key: Secret = Secret, "a key, ${VARIABLE}, file:PATH or cmd:COMMAND; empty: the vendor's variable";
        api_keys: Vec<Secret> = Secrets, "more keys; each replaces one that is refused, rate-limited or used up";
        /// Values may hold keys.
        headers: BTreeMap<String, Secret> = Map, "sent with every request";
        extra_body: Map<String, Value> = Any, "fields added to every request";
        request_timeout: u64 = Whole(0, 0), "give up after this many seconds without content; 0: 90, and on this \
            machine or a private network as long as the turn before the first content";
        proxy: String = Text, "http://HOST:PORT or socks5h://HOST:PORT; empty: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY decide";
        context_window: u64 = Whole(0, 0), "0: as in agents.defaults";
        max_tokens: u64 = Whole(0, 0), "0: as in agents.defaults";
        temperature: Option<f64> = Optional, "null: as in agents.defaults";
        reasoning_effort: String = OneOf("", &["none", "minimal", "low", "medium", "high", "xhigh"]),
            "how much the model thinks; empty: its host decides";
        price: Price {
            input = Optional, "in dollars per million tokens; null: unknown";
            output = Optional, "in dollars per million tokens";
            cached = Optional, "in dollars per million tokens read from a cache; null: as input";
        };
    }

    Channels at "channels" {
        telegram: Telegram;
        http: Endpoint;
    }

    Telegram at "channels.telegram" {
        /// Unless it is set, a token switches the bot on.
        enabled: Option<bool> = Switch, "run the bot; a token switches it on, unless this is false";
        token: Secret = Secret, "from @BotFather";
        /// As written; only numbers count.
        allow_from: Vec<String> = Texts, "numeric ids of the users who may talk to it; the first is the owner";
        api_base: String = Text, "a Bot API server of your own";
        proxy: String = Text, "for the bot alone";
        streaming: bool = Bool(true), "show drafts while an answer is written";
        group_trigger: String = OneOf("mention", &["mention", "all"]), "which group messages to answer";
    }

    Tools at "tools" {
        confirm: Vec<String> = Texts, "ask before these calls: tools, MCP servers, `writes`, `runs`";
        read_paths: Vec<String> = Texts, "directories outside the workspace that tools may read";
        write_paths: Vec<String> = Texts, "directories outside the workspace that tools may change";
        redact: Redact = OneOf("secrets", &["keys", "secrets", "off"]),
            "what is removed from tools' results. secrets: keys, tokens and passwords; keys: keys of known shapes; off: bantam's own";
        mcp_kb: u64 = Whole(1, 64), "most KB that the tools of MCP servers may add to each request";
        exec: Exec;
        web: Web;
        transcribe: Transcribe;
    }

    Endpoint at "channels.http" {
        enabled: bool = Bool(false), "let the gateway answer OpenAI's chat API";
        listen: String = TextOr("127.0.0.1:7475"), "ADDRESS:PORT";
        token: Secret = Secret, "what clients send as their API key; empty: the gateway makes one, in state/http_token";
        allow_origin: String = Text, "the one web origin whose pages may use it: https://chat.example.org";
    }

    Exec at "tools.exec" {
        enabled: bool = Bool(true), "offer the exec tool";
        timeout: u64 = Whole(1, 60), "seconds, unless the call asks for another limit";
        network: Network = OneOf("none", &["none", "guarded", "full"]), "what a command can reach";
        sandbox: Sandbox = OneOf("auto", &["auto", "require", "off"]), "off: commands run with all your rights";
        memory_mb: u64 = Whole(0, 512), "data memory of each process; 0: no limit";
        pass_env: Vec<String> = Texts, "your variables that commands get";
    }

    Web at "tools.web" {
        search: Search;
        fetch: Fetch;
    }

    Search at "tools.web.search" {
        provider: String = OneOf("auto", &["auto", "brave", "tavily", "serper", "searxng", "duckduckgo"]),
            "search engine";
        api_key: Secret = Secret, "a key or ${VARIABLE}, for engines that need one; empty: TAVILY_API_KEY, \
            BRAVE_API_KEY or SERPER_API_KEY";
        base_url: String = Text, "your own SearXNG; or the engine's address, if not its own";
        max_results: u64 = Whole(1, 5), "results of one search";
    }

    Fetch at "tools.web.fetch" {
        max_chars: usize = Whole(1, 50_000), "longest page";
        timeout: u64 = Whole(1, 30), "seconds for one page";
        allow_private: bool = Bool(false), "let it reach your own network";
    }

    Transcribe at "tools.transcribe" {
        /// Empty: recordings stay as they are.
        model: String = Text, "vendor/model that transcribes recordings, for example groq/whisper-large-v3-turbo";
    }

    /// A server of tools: a program to start, or an address.
    McpServer at "mcpServers.*" {
        /// Empty for a remote server.
        command: String = Text, "program of a local server";
        args: Vec<String> = Texts, "its arguments";
        /// Values may name variables: `${NAME}`.
        env: BTreeMap<String, Secret> = Map, "its environment";
        cwd: String = Text, "where it starts; empty: a directory of its own";
        /// Empty for a local server.
        url: String = Text, "address of a remote server";
        /// Values may name variables: `${NAME}`.
        headers: BTreeMap<String, Secret> = Map, "sent to it";
        read: Vec<String> = Texts, "directories it may read";
        write: Vec<String> = Texts, "directories it may change";
        network: bool = Bool(true), "let it reach the internet, this machine's ports and your local network";
        memory_mb: u64 = Whole(0, 0), "its data memory; 0: no limit";
        enabled: bool = Bool(true), "offer its tools";
        tools: Vec<String> = Texts, "names of its tools to offer; empty: all";
    }

    Memory at "memory" {
        /// Empty: notes are found by their words alone.
        embedding_model: String = Text, "vendor/model by which memory search also compares meanings";
    }

    Session at "session" {
        compact_at: f64 = Number(0.1, 0.8), "summarize old turns at this share of the model's window";
        ttl_hours: f64 = Number(0.0, 0.0), "start over after this many idle hours; 0: never";
        history_limit: usize = Whole(0, 0), "most messages sent to the model; 0: all that fit";
        keep_days: u64 = Whole(0, 30), "delete conversations that nobody named, and archived parts of all, after so many days; 0: never";
    }

    Cron at "cron" {
        enabled: bool = Bool(true), "run jobs in the gateway";
        grace_minutes: u64 = Whole(0, 60), "a run that is later than this is recorded as missed";
    }

    Heartbeat at "heartbeat" {
        enabled: bool = Bool(false), "let the agent work through HEARTBEAT.md regularly";
        interval_minutes: u64 = Whole(1, 30), "how often";
        to: String = Text, "telegram:CHAT; empty: the owner's last chat";
    }

    Gateway at "gateway" {
        workers: usize = Whole(1, 4), "conversations served at once";
    }

    /// What may be spent per day; 0 is no limit.
    #[derive(Copy)]
    Budget at "budget" {
        daily_tokens: u64 = Whole(0, 0), "most tokens per day, over everything in this home; 0: no limit";
        daily_cost: f64 = Number(0.0, 0.0), "most dollars per day, by the host's prices or model_list[].price; 0: no limit";
    }

    /// What the gateway logs to stderr.
    Log at "log" {
        level: String = OneOf("info", &["error", "warn", "info", "debug"]), "what the gateway logs";
        json: bool = Bool(false), "log JSON Lines";
    }
}

/// What a path may lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A setting or a section of settings, by its own name and not one that the user has chosen.
    Setting,
    /// An entry of a list or map, too.
    Anywhere,
}

/// Whether such a setting, or one below it, is in the table.
pub(crate) fn is_known(names: &[&str], place: Place) -> bool {
    below(names).any(|setting| {
        let last = names
            .len()
            .checked_sub(1)
            .and_then(|last| setting.segments().nth(last));
        place == Place::Anywhere || !matches!(last, Some("*" | "]"))
    }) || (place == Place::Anywhere && in_map(names))
}

/// The settings that `names` lead to: one of them, or those in a section or an entry.
pub(crate) fn below(names: &[&str]) -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(move |setting| {
        let mut segments = setting.segments();
        names.iter().all(|name| match segments.next() {
            None => false,
            Some("*") => !name.is_empty(),
            Some("]") => name.parse::<usize>().is_ok(),
            Some(segment) => same_name(segment, name),
        })
    })
}

/// The segments of a setting with the names that the user has chosen, as far as there are `names`.
pub(crate) fn named<'a>(
    setting: &'static Setting,
    names: &'a [&'a str],
) -> impl Iterator<Item = &'a str> + Clone {
    setting
        .segments()
        .enumerate()
        .map(|(n, segment)| match (segment, names.get(n)) {
            ("*" | "]", Some(name)) => name,
            (segment, _) => segment,
        })
}

/// Whether this is a place in a setting that holds names and values.
pub(crate) fn in_map(names: &[&str]) -> bool {
    names
        .split_last()
        .is_some_and(|(_, map)| find(map).is_some_and(|s| matches!(s.kind, Type::Map | Type::Any)))
}

/// Whether entries are numbered here.
pub(crate) fn is_list(names: &[&str]) -> bool {
    below(names)
        .next()
        .and_then(|setting| setting.segments().nth(names.len()))
        == Some("]")
}

/// The setting at a path like `model_list`, `0`, `model`.
pub(crate) fn find(names: &[&str]) -> Option<&'static Setting> {
    below(names).find(|setting| setting.segments().count() == names.len())
}

/// The path that was meant by one that is unknown: with another name in the same section, else in any.
pub(crate) fn meant(names: &[&str]) -> Option<String> {
    let (last, section) = names.split_last()?;
    let siblings = below(section).filter_map(|setting| setting.segments().nth(section.len()));
    let siblings = siblings.filter(|segment| !matches!(*segment, "]" | "*"));
    let siblings: Vec<&str> = siblings.collect();
    let abbreviated = siblings.iter().find(|name| abbreviates(last, name));
    if let Some(near) = abbreviated.copied().or_else(|| nearest(last, siblings)) {
        return Some([section, &[near]].concat().join("."));
    }
    let near = nearest(
        last,
        SETTINGS
            .iter()
            .filter_map(|setting| setting.segments().last()),
    )?;
    SETTINGS
        .iter()
        .find(|setting| setting.segments().last() == Some(near))
        .map(|setting| setting.path.to_owned())
}

/// Whether a word leaves out letters of a name, as `cmd` does. It is short: a longer one may be another name with a slip.
fn abbreviates(word: &str, name: &str) -> bool {
    let mut letters = name.chars();
    let mut first = word.chars().zip(name.chars());
    word.len() == 3
        && first.next().is_some_and(|(a, b)| a == b)
        && word.chars().all(|c| letters.any(|letter| letter == c))
}

/// The value at a path in any spelling. A name of the user's own that is spelled exactly so comes first.
pub(crate) fn value_at<'a>(values: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().try_fold(values, |at, name| match at {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        at => at.get(*name).or_else(|| {
            at.as_object()?
                .iter()
                .find(|(key, _)| same_name(key, name))
                .map(|(_, v)| v)
        }),
    })
}

/// Whether two names differ in spelling only: `allowFrom`, `allow_from` and `ALLOW_FROM` are one.
pub(crate) fn same_name(a: &str, b: &str) -> bool {
    fn folded(name: &str) -> impl Iterator<Item = u8> {
        name.bytes()
            .filter(|b| *b != b'_')
            .map(|b| b.to_ascii_lowercase())
    }
    folded(a).eq(folded(b))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_two_settings_share_a_spelling_or_a_variable() {
        for (n, setting) in SETTINGS.iter().enumerate() {
            for other in &SETTINGS[..n] {
                assert!(
                    !same_name(other.path, setting.path),
                    "{} is there twice",
                    setting.path
                );
                let name = setting.env_name();
                assert!(
                    name.is_none() || name != other.env_name(),
                    "{} shares a variable",
                    setting.path
                );
            }
        }
        assert!(same_name("allowFrom", "ALLOW_FROM") && !same_name("allow", "allow_from"));
    }

    #[test]
    fn a_name_of_the_users_own_is_told_apart_by_every_letter() {
        let values =
            json!({"mcpServers": {"myServer": {"command": "a"}, "my_server": {"command": "b"}}});
        for (name, command) in [("myServer", "a"), ("my_server", "b")] {
            let found = value_at(&values, &["mcp_servers", name, "command"]);
            assert_eq!(found, Some(&json!(command)), "{name}");
        }
        assert_eq!(
            value_at(&json!({"allow_from": ["1"]}), &["allowFrom", "0"]),
            Some(&json!("1"))
        );
        assert_eq!(value_at(&values, &["mcpServers", "none"]), None);
    }
}
