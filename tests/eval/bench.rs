//! Runs the evaluation with a real host, started by `tests/eval/run`.
#![allow(clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss)] // for people to read
#![allow(unsafe_code)]

mod runner;
#[allow(dead_code)] // the tests use the rest of it
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code)]
mod tasks;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};
use runner::{Runner, comparison, read, serve_page, summary, table};
use serde_json::{Value, json};

const HELP: &str = "\
Usage: tests/eval/run --model NAME [--config FILE] [--prompts DIR] [--tries N] [--timeout SECS] [--task NAME]... [--out FILE]
       tests/eval/run --compare BEFORE AFTER

Asks a model to do thirteen tasks, checks what it did, and prints a table. Each try is a line of JSON in FILE.

--model NAME     a model_list name of FILE, or vendor/model with its key in the environment
--config FILE    the configuration to use
--prompts DIR    takes the place of agent/, to compare prompts
--tries N        of each task, 1 unless given
--timeout SECS   of each question, 600 unless given
--task NAME      only this task; repeatable
--out FILE       target/eval.jsonl unless given; what is there is replaced
";

struct Options {
    runner: Runner,
    tries: usize,
    only: Vec<String>,
    out: PathBuf,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(e) => {
            eprintln!("tests/eval/run: {e}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut options = Options {
        runner: Runner {
            config: json!({}),
            model: String::new(),
            prompts: None,
            timeout: Duration::from_secs(600),
        },
        tries: 1,
        only: Vec::new(),
        out: "target/eval.jsonl".into(),
    };
    let mut args = Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("bench") => {} // cargo adds it
            Arg::Long("help") | Arg::Short('h') => return say(HELP),
            Arg::Long("compare") => {
                let (before, after) = (args.value()?, args.value()?);
                return say(&comparison(
                    &read(Path::new(&before))?,
                    &read(Path::new(&after))?,
                ));
            }
            Arg::Long("model") => options.runner.model = args.value()?.string()?,
            Arg::Long("config") => {
                options.runner.config = serde_json::from_slice(&fs::read(args.value()?)?)?;
            }
            Arg::Long("prompts") => options.runner.prompts = Some(args.value()?.into()),
            Arg::Long("timeout") => {
                options.runner.timeout = Duration::from_secs(args.value()?.parse()?);
            }
            Arg::Long("tries") => options.tries = args.value()?.parse()?,
            Arg::Long("task") => options.only.push(args.value()?.string()?),
            Arg::Long("out") => options.out = args.value()?.into(),
            arg => return Err(arg.unexpected().into()),
        }
    }
    if options.runner.model.is_empty() {
        return Err("--model is missing; --help lists the options".into());
    }
    if let Value::Object(config) = &mut options.runner.config {
        // Their sessions, chats and jobs are left out.
        config.retain(|key, _| key == "agents" || key == "model_list" || key == "tools");
    }
    evaluate(&options)
}

fn evaluate(options: &Options) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let (page, tasks) = (serve_page(), tasks::all());
    if let Some(name) = options
        .only
        .iter()
        .find(|name| tasks.iter().all(|task| task.name != name.as_str()))
    {
        return Err(format!("no task is named {name}").into());
    }
    let mut file = File::create(&options.out)?;
    let mut records = Vec::new();
    for task in tasks
        .iter()
        .filter(|task| options.only.is_empty() || options.only.iter().any(|name| name == task.name))
    {
        for n in 0..options.tries {
            eprintln!("{} {}/{}", task.name, n + 1, options.tries);
            let record = options.runner.attempt(task, &page);
            writeln!(file, "{}", serde_json::to_string(&record)?)?;
            records.push(record);
        }
    }
    say(&table(&records))?;
    let summary = summary(&records);
    Ok(ExitCode::from(u8::from(summary.passed < summary.tries)))
}

fn say(text: &str) -> Result<ExitCode, Box<dyn std::error::Error>> {
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
