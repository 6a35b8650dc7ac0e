//! `bantam cron`: adds, lists, changes and runs scheduled jobs, and lists their runs.

use std::sync::Arc;

use serde_json::{Value, json};

use super::args::{Args, Subcommand, commands};
use super::ui::Ui;
use super::{notice, print, print_json, report, table, zone};
use crate::agent::Request;
use crate::app::bot::{self, Bot};
use crate::app::{self, App, Flags};
use crate::bus::{Inbound, Origin, Response};
use crate::cancel::Cancel;
use crate::cron::{DueRun, Job, JobCheck, Jobs, NewJob, Run, RunStatus, When, heartbeat, schedule};
use crate::error::{Error, Kind, Result};
use crate::gateway::check_command;
use crate::gateway::run::{CheckCommand, JobEnd, JobRunner, note_title, now, run_message};
use crate::message::Message;
use crate::notify::is_running;
use crate::outbox::{Item, Note, Outbox};
use crate::paths::{Home, TELEGRAM, session_name, telegram_chat};
use crate::provider::catalog;
use crate::session::{FileStore, Session};
use crate::telegram::deliver::Delivery;
use crate::text::{counted, not_found, printable, to_single_line};

pub(super) const COMMANDS: &[Subcommand] = commands! {
    InHome(add) r#"cron add  [TEXT...]
        schedule a question. `bantam gateway` asks it on time
        $ bantam cron add -c "30 7 * * mon-fri" -n logs "What is odd in the logs?"
        $ bantam cron add -e 30m "Is the disk filling up?"
        $ bantam cron add --at 18:00 --to telegram:123456789 "Water the tomatoes"
        -m, --message TEXT       the question
        -e, --every INTERVAL     repeat, such as 300 (seconds), 5m, 2h or 1d
        -c, --cron EXPR          minute hour day month weekday, such as "30 7 * * mon-fri", or @daily
            --at TIME            once, such as 18:00, 2026-03-29T18:00, +20m, +2h or +1d
            --tz ZONE            time zone of EXPR or TIME (default: this machine's)
            --if COMMAND         ask only if this shell command, run in the sandbox, exits with 0 and prints something
            --model MODEL        use this model (default: the configured one)
        -n, --name NAME          name of the job
        -s, --session KEY        continue the conversation KEY (default: a new one for each run)
            --to telegram:CHAT   chat for the answer (default: the bot's owner; `none`: the history only)"#
    InHome(list) "cron list
        list jobs: next run, last result, schedule and name
            --json               print one JSON object with the jobs of cron/jobs.json"
    InHome(remove) "cron remove  ID
        remove a job. Its history is kept
        $ bantam cron remove logs"
    InHome(enable) "cron enable  ID
        resume a paused job
        $ bantam cron enable logs"
    InHome(disable) "cron disable  ID
        pause a job
        $ bantam cron disable logs"
    InHome(run_now) "cron run  ID
        run a job now and print its answer (same exit codes as `bantam agent`)
        $ bantam cron run logs
        -q, --quiet              print only the answer and errors
        -v, --verbose            print tool calls, retries and timings to stderr"
    InHome(history) "cron history  [ID]
        list runs, newest last. With ID, also show the job's last answer
        $ bantam cron history logs
            --json               print one JSON object"
};

fn jobs(app: &App) -> Jobs {
    Jobs::new(app.home.clone(), &app.env)
}

fn add(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let (mut new, owner) = new_job(app, given)?;
    let (home, jobs) = (&app.home, jobs(app));
    if !new.model.is_empty() {
        let loaded = app.loaded()?;
        new.model = catalog::whole_name(loaded, &new.model)?;
        loaded.config.named(&new.model, &app.env)?;
    }
    let check = match &new.check {
        Some(check) => Some((check_command(app.loaded()?)?, check.clone())),
        None => None,
    };
    let job = jobs.add(&new, now())?;
    let (id, name) = (job.id(), printable(job.name()));
    print(&format!(
        "Added job {id} ({name})\n{}",
        upcoming(&jobs, &job, 3)?
    ))?;
    if let Some(owner) = owner {
        notice(&format!(
            "its answers go to {owner}, the bot's owner; --to none keeps them in the job's conversation"
        ));
    }
    if let Some(chat) = job.to() {
        tell_if_undelivered(&chat, app)?;
    }
    if let Some((run, check)) = &check {
        notice(&try_check(run.as_ref(), check));
    }
    tell_if_refused(app);
    if !is_running(home) {
        notice(&format!(
            "no gateway is running; `bantam gateway` runs the job, `bantam cron run {id}` runs it now"
        ));
    }
    Ok(0)
}

/// Runs a new check once, and tells its result, because a job whose check never prints anything would be silent forever.
fn try_check(run: &CheckCommand, check: &JobCheck) -> String {
    const ELSEWHERE: &str = "shell commands see only the workspace and tools.read_paths";
    match run(check, &Cancel::new(None)) {
        Ok(Ok(output)) => {
            let lines = counted(output.trim().lines().count(), "line");
            format!("the check prints {lines} now, so the model would be asked")
        }
        Ok(Err(why)) => {
            format!("the model would not be asked now: {why} ({ELSEWHERE})")
        }
        Err(e) => format!("warning: {} ({ELSEWHERE})", to_single_line(&e.message, 300)),
    }
}

/// Returns the job that the command line describes, and the bot's owner if its answers go there without being asked to.
fn new_job(app: &App, given: &Args) -> Result<(NewJob, Option<String>)> {
    let text = |flag: &str| given.value(flag).unwrap_or_default().to_owned();
    let when = when(given)?;
    if given.has("message") && !given.words.is_empty() {
        return Err(Error::usage("question given twice: -m and words")
            .hint("leave out `-m`, or quote its text"));
    }
    let message = if given.words.is_empty() {
        text("message")
    } else {
        given.words.join(" ")
    };
    let (to, owner) = match given.value("to") {
        None => {
            let owner = app.loaded().ok().and_then(|loaded| bot::owner(loaded));
            (owner.clone().unwrap_or_default(), owner)
        }
        Some("none") => (String::new(), None),
        Some(to) => (to.to_owned(), None),
    };
    let check = given.value("if");
    let new = NewJob {
        name: text("name"),
        message,
        when,
        tz: text("tz"),
        to,
        session: text("session"),
        model: text("model"),
        check: check.map(|command| JobCheck::OfUser(command.to_owned())),
    };
    Ok((new, owner))
}

/// Returns the one time that the command line gives.
fn when(given: &Args) -> Result<When> {
    let every = given.value("every").map(interval).transpose()?;
    match (every, given.value("cron"), given.value("at")) {
        (Some(_), None, None) if given.has("tz") => Err(Error::usage("--tz without a time of day")
            .hint("remove `--tz`; intervals do not depend on the time zone")),
        (Some(seconds), None, None) => Ok(When::Every(seconds)),
        (None, Some(expr), None) => Ok(When::Cron(expr.to_owned())),
        (None, None, Some(at)) => Ok(When::At(at.to_owned())),
        _ => Err(Error::usage("a job needs one time: `-e`, `-c` or `--at`")
            .hint("add one of `-e 5m`, `-c \"30 7 * * *\"` and `--at 18:00`")),
    }
}

/// Shows that calls which need confirmation are refused in jobs.
fn tell_if_refused(app: &App) {
    let Ok(loaded) = app.loaded() else { return };
    let confirm = &loaded.config.tools.confirm;
    if !confirm.is_empty() {
        notice(&format!(
            "tools.confirm names {}: a job cannot ask you, so such calls are refused",
            confirm.join(", ")
        ));
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

/// Parses an interval to seconds. A small bare number is probably meant as minutes.
fn interval(text: &str) -> Result<u64> {
    let seconds = schedule::interval(text)?;
    if seconds < 60 && text.parse::<u64>().is_ok() {
        return Err(
            Error::usage(format!("-e {text} means every {text} seconds")).hint(format!(
                "use `-e {text}m` for minutes, or `-e {text}s` for seconds"
            )),
        );
    }
    Ok(seconds)
}

/// Formats `next: 2026-11-23 07:30:00, ... (Europe/Berlin)`.
fn upcoming(jobs: &Jobs, job: &Job, count: usize) -> Result<String> {
    let (zone, times) = jobs.upcoming(job, now(), count)?;
    let times: Vec<String> = times.iter().map(|at| zone.stamp(at / 1000)).collect();
    Ok(format!("next: {} ({})\n", times.join(", "), zone.name()))
}

fn list(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let jobs = jobs(app);
    let list = jobs.list()?;
    let now = now();
    if given.has("json") {
        let rows: Value = list.iter().map(|job| job.fields().clone()).collect();
        return print_json(&json!({"jobs": rows})).map(|()| 0);
    }
    let zone = zone(&app.env);
    let mut rows = Vec::new();
    for job in &list {
        let next = match jobs
            .zone(job.tz())
            .and_then(|meant| job.due(now, 0, &meant))
        {
            Err(e) => {
                notice(&to_single_line(&e.message, 300));
                "cannot run".to_owned()
            }
            Ok(_) if !job.is_enabled() => "disabled".to_owned(),
            Ok(Some(at)) if at <= now => "overdue".to_owned(),
            Ok(next) => next.map_or("never".to_owned(), |at| zone.stamp(at / 1000)),
        };
        let to = job.to().map(|to| format!(" -> {to}")).unwrap_or_default();
        let status = match job.last_status() {
            "" => "-",
            status => status,
        };
        rows.push([
            job.id().to_owned(),
            next,
            status.to_owned(),
            job.when(&zone),
            format!("{}{to}", job.name()),
        ]);
    }
    if list.is_empty() {
        notice("no jobs yet; `bantam cron add` adds one");
    }
    let next = format!("next run ({})", zone.name());
    print(&table(
        &["id", &next, "last run", "schedule", "name"],
        &rows,
    ))?;
    Ok(0)
}

fn remove(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let job = jobs(app).remove(&given.words[0])?;
    print(&format!("Removed job {}\n", printable(job.id()))).map(|()| 0)
}

fn enable(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let jobs = jobs(app);
    let job = jobs.set_enabled(&given.words[0], true, now())?;
    print(&format!(
        "Enabled job {}, {}",
        printable(job.id()),
        upcoming(&jobs, &job, 1)?
    ))
    .map(|()| 0)
}

fn disable(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let job = jobs(app).set_enabled(&given.words[0], false, now())?;
    print(&format!("Disabled job {}\n", printable(job.id()))).map(|()| 0)
}

/// Runs a job like the gateway, in this process, and prints its answer.
fn run_now(app: &App, ui: &Ui, given: &Args) -> Result<u8> {
    let (ui, jobs) = (&ui.with_flags(given), jobs(app));
    let job = jobs.find(&given.words[0])?;
    let message = run_message(&app.home, &DueRun { job, due: now() })?;
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
            title: &note_title(&message.source),
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

/// Returns the last answer in the conversation of a run.
fn last_answer(home: &Home, run: &Run) -> Option<String> {
    let session = session_name("cron", &run.job).ok()?;
    let messages = Session::peek(&FileStore::new(home.clone()), &session)
        .ok()?
        .messages;
    messages
        .into_iter()
        .rev()
        .find_map(|message| match message {
            Message::Assistant(reply) if !reply.text.trim().is_empty() => Some(reply.text),
            _ => None,
        })
}

fn history(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let (home, jobs) = (&app.home, jobs(app));
    let list = jobs.list()?;
    let mut runs = jobs.history()?;
    if let Some(wanted) = given.words.first() {
        let named = list
            .iter()
            .find(|job| job.name() == wanted)
            .map_or(wanted.as_str(), Job::id);
        runs.retain(|run| [&run.job, &run.name].contains(&wanted) || run.job == named);
        let is_known = named == heartbeat::ID || list.iter().any(|job| job.id() == named);
        if runs.is_empty() && !is_known {
            let known = list.iter().flat_map(|job| [job.id(), job.name()]);
            return Err(not_found("job", wanted, known, "bantam cron history"));
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
    let rows = runs.iter().map(|run| {
        let took = match run.ended {
            Some(ended) if run.status == RunStatus::Ok => {
                format!("{} s", (ended - run.at) / 1000)
            }
            _ => String::new(),
        };
        let name = list
            .iter()
            .find(|job| job.id() == run.job)
            .map_or(run.name.as_str(), Job::name);
        let what = match (run.error.as_str(), run.answer.as_str()) {
            ("", "") => name.to_owned(),
            ("", answer) => format!("{name}: {answer}"),
            (error, _) => error.to_owned(),
        };
        [
            zone.stamp(run.at / 1000),
            run.job.clone(),
            run.status.name(),
            took,
            what,
        ]
    });
    print(&table(
        &["time", "job", "status", "took", "answer or error"],
        &rows.collect::<Vec<_>>(),
    ))?;
    if let Some(answer) = given
        .words
        .first()
        .and_then(|_| last_answer(home, runs.last()?))
    {
        print(&format!("\n{}\n", printable(answer.trim())))?;
    }
    Ok(0)
}
