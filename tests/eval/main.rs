//! Tests the evaluation with models of known ability.
#![allow(clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss)] // for people to read
#![allow(unsafe_code)]

mod runner;
mod scripted;
#[allow(dead_code)] // other tests use the rest of it
#[path = "../support/mod.rs"]
mod support;
mod tasks;

use std::collections::BTreeSet;
use std::time::Duration;

use runner::{Record, Runner, Summary, comparison, read, serve_page, summary, table};
use scripted::{Kind, model};
use support::model::Model;

fn runner(model: &Model) -> Runner {
    Runner {
        config: model.config(),
        model: "test".to_owned(),
        prompts: None,
        timeout: Duration::from_secs(60),
    }
}

fn evaluate(kind: Kind) -> Vec<Record> {
    let page = serve_page();
    let attempt = |task: &tasks::Task| runner(&model(kind, task, &page)).attempt(task, &page);
    tasks::all().iter().map(attempt).collect()
}

fn failed(records: &[Record]) -> BTreeSet<&str> {
    records
        .iter()
        .filter(|record| record.failure.is_some())
        .map(|record| record.task.as_str())
        .collect()
}

#[test]
fn a_good_model_passes_every_task() {
    let records = evaluate(Kind::Good);
    assert_eq!(
        summary(&records),
        Summary {
            passed: 13,
            tries: 13,
            score: 100
        },
        "\n{}",
        table(&records)
    );
    let checked = records
        .iter()
        .filter(|record| record.checked)
        .map(|record| record.task.as_str());
    assert_eq!(
        checked.collect::<Vec<_>>(),
        ["syntax", "edit", "search", "skill"]
    );
}

#[test]
fn the_long_task_does_not_fit_the_window() {
    let tasks = tasks::all();
    let task = tasks.iter().find(|task| task.name == "long").unwrap();
    let model = model(Kind::Good, task, "");
    assert_eq!(runner(&model).attempt(task, "").failure, None);
    let sizes: Vec<usize> = model
        .requests()
        .iter()
        .map(|request| request.body.to_string().len())
        .collect();
    assert!(
        sizes.windows(2).any(|pair| pair[1] < pair[0]),
        "no request is shorter than the one before: {sizes:?}"
    );
}

#[test]
fn a_model_that_obeys_what_it_reads_fails_the_injection() {
    let records = evaluate(Kind::Obedient);
    assert_eq!(
        failed(&records),
        BTreeSet::from(["injection"]),
        "\n{}",
        table(&records)
    );
}

#[test]
fn a_model_that_claims_without_doing_passes_nothing() {
    let records = evaluate(Kind::Boastful);
    assert_eq!(
        summary(&records),
        Summary {
            passed: 0,
            tries: 13,
            score: 0
        },
        "\n{}",
        table(&records)
    );
    assert!(records.iter().all(|record| !record.checked));
}

#[test]
fn two_runs_are_compared_by_task_and_score() {
    let (good, obedient) = (evaluate(Kind::Good), evaluate(Kind::Obedient));
    let version = &good[0].version;
    // The commit follows in brackets, if git was available for the build.
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
    let head = format!("test, bantam {version} -> test, bantam {version}\n");
    assert_eq!(
        comparison(&good, &obedient),
        format!("{head}injection  100 % -> 0 %\nscore      100 -> 88\n")
    );
    assert_eq!(
        comparison(&good, &good),
        format!("{head}score      100 -> 100\n")
    );
    // Without the failed task, and with one more repeated.
    let fewer: Vec<Record> = obedient
        .iter()
        .chain([&obedient[0]])
        .filter(|record| record.task != "injection")
        .cloned()
        .collect();
    let told = comparison(&good, &fewer);
    assert!(
        told.contains("tried only before, and not compared: injection\n")
            && told.contains(&format!(
                "tried unequally often: {} 1 and 2\n",
                good[0].task
            ))
            && told.ends_with("score      100 -> 100\n"),
        "{told}"
    );
    let kept = support::program::directory().join("records.jsonl");
    let lines: Vec<String> = good
        .iter()
        .map(|record| serde_json::to_string(record).unwrap() + "\n")
        .collect();
    std::fs::write(&kept, lines.concat()).unwrap();
    assert_eq!(table(&read(&kept).unwrap()), table(&good));
}
