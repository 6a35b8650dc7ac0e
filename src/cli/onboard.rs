//! `bantam onboard`: writes what a new home starts with, and never overwrites. Everything is asked before anything is
//! written, so that whoever stops half way has lost nothing.

use std::io::{self, IsTerminal};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::args::{Args, Command, Flag};
use super::echo::Hidden;
use super::{ask, import, print, tell};
use crate::app;
use crate::config::vendors::{Protocol, VENDORS, Vendor};
use crate::config::{self, Choice, Env, keys, vendors};
use crate::disk::{self, Copied, Runs};
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::secret::Secret;
use crate::template;
use crate::text::{nearest, one_line};

pub const COMMAND: Command = Command {
    name: "onboard",
    words: "",
    about: "write config.json, agent/ and workspace/; what is there already stays",
    flags: &[
        Flag::new(Some('y'), "yes", "", "ask nothing: the first vendor whose key variable is set, else the demo"),
        Flag::new(None, "import", "DIR", "take over the home of a picoclaw, nanobot or OpenClaw; DIR is only read"),
    ],
    run,
};

fn run(given: &Args, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let yes = given.has("yes");
    let terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !yes && !terminal {
        return Err(Error::usage("nobody can be asked, for there is no terminal").hint("bantam onboard --yes"));
    }
    let source = given.value("import").map(|dir| import::Source::open(dir, &home)).transpose()?;
    let has_config = fs_err::symlink_metadata(home.config()).is_ok();
    let chosen = match &source {
        _ if has_config => None,
        Some(source) if source.has_config() => None,
        _ if yes => Some(Chosen::by_key(env)),
        _ => Some(Chosen::by_asking(env)?),
    };

    write(&home, source.as_ref(), chosen.as_ref()).map_err(|e| {
        let hint = format!("check that {} is a directory you can write, or set BANTAM_HOME", home.root().display());
        if e.hint.is_none() { e.hint(hint) } else { e }
    })?;
    conclude(&home, source.as_ref(), env)
}

fn write(home: &Home, source: Option<&import::Source>, chosen: Option<&Chosen>) -> Result<()> {
    disk::make_dir(home.root())?;
    // What is brought along comes before what everybody gets.
    if let Some(source) = source {
        import::run(source, home)?;
    }
    if let Some(chosen) = chosen {
        let text = format!("{:#}\n", chosen.config());
        let (name, path) = (Path::new("config.json"), home.config());
        let copied = disk::copy_new(home.root(), name, &mut text.as_bytes(), Runs::No, u64::MAX)?;
        tell_of(copied, &path.display().to_string())?;
    } else if source.is_none_or(|source| !source.has_config()) {
        tell_of(Copied::Kept, &home.config().display().to_string())?;
    }
    for (part, dir) in [("agent", home.agent()), ("workspace", home.workspace())] {
        for (path, copied) in template::write(part, &dir).doing(format_args!("writing {part}/"))? {
            tell_of(copied, &dir.join(path).display().to_string())?;
        }
    }
    // Cheap here, and a board that is unplugged now does not come up with empty files.
    disk::settle(home.root()).doing("waiting for the disk")
}

fn tell_of(copied: Copied, path: &str) -> Result<()> {
    let path = one_line(path, 500);
    print(&match copied {
        Copied::Made(_) => format!("made  {path}\n"),
        Copied::Kept | Copied::TooLarge => format!("kept  {path}\n"),
        Copied::Blocked => format!("left  {path}: a link or a file is in its way\n"),
    })
}

/// Looks at what stands there now, and says what to type next.
fn conclude(home: &Home, source: Option<&import::Source>, env: &Env) -> Result<u8> {
    let file = config::read(home)?;
    let name = home.config().display().to_string();
    let loaded = config::load_for(home, file.as_deref(), env, Vec::new())?;
    for line in &loaded.warnings {
        tell(&format!("bantam: {line}"));
    }
    let workspace = app::workspace(home, &loaded.config, env)?;
    if workspace != home.workspace() {
        let (named, ours) = (workspace.display(), home.workspace());
        print(&format!("\nThe configuration has the agent work in {named}, not in {}.\n", ours.display()))?;
        if source.is_some_and(|source| source.holds(&workspace)) {
            print("To have it work in the copy, take \"workspace\" out of config.json.\n")?;
        }
    }
    let first = "bantam agent -m \"What can you do?\"";
    let next = match loaded.config.choose_model(env) {
        Err(e) => format!("{}\nNext: {}", e.message, e.hint.unwrap_or_default()),
        Ok(Choice::Nothing) => "No model is configured.\nNext: export OPENROUTER_API_KEY=...".to_owned(),
        Ok(Choice::Model(model)) if model.protocol == Protocol::Demo => format!(
            "The built-in demo answers: it lists and reads files and runs commands, and knows nothing.\n\
             For a real model: export OPENROUTER_API_KEY=... (or another vendor's), remove {name}, and bantam onboard again.\n\
             Next: bantam agent -m \"list files\""
        ),
        Ok(Choice::Model(model)) => match model.keys.first().and_then(|key| keys::missing(key, env)) {
            Some(variable) => {
                format!("{} answers once its key is there.\nNext: export {variable}=...; {first}", model.name)
            }
            None => format!("{} answers.\nNext: {first}", model.name),
        },
    };
    print(&format!("\n{next}\n")).map(|()| 0)
}

/// What config.json is to say.
struct Chosen {
    vendor: &'static Vendor,
    model: String,
    api_base: String,
    key: Key,
}

enum Key {
    /// The vendor wants none.
    None,
    /// It stays in the vendor's variable.
    InVariable,
    Typed(Secret),
}

impl Chosen {
    /// The first vendor whose key is in the environment, else the demo.
    fn by_key(env: &Env) -> Self {
        let vendor = VENDORS.iter().find(|v| has_key(v, env) && !v.default_model.is_empty());
        match vendor {
            Some(vendor) => Self::of(vendor, Key::InVariable),
            None => {
                let demo = VENDORS.iter().find(|v| v.protocol == Protocol::Demo);
                Self::of(demo.unwrap_or(&VENDORS[VENDORS.len() - 1]), Key::None)
            }
        }
    }

    fn of(vendor: &'static Vendor, key: Key) -> Self {
        Self { vendor, model: vendor.default_model.to_owned(), api_base: String::new(), key }
    }

    fn by_asking(env: &Env) -> Result<Self> {
        let vendor = ask_vendor(env)?;
        let mut chosen = Self::of(vendor, Key::None);
        if vendor.protocol == Protocol::Demo {
            return Ok(chosen);
        }
        if vendor.base.is_empty() {
            chosen.api_base = ask_until("Its address, as in https://host/v1: ", |text| {
                if text.starts_with("http://") || text.starts_with("https://") {
                    Ok(text.to_owned())
                } else {
                    Err("it begins with http:// or https://".to_owned())
                }
            })?;
        }
        if !vendor.key_env.is_empty() {
            chosen.key = ask_key(vendor, env)?;
        }
        let default = vendor.default_model;
        let offer = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        chosen.model = ask_until(&format!("Model{offer}: "), |text| match (text, default) {
            ("", "") => Err("its name is needed, as the vendor spells it".to_owned()),
            ("", default) => Ok(default.to_owned()),
            (text, _) => Ok(own_name(vendor, text).to_owned()),
        })?;
        Ok(chosen)
    }

    /// Only what was chosen.
    fn config(&self) -> Value {
        let Vendor { name, key_env, .. } = self.vendor;
        let model = format!("{name}/{}", self.model);
        if self.vendor.protocol == Protocol::Demo {
            return json!({"agents": {"defaults": {"model_name": model}}});
        }
        let mut entry = Map::new();
        entry.insert("model_name".to_owned(), (*name).into());
        entry.insert("model".to_owned(), model.into());
        if !self.api_base.is_empty() {
            entry.insert("api_base".to_owned(), self.api_base.as_str().into());
        }
        match &self.key {
            Key::None => None,
            Key::InVariable => entry.insert("api_key".to_owned(), format!("${{{key_env}}}").into()),
            Key::Typed(key) => entry.insert("api_key".to_owned(), key.reveal().into()),
        };
        json!({"agents": {"defaults": {"model_name": name}}, "model_list": [entry]})
    }
}

fn has_key(vendor: &Vendor, env: &Env) -> bool {
    !vendor.key_env.is_empty() && env.get(vendor.key_env).is_some_and(|key| !key.trim().is_empty())
}

/// `openai/gpt-5` typed for OpenAI means `gpt-5`, unless the vendor's own names begin with its name.
fn own_name<'a>(vendor: &Vendor, typed: &'a str) -> &'a str {
    let prefix = format!("{}/", vendor.name);
    if vendor.default_model.starts_with(&prefix) { typed } else { typed.strip_prefix(&prefix).unwrap_or(typed) }
}

/// Those whose key is there already come first.
fn ask_vendor(env: &Env) -> Result<&'static Vendor> {
    let (mut list, others): (Vec<&Vendor>, Vec<_>) = VENDORS.iter().partition(|v| has_key(v, env));
    list.extend(others);
    tell("Who is to answer?");
    for (n, vendor) in (1..).zip(&list) {
        let note = match vendor {
            v if has_key(v, env) => format!("{} is set", v.key_env),
            v if v.protocol == Protocol::Demo => "built in, needs nothing, knows nothing".to_owned(),
            v if v.key_env.is_empty() => format!("no key needed; {}", v.base),
            v => format!("needs a key ({})", v.key_env),
        };
        tell(&format!("  {n:>2}  {:<11} {note}", vendor.name));
    }
    ask_until("Number or name [1]: ", |text| {
        let text = if text.is_empty() { "1" } else { text };
        if let Some(vendor) = text.parse().ok().and_then(|n: usize| list.get(n.checked_sub(1)?)) {
            return Ok(*vendor);
        }
        vendors::find(text).ok_or_else(|| {
            let near = nearest(text, VENDORS.iter().map(|v| v.name));
            let hint = near.map_or_else(
                || format!("1 to {}, or a name from the list", list.len()),
                |near| format!("did you mean {near}?"),
            );
            format!("there is no \"{}\": {hint}", one_line(text, 40))
        })
    })
}

fn ask_key(vendor: &Vendor, env: &Env) -> Result<Key> {
    let name = vendor.key_env;
    let enter =
        if has_key(vendor, env) { format!("Enter: leave it in {name}") } else { format!("Enter: set {name} later") };
    let _hidden = Hidden::begin()?;
    ask_until(&format!("Key, not shown ({enter}): "), |text| {
        // A command that prints the key may have spaces; a key has none.
        if text.is_empty() {
            Ok(Key::InVariable)
        } else if !text.starts_with("cmd:") && text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            Err("a key has no spaces in it".to_owned())
        } else {
            Ok(Key::Typed(Secret::new(text)))
        }
    })
}

/// Asks until the answer is one.
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
        let chosen = Chosen::of(openai, Key::InVariable);
        let expected = json!({
            "agents": {"defaults": {"model_name": "openai"}},
            "model_list": [{"model_name": "openai", "model": format!("openai/{}", openai.default_model), "api_key": "${OPENAI_API_KEY}"}],
        });
        assert_eq!(chosen.config(), expected);
        let demo = Chosen::by_key(&Env::new());
        assert_eq!(demo.config(), json!({"agents": {"defaults": {"model_name": "demo/demo"}}}));
    }

    #[test]
    fn every_vendor_makes_a_configuration_that_is_read_without_a_word() {
        for vendor in VENDORS {
            let mut chosen = Chosen::of(vendor, Key::Typed(Secret::new("k")));
            chosen.model = "m".to_owned();
            chosen.api_base = if vendor.base.is_empty() { "http://h/v1".to_owned() } else { String::new() };
            let text = chosen.config().to_string();
            let loaded = Config::load(Some(("c", &text)), &Env::new(), Vec::new()).unwrap();
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            let Ok(Choice::Model(model)) = loaded.config.choose_model(&Env::new()) else { panic!("{text}") };
            assert_eq!(model.name, format!("{}/m", vendor.name));
        }
    }

    #[test]
    fn a_vendors_name_before_the_models_is_taken_off_where_it_is_not_a_part_of_it() {
        let name = |vendor, typed| own_name(vendors::find(vendor).unwrap(), typed).to_owned();
        assert_eq!(name("openai", "openai/gpt-5"), "gpt-5");
        assert_eq!(name("openrouter", "openrouter/auto"), "openrouter/auto");
        assert_eq!(name("groq", "openai/gpt-oss-20b"), "openai/gpt-oss-20b");
    }
}
