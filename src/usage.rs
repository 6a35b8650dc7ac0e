//! What the models have been asked, and what it cost: one JSON object a line, one line a call, one file a month
//! (`usage/YYYY-MM.jsonl`); and a budget for each day, over all processes.
//!
//! A line is one write to the end of the file, and is not synced: a power cut may lose the last of them, which is worth less
//! than an SD card's life. Whoever reads takes whole lines only and passes over what is none. Days are local, and each line
//! says on which one it was written, so that they stay what they were when somebody moves.

use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Map, Value};

use crate::disk::{self, Durability};
use crate::error::{Context, Error, Kind, Result};
use crate::message::{Usage, rounded};
use crate::text::{LocalTime, clip, rfc3339};

/// Bytes of a name in a line, and of a line: what is longer is none of ours.
const LONGEST_NAME: usize = 200;
const LONGEST_LINE: u64 = 4 << 10;

/// One call of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Call<'a> {
    /// `vendor/model`, of the one that answered.
    pub model: &'a str,
    pub session: &'a str,
    pub channel: &'a str,
    pub usage: Usage,
    /// The server did not count, or the answer broke off: the tokens are guessed.
    pub estimated: bool,
    /// `None` where no price is known.
    pub cost: Option<f64>,
}

/// Who allows calls of models and writes them down.
pub trait Ledger: Send + Sync {
    /// Whether a model may be asked now.
    fn check(&self, now: SystemTime) -> Result<()>;

    /// Writes a call down.
    fn record(&self, call: &Call, now: SystemTime) -> Result<()>;
}

/// What may be spent on a day. 0 is no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    pub tokens: u64,
    pub cost: f64,
}

/// The files of `$BANTAM_HOME/usage`.
pub struct Files {
    dir: PathBuf,
    budget: Budget,
    local_time: LocalTime,
    seen: Mutex<Seen>,
}

/// What is known of today.
#[derive(Default)]
struct Seen {
    day: String,
    /// How far the month's file has been read, in bytes.
    offset: u64,
    tokens: u64,
    cost: f64,
    /// The last call could not be written down.
    failing: bool,
}

impl Seen {
    fn begin(&mut self, day: &str) {
        *self = Self { day: day.to_owned(), failing: self.failing, ..Self::default() };
    }
}

impl Files {
    pub fn new(dir: PathBuf, budget: Budget, local_time: LocalTime) -> Self {
        Self { dir, budget, local_time, seen: Mutex::default() }
    }

    fn month(&self, day: &str) -> PathBuf {
        self.dir.join(format!("{}.jsonl", clip(day, 7)))
    }

    fn day(&self, now: SystemTime) -> String {
        clip(&(self.local_time)(now), 10).to_owned()
    }
}

impl Ledger for Files {
    fn check(&self, now: SystemTime) -> Result<()> {
        let Budget { tokens, cost } = self.budget;
        if tokens == 0 && cost <= 0.0 {
            return Ok(());
        }
        let day = self.day(now);
        let path = self.month(&day);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let len = fs_err::metadata(&path).map_or(0, |meta| meta.len());
        if seen.day != day || seen.offset > len {
            seen.begin(&day);
        }
        let Seen { offset, tokens: mut spent, cost: mut paid, .. } = *seen;
        let read = read(&path, offset, &mut |line| {
            // The day alone is looked for first: most lines are of other days.
            let line = line.filter(|line| line.windows(day.len()).any(|part| part == day.as_bytes()));
            if let Some(line) = line.and_then(Line::read).filter(|line| line.date == day) {
                spent = spent.saturating_add(line.usage.total());
                paid += line.cost.unwrap_or(0.0);
            }
        });
        let offset = read.doing("checking the day's budget").map_err(|e| {
            e.hint("mend that file or move it away, or set budget.daily_tokens and budget.daily_cost to 0")
        })?;
        (seen.offset, seen.tokens, seen.cost) = (offset, spent, paid);
        let used_up = |what: String, setting: &str| {
            Err(Error::new(Kind::Limit, format!("the day's budget is used up: {what}")).hint(format!(
                "raise {setting} in config.json, or go on tomorrow; `bantam usage --days 1` tells where it went"
            )))
        };
        if tokens > 0 && spent >= tokens {
            return used_up(format!("{spent} of {tokens} tokens"), "budget.daily_tokens");
        }
        if cost > 0.0 && rounded(paid) >= cost {
            return used_up(format!("{paid:.4} of {cost} in cost"), "budget.daily_cost");
        }
        Ok(())
    }

    fn record(&self, call: &Call, now: SystemTime) -> Result<()> {
        let day = self.day(now);
        let name = |name| Value::from(clip(name, LONGEST_NAME));
        let Usage { prompt_tokens, completion_tokens, cached_tokens } = call.usage;
        let fields = [
            ("time", rfc3339(now).into()),
            ("date", day.as_str().into()),
            ("model", name(call.model)),
            ("session", name(call.session)),
            ("channel", name(call.channel)),
            ("prompt_tokens", prompt_tokens.into()),
            ("completion_tokens", completion_tokens.into()),
            ("cached_tokens", cached_tokens.into()),
            ("cost", call.cost.into()),
            ("estimated", call.estimated.into()),
        ];
        let mut line = Map::new();
        for (name, value) in fields {
            if value != Value::Bool(false) {
                line.insert(name.to_owned(), value);
            }
        }
        let written = disk::append_line(&self.month(&day), &Value::Object(line).to_string(), Durability::Later);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let failed_before = std::mem::replace(&mut seen.failing, written.is_err());
        if written.is_err() {
            // Here at least it counts.
            if seen.day != day {
                seen.begin(&day);
            }
            seen.tokens = seen.tokens.saturating_add(call.usage.total());
            seen.cost += call.cost.unwrap_or(0.0);
        }
        written.or_else(|e| if failed_before { Ok(()) } else { Err(e.doing("writing usage down")) })
    }
}

/// What a line tells.
struct Line {
    date: String,
    model: String,
    usage: Usage,
    cost: Option<f64>,
}

impl Line {
    /// `None` for what is no line of ours.
    fn read(line: &[u8]) -> Option<Self> {
        let line: Value = serde_json::from_slice(line).ok()?;
        let text = |name: &str| line.get(name).and_then(Value::as_str).map(str::to_owned);
        let date = text("date").filter(|date| date.len() == 10)?;
        Some(Self { date, model: text("model")?, usage: Usage::from_json(&line), cost: line.get("cost")?.as_f64() })
    }
}

/// Gives the whole lines of a file from the byte `from` on, `None` for one that is too long to be one. Where the last of
/// them ends; a file that is not there has none.
fn read(path: &Path, from: u64, each: &mut dyn FnMut(Option<&[u8]>)) -> Result<u64> {
    let mut file = match fs_err::File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(from),
        opened => opened?,
    };
    file.seek(SeekFrom::Start(from))?;
    let mut file = BufReader::new(file);
    let (mut end, mut length, mut line) = (from, 0, Vec::new());
    loop {
        line.clear();
        let read = file.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? as u64;
        if read == 0 {
            return Ok(end);
        }
        length += read;
        if line.ends_with(b"\n") {
            each(Some(line.as_slice()).filter(|line| line.len() as u64 == length));
            end += length;
            length = 0;
        }
    }
}

/// Several calls together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sum {
    pub calls: u64,
    pub usage: Usage,
    /// Of those with a price; `None` when there are none.
    pub cost: Option<f64>,
}

impl Sum {
    fn add(&mut self, line: &Line) {
        self.calls += 1;
        self.usage.add(line.usage);
        if let Some(cost) = line.cost {
            self.cost = Some(rounded(self.cost.unwrap_or(0.0) + cost));
        }
    }
}

/// What one model was asked on one day.
#[derive(Debug)]
pub struct Row {
    pub date: String,
    pub model: String,
    pub sum: Sum,
}

/// What was spent.
#[derive(Debug, Default)]
pub struct Report {
    /// By day and model, in order.
    pub rows: Vec<Row>,
    pub total: Sum,
    /// The files with lines that could not be read, and how many.
    pub bad: Vec<(String, u64)>,
}

impl Report {
    fn add(&mut self, line: Line) {
        self.total.add(&line);
        // From the end: that is where the next line of a file nearly always belongs.
        let place = |row: &Row| (row.date.as_str(), row.model.as_str()) <= (line.date.as_str(), line.model.as_str());
        let after = self.rows.iter().rposition(place).map_or(0, |at| at + 1);
        match self.rows[..after].last_mut() {
            Some(row) if row.date == line.date && row.model == line.model => row.sum.add(&line),
            _ => {
                let mut sum = Sum::default();
                sum.add(&line);
                self.rows.insert(after, Row { date: line.date, model: line.model, sum });
            }
        }
    }
}

/// All that was written down below `dir` on and since the day `since`.
pub fn report(dir: &Path, since: &str) -> Result<Report> {
    let mut report = Report::default();
    let mut names = Vec::new();
    match fs_err::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(report),
        entries => {
            for entry in entries? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
        }
    }
    names.sort_unstable();
    for name in names {
        let month = name.strip_suffix(".jsonl").filter(|month| month.len() == 7);
        if month.is_none_or(|month| month < clip(since, 7)) {
            continue;
        }
        let mut bad = 0;
        read(&dir.join(&name), 0, &mut |line| match line.and_then(Line::read) {
            Some(line) if line.date.as_str() >= since => report.add(line),
            Some(_) => {}
            None => bad += 1,
        })?;
        if bad > 0 {
            report.bad.push((name, bad));
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;
    use std::io::Write;
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    /// 2026-11-21 22:44:35, and so many hours later.
    fn at(hours: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_301_075 + hours * 3600)
    }

    fn call(tokens: u64, cost: Option<f64>) -> Call<'static> {
        let usage = Usage { prompt_tokens: tokens, completion_tokens: 1, cached_tokens: 0 };
        Call { model: "m/x", session: "cli_default", channel: "cli", usage, estimated: false, cost }
    }

    /// A folder of its own, removed at the end.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("bantam-usage-{name}-{}", std::process::id())))
        }

        fn files(&self, budget: Budget) -> Files {
            Files::new(self.0.clone(), budget, Arc::new(text::utc))
        }

        fn add(&self, text: &str) {
            let mut options = std::fs::OpenOptions::new();
            options.append(true).open(self.0.join("2026-11.jsonl")).unwrap().write_all(text.as_bytes()).unwrap();
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_budget_is_of_a_day_and_of_all_who_spend() {
        let dir = Dir::new("day");
        let budget = Budget { tokens: 100, cost: 0.0 };
        let (one, other) = (dir.files(budget), dir.files(budget));
        one.record(&call(59, None), at(0)).unwrap();
        assert!(one.check(at(0)).is_ok() && other.check(at(0)).is_ok());
        other.record(&call(39, None), at(1)).unwrap();
        let e = one.check(at(1)).unwrap_err();
        assert_eq!((e.kind, e.message.as_str()), (Kind::Limit, "the day's budget is used up: 100 of 100 tokens"));
        assert!(e.hint.unwrap().contains("budget.daily_tokens"));
        assert!(other.check(at(1)).is_err() && other.check(at(2)).is_ok(), "the next day is another");
        assert!(one.check(at(1)).is_err(), "and the clock may go back");
        assert!(dir.files(Budget::default()).check(at(1)).is_ok());
    }

    #[test]
    fn only_what_is_new_is_read_and_a_file_that_was_begun_anew_from_its_start() {
        let dir = Dir::new("new");
        let files = dir.files(Budget { tokens: 1000, cost: 0.0 });
        files.record(&call(10, None), at(0)).unwrap();
        files.check(at(0)).unwrap();
        let seen = |files: &Files| {
            let seen = files.seen.lock().unwrap();
            (seen.offset, seen.tokens)
        };
        let (offset, tokens) = seen(&files);
        assert_eq!((offset, tokens), (std::fs::metadata(dir.0.join("2026-11.jsonl")).unwrap().len(), 11));
        // A write that was cut short is looked at again when it is whole, or has become a bad line.
        dir.add("{\"date\":\"2026-11-21\",\"mod");
        files.check(at(0)).unwrap();
        assert_eq!(seen(&files), (offset, 11));
        files.record(&call(20, None), at(0)).unwrap();
        files.check(at(0)).unwrap();
        assert_eq!(seen(&files).1, 32);
        std::fs::write(dir.0.join("2026-11.jsonl"), "").unwrap();
        files.check(at(0)).unwrap();
        assert_eq!(seen(&files), (0, 0));
    }

    #[test]
    fn cost_has_a_budget_too_and_calls_without_a_price_cost_nothing() {
        let dir = Dir::new("cost");
        let files = dir.files(Budget { tokens: 0, cost: 0.3 });
        for cost in [Some(0.1), None, Some(0.1)] {
            files.record(&call(1_000_000, cost), at(0)).unwrap();
            files.check(at(0)).unwrap();
        }
        files.record(&call(1, Some(0.1)), at(0)).unwrap();
        let e = files.check(at(0)).unwrap_err();
        assert_eq!(e.message, "the day's budget is used up: 0.3000 of 0.3 in cost");
    }

    #[test]
    fn what_is_no_line_is_counted_and_passed_over() {
        let dir = Dir::new("bad");
        let files = dir.files(Budget::default());
        files.record(&call(10, Some(0.5)), at(0)).unwrap();
        dir.add(&format!("not json\n[]\n{}\n{{\"torn\":", "x".repeat(100_000)));
        files.record(&Call { model: &"é".repeat(3000), ..call(20, None) }, at(2)).unwrap();
        std::fs::write(dir.0.join("notes.txt"), "not ours").unwrap();
        std::fs::write(dir.0.join("2026-10.jsonl"), "old\n").unwrap();
        let report = report(&dir.0, "2026-11-21").unwrap();
        assert_eq!(report.bad, [("2026-11.jsonl".to_owned(), 4)]);
        let rows: Vec<_> = report.rows.iter().map(|r| (r.date.as_str(), r.sum.usage.total(), r.sum.cost)).collect();
        assert_eq!(rows, [("2026-11-21", 11, Some(0.5)), ("2026-11-22", 21, None)]);
        assert_eq!((report.total.calls, report.total.cost), (2, Some(0.5)));
        assert_eq!(super::report(&dir.0, "2026-11-22").unwrap().total.calls, 1);
        assert_eq!(super::report(&dir.0.join("none"), "2026-11-22").unwrap().total, Sum::default());
    }

    #[test]
    fn rows_are_in_the_order_of_days_and_models_whatever_order_the_lines_have() {
        let mut report = Report::default();
        for (date, model) in [("02", "b"), ("01", "z"), ("02", "a"), ("02", "b"), ("03", "a"), ("01", "z"), ("01", "a")]
        {
            let (date, model) = (format!("2026-11-{date}"), model.to_owned());
            report.add(Line { date, model, usage: Usage::default(), cost: None });
        }
        let rows: Vec<_> = report.rows.iter().map(|r| (&r.date[8..], r.model.as_str(), r.sum.calls)).collect();
        assert_eq!(rows, [("01", "a", 1), ("01", "z", 2), ("02", "a", 1), ("02", "b", 2), ("03", "a", 1)]);
    }

    #[test]
    fn a_call_that_cannot_be_written_down_is_told_once_and_counts_all_the_same() {
        let dir = Dir::new("shut");
        std::fs::create_dir_all(dir.0.join("2026-11.jsonl")).unwrap();
        let files = dir.files(Budget { tokens: 30, cost: 0.0 });
        assert!(files.record(&call(20, None), at(0)).unwrap_err().message.starts_with("writing usage down: "));
        assert!(files.record(&call(20, None), at(0)).is_ok());
        std::fs::remove_dir(dir.0.join("2026-11.jsonl")).unwrap();
        assert_eq!(files.check(at(0)).unwrap_err().kind, Kind::Limit);
        files.record(&call(20, None), at(24)).unwrap();
        assert!(files.check(at(24)).is_ok());
    }
}
