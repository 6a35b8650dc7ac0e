//! `bantam usage`: tokens and cost, by day and model.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::args::Args;
use super::ui::Ui;
use super::{notice, print, print_json, table};
use crate::app::{self, App};
use crate::error::Result;
use crate::text::{clip, to_single_line};
use crate::usage::{self, Totals, UsageReport};

const DEFAULT_DAYS: u64 = 30;

pub(super) fn run(app: &App, _: &Ui, given: &Args) -> Result<u8> {
    let days = given.number("days", 7)?.unwrap_or(DEFAULT_DAYS);
    let back = Duration::from_secs((days - 1).saturating_mul(86_400));
    let since = SystemTime::now().checked_sub(back).unwrap_or(UNIX_EPOCH);
    let since = app::local_time(&app.env)(since);
    let report = usage::report(&app.home.usage(), clip(&since, 10))?;
    for (file, lines) in &report.damaged {
        let file = to_single_line(file, 40);
        notice(&format!("skipped {lines} damaged lines of usage/{file}"));
    }
    if given.has("json") {
        let rows = report.rows.iter().map(|((date, model), totals)| {
            let mut object = object(totals);
            (object["date"], object["model"]) = (date.as_str().into(), model.as_str().into());
            object
        });
        let all = json!({"rows": rows.collect::<Value>(), "total": object(&report.total)});
        return print_json(&all).map(|()| 0);
    }
    if report.rows.is_empty() {
        notice(&format!("no requests to models since {}", clip(&since, 10)));
        return Ok(0);
    }
    print(&page(&report)).map(|()| 0)
}

fn object(totals: &Totals) -> Value {
    let mut object = totals.usage.to_json();
    (object["calls"], object["cost"]) = (totals.calls.into(), totals.cost.into());
    object
}

fn page(report: &UsageReport) -> String {
    let line = |day: &str, model: &str, totals: &Totals| {
        let usage = totals.usage;
        let tokens = [
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
        ];
        let mut line = vec![day.to_owned(), model.to_owned()];
        line.push(totals.calls.to_string());
        line.extend(tokens.map(|n| n.to_string()));
        line.push(cost(totals.cost));
        line
    };
    let rows = report.rows.iter();
    let mut lines: Vec<_> = rows
        .map(|((date, model), totals)| line(date, model, totals))
        .collect();
    lines.push(line("total", "", &report.total));
    let head = ["day", "model", "calls", "read", "cached", "written", "cost"];
    table(&head, &lines)
}

/// Formats a cost for people; a dash if unknown.
pub(super) fn cost(cost: Option<f64>) -> String {
    cost.map_or("-".to_owned(), |cost| format!("{cost:.4}"))
}
