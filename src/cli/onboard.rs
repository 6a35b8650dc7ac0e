//! `bantam onboard`: writes the files of a new home, and never overwrites. It asks all questions before it writes, so that
//! stopping half way changes nothing.

use std::io::{self, IsTerminal};
use std::path::Path;

use serde_json::{Value, json};

use super::args::{Args, Command, Flag};
use super::import::Import;
use super::tty::Hidden;
use super::{ask, load, print, tell};
use crate::app;
use crate::config::vendors::{Protocol, VENDORS, Vendor};
use crate::config::{self, Env, keys, vendors};
use crate::disk::{self, Access, CopyOutcome};
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::secret::Secret;
use crate::template;
use crate::text::{nearest, one_line};

pub(super) const COMMAND: Command = Command {
    name: "onboard",
    words: "",
    about: "write config.json, agent/ and workspace/; never overwrites",
    flags: &[
        Flag::new(Some('y'), "yes", "", "ask nothing: use the first vendor whose key variable is set, else the demo"),
        Flag::new(None, "import", "PATH", "bring over the home of a picoclaw, nanobot or OpenClaw, or its config.json"),
    ],
    run,
};

fn run(given: &Args, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let mut import = given.value("import").map(|path| Import::open(path, &home)).transpose()?;
    let can_ask = !given.has("yes") && io::stdin().is_terminal() && io::stderr().is_terminal();
    if let Some(import) = import.as_mut().filter(|_| can_ask) {
        import.ask()?;
    }
    let has_config = fs_err::symlink_metadata(home.config()).is_ok() || import.as_ref().is_some_and(Import::has_config);
    let chosen = if has_config {
        None
    } else if given.has("yes") {
        Some(by_key(env))
    } else if can_ask {
        Some(by_asking(env)?)
    } else {
        return Err(Error::usage("cannot ask: not a terminal").hint("bantam onboard --yes"));
    };

    write(&home, import.as_ref(), chosen.as_ref()).map_err(|e| {
        let hint = format!("check that {} is a directory you can write, or set BANTAM_HOME", home.root().display());
        if e.hint.is_none() { e.hint(hint) } else { e }
    })?;
    conclude(&home, env)
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
        report(disk::copy_new(home.root(), name, &mut text.as_bytes(), Access::ReadWrite)?, &home.config())?;
    } else if !import.is_some_and(Import::has_config) {
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
    for line in &loaded.warnings {
        tell(&format!("bantam: {line}"));
    }
    let workspace = app::workspace(home, &loaded.config, env)?;
    if workspace != home.workspace() {
        let (named, ours) = (workspace.display(), home.workspace());
        print(&format!("\nThe agent works in {named} (agents.defaults.workspace), not in {}.\n", ours.display()))?;
    }
    let first = "bantam agent -m \"What can you do?\"";
    let next = match loaded.config.choose_model(env) {
        Err(e) => format!("{}\nNext: {}", e.message, e.hint.unwrap_or_default()),
        Ok(None) => "No model is configured.\nNext: export OPENROUTER_API_KEY=...".to_owned(),
        Ok(Some(model)) if model.protocol == Protocol::Demo => format!(
            "The built-in demo answers. It lists and reads files and runs commands; it is not a language model.\n\
             For a real model: export OPENROUTER_API_KEY=... (or another vendor's), remove {}, and run bantam onboard again.\n\
             Next: bantam agent -m \"list files\"",
            home.config().display()
        ),
        Ok(Some(model)) => match model.keys.first().and_then(|key| keys::missing(key, env)) {
            Some(variable) => format!("{} needs its key.\nNext: export {variable}=...; {first}", model.name),
            None => format!("{} is configured; bantam doctor --provider tests it.\nNext: {first}", model.name),
        },
    };
    print(&format!("\n{next}\n")).map(|()| 0)
}

/// A configuration with the first vendor whose key is in the environment, else the demo.
fn by_key(env: &Env) -> Value {
    match VENDORS.iter().find(|v| has_key(v, env) && !v.default_model.is_empty()) {
        Some(vendor) => configuration(vendor, vendor.default_model, "", Some(&variable(vendor))),
        None => configuration(&VENDORS[VENDORS.len() - 1], "demo", "", None),
    }
}

fn by_asking(env: &Env) -> Result<Value> {
    let vendor = ask_vendor(env)?;
    if vendor.protocol == Protocol::Demo {
        return Ok(configuration(vendor, vendor.default_model, "", None));
    }
    let mut api_base = String::new();
    if vendor.base.is_empty() {
        api_base = ask_until("Address, for example https://host/v1: ", |text| {
            let is_http = text.starts_with("http://") || text.starts_with("https://");
            if is_http { Ok(text.to_owned()) } else { Err("it must begin with http:// or https://".to_owned()) }
        })?;
    }
    let key = if vendor.key_env.is_empty() { None } else { Some(ask_key(vendor, env)?) };
    let default = vendor.default_model;
    let offer = if default.is_empty() { String::new() } else { format!(" [{default}]") };
    let model = ask_until(&format!("Model{offer}: "), |text| match (text, default) {
        ("", "") => Err("type the model's name, as the vendor spells it".to_owned()),
        ("", default) => Ok(default.to_owned()),
        (text, _) => Ok(without_vendor(vendor, text).to_owned()),
    })?;
    Ok(configuration(vendor, &model, &api_base, key.as_ref()))
}

/// What config.json says. `key` is the key itself, or where it is.
fn configuration(vendor: &Vendor, model: &str, api_base: &str, key: Option<&Secret>) -> Value {
    let name = vendor.name;
    let model = format!("{name}/{model}");
    if vendor.protocol == Protocol::Demo {
        return json!({"agents": {"defaults": {"model_name": model}}});
    }
    let mut entry = json!({"model_name": name, "model": model});
    if !api_base.is_empty() {
        entry["api_base"] = api_base.into();
    }
    if let Some(key) = key {
        entry["api_key"] = key.reveal().into();
    }
    json!({"agents": {"defaults": {"model_name": name}}, "model_list": [entry]})
}

/// The vendor's variable, as an `api_key`.
fn variable(vendor: &Vendor) -> Secret {
    Secret::new(format!("${{{}}}", vendor.key_env))
}

fn has_key(vendor: &Vendor, env: &Env) -> bool {
    !vendor.key_env.is_empty() && env.get(vendor.key_env).is_some_and(|key| !key.trim().is_empty())
}

/// `openai/gpt-5` typed for OpenAI means `gpt-5`, unless the vendor's own names begin with its name.
fn without_vendor<'a>(vendor: &Vendor, typed: &'a str) -> &'a str {
    let prefix = format!("{}/", vendor.name);
    if vendor.default_model.starts_with(&prefix) { typed } else { typed.strip_prefix(&prefix).unwrap_or(typed) }
}

/// Lists the vendors whose key is set first.
fn ask_vendor(env: &Env) -> Result<&'static Vendor> {
    let (mut list, others): (Vec<&Vendor>, Vec<_>) = VENDORS.iter().partition(|v| has_key(v, env));
    list.extend(others);
    tell("Which provider?");
    for (n, vendor) in (1..).zip(&list) {
        let note = match vendor {
            v if has_key(v, env) => format!("{} is set", v.key_env),
            v if v.protocol == Protocol::Demo => "built in; not a language model".to_owned(),
            v if v.key_env.is_empty() => format!("no key needed; {}", v.base),
            v => format!("needs a key ({})", v.key_env),
        };
        tell(&format!("  {n:>2}  {:<11} {note}", vendor.name));
    }
    ask_until("Number or name [1]: ", |text| {
        let text = if text.is_empty() { "1" } else { text };
        let by_number = text.parse().ok().and_then(|n: usize| list.get(n.checked_sub(1)?)).copied();
        by_number.or_else(|| vendors::find(text)).ok_or_else(|| {
            let hint = match nearest(text, VENDORS.iter().map(|v| v.name)) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("type 1 to {}, or a name from the list", list.len()),
            };
            format!("unknown provider \"{}\": {hint}", one_line(text, 40))
        })
    })
}

fn ask_key(vendor: &Vendor, env: &Env) -> Result<Secret> {
    let name = vendor.key_env;
    let enter =
        if has_key(vendor, env) { format!("Enter: leave it in {name}") } else { format!("Enter: set {name} later") };
    let _hidden = Hidden::begin()?;
    ask_until(&format!("Key, not shown ({enter}): "), |text| {
        // A command that prints the key may have spaces.
        if text.is_empty() {
            Ok(variable(vendor))
        } else if !text.starts_with("cmd:") && text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            Err("a key has no spaces in it".to_owned())
        } else {
            Ok(Secret::new(text))
        }
    })
}

/// Asks until `check` accepts the answer.
fn ask_until<T>(question: &str, check: impl Fn(&str) -> Result<T, String>) -> Result<T> {
    loop {
        match check(ask(question)?.trim()) {
            Ok(answer) => return Ok(answer),
            Err(why) => tell(&why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_written_is_what_was_chosen_and_no_more() {
        let openai = vendors::find("openai").unwrap();
        let expected = json!({
            "agents": {"defaults": {"model_name": "openai"}},
            "model_list": [{"model_name": "openai", "model": "openai/m", "api_key": "${OPENAI_API_KEY}"}],
        });
        assert_eq!(configuration(openai, "m", "", Some(&variable(openai))), expected);
        assert_eq!(by_key(&Env::new()), json!({"agents": {"defaults": {"model_name": "demo/demo"}}}));
    }

    #[test]
    fn every_vendor_makes_a_configuration_that_is_read_without_a_word() {
        for vendor in VENDORS {
            let api_base = if vendor.base.is_empty() { "http://h/v1" } else { "" };
            let text = configuration(vendor, "m", api_base, Some(&Secret::new("k"))).to_string();
            let loaded = Config::load(Some(("c", &text)), &Env::new(), Vec::new()).unwrap();
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            let Ok(Some(model)) = loaded.config.choose_model(&Env::new()) else { panic!("{text}") };
            assert_eq!(model.name, format!("{}/m", vendor.name));
        }
    }

    #[test]
    fn a_vendors_name_before_the_models_is_taken_off_where_it_is_not_a_part_of_it() {
        let name = |vendor, typed| without_vendor(vendors::find(vendor).unwrap(), typed).to_owned();
        assert_eq!(name("openai", "openai/gpt-5"), "gpt-5");
        assert_eq!(name("openrouter", "openrouter/auto"), "openrouter/auto");
        assert_eq!(name("groq", "openai/gpt-oss-20b"), "openai/gpt-oss-20b");
    }
}
