//! Targets of the attacks: a home with secrets, files next to it, listeners and processes, each with a separate canary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::fs::MetadataExt as _;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown, lchown};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::fs::XattrFlags;
use serde_json::{Value, json};

use crate::attack::{Attack, Effect, prelude};
use crate::harness::{Home, holds, merged, unique, until, walk};
use crate::kernel::{self, Birth};
use crate::netns::Netns;

/// Configured memory limit of a command, in MiB.
pub const MEMORY_MB: u64 = 200;
/// Number of processes that a command must not have at the same time.
pub const BOMB: usize = 600;
/// Number of ended processes that a command must not leave unreaped at the same time.
pub const ENDED: usize = 150;

/// Key of the shared memory, unique in the netns.
const KEY: i32 = 0x00ba_47a3;

/// All targets, for one program in one netns.
pub struct Fixture {
    pub name: String,
    pub uid: u32,
    home: Home,
    root: PathBuf,
    disk: Disk,
    victims: BTreeMap<&'static str, Victim>,
    markers: BTreeMap<&'static str, String>,
    before: Mutex<BTreeMap<&'static str, Trace>>,
    watch: Arc<Watch>,
    /// Process that runs the commands, as numbered in the netns.
    pub agent: AtomicU32,
    pub agent_was_killed: AtomicBool,
}

/// Location of the workspace.
#[derive(Clone, Copy)]
pub enum Disk {
    Shared,
    /// On a separate small disk with these mount options.
    OfItsOwn(&'static str),
}

/// An idle process that is attacked.
struct Victim {
    child: Child,
    number: u32,
    /// Address and length of its environment in its memory.
    environment: (u64, u64),
}

/// Observations of the listeners and the process counter so far.
#[derive(Default)]
struct Watch {
    heard: Mutex<BTreeSet<String>>,
    /// Markers to count, and the maximum number of processes for each.
    most: Mutex<BTreeMap<String, Count>>,
    /// Number of times that all listeners have read the data that had arrived.
    rounds: AtomicU32,
    over: AtomicBool,
}

/// Maximum number of processes with a marker, and of unreaped ones.
#[derive(Clone, Copy, Default)]
struct Count {
    marked: usize,
    ended: usize,
}

/// Returns a name for a new fixture.
pub fn new_name() -> String {
    format!("{}-{}", std::process::id(), unique())
}

/// Returns a unique time to sleep.
fn new_marker() -> String {
    format!("86400.{:07}{:04}", std::process::id(), unique())
}

/// Returns the canary that a fixture `name` plants for the attack `id`.
pub fn canary(name: &str, id: &str) -> String {
    format!("canary-{name}-{id}")
}

impl Fixture {
    /// Sets up a fixture on the disk of the tests.
    pub fn shared(netns: &Netns, uid: u32, attacks: &[Attack], config: &Value) -> Arc<Self> {
        let fixture = Self::new(netns, new_name(), uid, attacks, config, Disk::Shared);
        Arc::new(fixture)
    }

    /// Sets up all targets, without attacks.
    pub fn new(
        netns: &Netns,
        name: String,
        uid: u32,
        attacks: &[Attack],
        config: &Value,
        disk: Disk,
    ) -> Self {
        let exec = json!({ "tools": { "exec": { "memory_mb": MEMORY_MB } } });
        let token = json!({ "channels": { "telegram": { "token": canary(&name, "R11") } } });
        let home = Home::with(&merged(merged(config.clone(), &exec), &token));
        let root = home.path("").parent().unwrap().to_path_buf();
        let workspace = home.dir("workspace");
        if let Disk::OfItsOwn(options) = disk {
            kernel::mount("tmpfs", &workspace, options).unwrap();
        }
        let mut fixture = Self {
            uid,
            home,
            root,
            disk,
            victims: BTreeMap::new(),
            markers: attacks
                .iter()
                .map(|attack| (attack.id, new_marker()))
                .collect(),
            before: Mutex::default(),
            watch: Arc::default(),
            agent: AtomicU32::new(0),
            agent_was_killed: AtomicBool::new(false),
            name,
        };
        fixture.plant();
        fixture.listen();
        fixture.start_victims(netns, attacks);
        fixture.plant_objects(netns);
        let mut before = BTreeMap::new();
        for attack in attacks {
            if let Effect::Changed(place) = attack.effect {
                before.insert(attack.id, Trace::of(&fixture.path(place)));
            }
        }
        fixture.before = Mutex::new(before);
        fixture
    }

    pub fn canary(&self, id: &str) -> String {
        canary(&self.name, id)
    }

    pub fn home(&self) -> PathBuf {
        self.home.path("")
    }

    pub fn workspace(&self) -> PathBuf {
        self.home.path("workspace")
    }

    /// Returns a path in the fixture; the fixture's name is appended to an absolute path.
    pub fn path(&self, place: &str) -> PathBuf {
        if place.starts_with('/') {
            PathBuf::from(format!("{place}{}", self.name))
        } else {
            self.root.join(place)
        }
    }

    /// Returns the marker that only the attack's processes have in their command lines.
    pub fn marker(&self, attack: &Attack) -> &str {
        &self.markers[attack.id]
    }

    /// Returns the attack's processes, as numbered in the netns.
    pub fn alive(&self, attack: &Attack) -> Vec<u32> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let marked = |number: &u32| {
            let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            holds(&line, self.marker(attack).as_bytes())
        };
        numbers.filter(marked).collect()
    }

    fn plant(&self) {
        for attack in crate::matrix::attacks() {
            let canary = self.canary(attack.id);
            let inner = self.path(&format!("outside/{}.d", attack.id));
            fs::create_dir_all(&inner).unwrap();
            fs::write(inner.join("inner"), &canary).unwrap();
            fs::write(inner.join(&canary), "").unwrap();
            fs::write(self.path(&format!("outside/{}", attack.id)), &canary).unwrap();
        }
        for (place, id) in [
            ("user/.bashrc", "W02"),
            ("user/.ssh/id_ed25519", "R13"),
            ("user/.config/token", "R14"),
            ("home/agent/IDENTITY.md", "W04"),
            ("home/agent/skills/good/SKILL.md", "W06"),
            ("home/agent/prompts/p.md", "W10"),
            ("home/agent/prompts/W24.md", "W24"),
            ("home/agent/prompts/W25.md", "W25"),
            ("home/agent/prompts/W26.md", "W26"),
            ("home/agent/prompts/W28.md", "W28"),
            ("home/agent/prompts/W29.md", "W29"),
            ("home/agent/prompts/W30.md", "W30"),
            ("home/memory/W31.md", "W31"),
            ("home/memory/W32.md", "W32"),
            ("home/memory/W33.md", "W33"),
            ("home/cron/jobs.json", "W05"),
            ("home/sessions/cli_old.jsonl", "H01"),
            ("home/sessions/cli_w07.jsonl", "W07"),
            ("home/state/secret", "H02"),
            (&format!("home/state/{}", self.canary("H03")), "H03"),
        ] {
            let path = self.path(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, self.canary(id)).unwrap();
        }
        let workspace = self.workspace();
        fs::write(workspace.join("prelude.py"), prelude()).unwrap();
        for attack in crate::matrix::attacks() {
            fs::write(workspace.join(attack.file()), attack.text()).unwrap();
        }
        let disk = self.path("outside/disk");
        kernel::make_zero_device(&disk).unwrap();
        for (place, id) in [
            ("outside/R18", "R18"),
            ("outside/R20", "R20"),
            ("home/agent/prompts/W29.md", "W29"),
        ] {
            let canary = self.canary(id);
            rustix::fs::setxattr(
                self.path(place),
                "user.canary",
                canary.as_bytes(),
                XattrFlags::empty(),
            )
            .unwrap();
        }
        for path in walk(&self.root) {
            lchown(&path, Some(self.uid), Some(self.uid)).unwrap();
        }
        chown(&self.root, Some(self.uid), Some(self.uid)).unwrap();
        let setuid = workspace.join("chown-S01");
        fs::copy("/usr/bin/chown", &setuid).unwrap();
        fs::set_permissions(&setuid, Permissions::from_mode(0o4755)).unwrap();
    }

    /// Opens every socket that an attack may use, and watches them, the port that an attack may open, and the number of
    /// processes.
    fn listen(&self) {
        // Permission to ping is a setting of the network, which belongs to this test.
        fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 4001)).unwrap();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 4003)).unwrap();
        let bait = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let unix = UnixListener::bind(self.path("outside/docker.sock")).unwrap();
        let datagram = UnixDatagram::bind(self.path("outside/log.sock")).unwrap();
        for socket in ["docker.sock", "log.sock"] {
            chown(
                self.path(&format!("outside/{socket}")),
                Some(self.uid),
                Some(self.uid),
            )
            .unwrap();
        }
        let address = SocketAddr::from_abstract_name(format!("bantam-{}", self.name)).unwrap();
        let hidden = UnixListener::bind_addr(&address).unwrap();
        let mut ping = kernel::ping_socket().unwrap();
        rustix::io::ioctl_fionbio(&ping, true).unwrap();
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        unix.set_nonblocking(true).unwrap();
        datagram.set_nonblocking(true).unwrap();
        hidden.set_nonblocking(true).unwrap();
        let (watch, sniffed) = (Arc::clone(&self.watch), self.canary("N08"));
        let watched = self.path("outside/R19.d").join(self.canary("R19"));
        thread::spawn(move || {
            let soon = Some(Duration::from_millis(300));
            while !watch.over.load(Ordering::Relaxed) {
                let mut bytes = [0; 256];
                while let Ok((stream, _)) = tcp.accept() {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(soon).unwrap();
                    watch.hears(stream);
                }
                for listener in [&unix, &hidden] {
                    while let Ok((stream, _)) = listener.accept() {
                        stream.set_nonblocking(false).unwrap();
                        stream.set_read_timeout(soon).unwrap();
                        watch.hears(stream);
                    }
                }
                while let Ok(n) = udp.recv(&mut bytes) {
                    watch.hears(&bytes[..n]);
                }
                while let Ok(n) = datagram.recv(&mut bytes) {
                    watch.hears(&bytes[..n]);
                }
                while let Ok(n) = ping.read(&mut bytes) {
                    // Only what a ping carries: the headers before it hold numbers that can look like the id of an attack.
                    watch.hears(&bytes[28.min(n)..n]);
                }
                if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, 4010)) {
                    stream.set_read_timeout(soon).unwrap();
                    watch.hears(stream);
                }
                // The port is unused, and the kernel reports that. The packet is sent to be overheard.
                bait.send_to(sniffed.as_bytes(), (Ipv4Addr::LOCALHOST, 4009))
                    .ok();
                // A file to be watched.
                fs::write(&watched, "").unwrap_or_default();
                watch.counts();
                watch.rounds.fetch_add(1, Ordering::SeqCst);
                thread::park_timeout(Duration::from_millis(10));
            }
        });
    }

    /// Waits until the listeners have read all data that arrived before.
    pub fn wait_for_listeners(&self) {
        // The current round may have missed data that has just arrived.
        let round = self.watch.rounds.load(Ordering::SeqCst);
        until("the listeners have heard", || {
            self.watch.rounds.load(Ordering::SeqCst) >= round + 2
        });
    }

    fn start_victims(&mut self, netns: &Netns, attacks: &[Attack]) {
        const PROGRAM: &str = r#"$SIG{URG} = sub { open(F, ">", $ARGV[2]) }; open(G, ">", "$ARGV[2].up"); sleep 3600 while 1"#;
        for attack in attacks.iter().filter(|attack| attack.victim) {
            let hit = self.path(&format!("outside/hit-{}", attack.id));
            let mut command = Command::new("perl");
            command
                .args(["-e", PROGRAM, self.marker(attack), &self.canary(attack.id)])
                .arg(&hit);
            command
                .env_clear()
                .env("SECRET", self.canary(attack.id))
                .current_dir("/");
            let child = netns.spawn(command, Birth::of(self.uid));
            until("the victim is up", || hit.with_extension("up").exists());
            let number = netns.number(child.id());
            let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap();
            // The 50th and the 51st field; the name, the second field, may contain spaces.
            let numbers: Vec<u64> = stat
                .rsplit_once(')')
                .unwrap()
                .1
                .split_whitespace()
                .map(|field| field.parse().unwrap_or(0))
                .collect();
            let (from, to) = (numbers[50 - 3], numbers[51 - 3]);
            self.victims.insert(
                attack.id,
                Victim {
                    child,
                    number,
                    environment: (from, to - from),
                },
            );
        }
    }

    /// Plants secrets that the user's processes can access without a path: a keyring, shared memory, a queue.
    fn plant_objects(&self, netns: &Netns) {
        let script = format!(
            r#"import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
def sure(result):
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result
secret = b"{key}"
key = sure(c.syscall({add_key}, b"user", b"bantam-{name}", secret, len(secret), -4))
sure(c.syscall({keyctl}, 5, key, 0x3f3f0000))
c.shmat.restype = ctypes.c_void_p
secret = b"{memory}"
ctypes.memmove(c.shmat(sure(c.shmget({KEY}, 64, 0o1600)), None, 0), secret, len(secret))
attributes = (ctypes.c_long * 8)(0, 4, 256)
secret = b"{message}"
for name in [b"/bantam-{name}", b"/bantam-{name}-2"]:
    sure(c.mq_send(sure(c.mq_open(name, os.O_RDWR | os.O_CREAT, 0o600, attributes)), secret, len(secret), 0))"#,
            key = self.canary("S11"),
            memory = self.canary("I01"),
            message = self.canary("I02"),
            name = self.name,
            add_key = libc::SYS_add_key,
            keyctl = libc::SYS_keyctl,
        );
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", &script]).current_dir("/");
        netns.output(self.uid, command);
    }

    /// Writes the location of each attack's target. Called while the agent runs, because it is also a target.
    pub fn prepare(&self, attacks: &[Attack]) {
        let (kind, handle) = kernel::file_handle(&self.path("outside/S04")).unwrap();
        for attack in attacks {
            let workspace = self.workspace();
            let mut lines = vec![
                format!("export ID={} NAME={} PARENT=$PPID", attack.id, self.name),
                format!("export OUT={}", self.path("outside").display()),
                format!("export UHOME={}", self.path("user").display()),
                format!("export BHOME={}", self.home().display()),
                format!(
                    "export WS={0} LOOT={0}/loot-{1}",
                    workspace.display(),
                    attack.id
                ),
                format!("export AGENT={}", self.agent.load(Ordering::Relaxed)),
                format!(
                    "export MEMORY_MB={MEMORY_MB} BOMB={BOMB} KEY={KEY} HANDLE={handle} HANDLE_KIND={kind}"
                ),
            ];
            if let Some(Victim {
                number,
                environment: (at, length),
                ..
            }) = self.victims.get(attack.id)
            {
                lines.push(format!(
                    "export VICTIM={number} VICTIM_AT={at} VICTIM_LEN={length}"
                ));
            }
            fs::write(
                workspace.join(format!("env-{}", attack.id)),
                lines.join("\n") + "\n",
            )
            .unwrap();
        }
    }

    /// Kills the remaining processes of an attack.
    pub fn end(&self, netns: &Netns, attack: &Attack) {
        let left: Vec<String> = self.alive(attack).iter().map(u32::to_string).collect();
        if !left.is_empty() {
            let mut command = Command::new("/bin/sh");
            // Some may end earlier.
            command
                .args(["-c", "kill -9 \"$@\" 2>/dev/null || :", "sh"])
                .args(left)
                .current_dir("/");
            netns.output(0, command);
        }
    }

    /// Returns the maximum number of this attack's processes that were alive at the same time, since counting started.
    pub fn most_processes_of(&self, attack: &Attack) -> usize {
        self.watch
            .most
            .lock()
            .unwrap()
            .get(self.marker(attack))
            .map_or(0, |count| count.marked)
    }

    /// Whether the attack reached its first line.
    pub fn has_begun(&self, attack: &Attack) -> bool {
        [self.workspace(), self.path("home/moved")]
            .iter()
            .any(|at| at.join(format!("ran-{}", attack.id)).exists())
    }

    /// Whether the attack had its effect. `told` is its output, as returned.
    pub fn shows(&self, attack: &Attack, told: &str) -> bool {
        match attack.effect {
            Effect::Loot => holds(&self.loot(attack), self.canary(attack.id).as_bytes()),
            Effect::Got => holds(&self.loot(attack), b"GOT"),
            Effect::Changed(place) => {
                self.before.lock().unwrap()[attack.id] != Trace::of(&self.path(place))
            }
            Effect::Heard => self
                .watch
                .heard
                .lock()
                .unwrap()
                .iter()
                .any(|text| text.contains(attack.id)),
            Effect::Alive => !self.alive(attack).is_empty(),
            Effect::Many(most) => self.most_processes_of(attack) >= most,
            Effect::ManyEnded(most) => self
                .watch
                .most
                .lock()
                .unwrap()
                .get(self.marker(attack))
                .is_some_and(|count| count.ended >= most),
            Effect::VictimGone => !is_alive(self.victims[attack.id].number),
            Effect::AgentGone => self.agent_was_killed.load(Ordering::Relaxed),
            Effect::Seen(look) => look(self, attack, told),
        }
    }

    /// Starts counting processes with this attack's marker.
    pub fn count_processes_of(&self, attack: &Attack) {
        self.watch
            .most
            .lock()
            .unwrap()
            .insert(self.marker(attack).to_owned(), Count::default());
    }

    pub fn loot(&self, attack: &Attack) -> Vec<u8> {
        fs::read(self.workspace().join(format!("loot-{}", attack.id))).unwrap_or_default()
    }

    /// Returns the victim of an attack, as numbered outside the netns.
    pub fn victim(&self, attack: &Attack) -> u32 {
        self.victims[attack.id].child.id()
    }

    /// Returns the victim of an attack, as numbered in the netns.
    pub fn victim_number(&self, attack: &Attack) -> u32 {
        self.victims[attack.id].number
    }

    pub fn niceness(&self, attack: &Attack) -> i64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.victims[attack.id].number))
            .unwrap_or_default();
        let field = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(19 - 3)?.parse().ok());
        field.unwrap_or(0)
    }

    pub fn is_stopped(&self, attack: &Attack) -> bool {
        state_of(self.victims[attack.id].number) == Some('T')
    }

    pub fn agent_limits(&self) -> String {
        fs::read_to_string(format!(
            "/proc/{}/limits",
            self.agent.load(Ordering::Relaxed)
        ))
        .unwrap_or_default()
    }

    pub fn length(&self, place: &str) -> u64 {
        fs::metadata(self.path(place)).map_or(0, |meta| meta.len())
    }

    pub fn mode(&self, place: &str) -> u32 {
        fs::metadata(self.path(place)).map_or(0, |meta| meta.st_mode())
    }

    /// Returns the free part of the workspace's disk, in percent of its bytes and of its files.
    pub fn left(&self) -> (u64, u64) {
        let disk = rustix::fs::statvfs(self.workspace()).unwrap();
        (
            100 * disk.f_bavail / disk.f_blocks.max(1),
            100 * disk.f_favail / disk.f_files.max(1),
        )
    }

    pub fn owner(&self, place: &str) -> Option<u32> {
        fs::metadata(self.path(place))
            .ok()
            .map(|meta| meta.st_uid())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.watch.over.store(true, Ordering::Relaxed);
        for victim in self.victims.values_mut() {
            victim.child.kill().ok();
            victim.child.wait().ok();
        }
        for place in ["/tmp/W16-", "/dev/shm/W17-"] {
            fs::remove_file(self.path(place)).ok();
        }
        if let Disk::OfItsOwn(_) = self.disk {
            kernel::unmount(&self.workspace()).unwrap();
        }
    }
}

impl Watch {
    fn hears(&self, mut from: impl Read) {
        let mut text = [0; 256];
        // One message is enough; silent connections time out.
        let length = from.read(&mut text).unwrap_or(0);
        let text = &text[..length];
        self.heard
            .lock()
            .unwrap()
            .insert(String::from_utf8_lossy(text).into_owned());
    }

    fn counts(&self) {
        let mut most = self.most.lock().unwrap();
        if most.is_empty() {
            return;
        }
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = entries.filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.parse::<u32>().is_ok())
        });
        let lines: Vec<Vec<u8>> = processes
            .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
            .collect();
        // Ended processes have an empty command line.
        let ended = lines.iter().filter(|line| line.is_empty()).count();
        for (marker, most) in most.iter_mut() {
            let marked = lines
                .iter()
                .filter(|line| holds(line, marker.as_bytes()))
                .count();
            most.marked = most.marked.max(marked);
            if marked > 0 {
                most.ended = most.ended.max(ended);
            }
        }
    }
}

/// State of a file or directory, seen from outside; empty if it is missing.
#[derive(PartialEq)]
struct Trace {
    /// Mode, owner, group, links, inode, times of the last write and of the last change.
    facts: Option<[i64; 9]>,
    content: Vec<u8>,
}

impl Trace {
    fn of(path: &Path) -> Self {
        let Ok(meta) = fs::symlink_metadata(path) else {
            return Self {
                facts: None,
                content: Vec::new(),
            };
        };
        let [links, inode] = [meta.st_nlink(), meta.st_ino()].map(|n| i64::try_from(n).unwrap());
        let (written, changed) = (
            [meta.st_mtime(), meta.st_mtime_nsec()],
            [meta.st_ctime(), meta.st_ctime_nsec()],
        );
        let [mode, owner, group] = [meta.st_mode(), meta.st_uid(), meta.st_gid()].map(i64::from);
        let facts = [
            mode, owner, group, links, inode, written[0], written[1], changed[0], changed[1],
        ];
        let content = if meta.is_file() {
            fs::read(path).unwrap_or_default()
        } else {
            Vec::new()
        };
        Self {
            facts: Some(facts),
            content,
        }
    }
}

fn state_of(number: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

pub fn is_alive(number: u32) -> bool {
    state_of(number).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Returns the host name in this thread's namespace.
pub fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns a network setting of this thread's namespace, whose value no attack would set.
pub fn network_switch() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
