//! Chooses the directories of tools, and refuses configurations in which tools could change instructions or the location of
//! another grant.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::stat;

use super::beneath::{Dir, open_straight};
use super::grant::{Access, Grant, Resolved};
use super::mounts::other_paths;
use crate::error::{Error, Result};
use crate::paths::Home;

/// Directories that remain closed if everything except the home is open: the sandbox replaces them, or they contain sockets of
/// services that act for their clients.
pub(crate) const NEVER_OPEN: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/tmp"];

/// A path that a setting opens to tools, and the links on the way there.
#[derive(Clone)]
pub(crate) struct Place {
    setting: String,
    pub(crate) grant: Grant,
    links: Vec<PathBuf>,
}

impl Place {
    /// Follows an absolute path.
    pub(crate) fn new(setting: &str, path: PathBuf, access: Access) -> Self {
        let Resolved { real, links } = Resolved::follow(&path);
        Self {
            setting: setting.to_owned(),
            grant: Grant { path, real, access },
            links,
        }
    }

    /// Follows a name from here, without following the way here again.
    fn below(&self, name: &str) -> Self {
        let mut place = self.clone();
        place.setting = name.to_owned();
        place.grant.path.push(name);
        let found = Resolved::below(self.real(), name.as_ref());
        (place.grant.real, place.links) = (found.real, found.links);
        place
    }

    fn real(&self) -> &Path {
        &self.grant.real
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.grant.path.display())
    }
}

/// Directories that the configuration opens to tools, and those that must remain closed.
#[derive(Clone)]
pub(crate) struct Grants {
    home: Place,
    agent: Place,
    notes: Place,
    /// The workspace, and the writable grants of all tools and servers.
    writable: Vec<Place>,
    /// Whether tools may change everything outside the home.
    open_beside: bool,
}

impl Grants {
    /// Checks the writable directories. `writable` has the workspace first, then the writable grants of all tools and servers.
    ///
    /// # Errors
    /// Returns an error of kind `Config`, starting with the setting and its path, if tools could change instructions.
    pub(crate) fn new(home: &Home, writable: Vec<Place>, open_beside: bool) -> Result<Self> {
        let root = Place::new("BANTAM_HOME", home.root().to_owned(), Access::Read);
        let config = root.below("config.json");
        let grants = Self {
            agent: root.below("agent"),
            notes: root.below("memory"),
            home: root,
            writable,
            open_beside,
        };
        grants.check_notes()?;
        for place in &grants.writable {
            grants.check(place)?;
        }
        for own in [&grants.home, &grants.agent, &grants.notes, &config] {
            let mut entries = own.links.iter().chain([&own.grant.real]);
            if let Some((entry, by)) = entries.find_map(|entry| grants.changing(entry)) {
                return Err(Error::config(format!(
                    "{own} leads through {entry}, which tools can change ({by})"
                ))
                .hint("move them outside of it: they are instructions of bantam, which tools must not be able to change"));
            }
        }
        // Reads all mounts of the machine, so only if it is needed.
        let elsewhere = open_beside.then(|| other_paths(grants.home()));
        if let Some(path) = elsewhere.iter().flatten().next() {
            return Err(Error::config(format!(
                "agents.defaults.restrict_to_workspace: {} can also be reached by {}, which would be open to tools",
                grants.home().display(),
                path.display()
            ))
            .hint("open single directories with tools.read_paths and tools.write_paths instead"));
        }
        Ok(grants)
    }

    /// Returns `$BANTAM_HOME` without links.
    pub(crate) fn home(&self) -> &Path {
        self.home.real()
    }

    /// Returns the workspace, which may be missing.
    pub(crate) fn workspace(&self) -> Grant {
        self.writable[0].grant.clone()
    }

    /// Returns the user's notes.
    pub(crate) fn notes(&self, access: Access) -> Grant {
        Grant {
            access,
            ..self.notes.grant.clone()
        }
    }

    /// Returns the grants of a policy in addition to the workspace.
    ///
    /// # Errors
    /// Returns the errors of [`Grants::without_workspace`], and an error if a grant contains the workspace or is inside it.
    pub(crate) fn beside_workspace(&self, asked: &[Place]) -> Result<Vec<Grant>> {
        self.check_all(asked)?;
        let places = [&self.writable[..1], asked].concat();
        Ok(apart(&places)?.split_off(1))
    }

    /// Returns the grants of a policy without the workspace.
    ///
    /// # Errors
    /// Returns an error of kind `Config`, starting with the setting and its path, if a grant is missing, must not be opened,
    /// contains another one, or goes through a link that tools can change.
    pub(crate) fn without_workspace(&self, asked: &[Place]) -> Result<Vec<Grant>> {
        self.check_all(asked)?;
        apart(asked)
    }

    /// Checks these paths, which must exist.
    fn check_all(&self, places: &[Place]) -> Result<()> {
        for place in places {
            self.check(place)?;
            if !place.real().exists() {
                let hint = format!("create it, or remove it from {}", place.setting);
                let what = format!("{place} does not exist, or is closed to you");
                return Err(Error::config(what).hint(hint));
            }
        }
        Ok(())
    }

    /// Returns bantam's instructions, and these files if tools cannot change them.
    pub(crate) fn always_readable(&self, files: Vec<Place>) -> impl Iterator<Item = Grant> {
        let is_apart =
            |file: &Place| self.check(file).is_ok() && self.changing(file.real()).is_none();
        let files = files.into_iter().filter(is_apart).map(|file| file.grant);
        [self.agent.grant.clone()].into_iter().chain(files)
    }

    /// Returns the setting and path of a directory that contains this entry and is writable for tools, such as the notes. The
    /// entry is a path without links.
    pub(crate) fn writable_at(&self, entry: &Path) -> Option<String> {
        let mut writable = self.writable.iter().chain([&self.notes]);
        let holding = writable.find(|place| entry.starts_with(place.real()));
        holding.map(Place::to_string)
    }

    /// Returns the open writable directory of a file named by the user, and the file's path in it. `None` for other files.
    ///
    /// # Errors
    /// Returns an error for a link that a tool may have made.
    pub(crate) fn open_named(&self, path: &Path) -> Result<Option<(Dir, PathBuf)>> {
        let file = Resolved::follow(&std::path::absolute(path)?);
        // Such a link may lead to a file that only other tools, or only root, can read.
        if let Some((link, _)) = file.links.iter().find_map(|link| self.changing(link)) {
            return Err(Error::failed(format!(
                "{link} is a link that tools can change, so it is not followed"
            )));
        }
        let mut writable = self.writable.iter();
        let holding = writable.find(|place| file.real.starts_with(place.real()));
        let is_named_by_kernel = path.starts_with("/dev") || path.starts_with("/proc");
        let is_open = self.is_open_beside(&file.real) && !is_named_by_kernel;
        let dir = match (holding, file.real.parent()) {
            (Some(place), _) => place.real(),
            (None, Some(parent)) if is_open => parent,
            _ => return Ok(None),
        };
        let below = file.real.strip_prefix(dir).unwrap_or(&file.real);
        // The file is opened later without following links, because one may take its place.
        Ok(Some((Dir::from(open_straight(dir)?), below.to_owned())))
    }

    /// Whether tools can change this path because everything except the home is open.
    fn is_open_beside(&self, real: &Path) -> bool {
        let home = self.home();
        // If the home is in such a directory, entries next to the path to the home are open.
        let mut closed = NEVER_OPEN.iter().filter(|closed| !home.starts_with(closed));
        let is_closed = closed.any(|closed| real.starts_with(closed));
        self.open_beside && !is_closed && !real.starts_with(home)
    }

    /// Protects keys, conversations and instructions: refuses grants that contain the home or are inside it, except the
    /// workspace there, and grants whose location tools can change.
    fn check(&self, place: &Place) -> Result<()> {
        let (root, real) = (self.home(), place.real());
        let below = real.strip_prefix(root);
        let within = below.is_ok_and(|below| !below.starts_with("workspace"));
        let is_note = real.starts_with(self.notes.real());
        if within || is_note || root.starts_with(real) || self.is_own_by_another_name(real) {
            let root = root.display();
            return Err(Error::config(format!(
                "{}: {} would give the tools access to bantam's own files in {root}",
                place.setting,
                real.display()
            ))
            .hint(format!("choose a directory that is not in {root} and does not contain it, or set BANTAM_HOME")));
        }
        if let Some((entry, by)) = place.links.iter().find_map(|link| self.changing(link)) {
            return Err(Error::config(format!(
                "{place} goes through the link {entry}, which tools can change ({by})"
            ))
            .hint(format!("write the path without links in {}", place.setting)));
        }
        Ok(())
    }

    /// Refuses a notes directory that links to the home, to a part or a parent of it, because tools write notes.
    fn check_notes(&self) -> Result<()> {
        let (root, real) = (self.home(), self.notes.real());
        let is_in_its_place = real == root.join("memory");
        let mut others = self.writable.iter().map(Place::real).chain([root]);
        let holds_other = others.any(|other| other.starts_with(real));
        if !is_in_its_place && (real.starts_with(root) || holds_other) {
            return Err(Error::config(format!(
                "{} leads to other files of bantam or of tools",
                self.notes
            ))
            .hint("make it a directory for notes alone"));
        }
        Ok(())
    }

    /// Whether this path shows the home or a part of it by a bind mount, or is another name of the home, its parents, `agent/`
    /// or the notes. Paths under the home are not checked here.
    fn is_own_by_another_name(&self, real: &Path) -> bool {
        let root = self.home();
        let id = |path: &Path| stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino));
        if real.starts_with(root) {
            return false;
        }
        let shows_part = |path: &PathBuf| path.starts_with(real) || real.starts_with(path);
        if other_paths(root).iter().any(shows_part) {
            return true;
        }
        let parts = [self.agent.real(), self.notes.real()];
        let mut own = root.ancestors().chain(parts);
        id(real).is_some_and(|given| own.any(|own| id(own) == Some(given)))
    }

    /// Returns the entry and the setting that lets tools change it; `None` if they cannot.
    fn changing<'p>(&self, entry: &'p Path) -> Option<(std::path::Display<'p>, String)> {
        let mut writable = self.writable.iter();
        if let Some(by) = writable.find(|place| entry.starts_with(place.real())) {
            return Some((entry.display(), by.to_string()));
        }
        // The parents of the home are closed, and so are the names in them.
        let dir = entry.parent();
        let leads_down = dir.is_none_or(|dir| self.home().starts_with(dir));
        let is_open = !leads_down && self.is_open_beside(entry);
        let by = "agents.defaults.restrict_to_workspace";
        is_open.then(|| (entry.display(), by.to_owned()))
    }
}

/// Returns the grants of these paths. Refuses nested ones, because the inner one could be replaced through the outer one.
fn apart(places: &[Place]) -> Result<Vec<Grant>> {
    let mut grants: Vec<Grant> = Vec::new();
    for inner in places {
        for outer in places {
            let is_same = inner.real() == outer.real() && inner.grant.access == outer.grant.access;
            if inner.real().starts_with(outer.real()) && !is_same {
                return Err(Error::config(format!("{inner} is in {outer}")).hint(
                    "keep one of the two: a directory in another one could be replaced through it",
                ));
            }
        }
        if grants.iter().all(|known| known.real != inner.grant.real) {
            grants.push(inner.grant.clone());
        }
    }
    Ok(grants)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use std::os::unix::fs::symlink;

    #[test]
    fn overlapping_or_linked_grant_is_refused() {
        use Access::{Read, Write};
        let root = TestDir::new();
        let dirs = ["home/workspace", "home/agent", "data/inner", "other/ws"];
        for dir in dirs {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let at = |path: &str| root.join(path);
        symlink(at("data"), at("other/link")).unwrap();
        symlink(at("data"), at("home/link")).unwrap();
        symlink("..", at("data/up")).unwrap();
        let asked =
            |(path, access): &(&str, Access)| Place::new(&format!("set {path}"), at(path), *access);
        let refusal = |workspace: &str, tools: &[(&str, Access)], open_beside: bool| {
            let tools: Vec<Place> = tools.iter().map(asked).collect();
            let mut writable = vec![asked(&(workspace, Write))];
            let others = tools.iter().filter(|place| place.grant.access == Write);
            writable.extend(others.cloned());
            let grants = Grants::new(&Home::new(at("home")), writable, open_beside);
            let opened = grants.and_then(|grants| grants.beside_workspace(&tools));
            opened.err().map(|e| (e.kind, e.message))
        };
        let own = "home/workspace";
        // A workspace, grants to read (r) or write (w), and the setting that is refused. A workspace with `!` is open beside it.
        for row in r"
home/workspace | |
!home/workspace | |
other/ws | w data |
home/workspace | r data r other/link |
home/link | |
home/workspace | r home | set home
home/workspace | w home/agent | set home/agent
home/workspace | r . | set .
home/workspace | r data/up | set data/up
data/up | | set data/up
home/memory | | set home/memory
home/workspace | w home/workspace/a | set home/workspace/a
other/ws | w other | set other/ws
home/workspace | r data/inner r data | set data/inner
home/workspace | r data w data | set data
home/workspace | w other r other/link | set other/link
!other/link | | set other/link
home/workspace | r nothing | set nothing"
            .lines()
            .skip(1)
        {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let words: Vec<&str> = cells[1].split_whitespace().collect();
            let access = |word: &str| if word == "w" { Write } else { Read };
            let tools: Vec<_> = words
                .chunks(2)
                .map(|pair| (pair[1], access(pair[0])))
                .collect();
            let workspace = cells[0].trim_start_matches('!');
            let got = refusal(workspace, &tools, cells[0].starts_with('!'));
            let is_config = |(kind, message): &(_, String)| {
                *kind == crate::error::Kind::Config
                    && message.starts_with(&format!("{}: ", cells[2]))
            };
            let is_right = got.as_ref().map_or(cells[2].is_empty(), is_config);
            assert!(is_right, "{row}: {got:?}");
        }
        std::fs::create_dir_all(at("notes/inner")).unwrap();
        symlink("../notes", at("home/memory")).unwrap();
        let inner = refusal(own, &[("notes/inner", Read)], false);
        assert!(inner.is_some(), "a note is readable, and so writable");
        for target in ["state", "agent", ".", "..", "memory", "../notes"] {
            for dir in ["home/state", "notes"] {
                std::fs::create_dir_all(at(dir)).unwrap();
            }
            drop(std::fs::remove_file(at("home/memory")));
            if target != "memory" {
                symlink(target, at("home/memory")).unwrap();
            }
            let is_refused = refusal(own, &[], false).is_some();
            let is_apart = matches!(target, "memory" | "../notes");
            assert_eq!(is_refused, !is_apart, "{target}");
        }
    }
}
