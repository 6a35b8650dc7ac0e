//! `bantam cron`: adds, lists, changes and runs scheduled jobs, and lists their runs.

use std::sync::Arc;

use serde_json::{Value, json};

use super::args::Args;
use super::ui::Ui;
use super::{notice, print, print_json, report, table, zone};
use crate::agent::Request;
use crate::app::bot::{self, Bot};
use crate::app::{self, App, Flags};
use crate::bus::{Inbound, Origin, Response};
use crate::cancel::Cancel;
use crate::config::Loaded;
use crate::cron::{DueRun, Job, JobCheck, Jobs, NewJob, Run, When, heartbeat, schedule};
use crate::error::{Error, Kind, Result};
use crate::gateway::run::{JobEnd, JobRunner, note_title, now, run_message};
use crate::gateway::{need_exec, run_check};
use crate::notify::is_running;
use crate::outbox::{Item, Note, Outbox};
use crate::paths::{TELEGRAM, session_name, telegram_chat};
use crate::provider::catalog;
use crate::telegram::deliver::Delivery;
use crate::text::{counted, printable, to_single_line};

fn jobs(app: &App) -> Jobs {
    Jobs::new(app.home.clone(), &app.env)
}

pub(super) fn add(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let mut new = new_job(given)?;
    let (home, jobs, owner) = (&app.home, jobs(app), owner(app));
    if !new.model.is_empty() {
        let loaded = app.loaded()?;
        new.model = catalog::whole_name(loaded, &new.model)?;
        loaded.config.named(&new.model, &app.env)?;
    }
    if new.check.is_some() {
        need_exec(&app.loaded()?.config)?;
    }
    let job = jobs.add(&new, now())?;
    let (id, name) = (job.id(), printable(job.name()));
    let next = upcoming(&jobs, &job, 3)?;
    print(&format!("Added job {id} ({name})\n{next}"))?;
    if new.to.is_empty() {
        let to = match &owner {
            Some(chat) => format!("{chat}, the bot's owner"),
            None => "the bot's owner, once there is one".to_owned(),
        };
        notice(&format!(
            "its answers go to {to}; --to none keeps them in the job's conversation"
        ));
    }
    if let Some(chat) = job.to(owner) {
        tell_if_undelivered(&chat, app)?;
    }
    if let Some(check) = &new.check {
        notice(&try_check(app.loaded()?, check));
    }
    if !is_running(home) {
        notice(&format!(
            "no gateway is running; `bantam gateway` runs the job, `bantam cron run {id}` runs it now"
        ));
    }
    Ok(0)
}

/// Runs a new check once, and tells its result, because a job whose check never prints anything would be silent forever.
fn try_check(loaded: &Loaded, check: &JobCheck) -> String {
    const ELSEWHERE: &str = " (shell commands see only the workspace and tools.read_paths)";
    match run_check(loaded, check, &Cancel::new(None)) {
        Ok(Ok(output)) => {
            let lines = counted(output.trim().lines().count(), "line");
            format!("the check prints {lines} now, so the model would be asked")
        }
        Ok(Err(why)) => {
            let more = if why.contains(": ") { ELSEWHERE } else { "" };
            format!("the check found nothing now, so the model would not be asked: {why}{more}")
        }
        Err(e) => format!("warning: {}{ELSEWHERE}", to_single_line(&e.message, 300)),
    }
}

/// Returns the chat of the bot's owner, which gets the answers of jobs without a chat.
fn owner(app: &App) -> Option<String> {
    bot::owner(app.loaded().ok()?)
}

/// Returns the job that the command line describes.
fn new_job(given: &Args) -> Result<NewJob> {
    let text = |flag: &str| given.value(flag).unwrap_or_default().to_owned();
    let when = when(given)?;
    let message = super::question::asked(given)?;
    let check = given.value("if");
    Ok(NewJob {
        name: text("name"),
        message,
        when,
        tz: text("tz"),
        to: text("to"),
        session: text("session"),
        model: text("model"),
        check: check.map(|command| JobCheck::OfUser(command.to_owned())),
    })
}

/// Returns the one time that the command line gives.
fn when(given: &Args) -> Result<When> {
    let every = given.value("every").map(schedule::interval).transpose()?;
    match (every, given.value("cron"), given.value("at")) {
        (Some(seconds), None, None) => Ok(When::Every(seconds)),
        (None, Some(expr), None) => Ok(When::Cron(expr.to_owned())),
        (None, None, Some(at)) => Ok(When::At(at.to_owned())),
        _ => Err(Error::usage("a job needs one time: `-e`, `-c` or `--at`")
            .hint("add one of `-e 5m`, `-c \"30 7 * * *\"` and `--at 18:00`")),
    }
}

/// Shows what the bot still needs. The gateway may have a token in its environment that this command lacks.
fn tell_if_undelivered(to: &str, app: &App) -> Result<()> {
    let Ok(loaded) = app.loaded() else {
        return Ok(());
    };
    let chat = telegram_chat(to)?;
    let allowed = loaded.config.channels.telegram.ids();
    let is_allowed = allowed.iter().any(|user| user.to_string() == chat);
    if let Err(e) = Bot::delivery(loaded, Some(chat), notice) {
        let hint = e.hint.unwrap_or_default();
        notice(&format!("cannot deliver to {to}: {}; {hint}", e.message));
    } else if !is_allowed && !app.home.session(&session_name(TELEGRAM, chat)?).exists() {
        notice(&format!(
            "warning: the bot does not know the chat {to}; `bantam sessions list` shows the ids of its chats"
        ));
    }
    Ok(())
}

/// Formats `next: 2026-11-23 07:30:00, ... (Europe/Berlin)`.
fn upcoming(jobs: &Jobs, job: &Job, count: usize) -> Result<String> {
    let (zone, times) = jobs.upcoming(job, now(), count)?;
    let times: Vec<String> = times.iter().map(|at| zone.stamp(at / 1000)).collect();
    Ok(format!("next: {} ({})\n", times.join(", "), zone.name()))
}

pub(super) fn list(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let jobs = jobs(app);
    let list = jobs.list()?;
    let now = now();
    if given.has("json") {
        let rows: Value = list.iter().map(|job| job.fields().clone()).collect();
        return print_json(&json!({"jobs": rows})).map(|()| 0);
    }
    let zone = zone(&app.env);
    let row = |job: &Job| {
        let due = jobs.zone(job.tz());
        let next = match due.and_then(|meant| job.due(now, 0, &meant)) {
            Err(e) => {
                notice(&to_single_line(&e.message, 300));
                "cannot run".to_owned()
            }
            Ok(_) if !job.is_enabled() => "disabled".to_owned(),
            Ok(next) => next.map_or("never".to_owned(), |at| zone.stamp(at / 1000)),
        };
        let to = job.to(owner(app));
        let to = to.map_or(String::new(), |to| format!(" -> {to}"));
        [
            job.id().to_owned(),
            next,
            job.last_status().to_owned(),
            job.when(&zone),
            format!("{}{to}", job.name()),
        ]
    };
    let rows: Vec<_> = list.iter().map(row).collect();
    if list.is_empty() {
        notice("no jobs yet; `bantam cron add` adds one");
    }
    let next = format!("next run ({})", zone.name());
    let head = ["id", &next, "last run", "schedule", "name"];
    print(&table(&head, &rows)).map(|()| 0)
}

pub(super) fn remove(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let job = jobs(app).remove(&given.words[0])?;
    print(&format!("Removed job {}\n", printable(job.id()))).map(|()| 0)
}

pub(super) fn enable(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let jobs = jobs(app);
    let job = jobs.set_enabled(&given.words[0], true, now())?;
    let (id, next) = (printable(job.id()), upcoming(&jobs, &job, 1)?);
    print(&format!("Enabled job {id}, {next}")).map(|()| 0)
}

pub(super) fn disable(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let job = jobs(app).set_enabled(&given.words[0], false, now())?;
    print(&format!("Disabled job {}\n", printable(job.id()))).map(|()| 0)
}

/// Runs a job like the gateway, in this process, and prints its answer.
pub(super) fn run_now(app: &App, ui: &Ui, given: &Args) -> Result<u8> {
    let (ui, jobs) = (&ui.with_flags(given), jobs(app));
    let job = jobs.find(&given.words[0])?;
    let message = run_message(&app.home, &DueRun { job, due: now() }, owner(app))?;
    let Origin { chat: id, .. } = &message.origin;
    if is_running(&app.home) && jobs.running()?.iter().any(|run| run.job == *id) {
        let what = format!("the job {} is already running", to_single_line(id, 40));
        let hint = "wait until it ends; `bantam cron history` shows when it started";
        return Err(Error::new(Kind::Busy, what).hint(hint));
    }
    ui.signals.watch()?;
    let cancel = Cancel::new(None);
    let mut delivery = None;
    let runner = JobRunner::new(jobs, app.loaded()?);
    let ended = runner.run_job(message.clone(), &cancel, |message, title| {
        let (response, opened) = ask(app, ui, &message, title)?;
        delivery = opened;
        Ok(response)
    })?;
    let (mut response, text) = match ended {
        JobEnd::Asked(response, text) => (response, text),
        JobEnd::Skipped(why) => {
            notice(&format!("the model was not asked: {why}"));
            return Ok(0);
        }
    };
    if let (Some(delivery), Some(to), false) = (delivery, &message.reply_to, text.is_empty()) {
        let note = Note {
            title: &note_title(&message.source).unwrap_or_default(),
            from: &message.session,
            text: &text,
        };
        let outbox = Outbox::new(app.home.clone());
        let id = outbox.post(&Item::text(to, &text), &[], Some(&note))?;
        delivery.deliver_posted(&mut response, &id, to);
    }
    Ok(response.error.as_ref().map_or(0, report))
}

/// Asks the message of a run like `bantam agent`. Also returns the delivery of the answer, if there is a bot.
fn ask(app: &App, ui: &Ui, message: &Inbound, title: &str) -> Result<(Response, Option<Delivery>)> {
    let app = Arc::new(app.with_overrides(Vec::new()));
    let loaded = app.loaded()?;
    let chat = message.reply_to.as_deref().map(telegram_chat).transpose()?;
    let delivery = Bot::delivery(loaded, chat, notice)?;
    let (agent, notices) = app.build(&Flags::default())?;
    app::make_workspace(loaded)?;
    super::warn_before(ui, &app, &notices)?;
    let cancel = Cancel::new(Some(agent.limits().timeout));
    let request = Request {
        title: title.to_owned(),
        origin: message.origin.clone(),
        model: message.model.clone(),
        cancel,
        ..Request::new(&message.text, &message.session)
    };
    Ok((ui.turn(&Arc::new(agent), request), delivery))
}

pub(super) fn history(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let jobs = jobs(app);
    let (list, mut runs) = (jobs.list()?, jobs.history()?);
    let wanted = given.words.first();
    if let Some(wanted) = wanted {
        let named = list.iter().find(|job| job.name() == wanted);
        let id = named.map_or(wanted.as_str(), Job::id);
        runs.retain(|run| run.name == *wanted || run.job == id);
        // The heartbeat is no job, and the history has runs of removed jobs.
        if runs.is_empty() && id != heartbeat::ID {
            jobs.find(wanted)?;
        }
    }
    if given.has("json") {
        let rows: Value = runs.iter().map(|run| json!(run)).collect();
        return print_json(&json!({"runs": rows})).map(|()| 0);
    }
    if runs.is_empty() {
        notice("no runs yet");
    }
    let zone = zone(&app.env);
    let row = |run: &Run| {
        let job = list.iter().find(|job| job.id() == run.job);
        let name = job.map_or(run.name.as_str(), Job::name);
        let what = match run.error.as_str() {
            "" => format!("{name}: {}", run.answer),
            error => error.to_owned(),
        };
        let (at, job) = (zone.stamp(run.at / 1000), run.job.clone());
        [at, job, run.status.name(), what]
    };
    let rows: Vec<_> = runs.iter().map(row).collect();
    print(&table(&["time", "job", "status", "answer or error"], &rows)).map(|()| 0)
}
