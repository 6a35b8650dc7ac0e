//! The table of every setting: its path, its type with the default, and a line of help.
//!
//! This table alone drives defaults, environment names, the check for unknown settings, the types of values, where each
//! value came from, and the reference in docs/settings.md.

use serde_json::{Value, json};

use crate::text::{nearest, parse_json};

/// What a value may be, and its default where that is not empty.
#[derive(Clone, Copy)]
pub(crate) enum Type {
    Text,
    /// Text that is never shown.
    Secret,
    Bool(bool),
    /// A whole number: the least, the default.
    Whole(u64, u64),
    /// A number: the least, the default.
    Number(f64, f64),
    /// A number of at least 0, or null, which is the default.
    Optional,
    /// One of several words: the default, all of them.
    OneOf(&'static str, &'static [&'static str]),
    /// A list of texts; numbers count as text.
    Texts,
    /// A list of secrets.
    Secrets,
    /// Names and texts, which may be secrets.
    Map,
    /// Names and anything, which may be secrets.
    Any,
}

/// One setting. In its path `[]` stands for each entry of a list, `*` for each name of a map.
pub(crate) struct Setting {
    pub path: &'static str,
    pub kind: Type,
    pub help: &'static str,
}

use Type::{Any, Bool, Map, Number, OneOf, Optional, Secret, Secrets, Text, Texts, Whole};

const fn row(path: &'static str, kind: Type, help: &'static str) -> Setting {
    Setting { path, kind, help }
}

const REQUEST_TIMEOUT: &str = "give up after this many seconds without content; 0: 90, and on this machine or a private \
                               network as long as the turn before the first content";
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh"];
const SEARCH_ENGINES: &[&str] = &["auto", "brave", "tavily", "serper", "searxng", "duckduckgo"];

pub(crate) const SETTINGS: &[Setting] = &[
    row("agents.defaults.workspace", Text, "where the agent works; empty: workspace/ in the home"),
    row("agents.defaults.restrict_to_workspace", Bool(true), "false: tools see what you see, except the home"),
    row("agents.defaults.model_name", Text, "a model_list name, or vendor/model"),
    row("agents.defaults.model_fallbacks", Texts, "models to try in turn when the first one fails"),
    row("agents.defaults.max_tokens", Whole(1, 8192), "longest reply, in tokens"),
    row("agents.defaults.context_window", Whole(1024, 131_072), "what the model can read at once, in tokens"),
    row("agents.defaults.temperature", Optional, "sent only when set"),
    row("agents.defaults.max_tool_iterations", Whole(1, 25), "steps of one turn; the last is asked without tools"),
    row("agents.defaults.max_calls", Whole(1, 500), "model calls for one message, with tasks and subagents"),
    row("agents.defaults.timeout", Whole(1, 600), "seconds one turn may take, with all retries and tools"),
    row("agents.defaults.max_retries", Whole(0, 3), "retries after a temporary failure"),
    row(
        "agents.defaults.retry_initial_delay",
        Number(0.0, 1.0),
        "seconds before the first retry, at most; then doubled",
    ),
    row("model_list[].model_name", Text, "your name for it"),
    row(
        "model_list[].model",
        Text,
        "vendor/model, or with an api_base a name as it is sent; vendor/*: every model of the vendor",
    ),
    row(
        "model_list[].api_base",
        Text,
        "another address than the vendor's own; that of its first entry serves models not listed",
    ),
    row("model_list[].api_key", Secret, "a key, ${VARIABLE}, file:PATH or cmd:COMMAND; empty: the vendor's variable"),
    row("model_list[].api_keys", Secrets, "more keys; each replaces one that is refused, rate-limited or used up"),
    row("model_list[].headers", Map, "sent with every request"),
    row("model_list[].extra_body", Any, "fields added to every request"),
    row("model_list[].request_timeout", Whole(0, 0), REQUEST_TIMEOUT),
    row("model_list[].proxy", Text, "http://HOST:PORT; empty: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY decide"),
    row("model_list[].context_window", Whole(0, 0), "0: as in agents.defaults"),
    row("model_list[].max_tokens", Whole(0, 0), "0: as in agents.defaults"),
    row("model_list[].temperature", Optional, "null: as in agents.defaults"),
    row("model_list[].reasoning_effort", OneOf("", EFFORTS), "how much the model thinks; empty: its host decides"),
    row("model_list[].price.input", Optional, "per million tokens; null: unknown"),
    row("model_list[].price.output", Optional, "per million tokens"),
    row("model_list[].price.cached", Optional, "per million tokens read from a cache; null: as input"),
    row("channels.telegram.enabled", Bool(false), "run the bot"),
    row("channels.telegram.token", Secret, "from @BotFather"),
    row("channels.telegram.allow_from", Texts, "numeric ids of the users who may talk to it; the first is the owner"),
    row("channels.telegram.api_base", Text, "a Bot API server of your own"),
    row("channels.telegram.proxy", Text, "for the bot alone"),
    row("channels.telegram.streaming", Bool(true), "show drafts while an answer is written"),
    row("channels.telegram.group_trigger", OneOf("mention", &["mention", "all"]), "which group messages to answer"),
    row("tools.read_paths", Texts, "trees outside the workspace that tools may read"),
    row("tools.write_paths", Texts, "trees outside the workspace that tools may change"),
    row("tools.exec.enabled", Bool(true), "offer the exec tool"),
    row("tools.exec.timeout", Whole(1, 60), "seconds, unless the call asks for another limit"),
    row("tools.exec.network", OneOf("none", &["none", "guarded", "full"]), "what a command can reach"),
    row("tools.exec.sandbox", OneOf("auto", &["auto", "require", "off"]), "off: commands run with all your rights"),
    row("tools.exec.memory_mb", Whole(0, 512), "data memory of each process; 0: no limit"),
    row("tools.exec.pass_env", Texts, "your variables that commands get"),
    row("tools.web.search.provider", OneOf("auto", SEARCH_ENGINES), "search engine"),
    row("tools.web.search.api_key", Secret, "for engines that need one"),
    row("tools.web.search.base_url", Text, "your own SearXNG; or the engine's address, if not its own"),
    row("tools.web.search.max_results", Whole(1, 5), "results of one search"),
    row("tools.web.fetch.max_chars", Whole(1, 50_000), "longest page"),
    row("tools.web.fetch.timeout", Whole(1, 30), "seconds for one page"),
    row("tools.web.fetch.allow_private", Bool(false), "let it reach your own network"),
    row(
        "tools.transcribe.model",
        Text,
        "vendor/model that makes words of recordings, for example groq/whisper-large-v3-turbo",
    ),
    row("mcpServers.*.command", Text, "program of a local server"),
    row("mcpServers.*.args", Texts, "its arguments"),
    row("mcpServers.*.env", Map, "its environment"),
    row("mcpServers.*.cwd", Text, "where it starts; empty: the workspace"),
    row("mcpServers.*.url", Text, "address of a remote server"),
    row("mcpServers.*.headers", Map, "sent to it"),
    row("mcpServers.*.read", Texts, "trees it may read"),
    row("mcpServers.*.write", Texts, "trees it may change"),
    row("mcpServers.*.network", Bool(true), "let it reach the network"),
    row("mcpServers.*.memory_mb", Whole(0, 0), "its data memory; 0: no limit"),
    row("memory.embedding_model", Text, "vendor/model by which memory search also compares meanings"),
    row("session.compact_at", Number(0.1, 0.8), "summarise old turns at this share of the model's window"),
    row("session.ttl_hours", Number(0.0, 0.0), "start over after this many idle hours; 0: never"),
    row("session.history_limit", Whole(0, 0), "most messages sent to the model; 0: all that fit"),
    row("cron.enabled", Bool(true), "run jobs in the gateway"),
    row("cron.grace_minutes", Whole(0, 60), "a run that is later than this is recorded as missed"),
    row("heartbeat.enabled", Bool(false), "let the agent work through HEARTBEAT.md regularly"),
    row("heartbeat.interval_minutes", Whole(1, 30), "how often"),
    row("heartbeat.to", Text, "telegram:CHAT; empty: the owner's last chat"),
    row("gateway.workers", Whole(1, 4), "conversations served at once"),
    row("budget.daily_tokens", Whole(0, 0), "most tokens per day, over everything in this home; 0: no limit"),
    row("budget.daily_cost", Number(0.0, 0.0), "most cost per day, by model_list[].price; 0: no limit"),
    row("log.level", OneOf("info", &["error", "warn", "info", "debug"]), "what the gateway logs"),
    row("log.json", Bool(false), "log JSON Lines"),
];

/// Sections that one variable sets as a whole, in JSON: what is inside them has no variable of its own.
pub(crate) const SECTIONS: [&str; 2] = ["model_list", "mcpServers"];

impl Setting {
    /// The parts of the path, with `]` for each entry of a list: `model_list`, `]`, `model`.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.path.split(['.', '['])
    }

    /// `BANTAM_` and the path in capitals; `None` inside lists and maps.
    pub(crate) fn env_name(&self) -> Option<String> {
        let is_fixed = !self.path.contains(['[', '*']);
        is_fixed.then(|| format!("BANTAM_{}", self.path.replace('.', "_").to_ascii_uppercase()))
    }

    pub(crate) fn default(&self) -> Value {
        match self.kind {
            Text | Secret => json!(""),
            Bool(default) => json!(default),
            Whole(_, default) => json!(default),
            Number(_, default) => json!(default),
            Optional => Value::Null,
            OneOf(default, _) => json!(default),
            Texts | Secrets => json!([]),
            Map | Any => json!({}),
        }
    }

    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.kind, Secret | Secrets | Map | Any)
    }

    /// The value in the table's form; `None` if it is not of this type.
    pub(crate) fn check(&self, value: &Value) -> Option<Value> {
        let text = |value: &Value| match value {
            Value::String(text) => Some(json!(text)),
            Value::Number(number) => Some(json!(number.to_string())),
            _ => None,
        };
        let fits = match self.kind {
            Text | Secret => value.is_string(),
            Bool(_) => value.is_boolean(),
            Whole(least, _) => value.as_u64().is_some_and(|n| n >= least),
            Number(least, _) => value.as_f64().is_some_and(|n| n >= least),
            Optional => value.as_f64().is_some_and(|n| n >= 0.0),
            OneOf(_, words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Texts | Secrets => {
                return match value {
                    Value::Array(items) => items.iter().map(text).collect(),
                    single => text(single).map(|text| json!([text])),
                };
            }
            Map => value.as_object().is_some_and(|map| map.values().all(Value::is_string)),
            Any => value.is_object(),
        };
        fits.then(|| value.clone())
    }

    /// What [`Setting::check`] accepts.
    pub(crate) fn expected(&self) -> String {
        match self.kind {
            Text | Secret => "text in quotes".to_owned(),
            Bool(_) => "true or false".to_owned(),
            Whole(least, _) => format!("a whole number of at least {least}"),
            Number(least, _) => format!("a number of at least {least}"),
            Optional => "a number of at least 0, or null".to_owned(),
            OneOf(_, words) => format!("one of: {}", words.join(", ")),
            Texts | Secrets => "a list of texts: [\"a\", \"b\"]".to_owned(),
            Map => "names and texts: {\"a\": \"b\"}".to_owned(),
            Any => "an object in braces".to_owned(),
        }
    }

    /// The JSON that a variable's text means: text needs no quotes, and a list may be given with commas.
    pub(crate) fn parse(&self, text: &str) -> Value {
        match self.kind {
            Text | Secret | OneOf(..) => text.into(),
            Texts | Secrets if !text.trim_start().starts_with('[') => {
                text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
            }
            _ => parse_json(text).unwrap_or_else(|_| text.into()),
        }
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
        let last = names.len().checked_sub(1).and_then(|last| setting.segments().nth(last));
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
pub(crate) fn named<'a>(setting: &'static Setting, names: &'a [&'a str]) -> impl Iterator<Item = &'a str> + Clone {
    setting.segments().enumerate().map(|(n, segment)| match (segment, names.get(n)) {
        ("*" | "]", Some(name)) => name,
        (segment, _) => segment,
    })
}

/// Whether this is a place in a setting that holds names and values.
pub(crate) fn in_map(names: &[&str]) -> bool {
    names.split_last().is_some_and(|(_, map)| find(map).is_some_and(|s| matches!(s.kind, Map | Any)))
}

/// Whether entries are numbered here.
pub(crate) fn is_list(names: &[&str]) -> bool {
    below(names).next().and_then(|setting| setting.segments().nth(names.len())) == Some("]")
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
    if let Some(near) = nearest(last, siblings) {
        return Some([section, &[near]].concat().join("."));
    }
    let near = nearest(last, SETTINGS.iter().filter_map(|setting| setting.segments().last()))?;
    SETTINGS.iter().find(|setting| setting.segments().last() == Some(near)).map(|setting| setting.path.to_owned())
}

/// The value at a path in any spelling. A name of the user's own that is spelled exactly so comes first.
pub(crate) fn value_at<'a>(values: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().try_fold(values, |at, name| match at {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        at => at.get(*name).or_else(|| at.as_object()?.iter().find(|(key, _)| same_name(key, name)).map(|(_, v)| v)),
    })
}

/// Whether two names differ in spelling only: `allowFrom`, `allow_from` and `ALLOW_FROM` are one.
pub(crate) fn same_name(a: &str, b: &str) -> bool {
    fn folded(name: &str) -> impl Iterator<Item = u8> {
        name.bytes().filter(|b| *b != b'_').map(|b| b.to_ascii_lowercase())
    }
    folded(a).eq(folded(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_settings_share_a_spelling_or_a_variable() {
        for (n, setting) in SETTINGS.iter().enumerate() {
            for other in &SETTINGS[..n] {
                assert!(!same_name(other.path, setting.path), "{} is there twice", setting.path);
                let name = setting.env_name();
                assert!(name.is_none() || name != other.env_name(), "{} shares a variable", setting.path);
            }
        }
        assert!(same_name("allowFrom", "ALLOW_FROM") && !same_name("allow", "allow_from"));
    }

    #[test]
    fn a_name_of_the_users_own_is_told_apart_by_every_letter() {
        let values = json!({"mcpServers": {"myServer": {"command": "a"}, "my_server": {"command": "b"}}});
        for (name, command) in [("myServer", "a"), ("my_server", "b")] {
            let found = value_at(&values, &["mcp_servers", name, "command"]);
            assert_eq!(found, Some(&json!(command)), "{name}");
        }
        assert_eq!(value_at(&json!({"allow_from": ["1"]}), &["allowFrom", "0"]), Some(&json!("1")));
        assert_eq!(value_at(&values, &["mcpServers", "none"]), None);
    }
}
