//! Runs attacks: bare, as a naive agent would run what its model says, and through the real program.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::{Value, json};

use crate::arena::{self, Arena};
use crate::attack::{Attack, Effect, Who};
use crate::harness::merged;
use crate::kernel::{Birth, Questions, Rule, born};
use crate::model::{Call, Model, Reply, Request, call};
use crate::scene::{Disk, Scene, canary, new_name};

/// Where programs are looked for, bare and in the jail.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What came of an attack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stopped,
    Escaped,
    /// It did not even begin, so nothing is known.
    NotBegun,
}

/// What came of one attack, and what it printed.
#[derive(Clone, Debug)]
pub struct Result {
    pub outcome: Outcome,
    pub told: String,
}

pub type Results = BTreeMap<&'static str, Result>;

fn judged(scene: &Scene, attack: &Attack, told: &str) -> Result {
    let outcome = match (scene.shows(attack, told), scene.has_begun(attack)) {
        (true, _) => Outcome::Escaped,
        (false, true) => Outcome::Stopped,
        (false, false) => Outcome::NotBegun,
    };
    Result { outcome, told: told.to_owned() }
}

/// Runs all of them by a stand-in for an agent without any jail: keys in its environment, an open file and its own input
/// handed on, a shell for every command, a polite signal when the time is up.
pub fn bare(uid: u32, attacks: &[Attack], disk: Disk) -> Results {
    let name = new_name();
    arena::enter(uid, &canary(&name, "E03"), |arena| {
        let scene = Scene::new(arena, name.clone(), uid, attacks, &json!({}), disk);
        let possible = attacks.iter().filter(|attack| uid == 0 || attack.who == Who::Anybody);
        possible.map(|attack| (attack.id, bare_one(arena, &scene, attack))).collect()
    })
}

/// Waits until its gate is there, runs a command as its child, hands on a deadline as a polite signal, says when the
/// command is over, and waits to be ended.
const STAND_IN: &str = r#"
my ($command, $seconds, $done, $gate) = @ARGV;
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

fn bare_one(arena: &Arena, scene: &Scene, attack: &Attack) -> Result {
    let done = scene.path(&format!("outside/done-{}", attack.id));
    let gate = scene.path(&format!("outside/gate-{}", attack.id));
    let left_open = left_open(scene);
    let (output, printed) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let mut command = Command::new("perl");
    command
        .args(["-e", STAND_IN, &attack.command(scene.marker(attack)), &attack.seconds.to_string()])
        .args([&done, &gate]);
    command.env_clear().env("PATH", PATH).envs(agents_environment(scene)).current_dir(scene.workspace());
    fchown(&printed, Some(scene.uid), Some(scene.uid)).unwrap();
    command.stdin(Stdio::piped()).stdout(printed.try_clone().unwrap()).stderr(printed).process_group(0);
    born(&mut command, Birth { ninth: Some(left_open.as_raw_fd()), ..Birth::of(scene.uid) });
    let mut child = arena.spawn(command);
    scene.agent.store(arena.number(child.id()), Ordering::Relaxed);
    scene.prepare(std::slice::from_ref(attack));
    fs::write(gate, "").unwrap();
    let mut typing = child.stdin.take().unwrap();
    fchown(&typing, Some(scene.uid), Some(scene.uid)).unwrap();
    writeln!(typing, "{}", scene.canary(attack.id)).unwrap();
    let printed = Arc::new(Mutex::new(Vec::new()));
    collect(output, Arc::clone(&printed));
    if matches!(attack.effect, Effect::Many(_)) {
        scene.count_processes_of(attack);
    }
    let told = || String::from_utf8_lossy(&printed.lock().unwrap()).into_owned();
    let deadline = Instant::now() + Duration::from_secs(attack.seconds) + Duration::from_millis(500);
    while Instant::now() < deadline && !done.exists() && child.try_wait().unwrap().is_none() {
        thread::park_timeout(Duration::from_millis(2));
    }
    scene.agent_was_killed.store(was_killed(&mut child), Ordering::Relaxed);
    // What a listener hears, it hears a moment later.
    let patience = Instant::now() + Duration::from_millis(500);
    while Instant::now() < patience && !scene.shows(attack, &told()) {
        thread::park_timeout(Duration::from_millis(5));
    }
    let result = judged(scene, attack, &told());
    scene.end(arena, attack);
    let moved = scene.path("home/moved");
    if moved.exists() {
        fs::rename(moved, scene.workspace()).unwrap();
    }
    child.kill().ok();
    child.wait().unwrap();
    result
}

fn was_killed(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some_and(|status| status.signal() == Some(9))
}

/// What is in the environment of an agent that has its keys there.
fn agents_environment(scene: &Scene) -> [(&'static str, String); 3] {
    [
        ("OPENAI_API_KEY", scene.canary("E01")),
        ("TELEGRAM_BOT_TOKEN", scene.canary("E02")),
        ("HOME", scene.path("user").display().to_string()),
    ]
}

/// A file that the agent has open and that is no business of a command.
fn left_open(scene: &Scene) -> File {
    File::open(scene.path("outside/E05")).unwrap()
}

/// Reads until everybody has closed the other end, on a thread of its own.
fn collect(from: OwnedFd, into: Arc<Mutex<Vec<u8>>>) {
    thread::spawn(move || {
        let mut from = File::from(from);
        let mut piece = vec![0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            let mut into = into.lock().unwrap();
            // Enough is enough for a judgement, and reading on keeps whoever prints from waiting.
            if into.len() < 4 << 20 {
                into.extend_from_slice(&piece[..n]);
            }
        }
    });
}

/// What bantam runs on: who it is, and what the kernel keeps from it.
#[derive(Clone, Copy)]
pub struct Ground {
    pub uid: u32,
    /// Who owns the home and the workspace.
    pub owner: u32,
    pub rules: &'static [&'static [Rule]],
    /// The version of Landlock that it is told, where not the kernel's.
    pub landlock: Option<i64>,
}

/// What is left of a run of the program.
pub struct Fought {
    pub results: Results,
    pub status: Option<ExitStatus>,
    pub stderr: String,
}

/// How many commands the model asks for at once.
const AT_ONCE: usize = 20;

/// Runs all of them through the real program's `exec`, in one turn.
pub fn jailed(ground: Ground, attacks: &[Attack], config: &Value, disk: Disk) -> Fought {
    let name = new_name();
    arena::enter(ground.owner, &canary(&name, "E03"), |arena| {
        let (last, first): (Vec<Attack>, Vec<Attack>) = attacks.iter().copied().partition(|attack| attack.last);
        let mut batches: Vec<Vec<Attack>> = first.chunks(AT_ONCE).map(<[Attack]>::to_vec).collect();
        let judged_at = batches.len();
        batches.push(last.clone());
        batches.retain(|batch| !batch.is_empty());
        let slot: Arc<Mutex<Option<Arc<Scene>>>> = Arc::default();
        let results: Arc<Mutex<Results>> = Arc::default();
        let model = {
            let (slot, results, first) = (Arc::clone(&slot), Arc::clone(&results), first.clone());
            let all = attacks.to_vec();
            Model::answering(move |request, number| {
                let scene = slot.lock().unwrap().clone().unwrap();
                if number == 0 {
                    scene.prepare(&all);
                    all.iter()
                        .filter(|a| matches!(a.effect, Effect::Many(_)))
                        .for_each(|a| scene.count_processes_of(a));
                }
                if number == judged_at {
                    judge(&scene, &first, request, &results);
                }
                batches.get(number).map_or_else(|| Reply::text("Done."), |batch| asked(&scene, batch))
            })
        };
        let scene =
            Arc::new(Scene::new(arena, name.clone(), ground.owner, attacks, &merged(model.config(), config), disk));
        let mut slot = slot.lock().unwrap();
        let mut child = start(arena, &scene, ground);
        scene.agent.store(arena.number(child.id()), Ordering::Relaxed);
        *slot = Some(Arc::clone(&scene));
        drop(slot);
        let said: String = attacks.iter().map(|attack| scene.canary(attack.id) + "\n").collect();
        let mut typing = child.stdin.take().unwrap();
        fchown(&typing, Some(ground.uid), Some(ground.uid)).unwrap();
        typing.write_all(said.as_bytes()).unwrap();
        let (status, stderr) = ended(&mut child);
        drop(typing);
        scene.agent_was_killed.store(status.is_some_and(|status| status.signal() == Some(9)), Ordering::Relaxed);
        let requests = model.requests();
        let over = requests.last();
        let mut results = std::mem::take(&mut *results.lock().unwrap());
        for attack in last.iter().chain(&first) {
            let told = over.and_then(|request| told(request, attack)).unwrap_or_default();
            results.entry(attack.id).or_insert_with(|| judged(&scene, attack, &told));
        }
        Fought { results, status, stderr }
    })
}

/// Judges while the program waits for the model's next word: whatever a command started must be gone by now.
fn judge(scene: &Scene, attacks: &[Attack], request: &Request, results: &Mutex<Results>) {
    // What a listener hears, it hears a moment later.
    thread::park_timeout(Duration::from_millis(300));
    for attack in attacks {
        let result = judged(scene, attack, &told(request, attack).unwrap_or_default());
        results.lock().unwrap().insert(attack.id, result);
    }
}

fn asked(scene: &Scene, batch: &[Attack]) -> Reply {
    let one = |attack: &Attack| -> Call {
        let command = attack.command(scene.marker(attack));
        call(attack.id, "exec", &json!({ "command": command, "timeout": attack.seconds }))
    };
    Reply::calls(batch.iter().map(one))
}

/// The result of an attack's call, as the model was told.
fn told(request: &Request, attack: &Attack) -> Option<String> {
    let result = request.messages().into_iter().find(|message| message["tool_call_id"] == attack.id)?;
    Some(result["content"].as_str().unwrap_or_default().to_owned())
}

pub fn start(arena: &Arena, scene: &Scene, ground: Ground) -> Child {
    let left_open = left_open(scene);
    let mut command = Command::new(crate::program::program());
    command.args(["agent", "-n", "-m", "fight"]);
    command.env_clear().env("PATH", PATH).env("BANTAM_HOME", scene.home()).envs(agents_environment(scene));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.current_dir("/").process_group(0);
    let (uid, rules, ninth) = (ground.uid, ground.rules, Some(left_open.as_raw_fd()));
    born(&mut command, Birth { uid, rules, ninth, asks_for_landlock: ground.landlock.is_some() });
    let child = arena.spawn(command);
    if let Some(version) = ground.landlock {
        let questions = Questions::of(&child);
        thread::spawn(move || questions.answer(version));
    }
    child
}

/// Waits for the program's end and returns what it said on standard error.
pub fn ended(child: &mut Child) -> (Option<ExitStatus>, String) {
    let printed = [Arc::default(), Arc::default()];
    collect(child.stdout.take().unwrap().into(), Arc::clone(&printed[0]));
    collect(child.stderr.take().unwrap().into(), Arc::clone(&printed[1]));
    let deadline = Instant::now() + Duration::from_secs(240);
    while Instant::now() < deadline && child.try_wait().unwrap().is_none() {
        thread::park_timeout(Duration::from_millis(10));
    }
    let status = child.try_wait().unwrap();
    child.kill().ok();
    child.wait().unwrap();
    let stderr = String::from_utf8_lossy(&printed[1].lock().unwrap()).into_owned();
    (status, stderr)
}
