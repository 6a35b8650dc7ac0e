//! `bantam config`: shows and changes settings in config.json.

use std::io::{self, IsTerminal};
use std::path::Path;

use serde_json::Value;

use super::args::Args;
use super::ui::Ui;
use super::{notice, print, say, table};
use crate::app::facts::{redacted, set_values};
use crate::app::{self, App, MODEL_NAME};
use crate::child;
use crate::config::{self, Loaded, edit, path};
use crate::error::{Context, Error, Result};
use crate::provider::catalog;
use crate::storage;
use crate::text::{not_found, to_single_line};

pub(super) fn get(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let loaded = app.loaded()?;
    let Some(path) = given.words.first() else {
        let row = |(path, value, from)| [path, to_single_line(&plain(&value), 400), from];
        let rows: Vec<[String; 3]> = set_values(loaded).into_iter().map(row).collect();
        return print(&table(&[], &rows)).map(|()| 0);
    };
    let names = path::resolve(path)?;
    let redactor = loaded.redactor();
    let config = serde_json::to_value(&*loaded.config).doing("reading the settings")?;
    let value = path::get(&config, &names)
        .ok_or_else(|| not_found("entry", &path::join(&names), [], "bantam config get"))?;
    let text = match redacted(&redactor, value) {
        value @ Value::Object(_) => format!("{value:#}"),
        value => plain(&value),
    };
    print(&(text + "\n")).map(|()| 0)
}

/// Formats a value as typed: strings without quotes, otherwise JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Settings that name a model.
const MODELS: [&str; 3] = [
    MODEL_NAME,
    "tools.transcribe.model",
    "memory.embedding_model",
];

pub(super) fn set(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let (path, mut text) = (&given.words[0], given.words[1].clone());
    let names = path::resolve(path)?;
    if text == "-" {
        text = io::read_to_string(io::stdin())
            .doing("reading the value")?
            .trim_end()
            .to_owned();
    }
    if MODELS.contains(&names.join(".").as_str()) && !text.is_empty() {
        text = catalog::whole_name(app.loaded()?, &text)?;
    }
    let value = whole_paths(&names, path::parse_at(&path::shape(), &names, &text));
    let loaded = change(app, |file| path::set(file, &names, value))?;
    if let Some(set) = loaded.override_of(&names) {
        notice(&format!("{} is set, and overrides config.json", set.name));
    }
    Ok(0)
}

pub(super) fn unset(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    // Unknown names can also be removed.
    let path = &given.words[0];
    let names = path::resolve(path).unwrap_or_else(|_| path::split(path));
    change(app, |file| path::remove(file, &names)).map(|_| 0)
}

fn change(app: &App, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<Loaded> {
    let loaded = edit::edit(&app.home, &app.env, &problems, change)?;
    warn(&loaded);
    Ok(loaded)
}

/// Settings that contain directories for tools.
const DIRECTORIES: [&str; 3] = [
    "agents.defaults.workspace",
    "tools.read_paths",
    "tools.write_paths",
];

/// Makes paths absolute, because a relative path would depend on the current directory of each run.
fn whole_paths(names: &[String], mut value: Value) -> Value {
    let make_whole = |item: &mut Value| {
        let typed = item.as_str().unwrap_or_default();
        if !typed.is_empty() && !typed.starts_with(['/', '~']) {
            if let Ok(whole) = std::path::absolute(typed) {
                *item = whole.to_string_lossy().into();
            }
        }
    };
    match &mut value {
        _ if !DIRECTORIES.contains(&names.join(".").as_str()) => {}
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        single => make_whole(single),
    }
    value
}

/// Returns errors about unusable directories.
fn problems(loaded: &Loaded) -> Vec<Error> {
    let workspace = app::workspace(loaded).unwrap_or_default();
    let file = workspace.ancestors().find(|path| path.is_file());
    let what = file.map(|file| format!("agents.defaults.workspace: {} is a file", file.display()));
    let error = |what| Error::config(what).hint("set it to a directory that you can write");
    let workers = app::workers(loaded).err();
    let unusable = what.map(error).into_iter().chain(workers);
    let servers = loaded.config.mcp_servers.keys();
    let misnamed = servers.filter_map(|name| app::mcp::check_name(name).err());
    let unconfirmed = app::unconfirmed(&loaded.config);
    unusable.chain(unconfirmed).chain(misnamed).collect()
}

/// Shows what is still missing in a valid configuration.
fn warn(loaded: &Loaded) {
    loaded.warnings.iter().for_each(|line| notice(line));
    let incomplete = loaded.config.incomplete(&loaded.env).into_iter();
    let incomplete = incomplete.map(|e| e.doing("no model can answer yet"));
    for e in incomplete.chain(app::media::unusable(loaded)) {
        let what = to_single_line(&e.message, 2000);
        notice(&format!("warning: saved, but {what}"));
        if let Some(hint) = e.hint {
            say(&format!("hint: {}", to_single_line(&hint, 2000)));
        }
    }
}

pub(super) fn edit(app: &App, ui: &Ui, _: &Args) -> Result<u8> {
    if !io::stdin().is_terminal() || !ui.stdout_is_terminal {
        return Err(Error::usage("bantam config edit needs a terminal")
            .hint("run `bantam config set PATH VALUE`"));
    }
    let (home, env) = (&app.home, &app.env);
    ui.signals.watch()?;
    let draft = home.root().join("config.json.draft");
    let before = app.text()?.unwrap_or("{\n}\n");
    if !storage::write_new(&draft, before.as_bytes())? {
        notice(&format!("continuing with {}", draft.display()));
    }
    let set = |name| env.get(name).filter(|text| !text.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR"));
    let edited = open(editor.map_or("vi", String::as_str), &draft);
    let text = edited.and_then(|()| config::read_json(&draft).doing("reading the edited text"));
    match text.and_then(|text| edit::save(home, env, &problems, |_| Ok(text))) {
        Ok(loaded) => {
            storage::remove(&draft)?;
            warn(&loaded);
            Ok(0)
        }
        Err(e) => {
            // A draft without edits would restore old settings later.
            if fs_err::read_to_string(&draft).is_ok_and(|text| text == before) {
                storage::remove(&draft)?;
            } else {
                notice("config.json is unchanged; `bantam config edit` continues with your text");
            }
            Err(e)
        }
    }
}

fn open(editor: &str, file: &Path) -> Result<()> {
    let fail = |what: &str| {
        Error::failed(format!("the editor \"{editor}\" {what}"))
            .hint("run `EDITOR=nano bantam config edit`")
    };
    let words = shell_words::split(editor).map_err(|_| fail("has an open quote"))?;
    let (program, args) = words.split_first().ok_or_else(|| fail("is empty"))?;
    let status = child::by_user(program).args(args).arg(file).status();
    let status = status.map_err(|_| fail("cannot be started"))?;
    status.success().then_some(()).ok_or_else(|| fail("failed"))
}
