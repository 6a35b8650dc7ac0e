//! What a word of the command line may be, for the scripts of `bantam completions`: names from the home, one a line, each with a
//! tab and what it is about where that is known.

use super::{commands, load, topics};
use crate::app;
use crate::config::settings::SETTINGS;
use crate::config::vendors::VENDORS;
use crate::config::{self, Env};
use crate::cron::{Job, Jobs};
use crate::error::Result;
use crate::paths::Home;
use crate::session::archive;
use crate::text::one_line;

/// The kinds, as `bantam completions KIND` takes them.
pub(super) const KINDS: [&str; 9] = [
    "sessions",
    "conversations",
    "skills",
    "jobs",
    "models",
    "servers",
    "settings",
    "templates",
    "topics",
];

/// The commands whose first word is of a kind.
const WORDS: [(&str, &str); 16] = [
    ("sessions show", "sessions"),
    ("sessions reset", "sessions"),
    ("sessions erase", "sessions"),
    ("skills show", "skills"),
    ("skills remove", "skills"),
    ("cron remove", "jobs"),
    ("cron enable", "jobs"),
    ("cron disable", "jobs"),
    ("cron run", "jobs"),
    ("cron history", "jobs"),
    ("models", "models"),
    ("mcp test", "servers"),
    ("mcp remove", "servers"),
    ("mcp enable", "servers"),
    ("mcp disable", "servers"),
    ("help", "topics"),
];

/// The flags whose value is of a kind.
const FLAGS: [(&str, &str); 4] = [
    ("session", "conversations"),
    ("model", "models"),
    ("provider", "models"),
    ("template", "templates"),
];

/// The kind of the word that follows a command's name.
pub(super) fn of_word(command: &str) -> Option<&'static str> {
    if command.starts_with("config ") && command != "config edit" {
        return Some("settings");
    }
    let row = WORDS.iter().find(|(name, _)| *name == command);
    row.map(|(_, kind)| *kind)
}

/// The kind of a flag's value.
pub(super) fn of_flag(long: &str) -> Option<&'static str> {
    let row = FLAGS.iter().find(|(name, _)| *name == long);
    row.map(|(_, kind)| *kind)
}

/// All of a kind.
pub(super) fn page(kind: &str, env: &Env) -> Result<String> {
    let home = config::home(env)?;
    let mut page = String::new();
    for (value, about) in candidates(kind, &home, env)? {
        // What holds a space or a control character would not come back as one word.
        if value.chars().any(|c| c.is_whitespace() || c.is_control()) {
            continue;
        }
        page.push_str(&value);
        if !about.is_empty() {
            page.push('\t');
            page.push_str(&one_line(&about, 60));
        }
        page.push('\n');
    }
    Ok(page)
}

fn candidates(kind: &str, home: &Home, env: &Env) -> Result<Vec<(String, String)>> {
    let bare = |name: &str| (name.to_owned(), String::new());
    Ok(match kind {
        "sessions" => archive::keys(home)?.iter().map(|key| bare(key)).collect(),
        "conversations" => {
            let keys = archive::keys(home)?;
            let keys = keys.iter().filter_map(|key| key.strip_prefix("cli_"));
            keys.map(bare).collect()
        }
        "skills" => {
            let skills = app::skills(home, &load(env)?.1.config).all().skills;
            let row = |skill: crate::skills::Skill| (skill.name, skill.description);
            skills.into_iter().map(row).collect()
        }
        "jobs" => {
            let jobs = Jobs::new(home.clone(), env).list()?;
            let row = |job: &Job| (job.id().to_owned(), job.name().to_owned());
            jobs.iter().map(row).collect()
        }
        "models" => {
            let names = load(env)?.1.config.whole_names();
            let vendors = VENDORS.iter().map(|vendor| bare(vendor.name));
            names.iter().map(|name| bare(name)).chain(vendors).collect()
        }
        "servers" => {
            let config = load(env)?.1.config;
            config.mcp_servers.keys().map(|name| bare(name)).collect()
        }
        "settings" => {
            let row = |setting: &crate::config::settings::Setting| {
                (setting.path.to_owned(), setting.help.to_owned())
            };
            SETTINGS.iter().map(row).collect()
        }
        "templates" => {
            let files = fs_err::read_dir(home.agent().join("prompts"));
            let names = files.into_iter().flatten().flatten();
            let names = names.filter_map(|file| file.file_name().into_string().ok());
            names
                .filter_map(|name| name.strip_suffix(".md").map(bare))
                .collect()
        }
        _ => {
            let pages =
                topics::names().map(|name| (name.to_owned(), "a page of the manual".to_owned()));
            let commands =
                commands().map(|command| (command.name.to_owned(), command.about.to_owned()));
            pages.chain(commands).collect()
        }
    })
}
