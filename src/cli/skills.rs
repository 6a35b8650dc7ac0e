//! `bantam skills`: list, show, install, remove, enable and disable skills.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use super::args::{Command, Flag, Given};
use super::{ask, print, tell};
use crate::cancel::Cancel;
use crate::config::{self, Env};
use crate::disk::{self, Lock};
use crate::error::{Context, Error, Result};
use crate::skills::{self, Skill, Skills};
use crate::text::{one_line, printable};
use crate::{app, template};

/// Nobody holds the lock for longer than a few files take.
const WAIT: Duration = Duration::from_secs(10);

pub const LIST: Command = Command {
    name: "skills list",
    words: "",
    about: "every skill: what it is for, and what it lacks",
    flags: &[],
    run: list,
};

pub const SHOW: Command =
    Command { name: "skills show", words: "NAME", about: "the text of a skill", flags: &[], run: show };

pub const INSTALL: Command = Command {
    name: "skills install",
    words: "DIR",
    about: "copy the skill in DIR into agent/skills/; read it first: the agent will do what it says",
    flags: &[],
    run: install,
};

pub const REMOVE: Command = Command {
    name: "skills remove",
    words: "NAME",
    about: "delete a skill and all its files",
    flags: &[Flag::new(Some('y'), "yes", "", "do not ask")],
    run: remove,
};

fn skills_of(env: &Env) -> Result<Skills> {
    let home = config::home(env)?;
    let file = config::read(&home)?;
    let loaded = config::load_for(&home, file.as_deref(), env, Vec::new())?;
    Ok(app::skills(&home, &loaded.config))
}

fn list(_: &Given, env: &Env) -> Result<u8> {
    let found = skills_of(env)?.all();
    for problem in &found.problems {
        tell(&format!("bantam: {problem}"));
    }
    if found.skills.is_empty() {
        tell("bantam: there are no skills; bantam skills install DIR brings one");
    }
    let width = found.skills.iter().map(|skill| skill.name.len()).max().unwrap_or_default();
    let mut page = String::new();
    for skill in &found.skills {
        let what = one_line(&skill.description, 100);
        page.push_str(&format!("{:<width$}  {what}\n", skill.name));
        for note in notes(skill) {
            page.push_str(&format!("{:<width$}  ({note})\n", ""));
        }
    }
    print(&page).map(|()| 0)
}

fn notes(skill: &Skill) -> Vec<String> {
    let mut notes = Vec::new();
    if !skill.missing.is_empty() {
        notes.push(format!("not used: it requires {}", skill.missing.join(", ")));
    }
    if skill.hidden {
        notes.push(format!("only when you call for it: /{}", skill.name));
    }
    if skill.always {
        notes.push("in every prompt, whole".to_owned());
    }
    if skill.dir.is_none() {
        notes.push("compiled in".to_owned());
    }
    notes
}

fn show(given: &Given, env: &Env) -> Result<u8> {
    let name = &given.words[0];
    let found = skills_of(env)?.all();
    let Some(skill) = found.named(name) else {
        return Err(Error::failed(format!("there is no skill called \"{}\"", one_line(name, 64)))
            .hint("bantam skills list has their names"));
    };
    let lines: Vec<String> = skill.text.trim().lines().map(printable).collect();
    print(&format!("{}: {}\n\n{}\n", skill.name, skill.description, lines.join("\n"))).map(|()| 0)
}

fn install(given: &Given, env: &Env) -> Result<u8> {
    let skills_of = skills_of(env)?;
    let _lock = own_folder(env)?;
    let name = skills::install(&skills_of, Path::new(&given.words[0]))?;
    print(&format!("installed {name} in {}\n", skills_of.dir().join(&name).display()))?;
    let found = skills_of.all();
    for note in found.named(&name).map(notes).unwrap_or_default() {
        tell(&format!("bantam: {name}: {note}"));
    }
    Ok(0)
}

fn remove(given: &Given, env: &Env) -> Result<u8> {
    let skills_of = skills_of(env)?;
    let name = &given.words[0];
    if !given.has("yes") {
        if !io::stdin().is_terminal() {
            return Err(Error::usage("removing a skill without asking").hint("bantam skills remove NAME --yes"));
        }
        let answer = ask(&format!("Delete the skill {} and all its files? [y/N] ", one_line(name, 64)))?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return print("nothing was deleted\n").map(|()| 0);
        }
    }
    let _lock = own_folder(env)?;
    skills::remove(&skills_of, name)?;
    print(&format!("removed {name}\n")).map(|()| 0)
}

/// A home without an `agent/` folder obeys the files that are compiled in. They are written out before one is added or
/// taken away, or the others would be gone: all of them or, if that is interrupted, none. Whoever gets the lock alone changes
/// what is there.
fn own_folder(env: &Env) -> Result<Lock> {
    let home = config::home(env)?;
    let lock = Lock::acquire(&home.session_lock("skills"), WAIT, &Cancel::new(None)).doing("changing the skills")?;
    let agent = home.agent();
    if !agent.exists() {
        let new = home.root().join("agent.new");
        disk::remove(&new)?;
        template::write("agent", &new)?;
        disk::settle(&new)?;
        disk::put(&new, &agent)?;
    }
    Ok(lock)
}
