//! `bantam doctor`: runs the checks and prints each with its fix.

use super::args::{Args, Command};
use super::ui::Ui;
use super::{hanging_indent, print};
use crate::app::bot::{Bot, is_enabled};
use crate::app::{self, App};
use crate::child::Sandbox;
use crate::config::{Config, Loaded};
use crate::doctor::break_out::{self, Subject};
use crate::doctor::{Check, Outcome, bot, home, model, sandbox};
use crate::error::{Error, Result};
use crate::provider::catalog::with_known_default;
use crate::provider::facts;
use crate::text::to_single_line;
use crate::tool::exec::passed;

pub(super) const COMMAND: Command = Command::row(
    "doctor",
    "[--provider [NAME]]",
    run,
    "check this installation and suggest fixes; exit code 1 if a check fails",
)
.with_flags(&[(
    "--provider",
    "also ask the model (or the one called NAME) for a tool call",
)])
.with_examples(&["bantam doctor", "bantam doctor --provider"]);

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
    let name = match given.words.as_slice() {
        [] => None,
        [name] if ask => Some(name.as_str()),
        [name, ..] => {
            let name = to_single_line(name, 40);
            return Err(Error::usage(format!(
                "bantam doctor takes \"{name}\" only with --provider"
            ))
            .hint(format!(
                "to test the model {name}: bantam doctor --provider {name}"
            )));
        }
    };
    let mut report = Report {
        failed: false,
        printed: Ok(()),
    };
    let home = &app.home;
    report.add([home::directory(home)]);
    let there = home.config().exists();
    let loaded = app.loaded();
    report.add(home::configuration(home, there, &loaded));
    report.add(home::sessions(home));
    report.add(home::notes(home));
    match loaded {
        Ok(loaded) => {
            report.add([model::configured_model(home, &loaded.config, &loaded.env)]);
            let telegram = &loaded.config.channels.telegram;
            match Bot::configured(loaded) {
                // A missing or disabled bot needs no checks.
                _ if telegram.token.is_empty() || !is_enabled(loaded) => {}
                Ok(bot) => report.add(bot::bot(&bot.api, telegram.ids().len())),
                Err(e) => report.add([Check::of_error("telegram", e)]),
            }
            workspace_and_sandbox(loaded, &mut report);
            report.add(super::mcp::checks(loaded));
            if ask {
                report.add(question(loaded, name));
            }
        }
        Err(_) => {
            let why = "the configuration is not valid";
            report.add([Check::info(
                "sandbox",
                format!("not checked, and neither are model and workspace: {why}"),
            )]);
        }
    }
    report.printed?;
    Ok(u8::from(report.failed))
}

fn workspace_and_sandbox(loaded: &Loaded, report: &mut Report) {
    const NAME: &str = "workspace";
    let (home, config) = (&loaded.home, &loaded.config);
    let there = app::workspace(loaded).is_ok_and(|dir| dir.is_dir());
    let workers = match app::make_workspace(loaded).and_then(|()| app::workers(loaded)) {
        Ok(workers) => workers,
        Err(e) => return report.add([Check::of_error(NAME, home.hinted(e))]),
    };
    let made = if there { "" } else { " (created)" };
    report.add([Check::ok(
        NAME,
        format!("{}{made}", workers.workspace().path.display()),
    )]);
    for unknown in app::unconfirmed_lines(config) {
        report.add([Check::fail("confirm", unknown)]);
    }
    if let Some(found) = app::misplaced(loaded) {
        let agent = home.agent().display().to_string();
        report.add([Check::info(NAME, found).fix(format!("move them to {agent}, or delete them"))]);
    }
    let exec = &config.tools.exec;
    let holds = match sandbox::sandbox(&workers, exec, &mut |check| report.add([check])) {
        Ok(holds) => holds,
        Err(e) => return report.add([Check::of_error("sandbox", e)]),
    };
    if !holds {
        let why = if exec.sandbox == Sandbox::Off {
            "the sandbox is off"
        } else {
            "commands cannot run"
        };
        return report.add([Check::info("break-out", format!("not tested: {why}"))]);
    }
    let passed = passed(config, &loaded.env);
    let subject = Subject {
        home,
        workers: &workers,
        passed,
        network: exec.network,
    };
    report.add(break_out::run(&subject).unwrap_or_else(|e| vec![Check::of_error("break-out", e)]));
}

/// Asks the model with a turn's configuration, except for a shorter answer, and returns the results.
pub(super) fn question(loaded: &Loaded, name: Option<&str>) -> Vec<Check> {
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
    let redactor = loaded.redactor();
    match app::chain(&loaded, &redactor, &mut Vec::new()) {
        Ok(chain) => {
            let mut checks = chain
                .first()
                .map_or_else(Vec::new, |provider| model::ask(provider, &redactor));
            let asked = loaded.config.choose_model(&loaded.env).ok().flatten();
            let asked = asked.map(|model| with_known_default(model, &loaded.home));
            let learned = asked.map_or_else(Vec::new, |model| {
                facts::load_facts(&loaded.home, &model).words()
            });
            checks.extend(
                learned
                    .into_iter()
                    .map(|words| Check::info("learned", format!("the host {words}"))),
            );
            checks
        }
        Err(e) => vec![Check::of_error("answer", e)],
    }
}
