//! `bantam skills`: lists, shows, installs and removes skills.

use std::path::Path;
use std::time::Duration;

use super::args::Args;
use super::ui::Ui;
use super::{confirm, notice, print, table};
use crate::app::App;
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::skills::source::fetch;
use crate::skills::{self, Candidate, Skill};
use crate::storage::{self, Lock};
use crate::text::{printable, to_single_line};
use crate::{app, template};

/// Time to wait for the lock, which is taken only for a few file writes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn list(app: &App, _ui: &Ui, _: &Args) -> Result<u8> {
    let found = app::skills(app.loaded()?).all();
    found.problems.iter().for_each(|problem| notice(problem));
    if found.skills.is_empty() {
        notice("no skills; `bantam skills install DIR` adds one");
    }
    let row = |skill: &Skill| {
        let note = needs(skill).map_or(String::new(), |note| format!("({note}) "));
        [skill.name.clone(), note + &skill.description]
    };
    let rows: Vec<_> = found.skills.iter().map(row).collect();
    print(&table(&[], &rows)).map(|()| 0)
}

/// Returns what a skill lacks.
fn needs(skill: &Skill) -> Option<String> {
    let missing = skill.missing.join(", ");
    (!missing.is_empty()).then(|| format!("not used: requires {missing}"))
}

pub(super) fn show(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    let name = &args.words[0];
    let skills = app::skills(app.loaded()?);
    let found = skills.all();
    let unknown = || skills::unknown(&skills, name);
    let skill = found.named(name).ok_or_else(unknown)?;
    let lines: Vec<String> = skill.text.trim().lines().map(printable).collect();
    let (about, text) = (&skill.description, lines.join("\n"));
    print(&format!("{}: {about}\n\n{text}\n", skill.name)).map(|()| 0)
}

pub(super) fn install(app: &App, ui: &Ui, args: &Args) -> Result<u8> {
    let loaded = app.loaded()?;
    let skills = app::skills(loaded);
    let written = args.words[0].as_str();
    // A path may contain a #.
    let (source, wanted) = match written.rsplit_once('#') {
        Some((source, wanted)) if !Path::new(written).exists() => (source, Some(wanted)),
        _ => (written, None),
    };
    let _lock = lock_agent_folder(&app.home)?;
    let fetched = fetch(loaded, source)?;
    let found = skills::candidates(&fetched.folder, fetched.called.as_deref())?;
    let skill = chosen(&found, source, wanted)?;
    print(&format!("{}\n", skill.describe()))?;
    let question = "Install it? The agent will follow its instructions.";
    if !confirm(args, ui, question)? {
        return print("Nothing installed\n").map(|()| 0);
    }
    let name = skills::install(&skills, skill)?;
    let dir = skills.dir().join(&name);
    print(&format!("Installed {name} in {}\n", dir.display()))?;
    if let Some(note) = skills.all().named(&name).and_then(needs) {
        notice(&format!("{name}: {note}"));
    }
    Ok(0)
}

/// Returns the requested skill.
fn chosen<'a>(found: &'a [Candidate], source: &str, wanted: Option<&str>) -> Result<&'a Candidate> {
    let shown = to_single_line(source, 200);
    let is_wanted = |skill: &&Candidate| wanted.is_none_or(|wanted| skill.name == wanted);
    let mut fits = found.iter().filter(is_wanted);
    match (fits.next(), fits.next(), found) {
        (Some(only), None, _) => Ok(only),
        (_, _, []) => Err(Error::failed(format!("{shown} has no SKILL.md"))
            .hint("use the folder of a skill, or a folder of skills")),
        (_, _, [first, ..]) => {
            let names: Vec<&str> = found.iter().map(|skill| skill.name.as_str()).collect();
            let names = to_single_line(&names.join(", "), 500);
            let first = to_single_line(&first.name, 64);
            let what = format!("{shown} has {} skills: {names}", found.len());
            let hint = format!("choose one: `bantam skills install {shown}#{first}`");
            Err(Error::usage(what).hint(hint))
        }
    }
}

pub(super) fn remove(app: &App, ui: &Ui, args: &Args) -> Result<u8> {
    let name = &args.words[0];
    let shown = to_single_line(name, 64);
    let skills = app::skills(app.loaded()?);
    if skills.all().named(name).is_none() && !skills.dir().join(name).is_dir() {
        return Err(skills::unknown(&skills, name));
    }
    let question = format!("Delete the skill {shown} and all its files?");
    if !confirm(args, ui, &question)? {
        return print("Nothing deleted\n").map(|()| 0);
    }
    let _lock = lock_agent_folder(&app.home)?;
    skills::remove(&skills, name)?;
    print(&format!("Removed {name}\n")).map(|()| 0)
}

/// Locks and if necessary creates `agent/`. A home without that folder uses the built-in files; these are first written out, so
/// atomically, so that adding or removing one skill does not lose the others.
fn lock_agent_folder(home: &Home) -> Result<Lock> {
    let lock = Lock::acquire(&home.lock("skills"), LOCK_TIMEOUT).doing("changing the skills")?;
    if !home.agent().exists() {
        let new = home.root().join("agent.new");
        storage::remove(&new)?;
        template::write("agent", &new)?;
        storage::sync_all(&new)?;
        storage::rename_new(&new, &home.agent())?;
    }
    Ok(lock)
}
