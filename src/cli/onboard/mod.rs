//! `bantam onboard`: asks for a model and a Telegram bot, tests both, and writes missing files of a home.

mod model;
mod telegram;

use std::io::{self, IsTerminal};
use std::path::Path;

use super::args::{Args, Subcommand, commands};
use super::ui::Ui;
use super::{hanging_indent, notice, print, say};
use crate::app::facts::{BotState, Facts};
use crate::app::{self, App};
use crate::config::shown;
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::provider::ollama;
use crate::storage::{self, CopyOutcome};
use crate::template;
use crate::text::to_single_line;

pub(super) const COMMANDS: &[Subcommand] = commands! {
    InHome(run) "onboard
        set up a model, an API key and a Telegram bot. Existing files are not overwritten
        $ bantam onboard
        $ bantam onboard --yes
        -y, --yes                write the agent's files without asking anything"
};

fn run(app: &App, ui: &Ui, args: &Args) -> Result<u8> {
    if args.has("yes") {
        write_files(&app.home)?;
        return print_next_steps(app);
    }
    if !io::stdin().is_terminal() || !ui.stderr_is_terminal {
        return Err(
            Error::usage("bantam onboard needs a terminal to ask its questions")
                .hint("run `bantam onboard --yes`, and `bantam config set PATH VALUE`"),
        );
    }
    ui.signals.watch()?;
    let facts = Facts::find(app);
    facts.loaded.clone()?;
    if fs_err::symlink_metadata(app.home.config()).is_ok() {
        let model = facts.model_name().unwrap_or_else(|e| e.message);
        say(&format!("{}: {model}", app.home.config().display()));
        if ui.agrees("Change the model?", false)? {
            model::choose(&facts, ui)?;
        }
    } else {
        model::choose(&facts, ui)?;
    }
    write_files(&app.home)?;
    telegram::connect(app, ui)?;
    print_next_steps(&app.reread())
}

/// Writes missing files of the agent, and shows the result for each file.
fn write_files(home: &Home) -> Result<()> {
    let write = || -> Result<()> {
        storage::make_dir(home.root())?;
        let parts = [
            ("agent", home.agent()),
            ("memory", home.notes()),
            ("workspace", home.workspace()),
        ];
        for (part, dir) in parts {
            for (path, copied) in
                template::write(part, &dir).doing(format_args!("writing {part}/"))?
            {
                report(copied, &dir.join(path))?;
            }
        }
        // Protects the files against a power cut.
        storage::sync_all(home.root()).doing("waiting for the disk")
    };
    write().map_err(|e| {
        let root = home.root().display();
        let hint = format!("check that {root} is a directory you can write, or set BANTAM_HOME");
        if e.hint.is_none() { e.hint(hint) } else { e }
    })
}

fn report(copied: CopyOutcome, path: &Path) -> Result<()> {
    let path = to_single_line(&path.display().to_string(), 500);
    match copied {
        CopyOutcome::Created => print(&format!("created  {path}\n")),
        CopyOutcome::Exists => Ok(()),
        CopyOutcome::Blocked => print(&format!(
            "skipped  {path}: a link or a file is in the way\n"
        )),
    }
}

/// Prints the next steps.
fn print_next_steps(app: &App) -> Result<u8> {
    const DEMO: &str = "\
The built-in demo answers. It lists and reads files and runs commands;
it is not a language model. For a real one: `bantam onboard`,
or export OPENROUTER_API_KEY=... (or another provider's).
Next: bantam \"What is in my workspace?\"";
    const QUESTION: &str = "bantam \"What can you do?\"";
    let facts = Facts::find(app);
    let loaded = facts.loaded.clone()?;
    facts.warnings.iter().for_each(|line| notice(line));
    let (workspace, usual) = (app::workspace(loaded)?, app.home.workspace());
    if workspace != usual {
        let (workspace, usual) = (workspace.display(), usual.display());
        print(&format!(
            "\nThe agent works in {workspace} (`agents.defaults.workspace`), not in {usual}.\n"
        ))?;
    }
    let next = match &facts.model {
        Err(e) => {
            let hint = e.hint.as_deref().unwrap_or_default();
            format!("{}\nNext: {hint}", e.message)
        }
        Ok(Some(model)) => {
            let name = shown(&model.name);
            match facts.unset_key() {
                Some(variable) => {
                    format!("{name} needs an API key.\nNext: export {variable}=...; {QUESTION}")
                }
                None => format!(
                    "The model is {name}; `bantam doctor --provider` tests it.\nNext: {QUESTION}"
                ),
            }
        }
        Ok(None) => match ollama::pick_model(&app.env) {
            Some(id) => format!("{id} of Ollama answers.\nNext: {QUESTION}"),
            None => DEMO.to_owned(),
        },
    };
    let bot = match facts.bot() {
        BotState::Enabled(_) => {
            "The bot runs with: bantam gateway\nTo keep it running after you log out: bantam service --install\n"
        }
        BotState::Missing | BotState::Disabled => "",
    };
    print(&hanging_indent(&format!("\n{next}\n{bot}"), 0)).map(|()| 0)
}
