//! `bantam doctor`: runs the checks and prints each with its fix.

use std::sync::Arc;

use super::args::{Args, Command};
use super::{hung, load, print};
use crate::app::bot::{Bot, is_enabled};
use crate::app::{self, Parts};
use crate::config::{self, Config, Env};
use crate::doctor::break_out::{self, Subject};
use crate::doctor::{Check, Outcome, bot, home, model, sandbox};
use crate::error::{Error, Kind, Result};
use crate::paths::Home;
use crate::redact::Redactor;
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
    hung(&check.line(), 6) + &fix.unwrap_or_default()
}

fn run(given: &Args, env: &Env) -> Result<u8> {
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
    let home = config::home(env)?;
    report.add([home::directory(&home)]);
    let full_disk = home::full_disk(&home);
    let is_full = full_disk.is_some();
    report.add(full_disk);
    report.add(home::owners(&home));
    let there = home.config().exists();
    let loaded = load(env).map(|(_, loaded)| loaded);
    report.add(home::configuration(&home, there, &loaded));
    report.add(home::agent(&home));
    report.add(home::sessions(&home));
    report.add([home::jobs(&home, env)]);
    let Ok(loaded) = loaded else {
        let skipped = "sandbox, model, workspace (fix the configuration first)";
        report.add([Check::info("skipped", skipped)]);
        return report.printed.map(|()| 1);
    };
    report.add([model::configured_model(&home, &loaded.config, env)]);
    let telegram = &loaded.config.channels.telegram;
    match Bot::new(telegram, &home, env) {
        // A missing or disabled bot needs no checks.
        _ if telegram.token.is_empty() || !is_enabled(&loaded) => {}
        Ok(bot) => report.add(bot::bot(&bot)),
        Err(e) => report.add([Check::of_error("telegram", e)]),
    }
    if is_full {
        report.add([Check::info(
            "skipped",
            "workspace, sandbox (free some space first)",
        )]);
    } else {
        workspace_and_sandbox(&home, &loaded.config, env, &mut report);
    }
    report.add(home::pdftotext(env));
    report.add(super::mcp::checks(Parts {
        home: &home,
        config: &loaded.config,
        env,
    }));
    if ask {
        report.add([question(&home, &loaded.config, env, name)]);
    }
    report.printed?;
    Ok(u8::from(report.failed))
}

fn workspace_and_sandbox(home: &Home, config: &Arc<Config>, env: &Env, report: &mut Report) {
    const NAME: &str = "workspace";
    let parts = Parts { home, config, env };
    let workers = match app::make_workspace(parts).and_then(|()| app::workers(parts)) {
        Ok(workers) => workers,
        Err(e) => return report.add([Check::of_error(NAME, home.hinted(e))]),
    };
    let workspace = workers.workspace().path.display().to_string();
    report.add([Check::ok(NAME, workspace)]);
    report.add(app::unconfirmed_lines(config).map(|unknown| Check::fail("confirm", unknown)));
    if let Some(found) = app::misplaced(parts) {
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
        passed: passed(config, env),
        network: exec.network,
    };
    report.add(break_out::run(&subject).unwrap_or_else(|e| vec![Check::of_error("break-out", e)]));
}

/// Asks the model with a turn's configuration, except for a shorter answer.
pub(super) fn question(home: &Home, config: &Config, env: &Env, name: Option<&str>) -> Check {
    let mut config = config.clone();
    let defaults = &mut config.agents.defaults;
    if let Some(name) = name {
        defaults.model_name = name.to_owned();
    }
    defaults.max_tokens = model::MAX_TOKENS;
    for entry in &mut config.model_list {
        entry.max_tokens = 0;
    }
    let config = Arc::new(config);
    let redactor = Redactor::new(config.secrets(env));
    let parts = Parts {
        home,
        config: &config,
        env,
    };
    let check = match app::chain(parts, &redactor, &mut Vec::new()) {
        Ok(chain) => model::ask(&chain),
        Err(e) => Check::of_error("answer", e),
    };
    match config.choose_model(env) {
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
