//! Resources of a running process, as reported by the kernel.

#![allow(clippy::cast_precision_loss)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Number of rows in the table of resources.
const ROWS: usize = 24;

/// Maximum growth of memory, in KiB: per hour, or in total, because a short run's share is less than the heap's noise.
const MOST_SLOPE: f64 = 256.0;
const MOST_GROWTH: f64 = 128.0;

/// Time that an ended child may remain unreaped, because its parent may be slow on a busy machine.
const ZOMBIE_TIME: Duration = Duration::from_secs(5);

/// Resources of a process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Resident memory, and its anonymous part, in KiB.
    pub rss: u64,
    pub anonymous: u64,
    /// Peak memory, in KiB.
    pub peak: u64,
    /// Open descriptors.
    pub descriptors: usize,
    pub threads: u64,
    pub children: usize,
    /// Ended children, including those about to be reaped.
    pub zombies: usize,
    /// Ended children that were not reaped within [`ZOMBIE_TIME`].
    pub forgotten: usize,
}

/// Returns the arguments without the flags that `cargo bench` adds, and the program to measure: the first one, or this build.
pub fn given() -> (Vec<String>, PathBuf) {
    let given: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let bantam = given.first();
    let bantam = bantam.map_or(env!("CARGO_BIN_EXE_bantam").into(), PathBuf::from);
    (given, bantam)
}

/// Returns a command of bantam with a small environment and without streams.
pub fn command(bantam: &Path, home: &Path) -> Command {
    let mut command = Command::new(bantam);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("TZ", "UTC")
        .env("BANTAM_HOME", home)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Stops the gateway, which must end well.
pub fn stop(gateway: &mut Child) {
    let pid = rustix::process::Pid::from_child(gateway);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = gateway.wait().unwrap();
    assert!(status.success(), "the gateway did not end well: {status}");
}

/// Samples a process in this interval until the end, with the hours since the start.
pub fn samples(pid: u32, interval: Duration, is_over: &AtomicBool) -> Vec<(f64, Sample)> {
    let started = Instant::now();
    let mut samples = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        samples.push((started.elapsed().as_secs_f64() / 3600.0, sample(pid)));
        thread::sleep(interval);
    }
    samples
}

/// Returns a number from a file with lines `NAME: NUMBER`.
pub fn field(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("{name} in {file}"));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub fn sample(pid: u32) -> Sample {
    let status = format!("/proc/{pid}/status");
    let of = |name: &str| field(&status, name);
    let children = children(pid);
    let zombies: Vec<u32> = children
        .iter()
        .copied()
        .filter(|pid| is_zombie(*pid))
        .collect();
    Sample {
        rss: of("VmRSS:"),
        anonymous: of("RssAnon:"),
        peak: of("VmHWM:"),
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
        threads: of("Threads:"),
        children: children.len(),
        zombies: zombies.len(),
        forgotten: forgotten(zombies),
    }
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may contain anything.
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with('Z'))
}

/// Returns the number of these that remain unreaped.
fn forgotten(mut zombies: Vec<u32>) -> usize {
    let until = Instant::now() + ZOMBIE_TIME;
    while !zombies.is_empty() && Instant::now() < until {
        thread::sleep(Duration::from_millis(100));
        zombies.retain(|pid| is_zombie(*pid));
    }
    zombies.len()
}

/// Returns the current threads of a process.
pub fn threads(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns the children of all threads.
fn children(pid: u32) -> Vec<u32> {
    let lists = threads(pid)
        .into_iter()
        .map(|thread| format!("/proc/{pid}/task/{thread}/children"));
    let lists: Vec<String> = lists
        .filter_map(|list| fs::read_to_string(list).ok())
        .collect();
    lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Returns the slope of a straight line through these points.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let over: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    over / points
        .iter()
        .map(|point| (point.0 - x).powi(2))
        .sum::<f64>()
}

fn median(mut values: Vec<u64>) -> f64 {
    values.sort_unstable();
    values[values.len() / 2] as f64
}

/// Prints the resources over time, and returns whether they were constant.
pub fn is_flat(samples: &[(f64, Sample)], end: Sample) -> bool {
    let at = |percent: usize| samples[(samples.len() - 1) * percent / 100].1;
    println!(
        "{:<12} {:>8} {:>10} {:>8} {:>8} {:>8} {:>8}",
        "after", "RSS, KiB", "anonymous", "files", "threads", "children", "zombies"
    );
    let row = |name: &str, sample: Sample| {
        let Sample {
            rss,
            anonymous,
            descriptors,
            threads,
            children,
            zombies,
            ..
        } = sample;
        println!(
            "{name:<12} {rss:>8} {anonymous:>10} {descriptors:>8} {threads:>8} {children:>8} {zombies:>8}"
        );
    };
    for (hours, sample) in samples
        .chunks(samples.len().div_ceil(ROWS))
        .map(|part| part[0])
        .chain(samples.last().copied())
    {
        row(&format!("{:.0} min", hours * 60.0), sample);
    }
    row("when quiet", end);
    let second_half = &samples[samples.len() / 2..];
    let points: Vec<(f64, f64)> = second_half
        .iter()
        .map(|(hours, sample)| (*hours, sample.rss as f64))
        .collect();
    let slope = slope(&points);
    let part = |from: usize, to: usize| {
        let count = samples.len();
        samples[count * from / 100..count * to / 100]
            .iter()
            .map(|(_, sample)| *sample)
            .collect::<Vec<Sample>>()
    };
    let rss = |from, to| median(part(from, to).iter().map(|sample| sample.rss).collect());
    let growth = rss(80, 100) - rss(50, 70);
    println!(
        "over the second half RSS grew by {slope:.0} KiB an hour; from 50..70 % to 80..100 % by {growth:.0} KiB"
    );
    // Turns start and end, so this compares maximums of a period.
    let most = |from, to, of: fn(&Sample) -> u64| part(from, to).iter().map(of).max().unwrap_or(0);
    let descriptors: fn(&Sample) -> u64 = |sample| sample.descriptors as u64;
    let threads: fn(&Sample) -> u64 = |sample| sample.threads;
    println!(
        "the most descriptors in the first and in the last fifth: {} and {}; threads: {} and {}",
        most(0, 20, descriptors),
        most(80, 100, descriptors),
        most(0, 20, threads),
        most(80, 100, threads)
    );
    let children: usize = samples.iter().map(|(_, sample)| sample.zombies).sum();
    let forgotten: usize = samples.iter().map(|(_, sample)| sample.forgotten).sum();
    println!(
        "{children} children had ended and were not waited for yet in {} looks, {forgotten} of them for {} s",
        samples.len(),
        ZOMBIE_TIME.as_secs()
    );
    let early = |of: fn(&Sample) -> u64| of(&at(10)).max(most(0, 20, of));
    let conditions = [
        (
            format!(
                "RSS grows by {slope:.0} KiB an hour, below {MOST_SLOPE}, or by {growth:.0} KiB, below {MOST_GROWTH}"
            ),
            slope < MOST_SLOPE || growth < MOST_GROWTH,
        ),
        (
            format!(
                "{} descriptors when quiet, at most {}",
                end.descriptors,
                early(descriptors)
            ),
            descriptors(&end) <= early(descriptors),
        ),
        (
            format!(
                "{} threads when quiet, at most {}",
                end.threads,
                early(threads)
            ),
            end.threads <= early(threads),
        ),
        (
            format!("{} children when quiet, at most 0", end.children),
            end.children == 0,
        ),
        (
            format!("{forgotten} children that nobody waits for, at most 0"),
            forgotten == 0,
        ),
    ];
    all_hold(&conditions)
}

/// Prints each condition with its figures, and returns whether all are met.
pub fn all_hold(conditions: &[(String, bool)]) -> bool {
    for (condition, holds) in conditions {
        println!("{}: {condition}", if *holds { "holds" } else { "FAILS" });
    }
    conditions.iter().all(|(_, holds)| *holds)
}
