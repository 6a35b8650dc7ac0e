//! `bantam onboard`: asks for a model and a Telegram bot, tests both, and writes missing files of a home.

mod model;
mod telegram;

use std::io::{self, IsTerminal};
use std::path::Path;

use super::args::{Args, Command};
use super::ui::{Echo, Ui};
use super::{notice, print, say};
use crate::app::{self, App};
use crate::config::keys;
use crate::config::vendors::Protocol;
use crate::error::{Context, Error, Result};
use crate::paths::Home;
use crate::provider::ollama;
use crate::storage::{self, CopyOutcome};
use crate::template;
use crate::text::to_single_line;

pub(super) const COMMAND: Command = Command::row(
    "onboard",
    "",
    run,
    "set bantam up: a model, a key, a Telegram bot; existing files are never overwritten",
)
.with_flags(&[("-y, --yes", "ask nothing: write only the agent's files")])
.with_examples(&["bantam onboard", "bantam onboard --yes"]);

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
    ui.watch_signals(false)?;
    let setup = Setup { app, ui };
    let is_new = fs_err::symlink_metadata(app.home.config()).is_err();
    if is_new || setup.asks_for_another_model()? {
        model::choose(&setup)?;
    }
    write_files(&app.home)?;
    telegram::connect(&setup)?;
    print_next_steps(&app.reread())
}

/// Home to set up, and the user's terminal.
struct Setup<'a> {
    app: &'a App,
    ui: &'a Ui,
}

impl Setup<'_> {
    fn ask_until<T>(&self, question: &str, check: impl Fn(&str) -> Result<T, String>) -> Result<T> {
        self.ui.ask_until(question, Echo::Shown, check)
    }

    /// Asks for a key or a token.
    fn ask_secret(
        &self,
        question: &str,
        check: impl Fn(&str) -> Result<String, String>,
    ) -> Result<String> {
        self.ui.ask_until(question, Echo::Hidden, check)
    }

    fn agrees(&self, question: &str, default: bool) -> Result<bool> {
        self.ui.agrees(question, default)
    }

    fn asks_for_another_model(&self) -> Result<bool> {
        let loaded = self.app.loaded()?;
        let model = match loaded.config.choose_model(&loaded.env) {
            Ok(Some(model)) => model.name,
            Ok(None) => "no model is chosen".to_owned(),
            Err(e) => e.message,
        };
        say(&format!("{}: {model}", self.app.home.config().display()));
        self.agrees("Change the model?", false)
    }
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

/// Reads the configuration again, and prints the next steps.
fn print_next_steps(app: &App) -> Result<u8> {
    let (home, env, loaded) = (&app.home, &app.env, app.loaded()?);
    let config = &loaded.config;
    loaded.warnings.iter().for_each(|line| notice(line));
    let workspace = app::workspace(loaded)?;
    if workspace != home.workspace() {
        print(&format!(
            "\nThe agent works in {} (`agents.defaults.workspace`), not in {}.\n",
            workspace.display(),
            home.workspace().display()
        ))?;
    }
    let demo = "The built-in demo answers. It lists and reads files and runs commands;\n\
         it is not a language model. For a real one: `bantam onboard`,\n\
         or export OPENROUTER_API_KEY=... (or another vendor's).\n\
         Next: bantam \"What is in my workspace?\"";
    let question = "bantam \"What can you do?\"";
    let next = match config.choose_model(env) {
        Err(e) => format!("{}\nNext: {}", e.message, e.hint.unwrap_or_default()),
        Ok(Some(model)) if model.protocol == Protocol::Demo => demo.to_owned(),
        Ok(Some(model)) => match model.keys.first().and_then(|key| keys::missing(key, env)) {
            Some(variable) => format!(
                "{} needs its key.\nNext: export {variable}=...; {question}",
                model.name
            ),
            None => format!(
                "The model is {}; `bantam doctor --provider` tests it.\nNext: {question}",
                model.name
            ),
        },
        Ok(None) => match ollama::pick_model(env) {
            Some(id) => format!("{id} of Ollama answers.\nNext: {question}"),
            None => demo.to_owned(),
        },
    };
    let bot = if config.channels.telegram.token.is_empty() {
        ""
    } else {
        "The bot runs with: bantam gateway\nTo keep it running after you log out: bantam service --install\n"
    };
    print(&format!("\n{next}\n{bot}")).map(|()| 0)
}
