//! Power cuts at any moment of a turn: output that the program has printed or sent is on the disk, and the conversation can be
//! continued.
//!
//! A kill loses no written data, because the kernel has it. So a turn is recorded, call by call, and the possible contents of a
//! disk at each call are computed: data written to a file since its last sync is present, missing, or cut at any byte, and any
//! changes to names in a directory since its last sync may be lost. The program's own loader loads each of these images.
//! `BANTAM_CUTS=all` cuts at every byte. Messages must be on the disk before they are confirmed to Telegram.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bantam::FileStore;
use bantam::{Agent, Demo};
use serde_json::{Value, json};

use crate::bot::{config, ends, start};
use crate::botapi::{BotApi, FIRST_UPDATE};
use crate::busy::busy;
use crate::harness::{Home, holds, merged, unique, walk};
use crate::model::{Model, Reply};
use crate::seccomp_trace::{Stop, Verdict, trace};
use crate::stored::{assert_single_result_per_call, segments};

/// Calls that change the disk, wait for it, or send output.
const CALLS: &[libc::c_long] = &[
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_sendto,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_ftruncate,
    libc::SYS_openat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];

/// Texts printed or sent in these turns, each in a separate message. None is a part of another, or of the fixed text in every
/// request.
const WORDS: [&str; 9] = [
    "question-0",
    "question-1",
    "I look first.",
    "call_a",
    "result-42",
    "call_c",
    "water the plants",
    "That is all.",
    "Questions were asked.",
];

/// A file or a directory as seen by the program: its number, and a file's content.
type Node = (u64, Option<Arc<[u8]>>);
type Image = BTreeMap<PathBuf, Node>;

/// A call, and the state before it.
struct Moment {
    image: Image,
    what: What,
}

enum What {
    Synced(PathBuf),
    /// Syncs everything in one call.
    AllSynced,
    Sent(Vec<u8>),
    Changed,
}

/// Reads all files in `home` except the workspace, which is not our record.
fn image(home: &Path) -> Image {
    let paths = walk(home)
        .into_iter()
        .filter(|path| !path.starts_with(home.join("workspace")));
    let node = |path: PathBuf| {
        let meta = path.symlink_metadata().ok()?;
        let bytes = meta
            .is_file()
            .then(|| fs::read(&path).ok())
            .flatten()
            .map(Arc::from);
        Some((
            path.strip_prefix(home).unwrap().to_owned(),
            (meta.ino(), bytes),
        ))
    };
    // The home itself exists, with its name.
    let itself = (PathBuf::new(), (home.metadata().unwrap().ino(), None));
    paths.filter_map(node).chain([itself]).collect()
}

fn what(stop: &Stop, home: &Path) -> Option<What> {
    let creates = |flags: u64| flags & u64::try_from(libc::O_CREAT | libc::O_TRUNC).unwrap() != 0;
    match stop.call {
        libc::SYS_sendto => Some(What::Sent(
            stop.bytes(stop.args[1], stop.args[2].try_into().unwrap()),
        )),
        libc::SYS_write if stop.args[0] == 1 => Some(What::Sent(
            stop.bytes(stop.args[1], stop.args[2].try_into().unwrap()),
        )),
        libc::SYS_fsync | libc::SYS_fdatasync => {
            let target = stop.target(0);
            Some(What::Synced(target.strip_prefix(home).ok()?.to_owned()))
        }
        libc::SYS_syncfs => Some(What::AllSynced),
        libc::SYS_openat if !creates(stop.args[2]) => None,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open if !creates(stop.args[1]) => None,
        libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64
            if !stop.target(0).starts_with(home) =>
        {
            None
        }
        _ => Some(What::Changed),
    }
}

/// Runs a turn and records each moment of it.
fn recorded(home: &Home, question: &str) -> Vec<Moment> {
    let root = home.path("");
    let root = fs::canonicalize(root).unwrap();
    let mut moments = vec![Moment {
        image: image(&root),
        what: What::Changed,
    }];
    let mut first = None;
    let run = trace(
        CALLS,
        || home.agent(["-m", question]),
        |stop| {
            let Some(program) = stop.program() else {
                return Verdict::GoOn;
            };
            if *first.get_or_insert(program) == program {
                moments.extend(what(stop, &root).map(|what| Moment {
                    image: image(&root),
                    what,
                }));
            }
            Verdict::GoOn
        },
    );
    run.answers("That is all.\n");
    moments.push(Moment {
        image: image(&root),
        what: What::Changed,
    });
    moments
}

/// Syncs of a recording that count. Without some of them, something must be lost; otherwise these tests detect nothing.
#[derive(Clone, Copy, PartialEq)]
enum Syncs {
    All,
    OfDirectories,
    OfFiles,
}

/// Where data added to a file is cut.
#[derive(Clone, Copy, PartialEq)]
enum Cuts {
    Some,
    All,
}

/// Certain and possible contents of a disk.
#[derive(Default)]
struct Disk {
    /// Numbers are reused for other files, so each file gets a unique number here.
    known: HashMap<u64, u64>,
    given: u64,
    seen: BTreeMap<PathBuf, u64>,
    names: BTreeMap<PathBuf, u64>,
    data: HashMap<u64, Arc<[u8]>>,
    /// Changes to names since their directory was synced; each may be applied or lost.
    pending: Vec<BTreeMap<PathBuf, Option<u64>>>,
    now: HashMap<u64, Arc<[u8]>>,
}

impl Disk {
    fn follow(&mut self, image: &Image) {
        let before: HashSet<u64> = self.seen.values().copied().collect();
        let mut seen = BTreeMap::new();
        let mut fresh = HashMap::new();
        for (path, (inode, bytes)) in image {
            let old = self
                .known
                .get(inode)
                .copied()
                .filter(|id| before.contains(id));
            let id = old.unwrap_or_else(|| {
                *fresh.entry(*inode).or_insert_with(|| {
                    self.given += 1;
                    self.given
                })
            });
            self.known.insert(*inode, id);
            seen.insert(path.clone(), id);
            if let Some(bytes) = bytes {
                self.now.insert(id, bytes.clone());
            }
        }
        let gone = self
            .seen
            .keys()
            .filter(|path| !seen.contains_key(*path))
            .map(|path| (path.clone(), None));
        let come = seen
            .iter()
            .filter(|(path, id)| self.seen.get(*path) != Some(id));
        let change: BTreeMap<PathBuf, Option<u64>> = gone
            .chain(come.map(|(path, id)| (path.clone(), Some(*id))))
            .collect();
        if !change.is_empty() {
            self.pending.push(change);
        }
        self.seen = seen;
    }

    fn all_is_there(&mut self) {
        self.names = self.seen.clone();
        self.data = self.now.clone();
        self.pending.clear();
    }

    fn synced(&mut self, path: &Path, syncs: Syncs) {
        let Some(id) = self.seen.get(path).copied() else {
            return;
        };
        if let Some(bytes) = self.now.get(&id) {
            if syncs != Syncs::OfDirectories {
                self.data.insert(id, bytes.clone());
            }
        } else if syncs != Syncs::OfFiles {
            let of_it = |change: &BTreeMap<PathBuf, _>| {
                change.keys().all(|name| name.parent() == Some(path))
            };
            let (done, left) = std::mem::take(&mut self.pending)
                .into_iter()
                .partition(of_it);
            self.pending = left;
            let done: Vec<BTreeMap<PathBuf, Option<u64>>> = done;
            for change in &done {
                apply(change, &mut self.names);
            }
        }
    }

    /// Returns every possible combination of names and contents in the sessions.
    fn may_hold(&self, cuts: Cuts) -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
        let sessions = |path: &Path| path.starts_with("sessions");
        let pending: Vec<_> = self
            .pending
            .iter()
            .filter(|change| change.keys().any(|path| sessions(path)))
            .collect();
        assert!(pending.len() <= 8, "{} names are unsettled", pending.len());
        let mut images = Vec::new();
        for chosen in 0..1_u32 << pending.len() {
            let mut names = self.names.clone();
            for (n, change) in pending.iter().enumerate() {
                if chosen & 1 << n != 0 {
                    apply(change, &mut names);
                }
            }
            let directory = names.contains_key(Path::new("sessions"));
            let mut these = vec![BTreeMap::new()];
            for (path, id) in names.iter().filter(|(path, _)| directory && sessions(path)) {
                let Some(now) = self.now.get(id) else {
                    continue;
                };
                let contents = contents(self.data.get(id).map_or(&[][..], |data| data), now, cuts);
                let with = |content: &Vec<u8>| {
                    let one = (path.clone(), content.clone());
                    these
                        .iter()
                        .map(move |image| image.clone().into_iter().chain([one.clone()]).collect())
                };
                these = contents.iter().flat_map(with).collect();
            }
            images.append(&mut these);
        }
        images
    }
}

fn apply(change: &BTreeMap<PathBuf, Option<u64>>, names: &mut BTreeMap<PathBuf, u64>) {
    for (path, id) in change {
        match id {
            Some(id) => names.insert(path.clone(), *id),
            None => names.remove(path),
        };
    }
}

/// Returns the possible contents of a file that had the content `old` at its last sync, and now has `now`.
fn contents(old: &[u8], now: &[u8], cuts: Cuts) -> Vec<Vec<u8>> {
    let Some(added) = now.strip_prefix(old).filter(|added| !added.is_empty()) else {
        return BTreeSet::from([old.to_vec(), now.to_vec()])
            .into_iter()
            .collect();
    };
    let step = if cuts == Cuts::All {
        1
    } else {
        added.len().div_ceil(4)
    };
    let at = (0..added.len())
        .step_by(step)
        .chain([1, added.len() - 1, added.len()]);
    let cut = |at: usize| now[..old.len() + at].to_vec();
    // The file has been extended, but not yet written.
    let blank = [old, &vec![0; added.len()]].concat();
    at.map(cut)
        .chain([blank])
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// Results of all images of a recording.
#[derive(Default)]
struct Found {
    images: usize,
    wrong: Vec<String>,
}

fn played(moments: &[Moment], syncs: Syncs) -> Found {
    let mut found = Found::default();
    let mut disk = Disk::default();
    let mut sent = Vec::new();
    let mut tried = HashSet::new();
    let all = syncs == Syncs::All && std::env::var("BANTAM_CUTS").is_ok_and(|n| n == "all");
    let cuts = if all { Cuts::All } else { Cuts::Some };
    for (n, Moment { image, what }) in moments.iter().enumerate() {
        disk.follow(image);
        if n == 0 {
            disk.all_is_there();
        }
        if let What::Sent(bytes) = what {
            sent.extend_from_slice(bytes);
        }
        let told: Vec<&str> = WORDS
            .into_iter()
            .filter(|word| holds(&sent, word.as_bytes()))
            .collect();
        for image in disk.may_hold(cuts) {
            if tried.insert((told.clone(), image.clone())) {
                found.images += 1;
                if let Err(e) = goes_on(&image, &told) {
                    let files: Vec<_> = image
                        .iter()
                        .map(|(path, bytes)| (path, bytes.len()))
                        .collect();
                    found
                        .wrong
                        .push(format!("moment {n} of {}: {e}: {files:?}", moments.len()));
                }
            }
        }
        match what {
            What::Synced(path) => disk.synced(path, syncs),
            What::AllSynced if syncs == Syncs::All => disk.all_is_there(),
            _ => {}
        }
    }
    let told = WORDS
        .iter()
        .filter(|word| holds(&sent, word.as_bytes()))
        .count();
    assert!(told >= 6, "only {told} things were told");
    found
}

/// Checks that an image loads, contains all printed texts, and retains appended lines.
fn goes_on(image: &BTreeMap<PathBuf, Vec<u8>>, told: &[&str]) -> Result<(), String> {
    const NEXT: &str = "And after the power cut?";
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "power-{}-{}",
        std::process::id(),
        unique()
    ));
    fs::create_dir_all(root.join("sessions")).unwrap();
    for (path, bytes) in image {
        fs::write(root.join(path), bytes).unwrap();
    }
    let agent = Agent::builder().provider(Demo);
    let agent = agent.store(FileStore::at(root.clone())).build().unwrap();
    let loaded = agent
        .session("cli_default")
        .map_err(|e| format!("it does not load: {}", e.message));
    let outcome = loaded.and_then(|session| {
        if let Some(damage) = session
            .damage
            .iter()
            .find(|damage| !damage.contains("cut short"))
        {
            return Err(format!("damage: {damage}"));
        }
        agent
            .set("cli_default", "next", NEXT)
            .map_err(|e| format!("nothing can be appended: {}", e.message))?;
        let all = segments(&root.join("sessions"), "cli_default")?;
        let live = &all["cli_default.jsonl"];
        assert_single_result_per_call(&live.history());
        let last = live.lines.last().map(Value::to_string);
        if !last.unwrap_or_default().contains(NEXT) {
            return Err("what was appended is lost".to_owned());
        }
        let text: String = all
            .values()
            .flat_map(|session| &session.lines)
            .map(Value::to_string)
            .collect();
        match told.iter().find(|word| !text.contains(*word)) {
            Some(word) => Err(format!("lost: {word}")),
            None => Ok(()),
        }
    });
    fs::remove_dir_all(root).unwrap();
    outcome
}

fn home(model: &Model, window: u64) -> Home {
    let extra = json!({ "model_list": [{ "context_window": window }], "tools": { "exec": { "sandbox": "off" } } });
    let home = Home::with(&merged(model.config(), &extra));
    home.write("workspace/notes.txt", "water the plants\n");
    home
}

/// Checks that nothing is lost, and that something would be lost without some of the syncs.
#[track_caller]
fn survives(moments: &[Moment]) {
    let found = played(moments, Syncs::All);
    println!("{} moments, {} images", moments.len(), found.images);
    assert!(
        found.wrong.is_empty(),
        "{} of {}:\n{}",
        found.wrong.len(),
        found.images,
        found.wrong.join("\n")
    );
    assert!(found.images > 50, "only {} images", found.images);
    for (syncs, what) in [
        (Syncs::OfDirectories, "files"),
        (Syncs::OfFiles, "directories"),
    ] {
        let lost = played(moments, syncs)
            .wrong
            .iter()
            .filter(|wrong| wrong.contains(": lost: "))
            .count();
        println!("{lost} images without the syncs of {what} have lost something");
        assert!(
            lost > 0,
            "without the syncs of {what} nothing is lost: this test sees nothing"
        );
    }
}

#[test]
fn power_cut_in_first_turn_loses_nothing() {
    let model = busy("echo result-$((40 + 2))", |_| "That is all.".to_owned());
    let home = home(&model, 100_000);
    survives(&recorded(&home, "question-1"));
}

#[test]
fn power_cut_during_renewal_loses_nothing() {
    let model = busy("echo result-$((40 + 2))", |_| "That is all.".to_owned());
    let home = home(&model, 5200);
    home.agent(["-m", &format!("question-0 {}", "words ".repeat(1500))])
        .exits(0);
    let moments = recorded(&home, "question-1");
    assert!(
        home.path("sessions/cli_default.1.jsonl").exists(),
        "a segment began"
    );
    survives(&moments);
}

/// Returns the offset of a poll, if a call sends one.
fn offset(stop: &Stop) -> Option<i64> {
    let sent = stop.bytes(stop.args[1], stop.args[2].try_into().unwrap());
    let sent = String::from_utf8_lossy(&sent);
    let (_, rest) = sent.split_once("\"offset\":")?;
    rest.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[test]
fn message_is_synced_before_telegram_confirmation() {
    let (model, api) = (
        Model::answering(|_, _| Reply::text("Yes.")),
        BotApi::start(),
    );
    let home = Home::with(&config(&model, &api));
    let inbox = fs::canonicalize(home.path(""))
        .unwrap()
        .join("state/queue.jsonl");
    let converse = || {
        let gateway = start(&home);
        for n in 1..=3 {
            api.text(42, "hi");
            api.wait_for_texts(42, n);
        }
        api.wait_for_confirmation();
        ends(gateway);
    };
    // Synced part of the inbox, and each update that Telegram may drop, with whether it is stored.
    let (mut synced, mut confirmed) = (String::new(), Vec::new());
    trace(
        &[libc::SYS_sendto, libc::SYS_fdatasync, libc::SYS_fsync],
        converse,
        |stop| {
            if stop.call == libc::SYS_sendto {
                let last = offset(stop).map(|offset| offset - 1);
                confirmed.extend(last.map(|last| {
                    (
                        last,
                        synced.contains(&format!("\"add\":\"telegram:123456:{last}\"")),
                    )
                }));
            } else if stop.target(0) == inbox {
                synced = fs::read_to_string(&inbox).unwrap();
            }
            Verdict::GoOn
        },
    );
    assert_eq!(confirmed, [0, 1, 2].map(|n| (FIRST_UPDATE + n, true)));
}
