//! `bantam config`: shows and changes settings in config.json.

use std::io::{self, IsTerminal};
use std::path::Path;

use serde_json::Value;

use super::args::{Args, Subcommand, commands};
use super::ui::Ui;
use super::{notice, print, report, say, table};
use crate::app::facts::{redacted, set_values};
use crate::app::{self, App, MODEL_NAME};
use crate::child;
use crate::config::{self, Loaded, edit, path};
use crate::error::{Context, Error, Kind, Result};
use crate::provider::catalog;
use crate::storage;
use crate::text::{not_found, to_single_line};

pub(super) const COMMANDS: &[Subcommand] = commands! {
    InHome(get) "config get  [PATH]
        print the effective value of a setting, or all values that are set and their sources
        $ bantam config get agents.defaults.timeout
        $ bantam config get"
    InHome(set) "config set  PATH VALUE
        change a setting in config.json. If VALUE is -, it is read from standard input
        $ bantam config set agents.defaults.timeout 900
        $ bantam config set channels.telegram.token - <token.txt"
    InHome(unset) "config unset  PATH
        remove a setting, entry or section from config.json, so that its default applies
        $ bantam config unset agents.defaults.timeout
        $ bantam config unset mcpServers.time"
    InHome(edit) "config edit
        edit config.json in $EDITOR, and check it before saving
        $ EDITOR=nano bantam config edit"
};

fn get(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let loaded = app.loaded()?;
    let Some(path) = given.words.first() else {
        let rows: Vec<[String; 3]> = set_values(loaded, false)
            .into_iter()
            .map(|set| [set.path, to_single_line(&plain(&set.value), 400), set.from])
            .collect();
        return print(&table(&[], &rows)).map(|()| 0);
    };
    let names = path::resolve(path)?;
    let redactor = loaded.redactor();
    let config = serde_json::to_value(&*loaded.config).doing("reading the settings")?;
    let value = path::get(&config, &names)
        .ok_or_else(|| not_found("entry", &path::join(&names), [], "bantam config get"))?;
    match value {
        Value::Object(_) => print(&format!("{:#}\n", redacted(&redactor, value))),
        value => print(&format!("{}\n", plain(&redacted(&redactor, value)))),
    }
    .map(|()| 0)
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

fn set(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
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

fn unset(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
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
    if !DIRECTORIES.contains(&names.join(".").as_str()) {
        return value;
    }
    let items = match &mut value {
        Value::Array(items) => items.as_mut_slice(),
        single => std::slice::from_mut(single),
    };
    for item in items {
        let typed = item
            .as_str()
            .filter(|typed| !typed.is_empty() && !typed.starts_with(['/', '~']));
        if let Some(whole) = typed.and_then(|typed| std::path::absolute(typed).ok()) {
            *item = whole.to_string_lossy().into();
        }
    }
    value
}

/// Returns errors about unusable directories.
fn problems(loaded: &Loaded) -> Vec<Error> {
    let workspace = app::workspace(loaded).ok();
    let in_the_way = workspace.as_deref().and_then(file_in_the_way);
    let workspace = in_the_way.map(|file| {
        Error::config(format!(
            "agents.defaults.workspace: {} is a file, not a directory",
            file.display()
        ))
        .hint("set agents.defaults.workspace to a directory that you can write")
    });
    workspace
        .into_iter()
        .chain(app::workers(loaded).err())
        .chain(app::unconfirmed(&loaded.config))
        .collect()
}

/// Returns the file at `path`, or at one of its parents.
fn file_in_the_way(path: &Path) -> Option<&Path> {
    path.ancestors()
        .find(|path| path.exists())
        .filter(|path| path.is_file())
}

/// Shows what is still missing in a valid configuration.
fn warn(loaded: &Loaded) {
    loaded.warnings.iter().for_each(|line| notice(line));
    if let Some(e) = loaded.config.incomplete(&loaded.env) {
        let what = to_single_line(&e.message, 2000);
        notice(&format!(
            "warning: saved, but no model can answer yet: {what}"
        ));
        if let Some(hint) = e.hint {
            say(&format!("hint: {}", to_single_line(&hint, 2000)));
        }
    }
}

fn edit(app: &App, ui: &Ui, _: &Args) -> Result<u8> {
    let home = &app.home;
    if !io::stdin().is_terminal() || !ui.stdout_is_terminal {
        return Err(Error::usage("bantam config edit needs a terminal")
            .hint("run `bantam config set PATH VALUE`"));
    }
    let env = &app.env;
    ui.signals.watch()?;
    let draft = home.root().join("config.json.draft");
    let before = app.text()?.unwrap_or("{\n}\n").to_owned();
    if !storage::write_new(&draft, before.as_bytes())? {
        notice(&format!(
            "continuing with {}, which was not saved",
            draft.display()
        ));
    }
    let editor = ["VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| env.get(*name).filter(|text| !text.trim().is_empty()));
    let editor = editor.map_or("vi", String::as_str);
    loop {
        if let Err(e) = open(editor, &draft) {
            remove_unedited(&draft, &before)?;
            return Err(e);
        }
        let text = config::read_json(&draft).doing(format_args!("reading {}", draft.display()))?;
        match edit::save(home, env, &problems, |_| Ok(text)) {
            Ok(loaded) => {
                storage::remove(&draft)?;
                warn(&loaded);
                return Ok(0);
            }
            Err(e) => {
                report(&e);
                if !ui.agrees("Edit it again?", true)? {
                    if !remove_unedited(&draft, &before)? {
                        let draft = draft.display();
                        notice(&format!(
                            "config.json is unchanged; your text is in {draft}"
                        ));
                    }
                    return Ok(e.kind.exit_code());
                }
            }
        }
    }
}

/// Removes a draft without edits, because it would restore old settings later.
fn remove_unedited(draft: &Path, before: &str) -> Result<bool> {
    let is_unedited = fs_err::read_to_string(draft).is_ok_and(|text| text == before);
    if is_unedited {
        storage::remove(draft)?;
    }
    Ok(is_unedited)
}

fn open(editor: &str, file: &Path) -> Result<()> {
    let fail =
        |what: String| Error::new(Kind::Failed, what).hint("run `EDITOR=nano bantam config edit`");
    let words =
        shell_words::split(editor).map_err(|e| fail(format!("cannot read $EDITOR: {e}")))?;
    let (program, args) = words
        .split_first()
        .ok_or_else(|| fail("$EDITOR is empty".to_owned()))?;
    let status = child::by_user(program).args(args).arg(file).status();
    let status = status.map_err(|_| fail(format!("cannot start the editor \"{program}\"")))?;
    if status.success() {
        Ok(())
    } else {
        Err(fail(format!("the editor \"{program}\" failed")))
    }
}
