//! Usage and cost of model calls: one JSON object per line and call, one file per month (`usage/YYYY-MM.jsonl`); a daily budget
//! over all processes; and the [`Budget`] of each message.
//!
//! A line is one write to the end of the file, without a sync, which spares SD cards; a power cut may lose the last lines.
//! Readers take only whole lines and skip damaged ones. Days are local, and each line records its own day, so that a change of
//! time zone moves none.

mod budget;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use serde_json::{Value, json};

pub use budget::Budget;
pub(crate) use budget::Spend;

use crate::config::DailyBudget;
use crate::error::{Context, Error, Kind, Result};
use crate::json::parse_json;
use crate::message::{Usage, add_cost};
use crate::storage;
use crate::sync;
use crate::text::{LocalTime, clip, rfc3339};

/// Maximum length of a name in a line, in bytes.
const MAX_NAME: usize = 200;

/// One model call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call<'a> {
    /// `vendor/model` that answered.
    pub model: &'a str,
    pub session: &'a str,
    pub channel: &'a str,
    pub usage: Usage,
    /// The tokens are estimated, because the host did not count them or the answer broke off.
    pub estimated: bool,
    /// `None` if the price is unknown.
    pub cost: Option<f64>,
}

/// Checks model calls against the daily budget and records them, in the files of `$BANTAM_HOME/usage`.
pub(crate) struct Ledger {
    dir: PathBuf,
    budget: DailyBudget,
    local_time: LocalTime,
    today: Mutex<Today>,
}

/// Usage and cost of today.
#[derive(Default)]
struct Today {
    day: String,
    /// Bytes of the month's file that have been read.
    offset: u64,
    spent: Totals,
    /// Whether the last call could not be recorded.
    is_failing: bool,
    /// Warning about that for the user, until it is taken.
    warning: Option<String>,
}

impl Today {
    fn begin(&mut self, day: &str) {
        *self = Self {
            day: day.to_owned(),
            is_failing: self.is_failing,
            warning: self.warning.take(),
            ..Self::default()
        };
    }
}

impl Ledger {
    pub(crate) fn new(dir: PathBuf, budget: DailyBudget, local_time: LocalTime) -> Self {
        Self {
            dir,
            budget,
            local_time,
            today: Mutex::default(),
        }
    }

    fn month(&self, day: &str) -> PathBuf {
        self.dir.join(format!("{}.jsonl", clip(day, 7)))
    }

    fn day(&self, now: SystemTime) -> String {
        clip(&(self.local_time)(now), 10).to_owned()
    }

    /// Returns an error if the daily budget is used up, or too small for a request of about `expected` tokens.
    pub(crate) fn check(&self, now: SystemTime, expected: impl FnOnce() -> u64) -> Result<()> {
        let DailyBudget {
            daily_tokens,
            daily_cost,
        } = self.budget;
        if daily_tokens == 0 && daily_cost <= 0.0 {
            return Ok(());
        }
        let day = self.day(now);
        let path = self.month(&day);
        let mut today = self.today();
        let len = fs_err::metadata(&path).map_or(0, |meta| meta.len());
        if today.day != day || today.offset > len {
            today.begin(&day);
        }
        let mut spent = today.spent.clone();
        let offset = storage::read_lines(&path, today.offset, &mut |line| {
            // Searching for the day first saves parsing most lines.
            let line = Some(line)
                .filter(|line| line.windows(day.len()).any(|part| part == day.as_bytes()));
            if let Some(line) = line
                .and_then(UsageLine::parse)
                .filter(|line| line.date == day)
            {
                spent.add(line.usage, line.cost);
            }
        });
        today.offset = offset.doing("checking the day's budget").map_err(|e| {
            e.hint("repair that file or move it away, or set budget.daily_tokens and budget.daily_cost to 0")
        })?;
        let (tokens, cost) = (spent.usage.total(), spent.cost.unwrap_or(0.0));
        today.spent = spent;
        let used_up = |what: String, setting: &str| {
            Err(Error::new(Kind::Limit, format!("daily budget reached: {what}")).hint(format!(
                "raise {setting} in config.json, or try again tomorrow; run `bantam usage --days 1` for details"
            )))
        };
        if daily_tokens > 0 && tokens >= daily_tokens {
            return used_up(
                format!("{tokens} of {daily_tokens} tokens"),
                "budget.daily_tokens",
            );
        }
        let expected = if daily_tokens > 0 { expected() } else { 0 };
        if tokens.saturating_add(expected) > daily_tokens && daily_tokens > 0 {
            let message = format!(
                "daily budget too small: {tokens} of {daily_tokens} tokens used, this request needs about {expected}"
            );
            return Err(Error::new(Kind::Limit, message)
                .hint("raise budget.daily_tokens in config.json, or try again tomorrow"));
        }
        if daily_cost > 0.0 && cost >= daily_cost {
            return used_up(
                format!("{cost:.4} of {daily_cost} in cost"),
                "budget.daily_cost",
            );
        }
        Ok(())
    }

    /// Records a call. If it cannot be written, this process still counts it, and there is a warning to take.
    pub(crate) fn record(&self, call: &Call, now: SystemTime) {
        let day = self.day(now);
        let mut line = json!({
            "time": rfc3339(now),
            "date": day,
            "model": clip(call.model, MAX_NAME),
            "session": clip(call.session, MAX_NAME),
            "channel": clip(call.channel, MAX_NAME),
            "prompt_tokens": call.usage.prompt_tokens,
            "completion_tokens": call.usage.completion_tokens,
            "cached_tokens": call.usage.cached_tokens,
            "cost": call.cost,
        });
        if call.estimated {
            line["estimated"] = true.into();
        }
        let written = storage::append_line(&self.month(&day), &line.to_string());
        let mut today = self.today();
        match written {
            Ok(()) => today.is_failing = false,
            Err(e) => {
                if today.day != day {
                    today.begin(&day);
                }
                today.spent.add(call.usage, call.cost);
                if !std::mem::replace(&mut today.is_failing, true) {
                    today.warning = Some(e.doing("recording usage").message);
                }
            }
        }
    }

    /// Returns the warning about calls that could not be recorded, once per series of failures.
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.today().warning.take()
    }

    fn today(&self) -> MutexGuard<'_, Today> {
        sync::lock(&self.today)
    }
}

/// Returns the sorted names of the files.
fn months(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    match fs_err::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        entries => {
            for entry in entries? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
        }
    }
    names.retain(|name| {
        name.strip_suffix(".jsonl")
            .is_some_and(|month| month.len() == 7)
    });
    names.sort_unstable();
    Ok(names)
}

/// The fields of a line that reports need.
struct UsageLine {
    date: String,
    model: String,
    usage: Usage,
    cost: Option<f64>,
}

impl UsageLine {
    fn parse(line: &[u8]) -> Option<Self> {
        let line: Value = parse_json(line).ok()?;
        let text = |name: &str| line.get(name).and_then(Value::as_str).map(str::to_owned);
        let date = text("date").filter(|date| date.len() == 10)?;
        Some(Self {
            date,
            model: text("model")?,
            usage: Usage::from_json(&line),
            cost: line.get("cost")?.as_f64(),
        })
    }
}

/// Sum of several calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub calls: u64,
    pub usage: Usage,
    /// Cost of the calls with a price; `None` without such calls.
    pub cost: Option<f64>,
}

impl Totals {
    fn add(&mut self, usage: Usage, cost: Option<f64>) {
        self.calls += 1;
        self.usage.add(usage);
        add_cost(&mut self.cost, cost);
    }
}

#[derive(Debug, Default)]
pub(crate) struct UsageReport {
    /// Totals, keyed by day and model.
    pub rows: BTreeMap<(String, String), Totals>,
    pub total: Totals,
    /// Files with damaged lines, and the number of these.
    pub damaged: Vec<(String, u64)>,
}

/// Adds up all calls recorded in `dir` since the day `since`.
pub(crate) fn report(dir: &Path, since: &str) -> Result<UsageReport> {
    let mut report = UsageReport::default();
    for name in months(dir)?
        .into_iter()
        .filter(|name| clip(name, 7) >= clip(since, 7))
    {
        let mut damaged = 0;
        storage::read_lines(
            &dir.join(&name),
            0,
            &mut |line| match UsageLine::parse(line) {
                Some(line) if line.date.as_str() >= since => {
                    report.total.add(line.usage, line.cost);
                    report
                        .rows
                        .entry((line.date, line.model))
                        .or_default()
                        .add(line.usage, line.cost);
                }
                Some(_) => {}
                None => damaged += 1,
            },
        )?;
        if damaged > 0 {
            report.damaged.push((name, damaged));
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use crate::text;
    use std::io::Write;
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    /// 2026-11-21 22:44:35, plus `hours`.
    fn at(hours: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_301_075 + hours * 3600)
    }

    fn call(tokens: u64, cost: Option<f64>) -> Call<'static> {
        let usage = Usage {
            prompt_tokens: tokens,
            completion_tokens: 1,
            cached_tokens: 0,
        };
        Call {
            model: "m/x",
            session: "cli_default",
            channel: "cli",
            usage,
            estimated: false,
            cost,
        }
    }

    fn ledger(dir: &TestDir, daily_tokens: u64, daily_cost: f64) -> Ledger {
        let budget = DailyBudget {
            daily_tokens,
            daily_cost,
        };
        Ledger::new(dir.to_path_buf(), budget, Arc::new(text::utc))
    }

    fn add(dir: &TestDir, text: &str) {
        let mut options = std::fs::OpenOptions::new();
        options
            .append(true)
            .open(dir.join("2026-11.jsonl"))
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    #[test]
    fn a_budget_is_of_a_day_and_of_all_who_spend() {
        let dir = TestDir::new();
        let (one, other) = (ledger(&dir, 100, 0.0), ledger(&dir, 100, 0.0));
        one.record(&call(59, None), at(0));
        assert!(one.check(at(0), || 0).is_ok() && other.check(at(0), || 0).is_ok());
        other.record(&call(39, None), at(1));
        let e = one.check(at(1), || 0).unwrap_err();
        assert_eq!(
            (e.kind, e.message.as_str()),
            (Kind::Limit, "daily budget reached: 100 of 100 tokens")
        );
        assert!(e.hint.unwrap().contains("budget.daily_tokens"));
        assert!(
            other.check(at(1), || 0).is_err() && other.check(at(2), || 0).is_ok(),
            "the next day is another"
        );
        assert!(one.check(at(1), || 0).is_err(), "and the clock may go back");
        assert!(ledger(&dir, 0, 0.0).check(at(1), || 0).is_ok());
    }

    #[test]
    fn cost_budget_ignores_unpriced_calls() {
        let dir = TestDir::new();
        let files = ledger(&dir, 0, 0.3);
        for cost in [Some(0.1), None, Some(0.1)] {
            files.record(&call(1_000_000, cost), at(0));
            files.check(at(0), || 0).unwrap();
        }
        files.record(&call(1, Some(0.1)), at(0));
        let e = files.check(at(0), || 0).unwrap_err();
        assert_eq!(e.message, "daily budget reached: 0.3000 of 0.3 in cost");
    }

    #[test]
    fn malformed_ledger_line_is_counted_and_skipped() {
        let dir = TestDir::new();
        let files = ledger(&dir, 0, 0.0);
        files.record(&call(10, Some(0.5)), at(0));
        add(
            &dir,
            &format!("not json\n[]\n{}\n{{\"torn\":", "x".repeat(100_000)),
        );
        files.record(
            &Call {
                model: &"é".repeat(3000),
                ..call(20, None)
            },
            at(2),
        );
        std::fs::write(dir.join("notes.txt"), "not ours").unwrap();
        std::fs::write(dir.join("2026-10.jsonl"), "old\n").unwrap();
        let report = report(&dir, "2026-11-21").unwrap();
        assert_eq!(report.damaged, [("2026-11.jsonl".to_owned(), 4)]);
        let rows: Vec<_> = report
            .rows
            .iter()
            .map(|((date, _), sum)| (date.as_str(), sum.usage.total(), sum.cost))
            .collect();
        assert_eq!(
            rows,
            [("2026-11-21", 11, Some(0.5)), ("2026-11-22", 21, None)]
        );
        assert_eq!((report.total.calls, report.total.cost), (2, Some(0.5)));
        assert_eq!(super::report(&dir, "2026-11-22").unwrap().total.calls, 1);
        assert_eq!(
            super::report(&dir.join("none"), "2026-11-22")
                .unwrap()
                .total,
            Totals::default()
        );
    }
}
