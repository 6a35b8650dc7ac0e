//! `bantam doctor`: runs the checks and prints each with its fix.

use super::args::Args;
use super::ui::Ui;
use super::{hanging_indent, print};
use crate::app::bot::Bot;
use crate::app::facts::Facts;
use crate::app::{self, App};
use crate::config::Loaded;
use crate::doctor::break_out::{self, Subject};
use crate::doctor::{Check, Outcome, bot, home, model, sandbox};
use crate::error::{Kind, Result};
use crate::tool::exec::passed;

/// Prints checks as they finish, and returns whether one failed. At a terminal, lines are wrapped, but fixes are not, so that a
/// command can be copied.
fn show(checks: impl IntoIterator<Item = Check>) -> Result<bool> {
    let mut failed = false;
    for check in checks {
        failed |= check.outcome == Outcome::Fail;
        let fix = check.fix_line().map(|line| line + "\n");
        print(&(hanging_indent(&check.line(), 6) + &fix.unwrap_or_default()))?;
    }
    Ok(failed)
}

pub(super) fn run(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let facts = Facts::find(app);
    let mut failed = show(home::checks(&facts))?;
    let Ok(loaded) = &facts.loaded else {
        return Ok(1);
    };
    failed |= show([model::configured_model(&facts, loaded)])?;
    if let Some(users) = facts.bot_users() {
        failed |= show([match Bot::configured(loaded) {
            Ok(bot) => bot::bot(&bot.api, users > 0),
            Err(e) => Check::of_error("telegram", e),
        }])?;
    }
    // Both write to the disk.
    if home::full_disk(&app.home).is_none() {
        failed |= workspace_and_sandbox(app, loaded)?;
    }
    failed |= show(super::mcp::checks(loaded))?;
    if given.has("provider") {
        failed |= show([question(loaded)])?;
    }
    Ok(u8::from(failed))
}

fn workspace_and_sandbox(app: &App, loaded: &Loaded) -> Result<bool> {
    const NAME: &str = "workspace";
    let workers = match app::make_workspace(loaded).and_then(|()| app.workers()) {
        Ok(workers) => workers,
        Err(e) => return show([Check::of_error(NAME, app.home.hinted(e))]),
    };
    let path = workers.workspace().path.display().to_string();
    let mut checks = vec![Check::ok(NAME, path)];
    let unknown = app::unconfirmed(&loaded.config).into_iter();
    checks.extend(unknown.map(|e| Check::of_error("confirm", e)));
    let misplaced = app::misplaced(loaded).map(|found| Check::info(NAME, found));
    checks.extend(misplaced.map(|check| check.fix("move them there, or delete them")));
    let exec = &loaded.config.tools.exec;
    let sandbox = sandbox::checks(&workers, exec);
    let holds = sandbox[0].outcome == Outcome::Ok;
    let failed = show(checks.into_iter().chain(sandbox))?;
    if !holds {
        return Ok(failed);
    }
    let subject = Subject {
        home: &app.home,
        workers: &workers,
        passed: passed(&loaded.config, &app.env),
        network: exec.network,
    };
    let attacks = break_out::run(&subject);
    Ok(failed | show(attacks.unwrap_or_else(|e| vec![Check::of_error("break-out", e)]))?)
}

/// Asks the configured model.
pub(super) fn question(loaded: &Loaded) -> Check {
    let mut check = match app::chain(loaded, "", &loaded.redactor(), &mut Vec::new()) {
        Ok(chain) => model::ask(&chain),
        Err(e) => Check::of_error("answer", e),
    };
    if let (Some(Kind::Unavailable), Ok(Some(model))) =
        (check.cause, loaded.config.choose_model(&loaded.env))
    {
        let or = "start the server, or check HTTPS_PROXY";
        check.fix = Some(format!("curl -I {}    # {or}", model.base));
    }
    check
}
