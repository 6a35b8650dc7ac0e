//! Random system calls in the sandbox change nothing outside, and end in time.
//!
//! A run is one command that makes some hundred calls, with numbers and arguments derived from a seed. A few runs are always
//! made in each confinement; `BANTAM_FUZZ=1000` makes 1000, which takes about an hour.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use rustix::process::getpriority_process;
use serde_json::json;

use crate::attack::Attack;
use crate::fixture::{Fixture, is_alive};
use crate::harness::{has_all, has_none, walk};
use crate::matrix::{attacks, ground};
use crate::model::call;
use crate::refusal::told;
use crate::runner::Ground;

/// Default number of runs, and the first seed.
const RUNS: u64 = 6;
const FIRST_SEED: u64 = 2026;

/// Number of calls in a run, unless one of them ends it.
const CALLS: u32 = 300;

/// Returns an attack whose victim must remain unharmed.
fn bystander() -> Attack {
    attacks()
        .into_iter()
        .find(|attack| attack.id == "P15")
        .unwrap()
}

/// Calls that must be refused before random calls are made. Each would have no effect even if it were allowed: a restart with
/// wrong magic numbers, and signal 0.
const SINGLE_CALLS: &str = r#"
def refused(number, *args):
    result = libc.syscall(number, *args)
    assert result == -1 and ctypes.get_errno() in (1, 3, 30, 38), (number, args, result, os.strerror(ctypes.get_errno()))
refused(N["reboot"], 0, 0, 0, 0)
refused(N["mount"], 0, 0, 0, 0, 0)
refused(N["unshare"], 0)
refused(N["init_module"], 0, 0, 0)
refused(N["kexec_load"], 0, 0, 0, 0)
# The mode that it has. A user owns no device, and root must not own it here.
null = os.open("/dev/null", os.O_RDONLY)
refused(N["fchmod"], null, os.fstat(null).st_mode & 0o777)
# In a namespace of processes these numbers are nobody's, or the command's own.
if int(E["PARENT"]) > 1:
    for pid in [int(E["VICTIM"]), int(E["AGENT"]), int(E["PARENT"])]:
        refused(N["kill"], pid, 0)
        refused(N["tgkill"], pid, pid, 0)
print("all-" + "denied")
"#;

/// Makes calls in a child, so that the shell can still report that it reached its end.
const FUZZER: &str = r#"
import random, shutil
# A folder of its own: one that it makes unusable ends no other run.
os.mkdir("run-" + sys.argv[1])
shutil.copyfile("prelude.py", "run-" + sys.argv[1] + "/prelude.py")
os.chdir("run-" + sys.argv[1])
# What it has done so far, in memory that is a file: no random call closes or empties it.
with open("calls", "wb+") as file:
    file.truncate(4096)
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(4096), 3, 1, file.fileno(), ctypes.c_long(0))
calls = ctypes.c_uint32.from_address(at)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
random.seed(int(sys.argv[1]))
signal.alarm(1)
room = ctypes.create_string_buffer(random.randbytes(1 << 16), 1 << 16)
at = ctypes.addressof(room)
places = [OUT + "/R01", OUT, E["BHOME"] + "/config.json", E["BHOME"] + "/agent/IDENTITY.md", E["UHOME"] + "/.bashrc", "/tmp/x",
          ".", "fuzzed", "/proc/self/mem", OUT + "/docker.sock", "../../../outside/R02"]
texts = [ctypes.create_string_buffer(place.encode()) for place in places]
descriptors = [os.open(place, os.O_RDONLY) for place in [".", "prelude.py", E["BHOME"] + "/agent"]] + list(os.pipe())
def argument():
    return random.choice([
        lambda: random.randrange(8), lambda: random.choice([-1, -100, 1 << 31, 1 << 32, (1 << 63) - 1, 4096, 0o777]),
        lambda: at + random.randrange(1 << 15), lambda: ctypes.addressof(random.choice(texts)),
        lambda: random.choice(descriptors), lambda: random.getrandbits(64),
        lambda: int(random.choice([E["VICTIM"], E["AGENT"], E["PARENT"], "1", "-1", str(os.getpid())])),
    ])()
for _ in range(int(sys.argv[2])):
    number = random.choice([random.randrange(500), random.randrange(335)])
    # The end of the fuzzer itself, and sleep, say nothing.
    if number not in QUIET:
        calls.value += 1
        libc.syscall(number, *[ctypes.c_long(argument()) for _ in range(6)])
"#;

fn file(fixture: &Fixture, name: &str, text: &str) {
    let numbers = [
        ("reboot", libc::SYS_reboot),
        ("mount", libc::SYS_mount),
        ("unshare", libc::SYS_unshare),
        ("init_module", libc::SYS_init_module),
        ("kexec_load", libc::SYS_kexec_load),
        ("kill", libc::SYS_kill),
        ("tgkill", libc::SYS_tgkill),
        ("fchmod", libc::SYS_fchmod),
    ];
    let quiet = [
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigsuspend,
        libc::SYS_execve,
        libc::SYS_munmap,
        libc::SYS_brk,
    ];
    let numbers: BTreeMap<_, _> = numbers.into();
    let text = format!(
        "from prelude import *\nN = {}\nQUIET = {quiet:?}\n{text}",
        json!(numbers)
    );
    fs::write(fixture.workspace().join(name), text).unwrap();
}

/// Returns the number of calls that the run with this seed made.
fn calls_made(fixture: &Fixture, seed: &str) -> u32 {
    let counter =
        fs::read(fixture.workspace().join(format!("run-{seed}/calls"))).unwrap_or_default();
    counter
        .first_chunk()
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Returns everything outside the workspace that only an attacker would change, with its content, mode, owner and times.
fn outside(fixture: &Fixture) -> BTreeMap<PathBuf, String> {
    let places = [
        "outside",
        "user",
        "home/agent",
        "home/config.json",
        "home/cron/jobs.json",
        "home/state/secret",
    ];
    let files = places
        .iter()
        .flat_map(|place| [vec![fixture.path(place)], walk(&fixture.path(place))].concat());
    let trace = |path: PathBuf| {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_file() {
            fs::read(&path).unwrap_or_default()
        } else {
            Vec::new()
        };
        // Users may change modes and times of their files that a command may read, and using devices changes them.
        let modified = path
            .starts_with(fixture.path("outside"))
            .then(|| meta.modified());
        let mode = (!path.starts_with(fixture.path("home"))).then(|| meta.permissions());
        let seen = format!("{mode:?} {modified:?} {content:?}");
        (path, seen)
    };
    let system = ["/", "/usr", "/usr/bin", "/dev", "/dev/null", "/dev/zero"].map(PathBuf::from);
    // The fixture itself writes these files repeatedly.
    files
        .chain(system)
        .filter(|path| !path.starts_with(fixture.path("outside/R19.d")))
        .map(trace)
        .collect()
}

fn check_outside_unchanged(ground: Ground) {
    let runs = std::env::var("BANTAM_FUZZ").map_or(RUNS, |runs| runs.parse().unwrap());
    let seeds: Vec<u64> = (FIRST_SEED..FIRST_SEED + runs).collect();
    // A turn limits its calls, and the harness limits its time.
    for (n, seeds) in seeds.chunks(30).enumerate() {
        let seeds = seeds.to_vec();
        let ask = move |fixture: &Fixture, _: &[String]| {
            fixture.prepare(&[bystander()]);
            let command = |script: &str| json!({ "command": format!(". ./env-P15; python3 {script}; echo over"), "timeout": 60 });
            let mut calls = vec![call("single", "exec", &command("single.py"))];
            calls.extend(seeds.iter().map(|seed| {
                call(
                    &seed.to_string(),
                    "exec",
                    &command(&format!("fuzz.py {seed} {CALLS}")),
                )
            }));
            calls
        };
        let before = std::sync::Mutex::new(BTreeMap::new());
        let set = |fixture: &Fixture| {
            file(fixture, "single.py", SINGLE_CALLS);
            file(fixture, "fuzz.py", FUZZER);
            *before.lock().unwrap() = outside(fixture);
        };
        told(ground, &json!({}), set, ask, |fixture, results| {
            let single = &results[0].1;
            has_all(single, ["all-denied"]);
            has_none(single, ["Traceback"]);
            for (seed, told) in &results[1..] {
                // It may kill itself and its processes, but not the worker. A run that cancels its own alarm ends at the
                // time limit of the command.
                assert!(!told.contains("worker process"), "seed {seed}: {told}");
            }
            let seeds = &results[1..];
            let made: Vec<u32> = seeds
                .iter()
                .map(|(seed, _)| calls_made(fixture, seed))
                .collect();
            let enough = u32::try_from(seeds.len()).unwrap() * CALLS / 10;
            assert!(
                !made.contains(&0) && made.iter().sum::<u32>() > enough,
                "{made:?} calls of {seeds:?}"
            );
            let (before, after) = (before.lock().unwrap(), outside(fixture));
            let changed: Vec<_> = after
                .iter()
                .filter(|(path, seen)| before.get(*path) != Some(seen))
                .collect();
            assert!(
                changed.is_empty() && before.len() == after.len(),
                "chunk {n}: {changed:.500?}"
            );
            let victim = bystander();
            // Unchanged from this process.
            let niceness = getpriority_process(None).unwrap();
            assert_eq!(fixture.niceness(&victim), i64::from(niceness), "chunk {n}");
            assert!(
                is_alive(fixture.victim_number(&victim)) && !fixture.is_stopped(&victim),
                "chunk {n}"
            );
        });
    }
}

fn on(column: usize) {
    check_outside_unchanged(ground(column));
}

#[test]
fn random_syscalls_by_root_with_both_fail() {
    on(0);
}

#[test]
fn random_calls_of_root_for_a_user() {
    on(1);
}

#[test]
fn random_calls_of_a_user_with_namespaces_only() {
    on(2);
}

#[test]
fn random_calls_of_a_user_with_landlock_only() {
    on(3);
}

#[test]
fn random_calls_of_a_user_with_both() {
    on(4);
}

#[test]
fn random_calls_of_a_user_with_an_older_landlock() {
    on(5);
}

#[test]
fn random_calls_of_root_with_landlock_only() {
    on(6);
}
