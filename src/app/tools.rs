//! The tools of a home.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{App, mcp, media, skills};
use crate::child;
use crate::config::{self, Config, Loaded};
use crate::error::{Error, Result};
use crate::text::nearest;
use crate::tool::cron::cron_tool;
use crate::tool::exec::{EXEC, exec_tool};
use crate::tool::files::{Files, file_tools};
use crate::tool::meaning::Meaning;
use crate::tool::memory::{Memory, memory_tool};
use crate::tool::message::message_tool;
use crate::tool::names;
use crate::tool::skill::{listing_skill_tool, skill_tool};
use crate::tool::subagent::subagent_tool;
use crate::tool::think::think_tool;
use crate::tool::web::{web_fetch_tool, web_search_tool};
use crate::tool::{Function, Registry};
use crate::worker::begun;

/// Valid names in `tools.confirm`, besides MCP servers and their tools.
pub(super) const CONFIRMED: &str = "writes runs append_file cron edit_file exec grep list_dir memory message \
     read_file skill subagent think web_fetch web_search write_file";

/// Returns an error for each unknown name in `tools.confirm`. Names of disabled tools are valid.
pub(crate) fn unconfirmed(config: &Config) -> Vec<Error> {
    let error = |name: &String| {
        let (bare, tool) = name.split_once("__").unwrap_or((name, "any"));
        // The server itself stands for all its tools, so patterns are not names.
        let is_pattern = matches!(tool, "" | "*");
        if CONFIRMED.split(' ').any(|known| known == name)
            || !is_pattern && config.mcp_servers.contains_key(bare)
        {
            return None;
        }
        let near = nearest(bare, ["writes", "runs"])
            .or_else(|| names::known_elsewhere(bare))
            .or_else(|| {
                let servers = config.mcp_servers.keys().map(String::as_str);
                nearest(bare, CONFIRMED.split(' ').chain(servers))
            });
        let hint = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                "use \"writes\" (every tool that writes), \"runs\", or a tool's name".to_owned()
            }
        };
        let shown = config::shown(name);
        let what = format!("tools.confirm: no tool, MCP server or group named \"{shown}\"");
        Some(Error::config(what).hint(hint))
    };
    config.tools.confirm.iter().filter_map(error).collect()
}

impl App {
    /// Returns `read_file`, `write_file`, `edit_file`, `append_file`, `list_dir` and `grep`, for the workspace and the
    /// directories of `tools.read_paths` and `tools.write_paths`.
    ///
    /// # Errors
    /// Returns an error if `main` does not begin with [`init`](crate::init), or the model for transcription
    /// (`tools.transcribe.model`) cannot be used.
    pub fn files(&self) -> Result<Registry> {
        begun()?;
        register(file_tools(&Arc::new(Files {
            workers: self.workers()?,
            transcribe: media::transcriber(self.loaded()?)?,
        })))
    }

    /// Returns `exec`, which runs commands in the sandbox, as set by `tools.exec`, even if `tools.exec.enabled` is false.
    ///
    /// # Errors
    /// Returns an error if `main` does not begin with [`init`](crate::init).
    pub fn exec(&self) -> Result<Registry> {
        begun()?;
        register(vec![exec_tool(self.loaded()?, &self.workers()?)])
    }

    /// Returns `web_fetch` and `web_search`, as set by `tools.web`. They connect from this process; pages are read in the
    /// sandbox.
    ///
    /// # Errors
    /// Returns the errors of [`Home::exec`](App::exec).
    pub fn web(&self) -> Result<Registry> {
        begun()?;
        let (loaded, workers) = (self.loaded()?, self.workers()?);
        register(vec![
            web_fetch_tool(loaded, &workers),
            web_search_tool(loaded, &workers),
        ])
    }

    /// Returns `memory`, for notes of this home. Agents of [`Home::agent`](App::agent) show the notes to the model.
    ///
    /// # Errors
    /// Returns the errors of [`Home::exec`](App::exec), and an error if `memory.embedding_model` cannot be used.
    pub fn memory(&self) -> Result<Registry> {
        begun()?;
        let meaning = meaning(self.loaded()?)?;
        register(vec![self.memory_by(meaning)?])
    }

    /// Returns `skill`, for the skills in `agent/skills/` of the home, which its description lists.
    ///
    /// # Errors
    /// Returns the errors of [`Home::exec`](App::exec).
    pub fn skills(&self) -> Result<Registry> {
        begun()?;
        register(vec![listing_skill_tool(skills(self.loaded()?))])
    }

    /// Returns the tools of an MCP server, named `NAME__TOOL`, whose texts are fenced as data, and notices for the user about
    /// changed descriptions or omitted tools. `entry` has the format of `mcpServers` in config.json. A program runs in its own
    /// sandbox, and starts with the first call, or now if its tools are unknown.
    ///
    /// ```no_run
    /// use bantam::Home;
    /// use serde_json::json;
    ///
    /// # fn main() -> bantam::Result<()> {
    /// # bantam::init();
    /// let home = Home::at("agent-home", &json!({}))?;
    /// // The server starts in a private directory, so paths are absolute. It can read these and the system's.
    /// let bricks = std::env::current_dir()?.join("bricks");
    /// let local = json!({
    ///     "command": "python3", "args": [bricks.join("server.py")],
    ///     "read": [bricks], "network": false,
    /// });
    /// let (tools, notices) = home.mcp("bricks", &local)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the entry is invalid or disabled, lets the server read a closed directory (the home), or the server
    /// does not list its tools.
    pub fn mcp(&self, name: &str, entry: &Value) -> Result<(Registry, Vec<String>)> {
        begun()?;
        let text = json!({"mcpServers": {name: entry}}).to_string();
        let settings = Some((config::IN_CODE, text.as_str()));
        let entry = Loaded::read(&self.home, &Arc::default(), settings, Vec::new())?;
        if !entry.warnings.is_empty() {
            return Err(Error::config(entry.warnings.join("; ")));
        }
        let mut config = Config::clone(&self.loaded()?.config);
        config.mcp_servers.clone_from(&entry.config.mcp_servers);
        let loaded = self.loaded()?.with(config);
        let (mut tools, mut notices) = (Registry::new(), Vec::new());
        mcp::add_tools(&self.servers, &loaded, &mut tools, &mut notices);
        if tools.specs().next().is_none() {
            notices.push(format!("the MCP server {name} offers no tools"));
            return Err(Error::config(notices.join("; ")));
        }
        Ok((tools, notices))
    }

    /// Returns all tools that the settings allow, except `cron`, whose jobs need bantam's gateway. Also returns a notice for
    /// each missing or incomplete one, for the author of the settings.
    ///
    /// # Errors
    /// Returns the errors of [`Home::exec`](App::exec).
    pub fn all(&self) -> Result<(Registry, Vec<String>)> {
        begun()?;
        let (tools, notices) = self.tools()?;
        Ok((tools.without(&["cron"]), notices))
    }

    /// Returns all tools of the configuration, and a notice for each server without its tools. Needs no model and no key.
    pub(crate) fn tools(&self) -> Result<(Registry, Vec<String>)> {
        let loaded = self.loaded()?;
        let config = &loaded.config;
        let mut notices: Vec<String> = media::unusable(loaded).map(|e| e.message).collect();
        let workers = self.workers()?;
        let files = Files {
            workers: workers.clone(),
            transcribe: media::transcriber(loaded).ok().flatten(),
        };
        let mut built_in = file_tools(&Arc::new(files));
        built_in.extend([
            skill_tool(skills(loaded)),
            subagent_tool(),
            think_tool(),
            web_fetch_tool(loaded, &workers),
            web_search_tool(loaded, &workers),
            self.memory_by(meaning(loaded).ok().flatten())?,
        ]);
        let has_exec = config.tools.exec.enabled && child::has_shell();
        if has_exec {
            built_in.push(exec_tool(loaded, &workers));
        }
        if !config.channels.telegram.token.is_empty() {
            built_in.push(message_tool(loaded, &workers));
        }
        if config.cron.enabled {
            let may_check = has_exec && !must_confirm_exec(config);
            built_in.push(cron_tool(loaded, may_check));
        }
        let mut tools = register(built_in)?;
        if !config.mcp_servers.is_empty() {
            mcp::add_tools(&self.servers, loaded, &mut tools, &mut notices);
        }
        Ok((tools, notices))
    }

    fn memory_by(&self, meaning: Option<Meaning>) -> Result<Function> {
        Ok(memory_tool(Memory {
            home: self.home.clone(),
            workers: self.workers()?,
            local_time: self.local_time.clone(),
            meaning,
        }))
    }
}

/// Whether each call of `exec` needs the user's approval.
pub(crate) fn must_confirm_exec(config: &Config) -> bool {
    let names = config.tools.confirm.iter().map(String::as_str);
    names.into_iter().any(|name| matches!(name, EXEC | "runs"))
}

fn register(tools: Vec<Function>) -> Result<Registry> {
    let mut registry = Registry::new();
    tools.into_iter().try_for_each(|tool| registry.add(tool))?;
    Ok(registry)
}

/// Returns the search by meaning, if the configuration names a model for it.
fn meaning(loaded: &Loaded) -> Result<Option<Meaning>> {
    let (home, model) = (&loaded.home, &loaded.config.memory.embedding_model);
    let endpoint = media::endpoint("memory.embedding_model", model, loaded)?;
    Ok(endpoint.map(|endpoint| Meaning {
        model: format!("{} {}", endpoint.host.model.base, endpoint.host.model.id),
        embed: Box::new(move |texts, cancel, budget| endpoint.embed(texts, cancel, budget)),
        file: home.state().join("vectors.json"),
    }))
}
