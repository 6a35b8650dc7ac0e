//! Where other programs keep what we keep, how they write it, and what they know that we do not.
//!
//! The names are those of picoclaw's `pkg/config`, nanobot's `config/schema.py` and `SmartBot`'s `config.rb`.

use serde_json::{Value, json};

use super::table::alike;

/// A value that another program keeps at `from` (any spelling; `*` is each name of a map and each entry of a list).
pub struct Move {
    pub from: &'static str,
    pub to: &'static str,
    /// The value as we have it; null leaves it out.
    pub turn: fn(&Value) -> Value,
}

const fn at(from: &'static str, to: &'static str, turn: fn(&Value) -> Value) -> Move {
    Move { from, to, turn }
}

/// In this order: the first that gives a value wins.
pub const MOVES: &[Move] = &[
    // SmartBot has the agent's settings on top.
    at("model", "agents.defaults.model", Value::clone),
    at("provider", "agents.defaults.provider", Value::clone),
    at("workspace", "agents.defaults.workspace", Value::clone),
    at("max_tool_iterations", "agents.defaults.max_tool_iterations", positive),
    at("max_tokens", "agents.defaults.max_tokens", positive),
    at("temperature", "agents.defaults.temperature", Value::clone),
    at("agents.defaults.max_tool_iterations", "agents.defaults.max_tool_iterations", positive),
    at("agents.defaults.max_tokens", "agents.defaults.max_tokens", positive),
    at("agents.defaults.context_window", "agents.defaults.context_window", positive),
    at("agents.defaults.context_window_tokens", "agents.defaults.context_window", positive),
    at("agents.defaults.max_llm_retries", "agents.defaults.max_retries", Value::clone),
    at("agents.defaults.llm_retry_backoff_secs", "agents.defaults.retry_initial_delay", Value::clone),
    at("agents.defaults.fallback_models", "agents.defaults.model_fallbacks", Value::clone),
    at("agents.defaults.summarize_token_percent", "session.compact_at", percent),
    at("tools.restrict_to_workspace", "agents.defaults.restrict_to_workspace", Value::clone),
    // picoclaw 3 calls it channel_list and keeps a channel's own settings below `settings`.
    at("channel_list.telegram.enabled", "channels.telegram.enabled", Value::clone),
    at("channel_list.telegram.allow_from", "channels.telegram.allow_from", Value::clone),
    at("channel_list.telegram.settings", "channels.telegram.settings", Value::clone),
    at("channel_list.telegram.group_trigger", "channels.telegram.group_trigger", Value::clone),
    at("channel_list.telegram.token", "channels.telegram.token", Value::clone),
    at("channels.telegram.settings.token", "channels.telegram.token", Value::clone),
    at("channels.telegram.settings.base_url", "channels.telegram.api_base", Value::clone),
    at("channels.telegram.settings.proxy", "channels.telegram.proxy", Value::clone),
    at("channels.telegram.settings.streaming", "channels.telegram.streaming", Value::clone),
    // nullclaw allows several bots; ours is the first.
    at("channels.telegram.accounts.main.bot_token", "channels.telegram.token", Value::clone),
    at("channels.telegram.accounts.main.allow_from", "channels.telegram.allow_from", Value::clone),
    at("channels.telegram.accounts.main.group_policy", "channels.telegram.group_trigger", Value::clone),
    at("channels.telegram.accounts.main.proxy", "channels.telegram.proxy", Value::clone),
    at("channels.telegram.bot_token", "channels.telegram.token", Value::clone),
    at("channels.telegram.base_url", "channels.telegram.api_base", Value::clone),
    at("channels.telegram.group_policy", "channels.telegram.group_trigger", Value::clone),
    at("channels.telegram.group_trigger", "channels.telegram.group_trigger", trigger),
    at("channels.telegram.streaming", "channels.telegram.streaming", on),
    at("channels.telegram.allow_from", "channels.telegram.allow_from", ids),
    at("tools.allow_read_paths", "tools.read_paths", plain_paths),
    at("tools.allow_write_paths", "tools.write_paths", plain_paths),
    at("tools.exec.enable", "tools.exec.enabled", Value::clone),
    at("tools.exec.timeout_seconds", "tools.exec.timeout", positive),
    at("tools.exec.timeout", "tools.exec.timeout", positive),
    at("tools.web_search.api_key", "tools.web.search.api_key", Value::clone),
    at("tools.web_search.max_results", "tools.web.search.max_results", positive),
    at("tools.web.provider", "tools.web.search.provider", Value::clone),
    at("tools.web.search.provider", "tools.web.search.provider", searcher),
    at("tools.web.fetch_limit_bytes", "tools.web.fetch.max_chars", positive),
    at("tools.mcp_servers", "mcpServers", Value::clone),
    at("heartbeat.interval", "heartbeat.interval_minutes", positive),
    at("gateway.heartbeat.enabled", "heartbeat.enabled", Value::clone),
    at("gateway.heartbeat.interval_s", "heartbeat.interval_minutes", minutes),
    at("gateway.log_level", "log.level", level),
];

/// What those programs know and we have no use for, with all that lies below. Not worth a warning to somebody whose
/// file it is right in.
const PASSED_OVER: &[&str] = &[
    "$schema version build_info agents.list agents.bindings bindings hooks voice devices isolation events evolution",
    "audio rate_limits stt tts sidecar plugins ui logging transcription api dream evaluation gateway_host gateway_port",
    "agents.defaults.allow_read_outside_workspace agents.defaults.provider agents.defaults.image_model",
    "agents.defaults.image_model_fallbacks agents.defaults.summarize_message_threshold agents.defaults.max_media_size",
    "agents.defaults.summarize_token_percent agents.defaults.routing agents.defaults.steering_mode",
    "agents.defaults.max_parallel_turns agents.defaults.subturn agents.defaults.tool_feedback",
    "agents.defaults.split_on_marker agents.defaults.turn_profile agents.defaults.context_manager",
    "agents.defaults.context_manager_config agents.defaults.memory_window agents.defaults.reasoning_effort",
    "agents.defaults.timezone agents.defaults.model_preset agents.defaults.dream agents.defaults.data_dir",
    "agents.defaults.unified_session agents.defaults.disabled_skills agents.defaults.max_messages",
    "agents.defaults.max_tool_result_chars agents.defaults.context_block_limit agents.defaults.bot_name",
    "agents.defaults.bot_icon agents.defaults.session_ttl_minutes agents.defaults.heartbeat_interval_s",
    "model_list.*.provider model_list.*.fallbacks model_list.*.auth_method model_list.*.connect_mode",
    "model_list.*.workspace model_list.*.rpm model_list.*.max_tokens_field model_list.*.thinking_level",
    "model_list.*.tool_schema_transform model_list.*.streaming model_list.*.user_agent model_list.*.enabled",
    "channels.send_progress channels.send_tool_hints channels.send_max_retries channels.transcription_provider",
    "channels.show_reasoning channels.extract_document_text",
    "channels.telegram.type channels.telegram.settings channels.telegram.accounts channels.telegram.mode",
    "channels.telegram.group_policy channels.telegram.group_allow_from channels.telegram.reply_in_private",
    "channels.telegram.typing channels.telegram.placeholder channels.telegram.reasoning_channel_id",
    "channels.telegram.use_markdown_v2 channels.telegram.reply_to_message channels.telegram.react_emoji",
    "channels.telegram.stream_edit_interval channels.telegram.connection_pool_size channels.telegram.pool_timeout",
    "channels.telegram.inline_keyboards channels.telegram.media_group_delay_ms",
    "channels.whatsapp channels.whatsapp_native channels.discord channels.feishu channels.lark channels.maixcam",
    "channels.qq channels.dingtalk channels.slack channels.line channels.onebot channels.wecom channels.wecom_app",
    "channels.wecom_aibot channels.weixin channels.wechat channels.pico channels.pico_client channels.irc channels.vk",
    "channels.matrix channels.mqtt channels.email channels.mochat channels.msteams channels.teams_webhook",
    "channels.websocket channels.signal channels.cli channels.napcat channel_list",
    "tools.filter_sensitive_data tools.filter_min_length tools.mcp tools.cron tools.skills tools.media_cleanup",
    "tools.append_file tools.edit_file tools.write_file tools.read_file tools.list_dir tools.find_skills tools.i2c",
    "tools.install_skill tools.message tools.send_file tools.send_tts tools.spawn tools.spawn_status tools.subagent",
    "tools.spi tools.serial tools.web_fetch tools.web_search tools.load_image tools.image_generation tools.reaction",
    "tools.memory tools.android tools.my tools.cli_apps tools.ssrf_whitelist tools.file tools.delegate",
    "tools.exec.enable_deny_patterns tools.exec.allow_remote tools.exec.custom_deny_patterns tools.exec.path_append",
    "tools.exec.custom_allow_patterns tools.exec.allow_patterns tools.exec.deny_patterns tools.exec.allowed_env_keys",
    "tools.exec.path_prepend tools.exec.webui_allow_local_service_access",
    "tools.web.enabled tools.web.enable tools.web.prefer_native tools.web.provider tools.web.format tools.web.proxy",
    "tools.web.private_host_whitelist tools.web.brave tools.web.tavily tools.web.duckduckgo tools.web.searxng",
    "tools.web.perplexity tools.web.kagi tools.web.glm_search tools.web.baidu_search tools.web.sogou tools.web.gemini",
    "tools.web.user_agent tools.web.search.timeout tools.web.fetch.use_jina_reader",
    "mcp_servers.*.type mcp_servers.*.enabled mcp_servers.*.disabled mcp_servers.*.env_file mcp_servers.*.tool_timeout",
    "mcp_servers.*.enabled_tools mcp_servers.*.description mcp_servers.*.auto_approve mcp_servers.*.always_allow",
    "mcp_servers.*.oauth mcp_servers.*.deferred mcp_servers.*.timeout",
    "session.dimensions session.identity_links session.dm_scope session.backlog_limit",
    "gateway.host gateway.port gateway.hot_reload gateway.heartbeat gateway.log_level gateway.websocket",
    "heartbeat.interval heartbeat.keep_recent_messages",
];

/// Whether another program knows what stands at this path.
pub fn is_known(path: &[String]) -> bool {
    let known = |pattern: &str| {
        let parts: Vec<&str> = pattern.split('.').collect();
        parts.len() <= path.len() && parts.iter().zip(path).all(|(p, w)| *p == "*" || alike(p, w))
    };
    PASSED_OVER.iter().flat_map(|line| line.split(' ')).any(known)
}

/// Those programs write 0 for "as you like".
pub fn positive(value: &Value) -> Value {
    if value.as_f64() == Some(0.0) { Value::Null } else { value.clone() }
}

fn percent(value: &Value) -> Value {
    match value.as_f64() {
        Some(n) if n > 0.0 && n <= 100.0 => json!(n / 100.0),
        _ => Value::Null,
    }
}

fn minutes(seconds: &Value) -> Value {
    match seconds.as_u64() {
        Some(0) => Value::Null,
        Some(n) => json!(n.div_ceil(60)),
        None => seconds.clone(),
    }
}

/// A switch, or a block with one in it.
fn on(value: &Value) -> Value {
    if value.is_object() { value["enabled"].clone() } else { value.clone() }
}

/// When to answer in a group: a word of ours, nanobot's `open`, or picoclaw's block.
fn trigger(value: &Value) -> Value {
    let only = value.get("mention_only").or_else(|| value.get("mentionOnly"));
    match value.as_str() {
        Some("open") => "all".into(),
        Some("allowlist" | "disabled") => "mention".into(),
        None if only == Some(&json!(false)) => "all".into(),
        None if value.is_object() => "mention".into(),
        _ => value.clone(),
    }
}

/// nanobot takes `ID|name`; the name may change hands, the id may not.
fn ids(value: &Value) -> Value {
    let id = |item: &Value| match item.as_str().and_then(|text| text.split_once('|')) {
        Some((id, _)) if id.chars().all(|c| c.is_ascii_digit()) => id.into(),
        _ => item.clone(),
    };
    value.as_array().map_or_else(|| value.clone(), |items| items.iter().map(id).collect())
}

/// picoclaw takes regular expressions. Those that are a plain path but for an anchor are taken, others are not: what a
/// tool may touch is not guessed.
fn plain_paths(value: &Value) -> Value {
    let Value::Array(items) = value else { return value.clone() };
    let plain = items.iter().filter_map(Value::as_str).filter_map(|pattern| {
        let path = pattern.trim_start_matches('^').trim_end_matches('$');
        let meta = |c: char| "\\^$|?*+()[]{}".contains(c);
        (path.starts_with(['/', '~']) && !path.contains(meta)).then(|| Value::from(path))
    });
    plain.collect()
}

/// A searcher that we do not have is no reason not to start.
fn searcher(value: &Value) -> Value {
    const THEIRS: [&str; 9] =
        ["perplexity", "kagi", "jina", "bing", "exa", "olostep", "glm_search", "baidu_search", "sogou"];
    let theirs = value.as_str().is_some_and(|name| name.is_empty() || THEIRS.contains(&name));
    if theirs { Value::Null } else { value.clone() }
}

fn level(value: &Value) -> Value {
    match value.as_str().unwrap_or_default().to_ascii_lowercase().as_str() {
        "" => Value::Null,
        "warning" => "warn".into(),
        "fatal" | "panic" => "error".into(),
        "trace" => "debug".into(),
        word => word.into(),
    }
}
