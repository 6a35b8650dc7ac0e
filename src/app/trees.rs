//! Which trees tools get, and which configurations are refused: what tools can change must neither hold what bantam obeys
//! nor decide where another tree is.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::stat;

use super::Parts;
use crate::beneath::{Dir, open_straight};
use crate::config::Env;
use crate::error::{Context, Error, Result};
use crate::mcp::Changeable;
use crate::tree::{Access, Resolved, Tree};

/// A path of the configuration.
struct Place {
    setting: String,
    path: PathBuf,
    found: Resolved,
}

impl Place {
    fn new(setting: &str, path: PathBuf) -> Self {
        Self {
            setting: setting.to_owned(),
            found: Resolved::of(&path),
            path,
        }
    }

    fn below(&self, name: &str, path: PathBuf) -> Self {
        Self {
            setting: name.to_owned(),
            found: self.found.join(name.as_ref()),
            path,
        }
    }

    fn real(&self) -> &Path {
        &self.found.real
    }

    fn links(&self) -> impl Iterator<Item = &Path> {
        self.found.links.iter().map(PathBuf::as_path)
    }

    fn tree(&self, access: Access) -> Tree {
        Tree {
            path: self.path.clone(),
            real: self.found.real.clone(),
            access,
            id: None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.path.display())
    }
}

/// Everything that tools can change, and what they must not.
pub(crate) struct Layout<'a> {
    env: &'a Env,
    home: Place,
    agent: Place,
    /// The workspace, and the writable trees of all tools.
    writable: Vec<Place>,
    /// Tools may change everything but the home.
    all_open: bool,
}

impl<'a> Layout<'a> {
    pub(crate) fn new(parts: Parts<'a>) -> Result<Self> {
        let Parts { home, config, env } = parts;
        let root = Place::new("BANTAM_HOME", home.root().to_owned());
        let mut workspace = match workspace(parts)? {
            path if path == home.workspace() => root.below("workspace", path),
            path => Place::new("agents.defaults.workspace", path),
        };
        workspace.setting = "agents.defaults.workspace".to_owned();
        let mut writable = vec![workspace];
        let of_tools = ("tools.write_paths".to_owned(), &config.tools.write_paths);
        let of_servers = config
            .mcp_servers
            .iter()
            .map(|(name, entry)| (format!("mcpServers.{name}.write"), &entry.write));
        for (setting, written) in [of_tools].into_iter().chain(of_servers) {
            writable.extend(
                paths(written, &setting, env)?
                    .into_iter()
                    .map(|path| Place::new(&setting, path)),
            );
        }
        let layout = Self {
            env,
            agent: root.below("agent", home.agent()),
            home: root,
            writable,
            all_open: !config.agents.defaults.restrict_to_workspace,
        };
        let config = layout.home.below("config.json", home.config());
        layout
            .writable
            .iter()
            .try_for_each(|tree| layout.check(tree))?;
        for own in [&layout.home, &layout.agent, &config] {
            if let Some((entry, by)) =
                layout.changeable([own.real()].into_iter().chain(own.links()))
            {
                return Err(Error::config(format!("{own} leads through {entry}, which tools can change ({by})"))
                    .hint("bantam obeys what is there: keep it, and the links that lead there, away from the tools"));
            }
        }
        Ok(layout)
    }

    /// The trees that the configuration lets tools change.
    pub(super) fn changeable_trees(&self) -> Vec<Changeable> {
        let changeable = |place: &Place| Changeable {
            real: place.real().to_owned(),
            setting: place.setting.clone(),
        };
        self.writable.iter().map(changeable).collect()
    }

    /// `$BANTAM_HOME` without links.
    pub(super) fn home(&self) -> &Path {
        self.home.real()
    }

    /// The workspace, and then the trees of these settings, none within another. All of them exist, but perhaps the
    /// workspace.
    pub(super) fn trees(&self, settings: &[(&str, &[String], Access)]) -> Result<Vec<Tree>> {
        let workspace = &self.writable[0];
        let mut named = Vec::new();
        for (setting, written, access) in settings {
            for path in paths(written, setting, self.env)? {
                let place = Place::new(setting, path);
                self.check(&place)?;
                fs_err::metadata(place.real()).map_err(|e| {
                    let missing = e.kind() == std::io::ErrorKind::NotFound;
                    let why = if missing {
                        "does not exist".to_owned()
                    } else {
                        e.to_string()
                    };
                    Error::config(format!("{place} {why}"))
                        .hint(format!("make it, or take it out of {setting}"))
                })?;
                named.push((place, *access));
            }
        }
        let places: Vec<(&Place, Access)> = [(workspace, Access::Write)]
            .into_iter()
            .chain(named.iter().map(|(place, access)| (place, *access)))
            .collect();
        let mut trees: Vec<Tree> = Vec::new();
        for (n, &(place, access)) in places.iter().enumerate() {
            let within = |other: &Place| place.real().starts_with(other.real());
            let clash = places[..n].iter().find(|(other, mode)| {
                *mode != access && (within(other) || other.real().starts_with(place.real()))
            });
            if let Some((other, _)) = clash {
                return Err(Error::config(format!(
                    "{place} and {other} overlap, and tools may change only one of them"
                ))
                .hint("choose trees that are apart from each other"));
            }
            // The outer one opens it already.
            let mut others = places
                .iter()
                .enumerate()
                .filter(|(m, (other, _))| *m != n && within(other));
            if n == 0 || !others.any(|(m, (other, _))| m < n || other.real() != place.real()) {
                trees.push(place.tree(access));
            }
        }
        Ok(trees)
    }

    /// The tree that tools can change and that holds a file which the user named, and where the file is in it. `None` for a
    /// file elsewhere.
    ///
    /// # Errors
    /// A link that a tool may have made leads there.
    pub(crate) fn hold_in(&self, path: &Path) -> Result<Option<(Dir, PathBuf)>> {
        let file = Place::new("-a", std::path::absolute(path)?);
        let holding = self
            .writable
            .iter()
            .find_map(|tree| Some((tree, file.real().strip_prefix(tree.real()).ok()?)));
        if let Some((tree, below)) = holding {
            return Ok(Some((
                Dir::from(open_straight(tree.real())?),
                below.to_owned(),
            )));
        }
        match self.changeable(file.links()) {
            // Where everything is open, only the home is shut.
            Some((link, _)) if !self.all_open || file.real().starts_with(self.home()) => {
                Err(Error::failed(format!(
                    "the link {link}, which tools can change, leads out of their trees"
                )))
            }
            _ => Ok(None),
        }
    }

    /// Bantam's own instructions, and the files of the local time zone that `TZ` and `TZDIR` name by their paths: readable
    /// where they exist.
    pub(super) fn always_readable(&self) -> impl Iterator<Item = Tree> {
        let named = ["TZ", "TZDIR"]
            .into_iter()
            .filter_map(|name| Some((name, self.env.get(name)?)));
        let paths =
            named.map(|(name, path)| (name, Path::new(path.strip_prefix(':').unwrap_or(path))));
        let zones = paths
            .filter(|(_, path)| path.is_absolute())
            .map(|(name, path)| Place::new(name, path.to_owned()));
        let zones = zones
            .filter(|zone| self.check(zone).is_ok() && self.changeable([zone.real()]).is_none());
        [self.agent.tree(Access::Read)]
            .into_iter()
            .chain(zones.map(|zone| zone.tree(Access::Read)))
    }

    /// Keeps tools away from the keys, the conversations and what the agent obeys: none of their trees may contain the home
    /// or be inside it, except the workspace there; nor may tools decide where it leads.
    fn check(&self, place: &Place) -> Result<()> {
        let (root, real) = (self.home(), place.real());
        let within = real
            .strip_prefix(root)
            .is_ok_and(|below| !below.starts_with("workspace"));
        let id = |path: &Path| stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino));
        // A bind mount gives one of them another name. The workspace in the home is not looked at so closely.
        let is_own = || {
            let mut own = root.ancestors().chain([self.agent.real()]);
            !real.starts_with(root)
                && id(real).is_some_and(|given| own.any(|own| id(own) == Some(given)))
        };
        if within || root.starts_with(real) || is_own() {
            let root = root.display();
            return Err(Error::config(format!(
                "{}: {} would give the tools access to bantam's own files in {root}",
                place.setting,
                real.display()
            ))
            .hint(format!("choose a directory that is not in {root} and does not contain it, or set BANTAM_HOME")));
        }
        if let Some((entry, by)) = self.changeable(place.links()) {
            return Err(Error::config(format!(
                "{place} goes through the link {entry}, which tools can change ({by})"
            ))
            .hint(format!("write the path without links in {}", place.setting)));
        }
        Ok(())
    }

    /// The first of these entries that tools can change, and the setting that lets them.
    fn changeable<'p>(
        &self,
        entries: impl IntoIterator<Item = &'p Path>,
    ) -> Option<(std::path::Display<'p>, String)> {
        entries.into_iter().find_map(|entry| {
            let by = self
                .writable
                .iter()
                .find(|tree| entry.starts_with(tree.real()))
                .map(Place::to_string);
            // What leads down to the home is closed, and with it the names in those directories.
            let is_open = entry
                .parent()
                .is_some_and(|dir| !self.home().starts_with(dir))
                && !entry.starts_with(self.home());
            let open = || {
                (self.all_open && is_open)
                    .then(|| "agents.defaults.restrict_to_workspace".to_owned())
            };
            Some((entry.display(), by.or_else(open)?))
        })
    }
}

/// The absolute path of the workspace.
pub(crate) fn workspace(parts: Parts) -> Result<PathBuf> {
    match parts.config.agents.defaults.workspace.as_str() {
        "" => Ok(parts.home.workspace()),
        written => absolute(written, parts.env).doing("finding the workspace"),
    }
}

/// The absolute paths of a setting.
pub(crate) fn paths(written: &[String], setting: &str, env: &Env) -> Result<Vec<PathBuf>> {
    written
        .iter()
        .filter(|path| !path.is_empty())
        .map(|path| absolute(path, env).doing(setting))
        .collect()
}

fn absolute(written: &str, env: &Env) -> std::io::Result<PathBuf> {
    std::path::absolute(match (written.strip_prefix('~'), env.get("HOME")) {
        (Some(rest), Some(user)) if rest.is_empty() || rest.starts_with('/') => {
            PathBuf::from(format!("{user}{rest}"))
        }
        _ => PathBuf::from(written),
    })
}
