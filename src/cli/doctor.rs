//! `bantam doctor`: runs the checks and prints each with its fix.

use super::args::{Args, Subcommand, commands};
use super::ui::Ui;
use super::{hanging_indent, print};
use crate::app::bot::Bot;
use crate::app::facts::{BotState, Facts};
use crate::app::{self, App};
use crate::config::{Config, Loaded};
use crate::doctor::break_out::{self, Subject};
use crate::doctor::{Check, Outcome, bot, home, model, sandbox};
use crate::error::{Kind, Result};
use crate::tool::exec::passed;

pub(super) const COMMANDS: &[Subcommand] = commands! {
    InHome(run) "doctor  [MODEL]
        check this installation and suggest fixes. Exits with 1 if a check fails
        $ bantam doctor
        $ bantam doctor --provider
            --provider           also ask the configured model, or MODEL, for a tool call"
};

/// Prints checks as they finish.
#[derive(Default)]
struct Report {
    failed: bool,
}

impl Report {
    /// Prints checks. At a terminal, lines are wrapped, but fixes are not, so that a command can be copied.
    fn add(&mut self, checks: impl IntoIterator<Item = Check>) -> Result<()> {
        for check in checks {
            self.failed |= check.outcome == Outcome::Fail;
            let fix = check.fix_line().map(|line| line + "\n");
            print(&(hanging_indent(&check.line(), 6) + &fix.unwrap_or_default()))?;
        }
        Ok(())
    }
}

fn run(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let name = given.words.first().map(String::as_str);
    let mut report = Report::default();
    let facts = Facts::find(app);
    report.add(home::checks(&facts))?;
    let Ok(loaded) = &facts.loaded else {
        let skipped = "sandbox, model, workspace (fix the configuration first)";
        report.add([Check::info("skipped", skipped)])?;
        return Ok(1);
    };
    report.add([model::configured_model(&facts, loaded)])?;
    if let BotState::Enabled(users) = facts.bot() {
        match Bot::configured(loaded) {
            Ok(bot) => report.add(bot::bot(&bot.api, users > 0))?,
            Err(e) => report.add([Check::of_error("telegram", e)])?,
        }
    }
    if home::full_disk(&app.home).is_some() {
        let skipped = "workspace, sandbox (free some space first)";
        report.add([Check::info("skipped", skipped)])?;
    } else {
        workspace_and_sandbox(app, loaded, &mut report)?;
    }
    report.add(super::mcp::checks(loaded))?;
    if given.has("provider") || name.is_some() {
        report.add([question(loaded, name)])?;
    }
    Ok(u8::from(report.failed))
}

fn workspace_and_sandbox(app: &App, loaded: &Loaded, report: &mut Report) -> Result<()> {
    const NAME: &str = "workspace";
    let workers = match app::make_workspace(loaded).and_then(|()| app.workers()) {
        Ok(workers) => workers,
        Err(e) => return report.add([Check::of_error(NAME, app.home.hinted(e))]),
    };
    let workspace = workers.workspace().path.display().to_string();
    report.add([Check::ok(NAME, workspace)])?;
    let unknown = app::unconfirmed_lines(&loaded.config);
    report.add(unknown.map(|line| Check::fail("confirm", line)))?;
    let misplaced = app::misplaced(loaded).map(|found| Check::info(NAME, found));
    report.add(misplaced.map(|check| check.fix("move them there, or delete them")))?;
    let exec = &loaded.config.tools.exec;
    let checks = match sandbox::checks(&workers, exec) {
        Ok(checks) => checks,
        Err(e) => return report.add([Check::of_error("sandbox", e)]),
    };
    let holds = checks[0].outcome == Outcome::Ok;
    report.add(checks)?;
    if !holds {
        return report.add([Check::info("break-out", "not tested")]);
    }
    let subject = Subject {
        home: &app.home,
        workers: &workers,
        passed: passed(&loaded.config, &app.env),
        network: exec.network,
    };
    report.add(break_out::run(&subject).unwrap_or_else(|e| vec![Check::of_error("break-out", e)]))
}

/// Asks the configured model, or the one called `name`.
pub(super) fn question(loaded: &Loaded, name: Option<&str>) -> Check {
    let mut config = Config::clone(&loaded.config);
    if let Some(name) = name {
        name.clone_into(&mut config.agents.defaults.model_name);
    }
    let loaded = loaded.with(config);
    let mut check = match app::chain(&loaded, &loaded.redactor(), &mut Vec::new()) {
        Ok(chain) => model::ask(&chain),
        Err(e) => Check::of_error("answer", e),
    };
    if let (Some(Kind::Unavailable), Ok(Some(model))) =
        (check.cause, loaded.config.choose_model(&loaded.env))
    {
        check.fix = Some(format!("curl -I {}    # or check HTTPS_PROXY", model.base));
    }
    check
}
