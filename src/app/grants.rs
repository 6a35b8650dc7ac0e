//! Directories that the configuration opens to tools, as absolute paths.

use std::path::{Path, PathBuf};

use super::WORKSPACE;
use crate::access::{Access, Grants, Place};
use crate::config::path::split;
use crate::config::{Env, Loaded};
use crate::error::{Context, Result};
use crate::paths::of_user;

/// # Errors
/// Returns an error if tools could change bantam's instructions or keys.
pub(crate) fn grants(loaded: &Loaded) -> Result<Grants> {
    let typed = loaded.override_of(&split(WORKSPACE));
    let setting = typed.map_or(WORKSPACE, |set| &set.name);
    let mut writable = vec![Place::new(setting, workspace(loaded)?, Access::Write)];
    writable.extend(tools_write(loaded)?);
    for (name, entry) in &loaded.config.mcp_servers {
        let setting = format!("mcpServers.{name}.write");
        let paths = paths_of_setting(&setting, &entry.write, Access::Write, &loaded.env)?;
        writable.extend(paths);
    }
    let is_restricted = loaded.config.agents.defaults.restrict_to_workspace;
    Grants::new(&loaded.home, writable, !is_restricted)
}

/// Returns the absolute path of the workspace.
pub(crate) fn workspace(loaded: &Loaded) -> Result<PathBuf> {
    match loaded.config.agents.defaults.workspace.as_str() {
        "" => Ok(loaded.home.workspace()),
        written => absolute(written, &loaded.env).doing("finding the workspace"),
    }
}

/// Returns the directories of `tools.write_paths`.
pub(crate) fn tools_write(loaded: &Loaded) -> Result<Vec<Place>> {
    let paths = &loaded.config.tools.write_paths;
    opened("tools.write_paths", paths, Access::Write, loaded)
}

/// Resolves a setting of the tools to absolute paths. The workspace of `--workspace` replaces directories that overlap it.
fn opened(setting: &str, paths: &[String], access: Access, loaded: &Loaded) -> Result<Vec<Place>> {
    let is_apart = |place: &Place| {
        let typed = loaded.override_of(&split(WORKSPACE));
        let typed = typed.filter(|set| set.is_flag());
        let typed = typed.and_then(|set| set.value.as_str());
        let (path, typed) = (&place.grant.path, typed.map(Path::new));
        typed.is_none_or(|typed| !path.starts_with(typed) && !typed.starts_with(path))
    };
    let places = paths_of_setting(setting, paths, access, &loaded.env)?;
    Ok(places.into_iter().filter(is_apart).collect())
}

/// Returns the tools' grants in addition to the workspace.
pub(super) fn tools_grants(loaded: &Loaded) -> Result<Vec<Place>> {
    let paths = &loaded.config.tools.read_paths;
    let read = opened("tools.read_paths", paths, Access::Read, loaded)?;
    Ok([tools_write(loaded)?, read].concat())
}

/// Resolves a setting to absolute paths.
pub(super) fn paths_of_setting(
    setting: &str,
    written: &[String],
    access: Access,
    env: &Env,
) -> Result<Vec<Place>> {
    let written = written.iter().filter(|path| !path.is_empty());
    written
        .map(|path| {
            let path = absolute(path, env).doing(setting)?;
            Ok(Place::new(setting, path, access))
        })
        .collect()
}

/// Returns the time zone files that `TZ` and `TZDIR` name by absolute path.
pub(super) fn zones(env: &Env) -> Vec<Place> {
    let named = ["TZ", "TZDIR"].into_iter().filter_map(|name| env.get(name));
    let paths = named.map(|path| Path::new(path.strip_prefix(':').unwrap_or(path)));
    let paths = paths.filter(|path| path.is_absolute());
    paths
        .map(|path| Place::new("TZ", path.to_owned(), Access::Read))
        .collect()
}

fn absolute(written: &str, env: &Env) -> std::io::Result<PathBuf> {
    std::path::absolute(of_user(written, env.get("HOME")))
}
