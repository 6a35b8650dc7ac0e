//! `bantam config`: shows and changes settings in config.json.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::args::{Args, Command};
use super::status::viewable;
use super::{agrees, load, notice, print, report};
use crate::app;
use crate::child;
use crate::config::edit::{self, Change};
use crate::config::settings::{self, Place, Setting};
use crate::config::{self, Config, Env, Loaded, Origin, Parts};
use crate::error::{Context, Error, Kind, Result};
use crate::json::parse_json;
use crate::paths::{Home, of_user};
use crate::storage;
use crate::text::one_line;

pub(super) const COMMANDS: &[Command] = &[
    Command::row(
        "config get",
        "PATH",
        get,
        "print the value of a setting that is in force: bantam config get agents.defaults.timeout",
    )
    .with_examples(&["bantam config get agents.defaults.timeout"]),
    Command::row(
        "config set",
        "PATH VALUE",
        set,
        "set a value in config.json, and keep the rest as it is: bantam config set agents.defaults.timeout 900; \
                a VALUE of - is read from standard input",
    )
    .with_examples(&[
        "bantam config set agents.defaults.timeout 900",
        "bantam config set channels.telegram.token - <token.txt",
    ]),
    Command::row(
        "config unset",
        "PATH",
        unset,
        "remove a setting, an entry or a section from config.json; the default applies again",
    )
    .with_examples(&[
        "bantam config unset agents.defaults.timeout",
        "bantam config unset mcpServers.time",
    ]),
    Command::row("config edit", "", edit, "open config.json in $EDITOR, and check it before it is saved")
        .with_examples(&["EDITOR=nano bantam config edit"]),
];

/// `model_list[0].model` as its names.
fn names(path: &str) -> Vec<&str> {
    path.split(['.', '['])
        .map(|name| name.strip_suffix(']').unwrap_or(name))
        .collect()
}

/// The setting itself, or `None` for a section or an entry of a map.
fn setting(path: &str) -> Result<Option<&'static Setting>> {
    let names = names(path);
    match settings::find(&names) {
        Some(setting) => Ok(Some(setting)),
        None if settings::is_known(&names, Place::Anywhere) => Ok(None),
        None => {
            let near = settings::meant(&names).map(|near| format!("did you mean {near}?"));
            let hint = near.unwrap_or_else(|| "bantam help settings lists them".to_owned());
            Err(Error::usage(format!("unknown setting \"{}\"", one_line(path, 60))).hint(hint))
        }
    }
}

fn get(given: &Args, env: &Env) -> Result<u8> {
    let path = &given.words[0];
    let setting = setting(path)?;
    let loaded = load(env)?.1;
    let names = names(path);
    let value = loaded.report().value(&loaded.config, &names);
    let entry = names.get(1).and_then(|name| name.parse::<usize>().ok());
    let is_missing = entry.is_some_and(|entry| entry >= loaded.config.model_list.len());
    if setting.is_none() && !settings::in_map(&names) && !is_missing {
        return Err(
            Error::usage(format!("{path} is a section, not a setting")).hint(
                "bantam status shows what is set, and bantam help settings lists every setting",
            ),
        );
    }
    let value = value.ok_or_else(|| {
        Error::failed(format!("config.json has no {path}"))
            .hint("bantam status shows what is configured")
    })?;
    match viewable(setting, &value) {
        Some(Value::String(text)) => print(&format!("{text}\n")),
        Some(value) => print(&format!("{value}\n")),
        None => Err(
            Error::failed(format!("{path} may hold a secret, which is not shown"))
                .hint("bantam config edit, or bantam status to see where it comes from"),
        ),
    }
    .map(|()| 0)
}

fn set(given: &Args, env: &Env) -> Result<u8> {
    let (path, mut text) = (&given.words[0], given.words[1].clone());
    let setting = setting(path)?;
    if text == "-" {
        text = io::read_to_string(io::stdin())
            .doing("reading the value")?
            .trim_end()
            .to_owned();
    }
    let value = match setting {
        Some(setting) => Some(setting.parse(&text))
            .filter(|v| v.is_null() || setting.check(v).is_some())
            .map(|value| whole_paths(setting, value)),
        None => parse_json(&text)
            .ok()
            .or_else(|| settings::in_map(&names(path)).then(|| text.as_str().into())),
    };
    let value = value.ok_or_else(|| {
        let is_secret = setting.is_some_and(Setting::is_secret);
        let shown = if is_secret {
            String::new()
        } else {
            format!(" to \"{}\"", one_line(&text, 40))
        };
        let expected = setting.map_or(
            "JSON, for example {\"a\": \"b\"}".to_owned(),
            Setting::expected,
        );
        let broken = text.trim_start().starts_with(['[', '{', '"']);
        let broken = broken.then(|| parse_json(&text).err()).flatten();
        let why = broken.map_or(String::new(), |e| format!(": it is not valid JSON: {e}"));
        Error::config(format!("cannot set {path}{shown}{why}"))
            .hint(format!("it must be {expected}"))
    })?;
    change(path, &Change::Set(&value), env)
}

/// The settings that say where tools work.
const TREES: [&str; 3] = [
    "agents.defaults.workspace",
    "tools.read_paths",
    "tools.write_paths",
];

/// The value with whole paths: a relative one would lead elsewhere from each directory that bantam is started in.
fn whole_paths(setting: &Setting, value: Value) -> Value {
    let whole = |value: Value| {
        let typed = value.as_str().filter(|text| {
            TREES.contains(&setting.path) && !text.is_empty() && !text.starts_with(['/', '~'])
        });
        let whole = typed.and_then(|typed| std::path::absolute(typed).ok());
        let Some(whole) = whole.as_deref().and_then(Path::to_str) else {
            return value;
        };
        notice(&format!(
            "{} is taken as {whole}",
            one_line(typed.unwrap_or_default(), 200)
        ));
        whole.into()
    };
    match value {
        Value::Array(items) => items.into_iter().map(whole).collect(),
        single => whole(single),
    }
}

fn unset(given: &Args, env: &Env) -> Result<u8> {
    // A name that bantam does not know can be taken out, too.
    change(&given.words[0], &Change::Unset, env)
}

fn change(path: &str, change: &Change, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let check = |config: &Arc<Config>| problems(&home, config, env);
    let loaded = edit::change(&home, env, &names(path), change, &check)?;
    warn(&loaded, env);
    let setting = settings::find(&names(path)).map_or("", |setting| setting.path);
    if matches!(change, Change::Set(_)) {
        tell_of_tree(setting, &home, &loaded.config, env);
    }
    if let Some((_, Origin::Env(name))) = loaded.report().values.get(path) {
        notice(&format!("{name} is set, and overrides config.json"));
    }
    Ok(0)
}

/// Trees that cannot be used.
fn problems(home: &Home, config: &Arc<Config>, env: &Env) -> Vec<Error> {
    let parts = Parts { home, config, env };
    let workspace = app::workspace(parts).ok();
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
        .chain(app::workers(parts).err())
        .chain(app::unconfirmed(config))
        .collect()
}

/// The file at `path`, or where a directory above it must be.
fn file_in_the_way(path: &Path) -> Option<&Path> {
    path.ancestors()
        .find(|path| path.exists())
        .filter(|path| path.is_file())
}

/// Directories of the system. Changes there can keep the machine from starting.
const SYSTEM: [&str; 11] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr",
];

/// Tells what a change of where tools write brings with it.
fn tell_of_tree(setting: &str, home: &Home, config: &Arc<Config>, env: &Env) {
    let workspace = app::workspace(Parts { home, config, env }).ok();
    let trees: Vec<PathBuf> = match setting {
        "agents.defaults.workspace" => workspace.iter().cloned().collect(),
        "tools.write_paths" => {
            let written = config.tools.write_paths.iter();
            written.map(|path| of_user(path, env)).collect()
        }
        _ => return,
    };
    for tree in trees {
        let shown = tree.display();
        if !tree.exists() {
            notice(&format!(
                "{setting}: {shown} does not exist yet; bantam creates it when it is first needed"
            ));
        }
        let real = fs_err::canonicalize(&tree).unwrap_or_else(|_| tree.clone());
        if SYSTEM.iter().any(|system| real.starts_with(system)) {
            notice(&format!(
                "{setting}: {shown} belongs to the system, and the agent's tools can now change and delete what is in it"
            ));
        }
    }
}

/// Tells what is still missing in a configuration that can be loaded.
fn warn(loaded: &Loaded, env: &Env) {
    loaded.warnings().iter().for_each(|line| notice(line));
    if let Err(e) = loaded.config.choose_model(env) {
        report(&e);
    }
}

fn edit(_: &Args, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Error::usage("bantam config edit needs a terminal")
            .hint("bantam config set PATH VALUE"));
    }
    let draft = home.root().join("config.json.draft");
    if !storage::write_new(
        &draft,
        config::read(&home)?
            .unwrap_or("{\n}\n".to_owned())
            .as_bytes(),
    )? {
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
        open(editor, &draft)?;
        let text = config::read_json(&draft).doing(format_args!("reading {}", draft.display()))?;
        let check = |config: &Arc<Config>| problems(&home, config, env);
        match edit::save(&home, env, &check, |_| Ok(text)) {
            Ok(loaded) => {
                storage::remove(&draft)?;
                warn(&loaded, env);
                return Ok(0);
            }
            Err(e) => {
                report(&e);
                if !agrees("Edit it again?", true)? {
                    notice(&format!(
                        "config.json is unchanged; your text is in {}",
                        draft.display()
                    ));
                    return Ok(e.kind.exit_code());
                }
            }
        }
    }
}

fn open(editor: &str, file: &Path) -> Result<()> {
    let fail = |what: String| Error::new(Kind::Failed, what).hint("EDITOR=nano bantam config edit");
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
