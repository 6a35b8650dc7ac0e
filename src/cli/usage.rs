//! `bantam usage`: what was spent, by day and model.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::args::{Command, Flag, Given};
use super::{print, tell};
use crate::app;
use crate::config::{self, Env};
use crate::error::Result;
use crate::text::{clip, one_line};
use crate::usage::{self, Report, Sum};

/// Days that are shown unless others are asked for.
const DAYS: u64 = 30;

pub const COMMAND: Command = Command {
    name: "usage",
    words: "",
    about: "tokens and cost by day and model",
    flags: &[
        Flag::new(None, "days", "N", "of the last N days, today included (default: 30)"),
        Flag::new(None, "json", "", "one JSON object"),
    ],
    run,
};

fn run(given: &Given, env: &Env) -> Result<u8> {
    let days = given.number("days")?.unwrap_or(DAYS);
    let home = config::home(env)?;
    let back = Duration::from_secs((days - 1).saturating_mul(86_400));
    let since = SystemTime::now().checked_sub(back).unwrap_or(UNIX_EPOCH).max(UNIX_EPOCH);
    let since = app::local_time(env)(since);
    let report = usage::report(&home.usage(), clip(&since, 10))?;
    for (file, lines) in &report.bad {
        tell(&format!("bantam: left out {lines} lines of usage/{} that cannot be read", one_line(file, 40)));
    }
    if given.has("json") {
        let rows = report.rows.iter().map(|((date, model), sum)| {
            let mut row = object(sum);
            (row["date"], row["model"]) = (date.as_str().into(), model.as_str().into());
            row
        });
        let whole = json!({"rows": rows.collect::<Value>(), "total": object(&report.total)});
        return print(&format!("{whole}\n")).map(|()| 0);
    }
    if report.rows.is_empty() {
        tell(&format!("bantam: no model was asked since {}", clip(&since, 10)));
        return Ok(0);
    }
    print(&table(&report)).map(|()| 0)
}

fn object(sum: &Sum) -> Value {
    let mut object = sum.usage.to_json();
    (object["calls"], object["cost"]) = (sum.calls.into(), sum.cost.into());
    object
}

fn table(report: &Report) -> String {
    let names: Vec<String> = report.rows.keys().map(|(_, model)| one_line(model, 60)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default().max(5);
    let mut page = format!(
        "{:<10}  {:<width$}  {:>7}  {:>11}  {:>11}  {:>11}  {:>10}\n",
        "day", "model", "calls", "read", "cached", "written", "cost"
    );
    let mut line = |day: &str, model: &str, sum: &Sum| {
        let (calls, read, cached) = (sum.calls, sum.usage.prompt_tokens, sum.usage.cached_tokens);
        let (written, cost) = (sum.usage.completion_tokens, cost(sum.cost));
        page.push_str(&format!(
            "{day:<10}  {model:<width$}  {calls:>7}  {read:>11}  {cached:>11}  {written:>11}  {cost:>10}\n"
        ));
    };
    for (((day, _), sum), model) in report.rows.iter().zip(&names) {
        line(day, model, sum);
    }
    line("total", "", &report.total);
    page
}

/// For people. What has no price costs a dash.
pub fn cost(cost: Option<f64>) -> String {
    cost.map_or("-".to_owned(), |cost| format!("{cost:.4}"))
}
