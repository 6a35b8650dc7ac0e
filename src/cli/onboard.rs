//! `bantam onboard`: writes the files of a new home, and never overwrites. It asks all questions before it writes, so that
//! stopping half way changes nothing.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::args::{Args, Command};
use super::import::Import;
use super::onboard_model::{by_asking, by_key};
use super::{ask, load, notice, onboard_http, onboard_telegram, print, tell};
use crate::app::{self, Parts};
use crate::config::vendors::Protocol;
use crate::config::{self, Env, edit, keys};
use crate::disk::{self, CopyOutcome};
use crate::error::{Context, Error, Kind, Result};
use crate::paths::Home;
use crate::template;
use crate::text::one_line;

pub(super) const COMMAND: Command = Command::row(
    "onboard",
    "[model|telegram|http]",
    run,
    "set bantam up, step by step, or only the model or the bot; never overwrites",
)
.with_flags(&[
    (
        "-y, --yes",
        "ask nothing: use the first vendor whose key variable is set, else the demo",
    ),
    (
        "--import PATH",
        "bring over the home of a picoclaw, nanobot, SmartBot or OpenClaw, or its config.json",
    ),
])
.with_examples(&[
    "bantam onboard",
    "bantam onboard telegram",
    "bantam onboard --yes",
]);

fn run(given: &Args, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let can_ask = !given.has("yes") && io::stdin().is_terminal() && io::stderr().is_terminal();
    let step = given.words.first().map(String::as_str);
    if let Some(step) = step {
        if step == "http" {
            return onboard_http::connect(&home, env).map(|()| 0);
        }
        if !matches!(step, "model" | "telegram") {
            return Err(
                Error::usage(format!("no step is called \"{}\"", one_line(step, 40)))
                    .hint("bantam onboard model, bantam onboard telegram, or bantam onboard http"),
            );
        }
        if !can_ask {
            return Err(
                Error::usage("cannot ask: not a terminal").hint("bantam config set PATH VALUE")
            );
        }
    }
    let mut import = given
        .value("import")
        .map(|path| Import::open(path, &home))
        .transpose()?;
    if let Some(import) = &mut import {
        import.ask(&home, can_ask)?;
    }
    let has_config = fs_err::symlink_metadata(home.config()).is_ok()
        || import.as_ref().is_some_and(Import::has_config);
    let chosen = if step == Some("telegram") || (has_config && step.is_none()) {
        None
    } else if given.has("yes") {
        Some(by_key(env))
    } else if can_ask {
        by_asking(&home, env)?
    } else {
        return Err(Error::usage("cannot ask: not a terminal").hint("bantam onboard --yes"));
    };
    if let (Some(chosen), true) = (&chosen, has_config) {
        add_model(&home, env, chosen)?;
        return conclude(&home, env);
    }
    if step.is_none() || !home.agent().exists() {
        write(&home, import.as_ref(), chosen.as_ref()).map_err(|e| {
            let root = home.root().display();
            let hint =
                format!("check that {root} is a directory you can write, or set BANTAM_HOME");
            if e.hint.is_none() { e.hint(hint) } else { e }
        })?;
    }
    if step == Some("telegram") {
        onboard_telegram::connect(&home, env)?;
    } else if step.is_none() && !has_config && can_ask {
        offer_more(&home, env)?;
    }
    conclude(&home, env)
}

/// The steps that a first question needs nothing of.
fn offer_more(home: &Home, env: &Env) -> Result<()> {
    if offer("Connect a Telegram bot? [y/N] ", false)? {
        onboard_telegram::connect(home, env)?;
    }
    if offer(
        "Let the agent work through agent/HEARTBEAT.md every 30 minutes? [y/N] ",
        false,
    )? {
        edit::set(home, env, &["heartbeat", "enabled"], &true.into())?;
    }
    Ok(())
}

/// Adds a model to the list, and makes it the one that answers if the user wants that.
fn add_model(home: &Home, env: &Env, chosen: &Value) -> Result<()> {
    let loaded = load(env)?.1;
    let list = &loaded.config.model_list;
    let mut entry = chosen["model_list"][0].clone();
    let mut name = chosen["agents"]["defaults"]["model_name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if entry.is_object() {
        let base = name.clone();
        for n in 2.. {
            if !list.iter().any(|model| model.model_name == name) {
                break;
            }
            name = format!("{base}-{n}");
        }
        entry["model_name"] = name.as_str().into();
        edit::set(home, env, &["model_list", &list.len().to_string()], &entry)?;
        print(&format!("added    {name} to model_list\n"))?;
    }
    if offer(&format!("Let {name} answer from now on? [Y/n] "), true)? {
        edit::set(
            home,
            env,
            &["agents", "defaults", "model_name"],
            &name.into(),
        )?;
    }
    Ok(())
}

/// The end of input answers all questions to come.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Asks a question that may be answered by Enter. At the end of input: no.
pub(super) fn offer(question: &str, default: bool) -> Result<bool> {
    if IS_OVER.load(Ordering::Relaxed) {
        return Ok(false);
    }
    match ask(question) {
        Ok(answer) if answer.is_empty() => Ok(default),
        Ok(answer) => Ok(matches!(answer.as_str(), "y" | "Y" | "yes")),
        Err(e) if e.kind == Kind::Interrupted => {
            tell("");
            IS_OVER.store(true, Ordering::Relaxed);
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

fn write(home: &Home, import: Option<&Import>, chosen: Option<&Value>) -> Result<()> {
    disk::make_dir(home.root())?;
    // First: the template only adds what is missing.
    if let Some(import) = import {
        import.run(home)?;
    }
    if let Some(chosen) = chosen {
        let text = format!("{chosen:#}\n");
        let name = Path::new("config.json");
        report(
            disk::copy_new(home.root(), name, &mut text.as_bytes(), disk::PLAIN)?,
            &home.config(),
        )?;
    } else if home.config().exists() && !import.is_some_and(Import::has_config) {
        report(CopyOutcome::Exists, &home.config())?;
    }
    for (part, dir) in [("agent", home.agent()), ("workspace", home.workspace())] {
        for (path, copied) in template::write(part, &dir).doing(format_args!("writing {part}/"))? {
            report(copied, &dir.join(path))?;
        }
    }
    // A power cut now must not leave empty files.
    disk::sync_all(home.root()).doing("waiting for the disk")
}

fn report(copied: CopyOutcome, path: &Path) -> Result<()> {
    let path = one_line(&path.display().to_string(), 500);
    print(&match copied {
        CopyOutcome::Created => format!("created  {path}\n"),
        CopyOutcome::Exists => format!("kept     {path}\n"),
        CopyOutcome::Blocked => format!("skipped  {path}: a link or a file is in its way\n"),
    })
}

/// Reads the configuration back, and prints what to type next.
fn conclude(home: &Home, env: &Env) -> Result<u8> {
    let (_, loaded) = load(env)?;
    loaded.warnings().iter().for_each(|line| notice(line));
    let workspace = app::workspace(Parts {
        home,
        config: &loaded.config,
        env,
    })?;
    if workspace != home.workspace() {
        let (named, ours) = (workspace.display(), home.workspace());
        print(&format!(
            "\nThe agent works in {named} (agents.defaults.workspace), not in {}.\n",
            ours.display()
        ))?;
    }
    let first = "bantam agent -m \"What can you do?\"";
    let next = match loaded.config.choose_model(env) {
        Err(e) => format!("{}\nNext: {}", e.message, e.hint.unwrap_or_default()),
        Ok(None) => {
            "No model is configured.\nNext: bantam onboard model, or export OPENROUTER_API_KEY=..."
                .to_owned()
        }
        Ok(Some(model)) if model.protocol == Protocol::Demo => String::from(
            "The built-in demo answers. It lists and reads files and runs commands; it is not a language model.\n\
             For a real model: export OPENROUTER_API_KEY=... (or another vendor's), then bantam onboard model.\n\
             Next: bantam agent -m \"list files\"",
        ),
        Ok(Some(model)) => match model.keys.first().and_then(|key| keys::missing(key, env)) {
            Some(variable) => format!(
                "{} needs its key.\nNext: export {variable}=...; {first}",
                model.name
            ),
            None => format!(
                "{} is configured; bantam doctor --provider tests it.\nNext: {first}",
                model.name
            ),
        },
    };
    let bot = if loaded.config.channels.telegram.token.is_empty() {
        "Later: bantam onboard telegram connects a bot.".to_owned()
    } else {
        "The bot runs with: bantam gateway\nHow it keeps running when you log out: bantam service"
            .to_owned()
    };
    print(&format!("\n{next}\n{bot}\n")).map(|()| 0)
}

/// Asks until `check` accepts the answer.
pub(super) fn ask_until<T>(question: &str, check: impl Fn(&str) -> Result<T, String>) -> Result<T> {
    loop {
        match check(ask(question)?.trim()) {
            Ok(answer) => return Ok(answer),
            Err(why) => tell(&why),
        }
    }
}
