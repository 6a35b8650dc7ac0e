//! The configuration: one table, four layers (defaults, file, environment, flags), and where each value came from.

mod foreign;
pub mod keys;
pub mod load;
mod locate;
pub mod models;
pub mod proxy;
mod routes;
mod shapes;
pub mod table;
pub mod vendors;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value};

use load::Tree;
pub use load::{Origin, Override};
pub use models::{Choice, Model};

use crate::child::{Network, Sandbox};
use crate::error::{Context, Error, Result};
use crate::message::Price;
use crate::paths::Home;
use crate::secret::Secret;

/// The values that the program uses, by the table's names. The table has a default for each, so none is optional here.
#[derive(Clone, Deserialize)]
pub struct Config {
    pub agents: Agents,
    pub model_list: Vec<ModelEntry>,
    pub channels: Channels,
    pub tools: Tools,
    pub gateway: Gateway,
    pub session: Session,
    pub budget: Budget,
    pub cron: Cron,
    pub heartbeat: Heartbeat,
    pub log: Log,
}

/// Of a day; 0 is no limit.
#[derive(Clone, Deserialize)]
pub struct Budget {
    pub daily_tokens: u64,
    pub daily_cost: f64,
}

#[derive(Clone, Deserialize)]
pub struct Agents {
    pub defaults: Defaults,
}

#[derive(Clone, Deserialize)]
pub struct Defaults {
    pub workspace: String,
    /// Whether tools see the workspace and no more.
    pub restrict_to_workspace: bool,
    pub model_name: String,
    pub model_fallbacks: Vec<String>,
    /// Tokens of one reply.
    pub max_tokens: u64,
    /// Tokens.
    pub context_window: u64,
    pub temperature: Option<f64>,
    pub max_tool_iterations: u32,
    /// Seconds of one turn.
    pub timeout: u64,
    pub max_retries: u32,
    /// Seconds.
    pub retry_initial_delay: f64,
}

#[derive(Clone, Default, Deserialize)]
pub struct ModelEntry {
    pub model_name: String,
    pub model: String,
    pub api_base: String,
    pub api_key: Secret,
    pub api_keys: Vec<Secret>,
    /// Their values may hold keys.
    pub headers: BTreeMap<String, Secret>,
    pub extra_body: Map<String, Value>,
    /// Seconds.
    pub request_timeout: u64,
    pub proxy: String,
    /// Tokens; 0: as in the defaults.
    pub context_window: u64,
    /// 0: as in the defaults.
    pub max_tokens: u64,
    pub temperature: Option<f64>,
    pub price: Price,
}

#[derive(Clone, Deserialize)]
pub struct Channels {
    pub telegram: Telegram,
}

#[derive(Clone, Deserialize)]
pub struct Telegram {
    pub enabled: bool,
    pub token: Secret,
    /// As they are written: ids, or what was meant for one.
    pub allow_from: Vec<String>,
    pub api_base: String,
    pub proxy: String,
    pub streaming: bool,
    pub group_trigger: String,
}

/// What an entry of `allow_from` means. Others write `id|username`.
pub fn user_id(written: &str) -> Option<i64> {
    written.split('|').next()?.trim().parse().ok()
}

impl Telegram {
    /// The ids of `allow_from`: those who may talk to the bot, the owner first.
    pub fn ids(&self) -> Vec<i64> {
        self.allow_from.iter().filter_map(|written| user_id(written)).collect()
    }
}

#[derive(Clone, Deserialize)]
pub struct Gateway {
    /// Turns under way at once.
    pub workers: usize,
}

#[derive(Clone, Deserialize)]
pub struct Tools {
    pub read_paths: Vec<String>,
    pub write_paths: Vec<String>,
    pub exec: Exec,
    pub web: Web,
}

#[derive(Clone, Deserialize)]
pub struct Exec {
    pub enabled: bool,
    /// Seconds.
    pub timeout: u64,
    pub sandbox: Sandbox,
    pub network: Network,
    pub memory_mb: u64,
    pub pass_env: Vec<String>,
}

#[derive(Clone, Deserialize)]
pub struct Web {
    pub search: Search,
    pub fetch: Fetch,
}

#[derive(Clone, Deserialize)]
pub struct Fetch {
    pub allow_private: bool,
}

#[derive(Clone, Deserialize)]
pub struct Search {
    pub api_key: Secret,
}

#[derive(Clone, Deserialize)]
pub struct Session {
    /// A share of the window.
    pub compact_at: f64,
    /// 0: for ever.
    pub ttl_hours: f64,
    /// Messages; 0: all.
    pub history_limit: usize,
}

#[derive(Clone, Deserialize)]
pub struct Cron {
    pub enabled: bool,
    /// A run that is later than this is missed.
    pub grace_minutes: u64,
}

/// What the gateway tells on standard error.
#[derive(Clone, Deserialize)]
pub struct Log {
    /// `error`, `warn`, `info` or `debug`.
    pub level: String,
    pub json: bool,
}

#[derive(Clone, Deserialize)]
pub struct Heartbeat {
    pub enabled: bool,
    pub interval_minutes: u64,
    /// `telegram:CHAT`; empty: the owner.
    pub to: String,
}

/// What [`Config::load`] found.
pub struct Loaded {
    pub config: Config,
    /// The same as a tree: every path of the table has a value, also those that the program does not use yet.
    pub values: Value,
    /// By path; a path that is missing has its default.
    pub origins: BTreeMap<String, Origin>,
    /// One sentence for each key that means nothing here.
    pub warnings: Vec<String>,
    /// Keys that mean something to the program the file was written for, and nothing here.
    pub passed_over: Vec<String>,
}

impl Config {
    /// Lays the layers over each other. `file` is the name and the text of config.json.
    pub fn load(file: Option<(&str, &str)>, env: &Env, flags: Vec<Override>) -> Result<Loaded> {
        let tree = load::load(file, env, flags)?;
        let config =
            Config::deserialize(&tree.value).map_err(|e| Error::config(format!("reading the configuration: {e}")))?;
        let Tree { value: values, origins, warnings, passed_over } = tree;
        Ok(Loaded { config, values, origins, warnings, passed_over })
    }
}

/// The settings of a home: `file` is the text of its config.json.
pub fn load_for(home: &Home, file: Option<&str>, env: &Env, flags: Vec<Override>) -> Result<Loaded> {
    let name = home.config().display().to_string();
    Config::load(file.map(|text| (name.as_str(), text)), env, flags)
}

/// The environment, read once. What is not Unicode cannot be a setting of ours.
pub type Env = BTreeMap<String, String>;

/// The one place that reads the environment.
pub fn environment() -> Env {
    let mut env = Env::new();
    env.extend(std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))));
    env
}

/// Where everything is kept: `BANTAM_HOME`, else what systemd names, else `~/.bantam`.
pub fn home(env: &Env) -> Result<Home> {
    let set = |name: &str| env.get(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let root = set("BANTAM_HOME")
        // systemd joins several directories with colons; ours is the first.
        .or_else(|| set("STATE_DIRECTORY").and_then(|d| d.to_string_lossy().split(':').next().map(PathBuf::from)))
        .or_else(|| set("HOME").map(|home| home.join(".bantam")))
        .ok_or_else(|| {
            Error::config("finding bantam's home: neither BANTAM_HOME nor HOME is set")
                .hint("set BANTAM_HOME to the directory that should hold its files")
        })?;
    Ok(Home::new(std::path::absolute(root).doing("finding bantam's home")?))
}

/// A configuration of more bytes than this is some other file.
const MOST: u64 = 1 << 20;

/// The text of config.json, `None` when there is none.
pub fn read(home: &Home) -> Result<Option<String>> {
    let path = home.config();
    let failed = |what: &str| Error::config(format!("reading the configuration: {what}"));
    let missing = |e: &std::io::Error| e.kind() == std::io::ErrorKind::NotFound;
    let shut = |e: std::io::Error| {
        failed(&e.to_string()).hint("make it a file that you can read, or set BANTAM_HOME to another directory")
    };
    // Asked first: to open a pipe is to wait for whoever writes to it.
    match fs_err::metadata(&path) {
        Ok(meta) if meta.is_file() => {}
        Ok(_) => {
            return Err(failed(&format!("{} is not a file", path.display()))
                .hint("move it away, or set BANTAM_HOME to another directory"));
        }
        Err(e) if missing(&e) => return Ok(None),
        Err(e) => return Err(shut(e)),
    }
    let mut bytes = Vec::new();
    let file = match fs_err::File::open(&path) {
        Ok(file) => file,
        Err(e) if missing(&e) => return Ok(None),
        Err(e) => return Err(shut(e)),
    };
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(shut)?;
    if bytes.len() as u64 > MOST {
        return Err(failed(&format!("{} is larger than {} KiB", path.display(), MOST >> 10))
            .hint("it should hold settings and nothing else"));
    }
    String::from_utf8(bytes).map(Some).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        failed(&format!("{}, line {line}: not UTF-8", path.display())).hint("save it as UTF-8")
    })
}
