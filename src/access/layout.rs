//! Which trees tools get, and which configurations are refused: what tools can change must neither hold what bantam obeys
//! nor decide where another tree is.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::stat;

use super::beneath::{Dir, open_straight};
use super::tree::{Access, Resolved, Tree};
use crate::error::{Error, Result};
use crate::paths::Home;

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

/// The absolute paths of a setting.
pub(crate) struct Setting {
    pub name: String,
    pub paths: Vec<PathBuf>,
}

impl Setting {
    fn places(&self) -> impl Iterator<Item = Place> {
        self.paths
            .iter()
            .map(|path| Place::new(&self.name, path.clone()))
    }
}

/// What the configuration opens to tools.
pub(crate) struct Opened<'a> {
    pub home: &'a Home,
    pub workspace: PathBuf,
    /// The writable trees of all tools but the workspace.
    pub writable: Vec<Setting>,
    /// Tools may change everything but the home.
    pub everything: bool,
}

/// Everything that tools can change, and what they must not.
pub(crate) struct Layout {
    home: Place,
    agent: Place,
    notes: Place,
    /// The workspace, and the writable trees of all tools.
    writable: Vec<Place>,
    /// Tools may change everything but the home.
    all_open: bool,
}

impl Layout {
    pub(crate) fn new(opened: Opened) -> Result<Self> {
        let home = opened.home;
        let root = Place {
            setting: "BANTAM_HOME".to_owned(),
            path: home.root().to_owned(),
            found: Resolved::of(home.root()),
        };
        let setting = "agents.defaults.workspace";
        let mut workspace = if opened.workspace == home.workspace() {
            root.below("workspace", opened.workspace)
        } else {
            Place::new(setting, opened.workspace)
        };
        workspace.setting = setting.to_owned();
        let mut writable = vec![workspace];
        writable.extend(opened.writable.iter().flat_map(Setting::places));
        let layout = Self {
            agent: root.below("agent", home.agent()),
            notes: root.below("memory", home.notes()),
            home: root,
            writable,
            all_open: opened.everything,
        };
        let config = layout.home.below("config.json", home.config());
        layout
            .writable
            .iter()
            .try_for_each(|tree| layout.check(tree))?;
        for own in [&layout.home, &layout.agent, &layout.notes, &config] {
            if let Some((entry, by)) =
                layout.changeable([own.real()].into_iter().chain(own.links()))
            {
                return Err(Error::config(format!("{own} leads through {entry}, which tools can change ({by})"))
                    .hint("bantam obeys what is there: keep it, and the links that lead there, away from the tools"));
            }
        }
        if layout.home().starts_with(layout.notes.real()) {
            return Err(
                Error::config(format!("{} holds bantam's own files", layout.notes))
                    .hint("make it a directory for notes alone"),
            );
        }
        Ok(layout)
    }

    /// The trees that the configuration lets tools change, the workspace first: the name of the setting, and where the tree is,
    /// without links.
    pub(crate) fn changeable_trees(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.writable
            .iter()
            .map(|place| (place.setting.as_str(), place.real()))
    }

    /// `$BANTAM_HOME` without links.
    pub(crate) fn home(&self) -> &Path {
        self.home.real()
    }

    /// The workspace, and then the trees of these settings, none within another. All of them exist, but perhaps the
    /// workspace.
    pub(crate) fn trees(&self, settings: &[(Setting, Access)]) -> Result<Vec<Tree>> {
        let named = self.named(settings)?;
        let mut places = vec![(&self.writable[0], Access::Write)];
        places.extend(named.iter().map(|(place, access)| (place, *access)));
        outermost(&places, 1)
    }

    /// The trees of these settings alone, none within another. The workspace is among them where one of them names it.
    ///
    /// # Errors
    /// A tree to be read has the workspace in it.
    pub(crate) fn trees_without_workspace(
        &self,
        settings: &[(Setting, Access)],
    ) -> Result<Vec<Tree>> {
        let workspace = &self.writable[0];
        let named = self.named(settings)?;
        let holds_it = |place: &Place| {
            workspace.real() != place.real() && workspace.real().starts_with(place.real())
        };
        let around =
            |(place, access): &&(Place, Access)| *access == Access::Read && holds_it(place);
        if let Some((place, _)) = named.iter().find(around) {
            return Err(overlap(place, workspace));
        }
        let places: Vec<_> = named
            .iter()
            .map(|(place, access)| (place, *access))
            .collect();
        outermost(&places, 0)
    }

    /// The trees of these settings as they are written. All of them exist.
    fn named(&self, settings: &[(Setting, Access)]) -> Result<Vec<(Place, Access)>> {
        let mut named = Vec::new();
        for (setting, access) in settings {
            for place in setting.places() {
                self.check(&place)?;
                fs_err::metadata(place.real()).map_err(|e| {
                    let missing = e.kind() == std::io::ErrorKind::NotFound;
                    let why = if missing {
                        "does not exist".to_owned()
                    } else {
                        e.to_string()
                    };
                    Error::config(format!("{place} {why}"))
                        .hint(format!("create it, or remove it from {}", setting.name))
                })?;
                named.push((place, *access));
            }
        }
        Ok(named)
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
                    "the link {link}, which tools can change, leads out of their directories"
                )))
            }
            _ => Ok(None),
        }
    }

    /// The user's notes.
    pub(crate) fn notes(&self, access: Access) -> Tree {
        self.notes.tree(access)
    }

    /// Bantam's own instructions, and the files of the local time zone, which variables name: readable where they exist.
    pub(crate) fn always_readable(&self, zones: &Setting) -> impl Iterator<Item = Tree> {
        let is_apart =
            |zone: &Place| self.check(zone).is_ok() && self.changeable([zone.real()]).is_none();
        let zones: Vec<Place> = zones.places().filter(is_apart).collect();
        [self.agent.tree(Access::Read)]
            .into_iter()
            .chain(zones.into_iter().map(|zone| zone.tree(Access::Read)))
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
            let mut own = root
                .ancestors()
                .chain([self.agent.real(), self.notes.real()]);
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

/// A tree for each place that is in no other. The first `kept` places have theirs in any case.
fn outermost(places: &[(&Place, Access)], kept: usize) -> Result<Vec<Tree>> {
    let mut trees: Vec<Tree> = Vec::new();
    for (n, &(place, access)) in places.iter().enumerate() {
        let within = |other: &Place| place.real().starts_with(other.real());
        let clash = places[..n].iter().find(|(other, mode)| {
            *mode != access && (within(other) || other.real().starts_with(place.real()))
        });
        if let Some((other, _)) = clash {
            return Err(overlap(place, other));
        }
        // The outer one opens it already.
        let mut others = places
            .iter()
            .enumerate()
            .filter(|(m, (other, _))| *m != n && within(other));
        if n < kept || !others.any(|(m, (other, _))| m < n || other.real() != place.real()) {
            trees.push(place.tree(access));
        }
    }
    Ok(trees)
}

fn overlap(place: &Place, other: &Place) -> Error {
    Error::config(format!(
        "{place} and {other} overlap, and tools may change only one of them"
    ))
    .hint("choose directories of which neither contains the other")
}
