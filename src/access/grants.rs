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

/// A path that a setting opens to tools; absolute.
#[derive(Clone)]
pub(crate) struct Asked {
    pub setting: String,
    pub path: PathBuf,
    pub access: Access,
}

/// A configured path and its target.
#[derive(Clone)]
struct Place {
    asked: Asked,
    found: Resolved,
}

impl Place {
    fn new(asked: Asked) -> Self {
        let found = Resolved::follow(&asked.path);
        Self { asked, found }
    }

    /// Returns a file or directory of the home, by its name there.
    fn in_home(home: &Home, root: &Resolved, name: &str) -> Self {
        let asked = Asked {
            setting: name.to_owned(),
            path: home.root().join(name),
            access: Access::Read,
        };
        let found = root.join(name.as_ref());
        Self { asked, found }
    }

    fn real(&self) -> &Path {
        &self.found.real
    }

    fn grant(&self, access: Access) -> Grant {
        Grant {
            path: self.asked.path.clone(),
            real: self.found.real.clone(),
            access,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.asked.setting, self.asked.path.display())
    }
}

/// Directories that the configuration opens to tools, and those that must remain closed.
#[derive(Clone)]
pub(crate) struct Grants {
    home: Resolved,
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
    pub(crate) fn new(home: &Home, writable: Vec<Asked>, open_beside: bool) -> Result<Self> {
        let root = Resolved::follow(home.root());
        let own_workspace = home.workspace();
        let place = |asked: Asked| {
            if asked.path == own_workspace {
                let found = root.join("workspace".as_ref());
                return Place { asked, found };
            }
            Place::new(asked)
        };
        let grants = Self {
            agent: Place::in_home(home, &root, "agent"),
            notes: Place::in_home(home, &root, "memory"),
            writable: writable.into_iter().map(place).collect(),
            home: root,
            open_beside,
        };
        grants.check_notes()?;
        for place in &grants.writable {
            grants.check(place)?;
        }
        let config = Place::in_home(home, &grants.home, "config.json");
        let itself = Place {
            asked: Asked {
                setting: "BANTAM_HOME".to_owned(),
                path: home.root().to_owned(),
                access: Access::Read,
            },
            found: grants.home.clone(),
        };
        for own in [&itself, &grants.agent, &grants.notes, &config] {
            let mut entries = own.found.links.iter().chain([&own.found.real]);
            if let Some((entry, by)) = entries.find_map(|entry| grants.changing(entry)) {
                return Err(Error::config(format!(
                    "{own} leads through {entry}, which tools can change ({by})"
                ))
                .hint("move them outside of it: they are instructions of bantam, which tools must not be able to change"));
            }
        }
        let elsewhere = if open_beside {
            other_paths(grants.home())
        } else {
            Vec::new()
        };
        if let Some(path) = elsewhere.first() {
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
        &self.home.real
    }

    /// Returns the workspace, which may be missing.
    pub(crate) fn workspace(&self) -> Grant {
        self.writable[0].grant(Access::Write)
    }

    /// Returns the user's notes.
    pub(crate) fn notes(&self, access: Access) -> Grant {
        self.notes.grant(access)
    }

    /// Returns the grants of a policy in addition to the workspace.
    ///
    /// # Errors
    /// Returns the errors of [`Grants::without_workspace`], and an error if a grant contains the workspace or is inside it.
    pub(crate) fn beside_workspace(&self, asked: &[Asked]) -> Result<Vec<Grant>> {
        let mut places = vec![self.writable[0].clone()];
        places.extend(self.places(asked)?);
        Ok(apart(&places)?.split_off(1))
    }

    /// Returns the grants of a policy without the workspace.
    ///
    /// # Errors
    /// Returns an error of kind `Config`, starting with the setting and its path, if a grant is missing, must not be opened,
    /// contains another one, or goes through a link that tools can change.
    pub(crate) fn without_workspace(&self, asked: &[Asked]) -> Result<Vec<Grant>> {
        apart(&self.places(asked)?)
    }

    /// Resolves these paths, which must exist.
    fn places(&self, asked: &[Asked]) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        for asked in asked {
            let place = Place::new(asked.clone());
            self.check(&place)?;
            fs_err::metadata(place.real()).map_err(|e| {
                let missing = e.kind() == std::io::ErrorKind::NotFound;
                let why = if missing {
                    "does not exist".to_owned()
                } else {
                    e.to_string()
                };
                Error::config(format!("{place} {why}"))
                    .hint(format!("create it, or remove it from {}", asked.setting))
            })?;
            places.push(place);
        }
        Ok(places)
    }

    /// Returns bantam's instructions, and these files if tools cannot change them.
    pub(crate) fn always_readable(&self, files: Vec<Asked>) -> impl Iterator<Item = Grant> {
        let files = files.into_iter().map(Place::new);
        let is_apart =
            |file: &Place| self.check(file).is_ok() && self.changing(file.real()).is_none();
        let files: Vec<Place> = files.filter(is_apart).collect();
        [self.agent.clone()]
            .into_iter()
            .chain(files)
            .map(|place| place.grant(Access::Read))
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
        let dir = match (holding, file.real.parent()) {
            (Some(place), _) => place.real(),
            (None, Some(parent)) if self.is_open_beside(&file.real) && !is_named_by_kernel => {
                parent
            }
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
        let within = real
            .strip_prefix(root)
            .is_ok_and(|below| !below.starts_with("workspace"));
        let is_note = real.starts_with(self.notes.real());
        if within || is_note || root.starts_with(real) || self.is_own_by_another_name(real) {
            let root = root.display();
            return Err(Error::config(format!(
                "{}: {} would give the tools access to bantam's own files in {root}",
                place.asked.setting,
                real.display()
            ))
            .hint(format!("choose a directory that is not in {root} and does not contain it, or set BANTAM_HOME")));
        }
        let links = &place.found.links;
        if let Some((entry, by)) = links.iter().find_map(|link| self.changing(link)) {
            let setting = &place.asked.setting;
            return Err(Error::config(format!(
                "{place} goes through the link {entry}, which tools can change ({by})"
            ))
            .hint(format!("write the path without links in {setting}")));
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
        let elsewhere = other_paths(root);
        if elsewhere
            .iter()
            .any(|path| path.starts_with(real) || real.starts_with(path))
        {
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
        let leads_down = entry
            .parent()
            .is_none_or(|dir| self.home().starts_with(dir));
        let is_open = !leads_down && self.is_open_beside(entry);
        let by = "agents.defaults.restrict_to_workspace";
        is_open.then(|| (entry.display(), by.to_owned()))
    }
}

/// Returns the grants of these paths. Refuses nested ones, because the inner one could be replaced through the outer one.
fn apart(places: &[Place]) -> Result<Vec<Grant>> {
    let mut grants: Vec<Grant> = Vec::new();
    for (n, place) in places.iter().enumerate() {
        for other in &places[..n] {
            let (inner, outer) = if place.real().starts_with(other.real()) {
                (place, other)
            } else {
                (other, place)
            };
            let is_same = inner.real() == outer.real() && inner.asked.access == outer.asked.access;
            if inner.real().starts_with(outer.real()) && !is_same {
                return Err(Error::config(format!("{inner} is in {outer}")).hint(
                    "keep one of the two: a directory in another one could be replaced through it",
                ));
            }
        }
        let grant = place.grant(place.asked.access);
        if grants.iter().all(|known| known.real != grant.real) {
            grants.push(grant);
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
        let asked = |(path, access): &(&str, Access)| Asked {
            setting: format!("set {path}"),
            path: at(path),
            access: *access,
        };
        let refusal = |workspace: &str, tools: &[(&str, Access)], open_beside: bool| {
            let tools: Vec<Asked> = tools.iter().map(asked).collect();
            let mut writable = vec![asked(&(workspace, Write))];
            let others = tools.iter().filter(|asked| asked.access == Write);
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
