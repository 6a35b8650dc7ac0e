//! Runs tasks, records the results, and formats the records.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use std::{fs, io, thread};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::support::harness::{Home, merged};
use crate::support::program::program;
use crate::tasks::{Outcome, PAGE, Task};

/// Tools that change a file, and tools that can check the change.
const CHANGES: [&str; 3] = ["write_file", "edit_file", "append_file"];
const CHECKS: [&str; 4] = ["read_file", "exec", "grep", "list_dir"];

/// Result of one try of a task: a line of the stored file.
#[derive(Clone, Serialize, Deserialize)]
pub struct Record {
    pub model: String,
    /// Output of `bantam --version`, and the commit of its sources.
    pub version: String,
    pub task: String,
    pub weight: u64,
    /// Reason of the failure; absent after a success.
    pub failure: Option<String>,
    pub tools: Vec<String>,
    /// Whether a tool checked the result after the last change.
    pub checked: bool,
    pub steps: u64,
    pub tokens: u64,
    pub cost: f64,
    pub ms: u64,
}

pub struct Runner {
    /// Configuration of every home, including the model.
    pub config: Value,
    pub model: String,
    /// Directory that replaces `agent/`.
    pub prompts: Option<std::path::PathBuf>,
    /// Time limit of one prompt.
    pub timeout: Duration,
}

impl Runner {
    /// Tries a task once, in a separate home.
    pub fn attempt(&self, task: &Task, page: &str) -> Record {
        let home = Home::with(&merged(self.config.clone(), &(task.config)()));
        home.dir("workspace");
        if let Some(folder) = &self.prompts {
            copy(folder, &home, "agent")
                .unwrap_or_else(|e| panic!("copying {}: {e}", folder.display()));
        }
        (task.set_up)(&home);
        let mut record = Record {
            model: self.model.clone(),
            version: version().to_owned(),
            task: task.name.to_owned(),
            weight: task.weight,
            failure: None,
            tools: Vec::new(),
            checked: false,
            steps: 0,
            tokens: 0,
            cost: 0.0,
            ms: 0,
        };
        let mut answers = Vec::new();
        for (n, prompt) in task.prompts.iter().enumerate() {
            let answer = self.ask(&home, n, &prompt.replace("{page}", page));
            record.steps += answer["steps"].as_u64().unwrap_or(0);
            record.tokens += answer["usage"]["total_tokens"].as_u64().unwrap_or(0);
            record.cost += answer["cost"].as_f64().unwrap_or(0.0);
            record.ms += answer["ms"].as_u64().unwrap_or(0);
            let calls = answer["tool_calls"].as_array().into_iter().flatten();
            record
                .tools
                .extend(calls.filter_map(|call| call["name"].as_str().map(str::to_owned)));
            answers.push(answer["output"].as_str().unwrap_or_default().to_owned());
            if answer["ok"] != true {
                let why = answer["error"]["message"]
                    .as_str()
                    .unwrap_or("it did not finish");
                record.failure = Some(format!("question {}: {why}", n + 1));
                break;
            }
        }
        let last = record
            .tools
            .iter()
            .rposition(|tool| CHANGES.contains(&tool.as_str()));
        record.checked = last.is_some_and(|last| {
            record.tools[last + 1..]
                .iter()
                .any(|t| CHECKS.contains(&t.as_str()))
        });
        let outcome = Outcome {
            home: &home,
            answers,
            tools: record.tools.clone(),
        };
        record.failure = record.failure.or_else(|| (task.check)(&outcome).err());
        record
    }

    fn ask(&self, home: &Home, n: usize, prompt: &str) -> Value {
        let seconds = self.timeout.as_secs().to_string();
        let mut bantam = home.bantam().args([
            "agent",
            "--json",
            "--session",
            &format!("eval{n}"),
            "--model",
            &self.model,
        ]);
        for (name, value) in std::env::vars().filter(|(name, _)| name.ends_with("_API_KEY")) {
            bantam = bantam.env(&name, value);
        }
        let run = bantam.args(["--timeout", &seconds, "-m", prompt]).spawn();
        run.finish_within(self.timeout + Duration::from_secs(60))
            .json()
    }
}

fn copy(folder: &Path, home: &Home, below: &str) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{below}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), home, &name)?;
        } else {
            home.write(&name, fs::read(entry.path())?);
        }
    }
    Ok(())
}

/// Serves the web page, and returns its address.
pub fn serve_page() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = format!("http://{}/bolts", listener.local_addr().unwrap());
    let answer = |stream: TcpStream| -> io::Result<()> {
        let mut reader = BufReader::new(&stream);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n",
            PAGE.len()
        );
        (&stream).write_all(format!("{head}Connection: close\r\n\r\n{PAGE}").as_bytes())
    };
    // Ignores clients that hang up early.
    thread::spawn(move || {
        listener
            .incoming()
            .flatten()
            .for_each(|stream| drop(answer(stream)));
    });
    address
}

/// Summary of a run, over all its tries.
#[derive(Debug, PartialEq)]
pub struct Summary {
    pub passed: usize,
    pub tries: usize,
    /// Score out of 100, weighted by task.
    pub score: u64,
}

pub fn summary(records: &[Record]) -> Summary {
    let weight = |counts: fn(&Record) -> bool| {
        records
            .iter()
            .filter(|r| counts(r))
            .map(|r| r.weight)
            .sum::<u64>()
    };
    Summary {
        passed: records
            .iter()
            .filter(|record| record.failure.is_none())
            .count(),
        tries: records.len(),
        score: weight(|record| record.failure.is_none()) * 100 / weight(|_| true).max(1),
    }
}

/// Returns the table that a run prints.
pub fn table(records: &[Record]) -> String {
    let mut text = format!(
        "{:<10} {:>6} {:>5} {:>5} {:>8} {:>8} {:>7} {:>7}  {}\n",
        "task", "passed", "tools", "steps", "tokens", "cost", "s", "checked", "why not"
    );
    for (task, tries) in by_task(records) {
        let count = tries.len() as u64;
        let mean =
            |of: fn(&Record) -> u64| tries.iter().map(|record| of(record)).sum::<u64>() / count;
        let passed = tries
            .iter()
            .filter(|record| record.failure.is_none())
            .count();
        let checked = tries.iter().filter(|record| record.checked).count();
        text += &format!(
            "{task:<10} {:>6} {:>5} {:>5} {:>8} {:>8.4} {:>7.1} {:>7}  {}\n",
            format!("{passed}/{count}"),
            mean(|record| record.tools.len() as u64),
            mean(|record| record.steps),
            mean(|record| record.tokens),
            tries.iter().map(|record| record.cost).sum::<f64>() / tries.len() as f64,
            mean(|record| record.ms) as f64 / 1000.0,
            format!("{checked}/{count}"),
            tries
                .iter()
                .find_map(|record| record.failure.as_deref())
                .unwrap_or_default()
        );
    }
    let Summary {
        passed,
        tries,
        score,
    } = summary(records);
    text + &format!("{passed} of {tries} passed, score {score} of 100\n")
}

/// Compares two runs. Tasks tried by only one of them are left out of the score.
pub fn comparison(before: &[Record], after: &[Record]) -> String {
    let mut text = format!("{} -> {}\n", source(before), source(after));
    let (old, new) = (by_task(before), by_task(after));
    for (task, tries) in &new {
        let Some(was) = old.get(task) else {
            continue;
        };
        let (was, is) = (rate(was), rate(tries));
        if was != is {
            text += &format!("{task:<10} {was} % -> {is} %\n");
        }
    }
    let only = |these: &BTreeMap<&str, Vec<&Record>>, others: &BTreeMap<&str, Vec<&Record>>| {
        let missing = these.keys().filter(|task| !others.contains_key(*task));
        missing.copied().collect::<Vec<_>>().join(", ")
    };
    for (which, left) in [("before", only(&old, &new)), ("after", only(&new, &old))] {
        if !left.is_empty() {
            text += &format!("tried only {which}, and not compared: {left}\n");
        }
    }
    let uneven: Vec<String> = new
        .iter()
        .filter_map(|(task, tries)| Some((task, old.get(task)?.len(), tries.len())))
        .filter(|(_, was, is)| was != is)
        .map(|(task, was, is)| format!("{task} {was} and {is}"))
        .collect();
    if !uneven.is_empty() {
        text += &format!("tried unequally often: {}\n", uneven.join(", "));
    }
    let score = |of: &BTreeMap<&str, Vec<&Record>>, others: &BTreeMap<&str, Vec<&Record>>| {
        let both = of.iter().filter(|(task, _)| others.contains_key(*task));
        let (mut passed, mut all) = (0, 0);
        for (_, tries) in both {
            passed += tries[0].weight * rate(tries);
            all += tries[0].weight;
        }
        passed / all.max(1)
    };
    text + &format!(
        "score      {} -> {}\n",
        score(&old, &new),
        score(&new, &old)
    )
}

/// Returns the model and the versions of records.
fn source(records: &[Record]) -> String {
    let sources = records
        .iter()
        .map(|record| format!("{}, bantam {}", record.model, record.version));
    let sources: BTreeSet<String> = sources.collect();
    sources.into_iter().collect::<Vec<_>>().join("; ")
}

/// Returns the percentage of passed tries.
fn rate(tries: &[&Record]) -> u64 {
    let passed = tries.iter().filter(|record| record.failure.is_none());
    passed.count() as u64 * 100 / tries.len() as u64
}

/// Returns the version of the program under test. If Cargo has built it here, also the commit.
fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    let output = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
    };
    VERSION.get_or_init(|| {
        let said = output(program(), &["--version"]).expect("bantam tells its version");
        let number = said.trim_start_matches("bantam ").to_owned();
        let root = env!("CARGO_MANIFEST_DIR");
        let commit = output("git", &["-C", root, "describe", "--always", "--dirty"])
            .filter(|_| std::env::var_os("BANTAM_TEST_BINARY").is_none());
        commit.map_or(number.clone(), |commit| format!("{number} ({commit})"))
    })
}

fn by_task(records: &[Record]) -> BTreeMap<&str, Vec<&Record>> {
    let mut tasks: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        tasks.entry(&record.task).or_default().push(record);
    }
    tasks
}

/// Reads the records of a run.
pub fn read(path: &Path) -> io::Result<Vec<Record>> {
    let lines = fs::read_to_string(path)?;
    lines
        .lines()
        .map(|line| serde_json::from_str(line).map_err(io::Error::from))
        .collect()
}
