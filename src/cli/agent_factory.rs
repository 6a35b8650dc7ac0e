//! Builds the agents of `bantam agent` from its flags and the configuration.

use std::path::Path;
use std::time::SystemTime;

use serde_json::Value;

use super::args::Args;
use crate::app::{self, Keep, Ready};
use crate::cancel::Cancel;
use crate::config::{self, Env, Loaded, Origin, Override};
use crate::cron::Jobs;
use crate::disk::Durability;
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::session::{self, Entry, Files, Memory, Store, archive};
use crate::text::{one_line, rfc3339};

pub struct AgentFactory {
    home: Home,
    env: Env,
    /// The text of config.json.
    file: Option<String>,
    overrides: Vec<Override>,
    model: Option<String>,
    tools: Option<Vec<String>>,
    budget_tokens: Option<u64>,
    stream: bool,
    dry_run: bool,
    /// The conversations of `--no-session`.
    memory: Option<Memory>,
}

impl AgentFactory {
    pub fn new(args: &Args, env: &Env) -> Result<Self> {
        let (overrides, tools, budget_tokens) = (overrides(args)?, tools(args)?, args.number("budget-tokens")?);
        let home = config::home(env)?;
        Ok(Self {
            file: config::read(&home)?,
            home,
            env: env.clone(),
            overrides,
            model: args.value("model").map(str::to_owned),
            tools,
            budget_tokens,
            stream: !args.has("no-stream"),
            dry_run: args.has("dry-run"),
            memory: args.has("no-session").then(Memory::default),
        })
    }

    pub fn home(&self) -> &Home {
        &self.home
    }

    pub fn env(&self) -> &Env {
        &self.env
    }

    pub fn is_in_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// The agent for a conversation: with the model of `--model`, else the one chosen there, else the configured one.
    pub fn for_session(&self, session: &str) -> Result<(Loaded, Ready)> {
        if self.model.is_some() || self.is_in_memory() {
            return self.build(None);
        }
        // A session that cannot be read is reported when the turn loads it.
        let state = session::stored_state(&self.home, session).unwrap_or_default();
        let Some(chosen) = state.get(session::MODEL) else { return self.build(None) };
        self.build(Some(chosen)).or_else(|e| {
            let (loaded, mut ready) = self.build(None)?;
            let chosen = one_line(chosen, 80);
            ready.notices.push(format!("cannot use {chosen}, the model of this conversation: {}", e.message));
            Ok((loaded, ready))
        })
    }

    /// An agent with this model, or the default one.
    pub fn build(&self, model: Option<&str>) -> Result<(Loaded, Ready)> {
        let Self { home, env, file, .. } = self;
        let mut overrides = self.overrides.clone();
        if let Some(model) = model.or(self.model.as_deref()) {
            overrides.push(("agents.defaults.model_name", model.into(), Origin::Flag("--model")));
        }
        let loaded = config::load_for(home, file.as_deref(), env, overrides)?;
        let ready = app::build(&app::Parts {
            home,
            config: &loaded.config,
            env,
            configured: file.is_some(),
            keep: self.memory.clone().map_or(Keep::OnDisk, Keep::InMemory),
            stream: self.stream,
            tools: self.tools.clone(),
            jobs: Some(Jobs::new(home.clone(), env)),
            budget_tokens: self.budget_tokens,
        })?;
        if !self.dry_run {
            app::make_workspace(home, &loaded.config, env)?;
        }
        Ok((loaded, ready))
    }

    /// Starts a conversation over. Whether an old one is kept.
    pub fn reset(&self, session: &str) -> Result<bool> {
        Ok(archive::reset(&self.home, session, &Cancel::new(None), SystemTime::now())?.is_some())
    }

    /// Stores the model as the one of this conversation.
    pub fn save_model(&self, session: &str, model: &str) -> Result<()> {
        if self.is_in_memory() {
            return Ok(());
        }
        let store = Files::new(self.home.clone());
        let mut session = store.load(session, &Cancel::new(None))?;
        store.append(&mut session, &[Entry::State(session::MODEL, model)], Durability::Now, SystemTime::now())
    }
}

/// A key that no other conversation has: the time and the process.
pub fn fresh_key() -> String {
    let digits: String = rfc3339(SystemTime::now()).chars().filter(char::is_ascii_digit).collect();
    let (date, time) = digits.split_at(8);
    format!("{date}-{time}-{}", std::process::id())
}

fn tools(args: &Args) -> Result<Option<Vec<String>>> {
    if args.has("no-tools") {
        return Ok(Some(Vec::new()));
    }
    if !args.has("tools") {
        return Ok(None);
    }
    let names = args.values("tools").flat_map(|list| list.split(',')).map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.is_empty() {
        return Err(Error::usage("--tools names no tool").hint("--tools read_file,list_dir, or --no-tools"));
    }
    Ok(Some(names))
}

/// The flags that override settings.
fn overrides(args: &Args) -> Result<Vec<Override>> {
    let mut overrides: Vec<Override> = Vec::new();
    if let Some(dir) = args.value("workspace") {
        let dir = std::path::absolute(Path::new(dir)).doing("finding the workspace")?;
        let dir = dir.to_str().ok_or_else(|| Error::usage("the workspace's path is not UTF-8"))?;
        overrides.push(("agents.defaults.workspace", dir.into(), Origin::Flag("--workspace")));
    }
    for (flag, path) in [
        ("max-steps", "agents.defaults.max_tool_iterations"),
        ("timeout", "agents.defaults.timeout"),
        ("max-tokens", "agents.defaults.max_tokens"),
    ] {
        if let Some(n) = args.number(flag)? {
            overrides.push((path, Value::from(n), Origin::Flag(flag)));
        }
    }
    Ok(overrides)
}
