//! Every configuration path there is: its kind, its default, and a line of help.
//!
//! This table alone drives defaults, environment names, the check for unknown keys, the kinds of values, where each
//! value came from, and the reference in the README.

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Text,
    /// Text that is never shown.
    Secret,
    Bool,
    /// A whole number of at least this.
    Whole(u64),
    /// A number of at least this.
    Number(f64),
    /// A number of at least this, or null.
    Maybe(f64),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of texts; numbers count as text.
    Texts,
    /// A list of secrets.
    Secrets,
    /// Names and texts.
    Map,
    /// Names and anything.
    Any,
}

/// One path. `[]` stands for each entry of a list, `*` for each name of a map.
pub struct Key {
    pub path: &'static str,
    pub kind: Kind,
    /// As JSON.
    pub default: &'static str,
    pub help: &'static str,
}

const fn key(path: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key { path, kind, default, help }
}

use Kind::{Any, Bool, Choice, Map, Maybe, Number, Secret, Secrets, Text, Texts, Whole};

/// See the module's description.
pub const KEYS: &[Key] = &[
    key("agents.defaults.workspace", Text, "\"\"", "where the agent works; empty: workspace/ in the home"),
    key("agents.defaults.restrict_to_workspace", Bool, "true", "false: tools see what you see, except the home"),
    key("agents.defaults.model_name", Text, "\"\"", "a model_list name, or vendor/model"),
    key("agents.defaults.model_fallbacks", Texts, "[]", "models to try in turn when the first one fails"),
    key("agents.defaults.max_tokens", Whole(1), "8192", "the longest reply, in tokens"),
    key("agents.defaults.context_window", Whole(1024), "131072", "what the model can read at once, in tokens"),
    key("agents.defaults.temperature", Maybe(0.0), "null", "sent only when set"),
    key("agents.defaults.max_tool_iterations", Whole(1), "25", "steps of one turn; the last is asked without tools"),
    key("agents.defaults.timeout", Whole(1), "600", "seconds one turn may take, with all its tries and tools"),
    key("agents.defaults.max_retries", Whole(0), "3", "tries after the first, for faults that pass"),
    key(
        "agents.defaults.retry_initial_delay",
        Number(0.0),
        "1.0",
        "seconds before the first of them, at most; then doubled",
    ),
    key("model_list[].model_name", Text, "\"\"", "what you call it"),
    key(
        "model_list[].model",
        Text,
        "\"\"",
        "vendor/model; the model's name after the first slash is sent as it is; vendor/*: every model of the vendor",
    ),
    key("model_list[].api_base", Text, "\"\"", "another address than the vendor's own"),
    key(
        "model_list[].api_key",
        Secret,
        "\"\"",
        "the key, or ${VARIABLE}, file:PATH, cmd:COMMAND; empty: the vendor's variable",
    ),
    key(
        "model_list[].api_keys",
        Secrets,
        "[]",
        "several keys; one that is refused, limited or used up makes room for the next",
    ),
    key("model_list[].headers", Map, "{}", "sent with every request"),
    key("model_list[].extra_body", Any, "{}", "fields added to every request"),
    key(
        "model_list[].request_timeout",
        Whole(1),
        "90",
        "seconds without a byte of content before a request is given up",
    ),
    key(
        "model_list[].proxy",
        Text,
        "\"\"",
        "http://HOST:PORT; empty: as HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY say",
    ),
    key("model_list[].context_window", Whole(0), "0", "0: as in agents.defaults"),
    key("model_list[].max_tokens", Whole(0), "0", "0: as in agents.defaults"),
    key("model_list[].temperature", Maybe(0.0), "null", "null: as in agents.defaults"),
    key("model_list[].price.input", Maybe(0.0), "null", "per million tokens; null: not known"),
    key("model_list[].price.output", Maybe(0.0), "null", "per million tokens"),
    key("model_list[].price.cached", Maybe(0.0), "null", "per million tokens read from a cache; null: as input"),
    key("channels.telegram.enabled", Bool, "false", "run the bot"),
    key("channels.telegram.token", Secret, "\"\"", "from @BotFather"),
    key("channels.telegram.allow_from", Texts, "[]", "numeric user ids that may talk to it; the first is the owner"),
    key("channels.telegram.api_base", Text, "\"\"", "a Bot API server of your own"),
    key("channels.telegram.proxy", Text, "\"\"", "for the bot alone"),
    key("channels.telegram.streaming", Bool, "true", "show drafts while an answer is written"),
    key(
        "channels.telegram.group_trigger",
        Choice(&["mention", "all"]),
        "\"mention\"",
        "what counts as addressed in a group",
    ),
    key("tools.read_paths", Texts, "[]", "trees outside the workspace that tools may read"),
    key("tools.write_paths", Texts, "[]", "trees outside the workspace that tools may change"),
    key("tools.exec.enabled", Bool, "true", "offer the exec tool"),
    key("tools.exec.timeout", Whole(1), "60", "seconds, unless the call names others"),
    key("tools.exec.network", Choice(&["none", "guarded", "full"]), "\"none\"", "what a command can reach"),
    key(
        "tools.exec.sandbox",
        Choice(&["auto", "require", "off"]),
        "\"auto\"",
        "off: commands run with all your rights",
    ),
    key("tools.exec.memory_mb", Whole(0), "512", "data memory of each process; 0: no limit"),
    key("tools.exec.pass_env", Texts, "[]", "variables of yours that commands get"),
    key(
        "tools.web.search.provider",
        Choice(&["auto", "brave", "tavily", "searxng", "duckduckgo"]),
        "\"auto\"",
        "who searches",
    ),
    key("tools.web.search.api_key", Secret, "\"\"", "for those that want one"),
    key("tools.web.search.base_url", Text, "\"\"", "of a SearXNG of your own"),
    key("tools.web.search.max_results", Whole(1), "5", "results of one search"),
    key("tools.web.fetch.max_chars", Whole(1), "50000", "of one page"),
    key("tools.web.fetch.timeout", Whole(1), "30", "seconds for one page"),
    key("tools.web.fetch.allow_private", Bool, "false", "let it reach your own network"),
    key("mcpServers.*.command", Text, "\"\"", "the program of a local server"),
    key("mcpServers.*.args", Texts, "[]", "its arguments"),
    key("mcpServers.*.env", Map, "{}", "its environment"),
    key("mcpServers.*.cwd", Text, "\"\"", "where it starts; empty: the workspace"),
    key("mcpServers.*.url", Text, "\"\"", "the address of a remote server"),
    key("mcpServers.*.headers", Map, "{}", "sent to it"),
    key("mcpServers.*.read", Texts, "[]", "trees it may read"),
    key("mcpServers.*.write", Texts, "[]", "trees it may change"),
    key("mcpServers.*.network", Bool, "true", "whether it reaches the network"),
    key("mcpServers.*.memory_mb", Whole(0), "0", "data memory of it; 0: no limit"),
    key("session.compact_at", Number(0.1), "0.8", "share of the model's window at which old turns are summarised"),
    key("session.ttl_hours", Number(0.0), "0", "a conversation idle for longer starts anew; 0: never"),
    key("session.history_limit", Whole(0), "0", "messages sent to the model at most; 0: all that fit"),
    key("cron.enabled", Bool, "true", "run jobs in the gateway"),
    key("cron.grace_minutes", Whole(0), "60", "a run missed for longer is recorded and not made up for"),
    key("heartbeat.enabled", Bool, "false", "let the agent look at HEARTBEAT.md by itself"),
    key("heartbeat.interval_minutes", Whole(1), "30", "how often"),
    key("heartbeat.to", Text, "\"\"", "telegram:CHAT; empty: the owner's last chat"),
    key("gateway.workers", Whole(1), "4", "conversations served at once"),
    key("budget.daily_tokens", Whole(0), "0", "tokens of a day, of all that runs in this home; 0: no limit"),
    key("budget.daily_cost", Number(0.0), "0", "what a day may cost by model_list[].price; 0: no limit"),
    key("log.level", Choice(&["error", "warn", "info", "debug"]), "\"info\"", "what the gateway logs"),
    key("log.json", Bool, "false", "log JSON Lines"),
];

/// `BANTAM_` and the path in capitals. `None` for paths inside lists and maps, which have no name of their own.
pub fn env_name(path: &str) -> Option<String> {
    if path.contains("[]") || path.contains('*') {
        return None;
    }
    Some(format!("BANTAM_{}", path.replace('.', "_").to_ascii_uppercase()))
}

/// Whether `variable` is the [`env_name`] of `path`.
pub fn is_env_name(variable: &str, path: &str) -> bool {
    let letters = path.bytes().map(|b| if b == b'.' { b'_' } else { b.to_ascii_uppercase() });
    variable.strip_prefix("BANTAM_").is_some_and(|name| name.bytes().eq(letters)) && !path.contains(['[', '*'])
}

/// Lists and maps that can be given whole, as JSON, by a variable.
pub const WHOLE: [&str; 2] = ["model_list", "mcpServers"];

/// How names are compared: `allowFrom`, `allow_from` and `ALLOW_FROM` are one. Asked some hundred times at every start.
pub fn alike(a: &str, b: &str) -> bool {
    fn folded(name: &str) -> impl Iterator<Item = u8> {
        name.bytes().filter(|b| *b != b'_').map(|b| b.to_ascii_lowercase())
    }
    folded(a).eq(folded(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_paths_share_a_spelling_or_a_variable() {
        let mut seen = BTreeSet::new();
        for (n, key) in KEYS.iter().enumerate() {
            assert!(!KEYS[..n].iter().any(|other| alike(other.path, key.path)), "{} is there twice", key.path);
            if let Some(name) = env_name(key.path) {
                assert!(is_env_name(&name, key.path));
                assert!(seen.insert(name), "{}'s variable is another's too", key.path);
            }
        }
        assert!(alike("allowFrom", "ALLOW_FROM") && !alike("allow", "allow_from"));
        assert!(!is_env_name("BANTAM_MCPSERVERS_*_COMMAND", "mcpServers.*.command"));
    }

    #[test]
    fn every_default_is_of_its_kind() {
        for key in KEYS {
            let value = serde_json::from_str(key.default).unwrap();
            super::super::load::check(key, &value).unwrap();
        }
    }
}
