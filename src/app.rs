//! The one place that names concrete types: from a configuration to an agent.

mod models;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::agent::context::Prompt;
use crate::agent::{Agent, Limits};
use crate::config::{Config, Env};
use crate::error::{Context, Error, Result};
use crate::guard::Guard;
use crate::hands::wire::Setup;
use crate::hands::{Hands, Way};
use crate::paths::Home;
use crate::provider::lineup::Retry;
use crate::secret::Redactor;
use crate::session::{Files, Memory};
use crate::template;
use crate::tool::edit::{AppendFile, EditFile, WriteFile};
use crate::tool::exec::Exec;
use crate::tool::files::{Grep, ListDir, ReadFile};

/// Whether conversations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    OnDisk,
    Nothing,
}

/// What an agent is made from.
pub struct Parts<'a> {
    pub home: &'a Home,
    pub config: &'a Config,
    pub env: &'a Env,
    /// There is a config.json: somebody has set this up, so nothing is guessed.
    pub configured: bool,
    pub keep: Keep,
    pub stream: bool,
}

/// An agent, and what its user should know about it.
pub struct Ready {
    pub agent: Agent,
    pub notices: Vec<String>,
}

/// Puts the agent together. The workspace is made from the template when it is missing.
///
/// # Errors
/// No model can be chosen, or the workspace cannot be made.
pub fn build(parts: &Parts) -> Result<Ready> {
    let Parts { home, config, env, .. } = parts;
    let mut notices = Vec::new();
    let redactor = Redactor::new(config.secrets(env));
    let lineup = models::lineup(parts, &redactor, &mut notices)?;
    let workspace = workspace(home, config, env)?;
    if !workspace.is_dir() {
        template::write("workspace", &workspace).doing("making the workspace")?;
    }
    let exec = &config.tools.exec;
    let setup = Setup {
        way: Way::Bare,
        network: exec.network,
        workspace: workspace.clone(),
        agent_dir: Some(home.agent()),
        read_paths: trees(home, &config.tools.read_paths, "tools.read_paths", env)?,
        write_paths: trees(home, &config.tools.write_paths, "tools.write_paths", env)?,
        memory_mb: exec.memory_mb,
    };
    let hands = Arc::new(Hands::new(setup, exec.sandbox, Guard::new(config.tools.web.fetch.allow_private)));
    let defaults = &config.agents.defaults;
    let mut builder = Agent::builder()
        .lineup(lineup)
        .tool(ListDir::new(hands.clone()))
        .tool(ReadFile::new(hands.clone()))
        .tool(Grep::new(hands.clone()))
        .tool(WriteFile::new(hands.clone()))
        .tool(AppendFile::new(hands.clone()))
        .tool(EditFile::new(hands.clone()))
        .prompt(Prompt::from_files(home.agent(), workspace))
        .redactor(redactor)
        .stream(parts.stream)
        .limits(Limits {
            max_steps: defaults.max_tool_iterations,
            timeout: Duration::from_secs(defaults.timeout),
            retry: Retry {
                max: defaults.max_retries,
                first_wait: Duration::try_from_secs_f64(defaults.retry_initial_delay).unwrap_or(Duration::from_secs(1)),
            },
        });
    if exec.enabled {
        let passed = exec.pass_env.iter().filter_map(|name| Some((name.clone(), env.get(name)?.clone())));
        builder = builder.tool(Exec::new(hands, exec.timeout, passed.collect(), exec.network));
    }
    builder = match parts.keep {
        Keep::OnDisk => builder.store(Files::new((*home).clone())),
        Keep::Nothing => builder.store(Memory::default()),
    };
    Ok(Ready { agent: builder.build()?, notices })
}

/// Where the agent works, absolute.
fn workspace(home: &Home, config: &Config, env: &Env) -> Result<PathBuf> {
    let written = config.agents.defaults.workspace.as_str();
    if written.is_empty() {
        return Ok(home.workspace());
    }
    let workspace = absolute(written, env).doing("finding the workspace")?;
    apart(home, &workspace, "agents.defaults.workspace")?;
    Ok(workspace)
}

/// The trees that a setting opens to the tools.
fn trees(home: &Home, written: &[String], setting: &str, env: &Env) -> Result<Vec<PathBuf>> {
    let mut trees = Vec::new();
    for path in written.iter().filter(|path| !path.is_empty()) {
        let tree = absolute(path, env).doing(setting)?;
        apart(home, &tree, setting)?;
        trees.push(tree);
    }
    Ok(trees)
}

fn absolute(written: &str, env: &Env) -> std::io::Result<PathBuf> {
    std::path::absolute(match (written.strip_prefix('~'), env.get("HOME")) {
        (Some(rest), Some(user)) if rest.is_empty() || rest.starts_with('/') => PathBuf::from(format!("{user}{rest}")),
        _ => PathBuf::from(written),
    })
}

/// Keeps tools away from the keys, the conversations and what the agent obeys: no tree of theirs may hold the home, nor
/// lie in it, but for the workspace there.
fn apart(home: &Home, tree: &Path, setting: &str) -> Result<()> {
    // By what links lead to, as far as it is there; a tree that is not there yet has none.
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (root, tree) = (real(home.root()), real(tree));
    let within = tree.strip_prefix(&root).is_ok_and(|below| !below.starts_with("workspace"));
    if within || root.starts_with(&tree) {
        let (tree, root) = (tree.display(), root.display());
        return Err(Error::config(format!("{setting}: {tree} would open bantam's own files in {root} to its tools"))
            .hint("name a directory that neither holds nor lies in that one, or move it with BANTAM_HOME"));
    }
    Ok(())
}
