//! What the configuration opens to tools, as absolute paths.

use std::path::{Path, PathBuf};

use super::Parts;
use crate::access::{Layout, Opened, Setting};
use crate::config::Env;
use crate::error::{Context, Result};
use crate::paths::of_user;

/// # Errors
/// The configuration would let tools change what bantam obeys.
pub(crate) fn layout(parts: Parts) -> Result<Layout> {
    let Parts { home, config, env } = parts;
    let mut writable = vec![setting(
        "tools.write_paths".to_owned(),
        &config.tools.write_paths,
        env,
    )?];
    for (name, entry) in &config.mcp_servers {
        let name = format!("mcpServers.{name}.write");
        writable.push(setting(name, &entry.write, env)?);
    }
    Layout::new(Opened {
        home,
        workspace: workspace(parts)?,
        writable,
        everything: !config.agents.defaults.restrict_to_workspace,
    })
}

/// The absolute path of the workspace.
pub(crate) fn workspace(parts: Parts) -> Result<PathBuf> {
    match parts.config.agents.defaults.workspace.as_str() {
        "" => Ok(parts.home.workspace()),
        written => absolute(written, parts.env).doing("finding the workspace"),
    }
}

/// The absolute paths of a setting.
pub(crate) fn setting(name: String, written: &[String], env: &Env) -> Result<Setting> {
    let written = written.iter().filter(|path| !path.is_empty());
    let paths = written
        .map(|path| absolute(path, env).doing(&name))
        .collect::<Result<_>>()?;
    Ok(Setting { name, paths })
}

/// The files of the local time zone that `TZ` and `TZDIR` name by their paths.
pub(super) fn zones(env: &Env) -> Setting {
    let named = ["TZ", "TZDIR"].into_iter().filter_map(|name| env.get(name));
    let paths = named.map(|path| Path::new(path.strip_prefix(':').unwrap_or(path)));
    Setting {
        name: "TZ".to_owned(),
        paths: paths
            .filter(|path| path.is_absolute())
            .map(Path::to_owned)
            .collect(),
    }
}

fn absolute(written: &str, env: &Env) -> std::io::Result<PathBuf> {
    std::path::absolute(of_user(written, env))
}
