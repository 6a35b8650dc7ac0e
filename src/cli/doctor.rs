//! `bantam doctor`: runs the checks and prints each with its fix.

use super::args::{Args, Command, commands};
use super::facts::{BotState, Facts};
use super::ui::Ui;
use super::{hanging_indent, print};
use crate::app::bot::Bot;
use crate::app::{self, App};
use crate::config::{Config, Loaded};
use crate::doctor::break_out::{self, Subject};
use crate::doctor::{Check, Outcome, bot, home, model, sandbox};
use crate::error::{Error, Kind, Result};
use crate::text::to_single_line;
use crate::tool::exec::passed;

pub(super) const COMMANDS: &[Command] = commands! {
    InHome(run) "doctor  [MODEL]
        check this installation and suggest fixes. Exits with 1 if a check fails
        $ bantam doctor
        $ bantam doctor --provider
            --provider           also ask the configured model, or MODEL, for a tool call"
};

/// Prints checks as they finish.
struct Report {
    failed: bool,
    printed: Result<()>,
}

impl Report {
    fn add(&mut self, checks: impl IntoIterator<Item = Check>) {
        for check in checks {
            self.failed |= check.outcome == Outcome::Fail;
            if self.printed.is_ok() {
                self.printed = print(&format_check(&check));
            }
        }
    }
}

/// Formats a check for a terminal or a pipe. At a terminal the line is wrapped, but the fix is not, so that a command can be
/// copied.
fn format_check(check: &Check) -> String {
    let fix = check.fix_line().map(|line| line + "\n");
    hanging_indent(&check.line(), 6) + &fix.unwrap_or_default()
}

fn run(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let ask = given.has("provider");
    let name = given.words.first().map(String::as_str);
    if let (Some(name), false) = (name, ask) {
        let name = to_single_line(name, 40);
        let error = format!("bantam doctor takes \"{name}\" only with --provider");
        return Err(Error::usage(error).hint(format!(
            "to test the model {name}: bantam doctor --provider {name}"
        )));
    }
    let mut report = Report {
        failed: false,
        printed: Ok(()),
    };
    let home = &app.home;
    let facts = Facts::find(app);
    report.add(home::checks(home, &app.env, &facts.loaded));
    let Ok(loaded) = &facts.loaded else {
        let skipped = "sandbox, model, workspace (fix the configuration first)";
        report.add([Check::info("skipped", skipped)]);
        return report.printed.map(|()| 1);
    };
    report.add([model::configured_model(&facts.model, loaded)]);
    if let BotState::Enabled(users) = facts.bot() {
        match Bot::configured(loaded) {
            Ok(bot) => report.add(bot::bot(&bot.api, users > 0)),
            Err(e) => report.add([Check::of_error("telegram", e)]),
        }
    }
    if home::full_disk(home).is_some() {
        let skipped = "workspace, sandbox (free some space first)";
        report.add([Check::info("skipped", skipped)]);
    } else {
        workspace_and_sandbox(loaded, &mut report);
    }
    report.add(super::mcp::checks(loaded));
    if ask {
        report.add([question(loaded, name)]);
    }
    report.printed?;
    Ok(u8::from(report.failed))
}

fn workspace_and_sandbox(loaded: &Loaded, report: &mut Report) {
    const NAME: &str = "workspace";
    let (home, config) = (&loaded.home, &loaded.config);
    let workers = match app::make_workspace(loaded).and_then(|()| app::workers(loaded)) {
        Ok(workers) => workers,
        Err(e) => return report.add([Check::of_error(NAME, home.hinted(e))]),
    };
    let workspace = workers.workspace().path.display().to_string();
    report.add([Check::ok(NAME, workspace)]);
    report.add(app::unconfirmed_lines(config).map(|unknown| Check::fail("confirm", unknown)));
    if let Some(found) = app::misplaced(loaded) {
        report.add([Check::info(NAME, found).fix("move them there, or delete them")]);
    }
    let exec = &config.tools.exec;
    match sandbox::sandbox(&workers, exec, &mut |check| report.add([check])) {
        Ok(true) => {}
        Ok(false) => return report.add([Check::info("break-out", "not tested")]),
        Err(e) => return report.add([Check::of_error("sandbox", e)]),
    }
    let subject = Subject {
        home,
        workers: &workers,
        passed: passed(config, &loaded.env),
        network: exec.network,
    };
    report.add(break_out::run(&subject).unwrap_or_else(|e| vec![Check::of_error("break-out", e)]));
}

/// Asks the model with a turn's configuration, except for a shorter answer.
pub(super) fn question(loaded: &Loaded, name: Option<&str>) -> Check {
    let mut config = Config::clone(&loaded.config);
    let defaults = &mut config.agents.defaults;
    if let Some(name) = name {
        defaults.model_name = name.to_owned();
    }
    defaults.max_tokens = model::MAX_TOKENS;
    for entry in &mut config.model_list {
        entry.max_tokens = 0;
    }
    let loaded = loaded.with(config);
    let check = match app::chain(&loaded, &loaded.redactor(), &mut Vec::new()) {
        Ok(chain) => model::ask(&chain),
        Err(e) => Check::of_error("answer", e),
    };
    match loaded.config.choose_model(&loaded.env) {
        Ok(Some(model)) if check.cause == Some(Kind::Unavailable) => {
            let fix = format!("curl -I {}    # or check HTTPS_PROXY", model.base);
            Check {
                fix: Some(fix),
                ..check
            }
        }
        _ => check,
    }
}
