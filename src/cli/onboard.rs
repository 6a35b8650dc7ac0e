//! `bantam onboard`: writes the files of a new home, and never overwrites; in a finished one it changes what the user names. A
//! model is written when it is proven, and each later answer at once, so that stopping half way keeps what is done.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::args::{Args, Command};
use super::onboard_model::{by_asking, by_key, change_key};
use super::term::screen::Screen;
use super::term::signals::Signals;
use super::{
    agrees, ask, load, notice, onboard_http, onboard_telegram, print, status, table, tell,
};
use crate::app::{self, Parts};
use crate::config::vendors::Protocol;
use crate::config::{self, Env, ModelEntry, edit, keys};
use crate::error::{Context, Error, Kind, Result};
use crate::paths::Home;
use crate::storage::{self, CopyOutcome};
use crate::template;
use crate::text::one_line;

pub(super) const COMMAND: Command = Command::row(
    "onboard",
    "[model|telegram|http|access]",
    run,
    "set bantam up, step by step, or one step alone; never overwrites",
)
.with_flags(&[(
    "-y, --yes",
    "ask nothing: use the first vendor whose key variable is set, else the demo",
)])
.with_examples(&[
    "bantam onboard",
    "bantam onboard telegram",
    "bantam onboard --yes",
]);

/// What can be asked for alone.
const STEPS: [&str; 2] = ["model", "telegram"];

fn run(given: &Args, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let can_ask = !given.has("yes") && io::stdin().is_terminal() && io::stderr().is_terminal();
    if can_ask {
        Signals::watch(Screen::new(env), false)?;
    }
    match given.words.first().map(String::as_str) {
        Some("http") => onboard_http::connect(&home, env).map(|()| 0),
        Some(step) if !STEPS.contains(&step) => Err(Error::usage(format!(
            "no step is called \"{}\"",
            one_line(step, 40)
        ))
        .hint(format!("the steps are {}, http", STEPS.join(", ")))),
        Some(_) if !can_ask => Err(Error::usage(
            "bantam onboard needs a terminal to ask its questions",
        )
        .hint("bantam config set PATH VALUE")),
        Some(step) => {
            change(step, &home, env)?;
            conclude(&home, env)
        }
        None => set_up(given, &home, env, can_ask),
    }
}

fn set_up(given: &Args, home: &Home, env: &Env, can_ask: bool) -> Result<u8> {
    if can_ask && home.config().exists() {
        return revisit(home, env);
    }
    let has_config = fs_err::symlink_metadata(home.config()).is_ok();
    let chosen = if has_config {
        None
    } else if given.has("yes") {
        Some(by_key(env))
    } else if can_ask {
        by_asking(home, env)?
    } else {
        return Err(
            Error::usage("bantam onboard needs a terminal to ask its questions")
                .hint("bantam onboard --yes"),
        );
    };
    for (copied, path) in write(home, chosen.as_ref())? {
        report(copied, &path)?;
    }
    let is_first = !has_config && can_ask;
    if is_first && offer("Connect a Telegram bot?", false)? {
        onboard_telegram::connect(home, env)?;
    }
    conclude(home, env)
}

/// Shows what a finished home is set up for, and changes what the user names.
fn revisit(home: &Home, env: &Env) -> Result<u8> {
    write_new(home, None)?;
    loop {
        let (_, loaded) = load(env)?;
        let config = &loaded.config;
        let (model, key) = status::chosen_model(&loaded, env, true)
            .unwrap_or_else(|e| (format!("none: {}", e.message), "none".to_owned()));
        let bot = match config.channels.telegram.ids().first() {
            _ if config.channels.telegram.token.is_empty() => "none".to_owned(),
            None => "connected, without an owner".to_owned(),
            Some(owner) => format!("connected; its owner is {owner}"),
        };
        tell(&format!("{} is already set up:", home.root().display()));
        let rows = [("model", model), ("key", key), ("bot", bot)];
        let rows = rows.map(|(name, text)| [format!("  {name}"), text]);
        tell(table(&[], &rows).trim_end());
        let asked = ask_until(
            "Change model, key or bot? [Enter: no] ",
            |text| match text {
                "" | "n" | "no" => Ok(None),
                "model" | "key" | "bot" => Ok(Some(text.to_owned())),
                _ => Err("type model, key, bot, or only Enter".to_owned()),
            },
        );
        match asked {
            Ok(Some(step)) => change(&step, home, env)?,
            Ok(None) => return conclude(home, env),
            Err(e) => {
                unless_over(e)?;
                return conclude(home, env);
            }
        }
        tell("");
    }
}

/// Asks for one thing, and writes it.
fn change(step: &str, home: &Home, env: &Env) -> Result<()> {
    match step {
        "model" => match by_asking(home, env)? {
            Some(chosen) if home.config().exists() => add_model(home, env, &chosen),
            chosen => write_new(home, chosen.as_ref()),
        },
        "key" => change_key(home, env),
        "bot" => onboard_telegram::change(home, env),
        _ => {
            write_new(home, None)?;
            onboard_telegram::connect(home, env)
        }
    }
}

/// Writes what is missing, and tells only that.
fn write_new(home: &Home, chosen: Option<&Value>) -> Result<()> {
    for (copied, path) in write(home, chosen)? {
        if copied != CopyOutcome::Exists {
            report(copied, &path)?;
        }
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
    let text = |field: &str| entry[field].as_str().unwrap_or_default();
    let (model, api_base) = (text("model"), text("api_base"));
    // An entry for all models of an address has no name of its own.
    let is_whole = model.ends_with("/*");
    let is_it =
        |known: &ModelEntry| known.model == model && (is_whole || known.api_base == api_base);
    let place = list.iter().position(is_it).unwrap_or(list.len());
    if let Some(known) = list.get(place).filter(|_| !is_whole) {
        let own_name = Some(&known.model_name).filter(|name| !name.is_empty());
        name.clone_from(own_name.unwrap_or(&known.model));
    } else if entry.is_object() && !is_whole {
        let base = name.clone();
        for n in 2.. {
            if !list.iter().any(|model| model.model_name == name) {
                break;
            }
            name = format!("{base}-{n}");
        }
        entry["model_name"] = name.as_str().into();
    }
    let shown = entry["model"].as_str().unwrap_or_default();
    if let Some(known) = list.get(place) {
        // It may have settings that nobody is asked about.
        let fields = [
            ("api_base", known.api_base.as_str()),
            ("api_key", known.api_key.reveal()),
        ];
        for (field, before) in fields {
            let is_new = |value: &str| {
                value != before && known.api_keys.iter().all(|key| key.reveal() != value)
            };
            if entry[field].as_str().is_some_and(is_new) {
                let path = ["model_list", &place.to_string(), field];
                edit::set(home, env, &path, &entry[field])?;
                print(&format!("changed  {field} of {shown} in model_list\n"))?;
            }
        }
    } else if entry.is_object() {
        edit::set(home, env, &["model_list", &place.to_string()], &entry)?;
        print(&format!("added    {shown} to model_list\n"))?;
    }
    let is_chosen = loaded.config.agents.defaults.model_name == name;
    if !is_chosen && offer(&format!("Use {name} from now on?"), true)? {
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

/// Whether no question can be answered any more.
pub(super) fn input_is_over() -> bool {
    IS_OVER.load(Ordering::Relaxed)
}

/// Asks a question that may be answered by Enter. At the end of input: no.
pub(super) fn offer(question: &str, default: bool) -> Result<bool> {
    if input_is_over() {
        return Ok(false);
    }
    agrees(question, default).or_else(|e| unless_over(e).map(|()| false))
}

/// The end of input is no failure of a question that needs no answer.
pub(super) fn unless_over(e: Error) -> Result<()> {
    if e.kind != Kind::Interrupted {
        return Err(e);
    }
    tell("");
    IS_OVER.store(true, Ordering::Relaxed);
    Ok(())
}

/// What became of each file of a home.
type Written = Vec<(CopyOutcome, PathBuf)>;

fn write(home: &Home, chosen: Option<&Value>) -> Result<Written> {
    write_files(home, chosen).map_err(|e| {
        let root = home.root().display();
        let hint = format!("check that {root} is a directory you can write, or set BANTAM_HOME");
        if e.hint.is_none() { e.hint(hint) } else { e }
    })
}

fn write_files(home: &Home, chosen: Option<&Value>) -> Result<Written> {
    let mut written = Vec::new();
    storage::make_dir(home.root())?;
    if let Some(chosen) = chosen {
        let text = format!("{chosen:#}\n");
        let name = Path::new("config.json");
        let copied = storage::copy_new(home.root(), name, &mut text.as_bytes(), storage::PLAIN)?;
        written.push((copied, home.config()));
    } else if home.config().exists() {
        written.push((CopyOutcome::Exists, home.config()));
    }
    for (part, dir) in [("agent", home.agent()), ("workspace", home.workspace())] {
        let files = template::write(part, &dir).doing(format_args!("writing {part}/"))?;
        written.extend(
            files
                .into_iter()
                .map(|(path, copied)| (copied, dir.join(path))),
        );
    }
    // A power cut now must not leave empty files.
    storage::sync_all(home.root()).doing("waiting for the disk")?;
    Ok(written)
}

fn report(copied: CopyOutcome, path: &Path) -> Result<()> {
    let path = one_line(&path.display().to_string(), 500);
    print(&match copied {
        CopyOutcome::Created => format!("created  {path}\n"),
        CopyOutcome::Exists => format!("kept     {path}\n"),
        CopyOutcome::Blocked => format!("skipped  {path}: a link or a file is in the way\n"),
    })
}

/// Reads the configuration back, and prints what to type next.
fn conclude(home: &Home, env: &Env) -> Result<u8> {
    let (_, loaded) = load(env)?;
    loaded.warnings.iter().for_each(|line| notice(line));
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
    let first = "bantam \"What can you do?\"";
    let next = match loaded.config.choose_model(env) {
        Err(e) => format!("{}\nNext: {}", e.message, e.hint.unwrap_or_default()),
        Ok(None) => {
            "No model is configured.\nNext: bantam onboard model, or export OPENROUTER_API_KEY=..."
                .to_owned()
        }
        Ok(Some(model)) if model.protocol == Protocol::Demo => String::from(
            "The built-in demo answers. It lists and reads files and runs commands; it is not a language model.\n\
             For a real model: export OPENROUTER_API_KEY=... (or another vendor's), then bantam onboard model.\n\
             Next: bantam \"list files\"",
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
        "The bot runs with: bantam gateway\nTo keep it running after you log out: bantam service"
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
