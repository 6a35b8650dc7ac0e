//! Runs attacks without a sandbox, like a naive agent, and through the real program.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::{Value, json};

use crate::attack::{Attack, Effect, Who};
use crate::fixture::{Disk, Fixture, canary, new_name};
use crate::harness::merged;
use crate::kernel::{Birth, Questions, Rule};
use crate::layers::PR_SET_CHILD_SUBREAPER;
use crate::model::{Call, Model, Reply, Request, call};
use crate::netns::{self, Netns};

/// Search path, with and without a sandbox.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Outcome of an attack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stopped,
    Escaped,
    /// The attack did not start, so the outcome is unknown.
    NotBegun,
}

/// Outcome of one attack, and its output.
#[derive(Clone, Debug)]
pub struct Result {
    pub outcome: Outcome,
    pub told: String,
}

pub type Results = BTreeMap<&'static str, Result>;

fn judged(fixture: &Fixture, attack: &Attack, told: &str) -> Result {
    let outcome = match (fixture.shows(attack, told), fixture.has_begun(attack)) {
        (true, _) => Outcome::Escaped,
        (false, true) => Outcome::Stopped,
        (false, false) => Outcome::NotBegun,
    };
    Result {
        outcome,
        told: told.to_owned(),
    }
}

/// Runs all attacks by a stand-in for an agent without a sandbox: keys in its environment, an open file and its own input
/// inherited, a shell for every command, SIGTERM when the time is up.
pub fn bare(uid: u32, attacks: &[Attack], disk: Disk) -> Results {
    let name = new_name();
    netns::enter(uid, &canary(&name, "E03"), |netns| {
        let fixture = Fixture::new(netns, name.clone(), uid, attacks, &json!({}), disk);
        let possible = attacks
            .iter()
            .filter(|attack| uid == 0 || attack.who == Who::Anybody);
        possible
            .map(|attack| (attack.id, bare_one(netns, &fixture, attack)))
            .collect()
    })
}

/// Adopts orphans of its command, waits for its gate, runs the command as its child, sends SIGTERM at a deadline, reports its
/// end, and waits to be killed.
/// command is over, and waits to be ended.
const STAND_IN: &str = r#"
my ($command, $seconds, $done, $gate, $prctl, $subreaper) = @ARGV;
syscall($prctl + 0, $subreaper + 0, 1, 0, 0, 0);
select(undef, undef, undef, .002) until -e $gate;
my $child = fork;
if (!$child) { exec "/bin/sh", "-c", $command }
$SIG{ALRM} = sub { kill 15, $child };
alarm $seconds;
my $r;
do { $r = waitpid($child, 0) } until $r == $child or $r == -1 and $! == 10;
open(D, ">", $done);
close(D);
sleep 3600 while 1;
"#;

fn bare_one(netns: &Netns, fixture: &Fixture, attack: &Attack) -> Result {
    let done = fixture.path(&format!("outside/done-{}", attack.id));
    let gate = fixture.path(&format!("outside/gate-{}", attack.id));
    let left_open = left_open(fixture);
    let (output, printed) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let mut command = Command::new("perl");
    command
        .args([
            "-e",
            STAND_IN,
            &attack.command(fixture.marker(attack)),
            &attack.seconds.to_string(),
        ])
        .args([&done, &gate])
        .args([
            libc::SYS_prctl.to_string(),
            PR_SET_CHILD_SUBREAPER.to_string(),
        ]);
    command
        .env_clear()
        .env("PATH", PATH)
        .envs(agents_environment(fixture))
        .current_dir(fixture.workspace());
    fchown(&printed, Some(fixture.uid), Some(fixture.uid)).unwrap();
    command
        .stdin(Stdio::piped())
        .stdout(printed.try_clone().unwrap())
        .stderr(printed)
        .process_group(0);
    let birth = Birth {
        ninth: Some(left_open.as_raw_fd()),
        ..Birth::of(fixture.uid)
    };
    let mut child = netns.spawn(command, birth);
    fixture
        .agent
        .store(netns.number(child.id()), Ordering::Relaxed);
    fixture.prepare(std::slice::from_ref(attack));
    let mut typing = child.stdin.take().unwrap();
    fchown(&typing, Some(fixture.uid), Some(fixture.uid)).unwrap();
    // Sent before the start, because on a busy machine the attack could end before it reads this.
    writeln!(typing, "{}", fixture.canary(attack.id)).unwrap();
    fs::write(gate, "").unwrap();
    let printed = Arc::new(Mutex::new(Vec::new()));
    collect(output, Arc::clone(&printed));
    if matches!(attack.effect, Effect::Many(_) | Effect::ManyEnded(_)) {
        fixture.count_processes_of(attack);
    }
    let told = || String::from_utf8_lossy(&printed.lock().unwrap()).into_owned();
    let deadline =
        Instant::now() + Duration::from_secs(attack.seconds) + Duration::from_millis(500);
    while Instant::now() < deadline && !done.exists() && child.try_wait().unwrap().is_none() {
        thread::park_timeout(Duration::from_millis(2));
    }
    fixture
        .agent_was_killed
        .store(was_killed(&mut child), Ordering::Relaxed);
    // Listeners receive data with a delay.
    let patience = Instant::now() + Duration::from_millis(500);
    while Instant::now() < patience && !fixture.shows(attack, &told()) {
        thread::park_timeout(Duration::from_millis(5));
    }
    let result = judged(fixture, attack, &told());
    fixture.end(netns, attack);
    let moved = fixture.path("home/moved");
    if moved.exists() {
        fs::rename(moved, fixture.workspace()).unwrap();
    }
    child.kill().ok();
    child.wait().unwrap();
    result
}

fn was_killed(child: &mut Child) -> bool {
    child
        .try_wait()
        .unwrap()
        .is_some_and(|status| status.signal() == Some(9))
}

/// Returns the environment of an agent that has its keys there.
fn agents_environment(fixture: &Fixture) -> [(&'static str, String); 3] {
    [
        ("OPENAI_API_KEY", fixture.canary("E01")),
        ("TELEGRAM_BOT_TOKEN", fixture.canary("E02")),
        ("HOME", fixture.path("user").display().to_string()),
    ]
}

/// Returns a file that the agent has open and commands must not use.
fn left_open(fixture: &Fixture) -> File {
    File::open(fixture.path("outside/E05")).unwrap()
}

/// Reads until all writers have closed the pipe, in a separate thread.
fn collect(from: OwnedFd, into: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = File::from(from);
        let mut piece = vec![0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            let mut into = into.lock().unwrap();
            // Stores enough for a judgment, and reads on so that writers do not block.
            if into.len() < 4 << 20 {
                into.extend_from_slice(&piece[..n]);
            }
        }
    })
}

/// Conditions of a run: the users, and the features withheld by the kernel.
#[derive(Clone, Copy)]
pub struct Ground {
    pub uid: u32,
    /// Owner of the home and the workspace.
    pub owner: u32,
    pub rules: &'static [&'static [Rule]],
    /// Reported version of Landlock, if not the kernel's.
    pub landlock: Option<i64>,
}

/// Results of a run of the program.
pub struct SandboxRun {
    pub results: Results,
    pub status: Option<ExitStatus>,
    pub stderr: String,
}

/// Number of commands per reply of the model.
const AT_ONCE: usize = 20;

/// Runs all attacks through the real program's `exec`, in one turn.
pub fn sandboxed(ground: Ground, attacks: &[Attack], config: &Value, disk: Disk) -> SandboxRun {
    let name = new_name();
    netns::enter(ground.owner, &canary(&name, "E03"), |netns| {
        let (last, first): (Vec<Attack>, Vec<Attack>) =
            attacks.iter().copied().partition(|attack| attack.last);
        let mut batches: Vec<Vec<Attack>> = first.chunks(AT_ONCE).map(<[Attack]>::to_vec).collect();
        let judged_at = batches.len();
        batches.push(last.clone());
        batches.retain(|batch| !batch.is_empty());
        let slot: Arc<Mutex<Option<Arc<Fixture>>>> = Arc::default();
        let results: Arc<Mutex<Results>> = Arc::default();
        let model = {
            let (slot, results, first) = (Arc::clone(&slot), Arc::clone(&results), first.clone());
            let all = attacks.to_vec();
            Model::answering(move |request, number| {
                let fixture = slot.lock().unwrap().clone().unwrap();
                if number == 0 {
                    fixture.prepare(&all);
                    all.iter()
                        .filter(|a| matches!(a.effect, Effect::Many(_) | Effect::ManyEnded(_)))
                        .for_each(|a| fixture.count_processes_of(a));
                }
                if number == judged_at {
                    judge(&fixture, &first, request, &results);
                }
                batches
                    .get(number)
                    .map_or_else(|| Reply::text("Done."), |batch| asked(&fixture, batch))
            })
        };
        let fixture = Arc::new(Fixture::new(
            netns,
            name.clone(),
            ground.owner,
            attacks,
            &merged(model.config(), config),
            disk,
        ));
        let mut slot = slot.lock().unwrap();
        let mut child = start(netns, &fixture, ground);
        fixture
            .agent
            .store(netns.number(child.id()), Ordering::Relaxed);
        *slot = Some(Arc::clone(&fixture));
        drop(slot);
        let said: String = attacks
            .iter()
            .map(|attack| fixture.canary(attack.id) + "\n")
            .collect();
        let mut typing = child.stdin.take().unwrap();
        fchown(&typing, Some(ground.uid), Some(ground.uid)).unwrap();
        typing.write_all(said.as_bytes()).unwrap();
        let (status, stderr) = ended(&mut child);
        drop(typing);
        fixture.agent_was_killed.store(
            status.is_some_and(|status| status.signal() == Some(9)),
            Ordering::Relaxed,
        );
        let requests = model.requests();
        let over = requests.last();
        let mut results = std::mem::take(&mut *results.lock().unwrap());
        for attack in last.iter().chain(&first) {
            let told = over
                .and_then(|request| told(request, attack))
                .unwrap_or_default();
            results
                .entry(attack.id)
                .or_insert_with(|| judged(&fixture, attack, &told));
        }
        SandboxRun {
            results,
            status,
            stderr,
        }
    })
}

/// Judges while the program waits for the model's next reply, when all processes of a command must have ended.
fn judge(fixture: &Fixture, attacks: &[Attack], request: &Request, results: &Mutex<Results>) {
    // Gives leftover processes a moment to act.
    thread::park_timeout(Duration::from_millis(300));
    fixture.wait_for_listeners();
    for attack in attacks {
        let result = judged(fixture, attack, &told(request, attack).unwrap_or_default());
        results.lock().unwrap().insert(attack.id, result);
    }
}

fn asked(fixture: &Fixture, batch: &[Attack]) -> Reply {
    let one = |attack: &Attack| -> Call {
        let command = attack.command(fixture.marker(attack));
        call(
            attack.id,
            "exec",
            &json!({ "command": command, "timeout": attack.seconds }),
        )
    };
    Reply::calls(batch.iter().map(one))
}

/// Returns the result of an attack's call, as sent to the model.
fn told(request: &Request, attack: &Attack) -> Option<String> {
    let result = request
        .messages()
        .into_iter()
        .find(|message| message["tool_call_id"] == attack.id)?;
    Some(result["content"].as_str().unwrap_or_default().to_owned())
}

pub fn start(netns: &Netns, fixture: &Fixture, ground: Ground) -> Child {
    let left_open = left_open(fixture);
    let mut command = Command::new(crate::program::program());
    command.args(["agent", "-n", "-m", "go on"]);
    command
        .env_clear()
        .env("PATH", PATH)
        .env("BANTAM_HOME", fixture.home())
        .envs(agents_environment(fixture));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.current_dir("/").process_group(0);
    let (uid, rules, ninth) = (ground.uid, ground.rules, Some(left_open.as_raw_fd()));
    let child = netns.spawn(
        command,
        Birth {
            uid,
            rules,
            ninth,
            asks_for_landlock: ground.landlock.is_some(),
        },
    );
    if let Some(version) = ground.landlock {
        let questions = Questions::of(&child);
        thread::spawn(move || questions.map(|questions| questions.answer(version)));
    }
    child
}

/// Waits for the program's end, and returns its standard error.
pub fn ended(child: &mut Child) -> (Option<ExitStatus>, String) {
    let printed = [Arc::default(), Arc::default()];
    collect(child.stdout.take().unwrap().into(), Arc::clone(&printed[0]));
    let said = collect(child.stderr.take().unwrap().into(), Arc::clone(&printed[1]));
    let deadline = Instant::now() + Duration::from_secs(240);
    while Instant::now() < deadline && child.try_wait().unwrap().is_none() {
        thread::park_timeout(Duration::from_millis(10));
    }
    let status = child.try_wait().unwrap();
    child.kill().ok();
    child.wait().unwrap();
    // The last output may still arrive; leftover processes may have the pipe open.
    let patience = Instant::now() + Duration::from_secs(10);
    while Instant::now() < patience && !said.is_finished() {
        thread::park_timeout(Duration::from_millis(5));
    }
    let mut stderr = String::from_utf8_lossy(&printed[1].lock().unwrap()).into_owned();
    if !said.is_finished() {
        stderr.push_str("[something still holds standard error]");
    }
    (status, stderr)
}
