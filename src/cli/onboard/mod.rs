//! `bantam onboard`: asks for a model and a Telegram bot, tests both, and writes missing files of a home.

mod model;
mod telegram;

use std::io::{self, IsTerminal};

use super::args::Args;
use super::ui::Ui;
use super::{hanging_indent, notice, print, say};
use crate::app::App;
use crate::app::facts::Facts;
use crate::config::shown;
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::storage;
use crate::template;
use crate::text::to_single_line;

pub(super) fn run(app: &App, ui: &Ui, args: &Args) -> Result<u8> {
    if args.has("yes") {
        write_files(&app.home)?;
        return print_next_steps(app);
    }
    if !io::stdin().is_terminal() || !ui.stderr_is_terminal {
        let e = Error::usage("bantam onboard needs a terminal to ask its questions");
        return Err(e.hint("run `bantam onboard --yes`, and `bantam config set PATH VALUE`"));
    }
    ui.signals.watch()?;
    let facts = Facts::find(app);
    facts.loaded.clone()?;
    let choose_model = || model::choose(app, ui).doing("nothing was saved");
    if fs_err::symlink_metadata(app.home.config()).is_ok() {
        let model = facts.model_name().unwrap_or_else(|e| e.message);
        say(&format!("{}: {model}", app.home.config().display()));
        if ui.agrees("Change the model?", false)? {
            choose_model()?;
        }
    } else {
        choose_model()?;
    }
    write_files(&app.home)?;
    telegram::connect(app, ui)?;
    print_next_steps(&App::new(app.home.clone(), app.env.clone()))
}

/// Writes missing files of the agent, and shows the result for each file.
fn write_files(home: &Home) -> Result<()> {
    let write = || -> Result<()> {
        storage::make_dir(home.root())?;
        for (part, dir) in [
            ("agent", home.agent()),
            ("memory", home.notes()),
            ("workspace", home.workspace()),
        ] {
            let files = template::write(part, &dir);
            for (path, is_created) in files.doing(format_args!("writing {part}/"))? {
                let path = to_single_line(&dir.join(path).display().to_string(), 500);
                if is_created {
                    print(&format!("created  {path}\n"))?;
                }
            }
        }
        // Protects the files against a power cut.
        storage::sync_all(home.root()).doing("waiting for the disk")
    };
    write().map_err(|e| home.hinted(e))
}

/// Prints the next steps.
fn print_next_steps(app: &App) -> Result<u8> {
    const DEMO: &str = "\
Ollama answers if it runs, else the built-in demo, which lists and reads files
and runs commands; it is not a language model. For a real one: `bantam onboard`,
or export OPENROUTER_API_KEY=... (or another provider's).
Next: bantam \"What is in my workspace?\"";
    const QUESTION: &str = "bantam \"What can you do?\"";
    let facts = Facts::find(app);
    facts.loaded.clone()?;
    facts.warnings.iter().for_each(|line| notice(line));
    let next = match (&facts.model, facts.unset_key()) {
        (Err(e), _) => {
            let hint = e.hint.as_deref().unwrap_or_default();
            format!("{}\nNext: {hint}", e.message)
        }
        (Ok(None), _) => DEMO.to_owned(),
        (Ok(Some(model)), Some(variable)) => {
            let name = shown(&model.name);
            format!("{name} needs an API key.\nNext: export {variable}=...; {QUESTION}")
        }
        (Ok(Some(model)), None) => {
            let name = shown(&model.name);
            format!("The model is {name}; `bantam doctor --provider` tests it.\nNext: {QUESTION}")
        }
    };
    let bot = match facts.bot_users() {
        Some(_) => {
            "The bot runs with: bantam gateway\nTo keep it running after you log out: bantam service --install\n"
        }
        None => "",
    };
    print(&hanging_indent(&format!("\n{next}\n{bot}"), 0)).map(|()| 0)
}
