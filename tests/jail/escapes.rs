//! Attacks on targets other than files: the network, processes, the machine's resources, and the kernel.

use crate::attack::Effect::{
    AgentGone, Alive, Changed, Got, Heard, Loot, Many, ManyEnded, Seen, VictimGone,
};
use crate::attack::{Attack, python, sh};
use crate::fixture::{BOMB, ENDED};
use crate::kernel::{ALIAS, io_priority};

pub const NETWORK: &[Attack] = &[
    python(
        "N01",
        "TCP to a local service",
        Heard,
        r#"socket.create_connection(("127.0.0.1", 4001), 1).sendall(b"N01")"#,
    ),
    sh(
        "N02",
        "TCP by bash's /dev/tcp",
        Heard,
        "bash -c 'printf N02 >/dev/tcp/127.0.0.1/4001'",
    ),
    python(
        "N03",
        "UDP",
        Heard,
        r#"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"N03", ("127.0.0.1", 4003))"#,
    ),
    python(
        "N04",
        "MPTCP",
        Heard,
        r#"
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
s.settimeout(1)
s.connect(("127.0.0.1", 4001))
s.sendall(b"N04")
"#,
    ),
    python(
        "N05",
        "TCP Fast Open",
        Heard,
        r#"
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
s.sendto(b"N05", 0x20000000, ("127.0.0.1", 4001))
"#,
    ),
    python(
        "N06",
        "a unix socket (docker, D-Bus)",
        Heard,
        r#"
s = socket.socket(socket.AF_UNIX)
s.connect(OUT + "/docker.sock")
s.sendall(b"N06")
"#,
    ),
    python(
        "N07",
        "an abstract unix socket",
        Heard,
        r#"
s = socket.socket(socket.AF_UNIX)
s.connect(b"\0bantam-" + E["NAME"].encode())
s.sendall(b"N07")
"#,
    ),
    python(
        "N08",
        "sniff the network",
        Loot,
        r#"
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.settimeout(1)
until = time.time() + 1
while time.time() < until:
    seen = s.recv(2048)
    if b"canary" in seen:
        loot(seen)
        break
"#,
    )
    .root_only(),
    python(
        "N09",
        "netlink: the host's addresses",
        Seen(|fixture, attack, _| {
            fixture
                .loot(attack)
                .windows(4)
                .any(|window| window == ALIAS)
        }),
        r#"
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
s.settimeout(1)
s.sendall(struct.pack("=IHHIIBBBBi", 24, 22, 0x301, 1, 0, socket.AF_INET, 0, 0, 0, 0))
loot(s.recv(65536))
"#,
    ),
    python(
        "N10",
        "listen on a TCP port",
        Heard,
        r#"
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", 4010))
s.listen()
s.settimeout(1)
s.accept()[0].sendall(b"N10")
"#,
    ),
    python(
        "N11",
        "ICMP",
        Heard,
        r#"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
s.sendto(struct.pack("!BBHHH", 8, 0, 0, 1, 1) + b"N11", ("127.0.0.1", 0))
"#,
    ),
    python(
        "N12",
        "datagram to a unix socket",
        Heard,
        r#"socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"N12", OUT + "/log.sock")"#,
    ),
    python(
        "N13",
        "datagram to a unix socket from one of a pair",
        Heard,
        r#"
one = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
# AF_UNSPEC: from now on it belongs to no pair.
checked(libc.connect(one.fileno(), ctypes.create_string_buffer(16), 16), "connect")
one.sendto(b"N13", OUT + "/log.sock")
"#,
    ),
];

pub const PROCESSES: &[Attack] = &[
    sh("P01", "kill the agent", AgentGone, "kill -9 $AGENT").at_the_end(),
    python("P02", "signal every process there is", Changed("outside/hit-P02"), "os.kill(-1, signal.SIGURG); time.sleep(.2)")
        .with_victim(),
    python(
        "P03",
        "ptrace another process",
        VictimGone,
        // Seized with EXITKILL, it dies with its tracer.
        r#"
checked(libc.ptrace(0x4206, int(E["VICTIM"]), None, 0x100000), "seize")
"#,
    )
    .with_victim(),
    python(
        "P04",
        "process_vm_readv",
        Loot,
        r#"
size = int(E["VICTIM_LEN"])
here = ctypes.create_string_buffer(size)
local = (ctypes.c_size_t * 2)(ctypes.addressof(here), size)
remote = (ctypes.c_size_t * 2)(int(E["VICTIM_AT"]), size)
call("process_vm_readv", ctypes.c_long(int(E["VICTIM"])), local, ctypes.c_ulong(1), remote, ctypes.c_ulong(1), ctypes.c_ulong(0))
loot(here.raw)
"#,
    )
    .with_victim(),
    sh("P05", "a daemon that forked twice", Alive, r#"( setsid sh -c 'sleep "$0" </dev/null >/dev/null 2>&1 & exit 0' "$1" & )"#),
    sh("P06", "a child that holds the pipe", Alive, r#"sleep "$1" & exit 0"#),
    sh("P07", "ignores every polite signal", Alive, r#"trap '' HUP INT TERM; sleep "$1"; sleep "$1""#).for_seconds(1),
    python("P08", "renice another process", Seen(|fixture, attack, _| fixture.niceness(attack) == 19), r#"os.setpriority(os.PRIO_PROCESS, int(E["VICTIM"]), 19)"#)
        .with_victim(),
    python(
        "P09",
        "set the agent's limits",
        Seen(|fixture, _, _| fixture.agent_limits().lines().any(|line| line.starts_with("Max open files") && line.contains(" 777 "))),
        r#"
pid = int(E["AGENT"])
resource.prlimit(pid, resource.RLIMIT_NOFILE, (777, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
"#,
    ),
    python(
        "P10",
        "another's I/O priority",
        Seen(|fixture, attack, _| io_priority(fixture.victim(attack)) == (3 << 13)),
        r#"call("ioprio_set", 1, int(E["VICTIM"]), 3 << 13)"#,
    )
    .with_victim(),
    sh("P11", "nohup", Alive, r#"nohup sleep "$1" >/dev/null 2>&1 &"#),
    sh("P12", "a stopped process", Alive, r#"sleep "$1" & kill -STOP $!"#),
    sh("P13", "stops itself", Alive, r#"sleep "$1" & kill -STOP $$"#).for_seconds(1),
    python("P14", "stops its parent", Alive, r#"
if os.fork() == 0:
    os.kill(int(E["PARENT"]), signal.SIGSTOP)
    time.sleep(600)
"#).for_seconds(2),
    sh("P15", "stop another process", Seen(|fixture, attack, _| fixture.is_stopped(attack)), "kill -STOP $VICTIM").with_victim(),
    sh(
        "P16",
        "kill what would end the daemon",
        Alive,
        r#"( setsid sleep "$1" </dev/null >/dev/null 2>&1 & ); kill -9 "$PARENT""#,
    ),
    python(
        "P17",
        "forge the answer in its parent's pipe",
        // The attack succeeds if the genuine output is missing, or forged output is added.
        Seen(|_, _, told| told.contains("forged-P17") || !told.contains("honest-P17")),
        r#"
pid = E["PARENT"]
for pipe in [f"/proc/{pid}/fd/1", f"/proc/{pid}/task/{pid}/fd/1"]:
    try:
        with open(pipe, "wb") as f:
            f.write(b"forged-P17")
        break
    except OSError as error:
        print(error)
print("honest-P17")
"#,
    ),
    python("P19", "renice every process of its user", Seen(|fixture, attack, _| fixture.niceness(attack) == 18), "os.setpriority(os.PRIO_USER, 0, 18)")
        .with_victim()
        .at_the_end(),
    python("P24", "the I/O priority of every process of its user", Seen(|fixture, attack, _| io_priority(fixture.victim(attack)) == (2 << 13 | 7)), r#"call("ioprio_set", 3, os.getuid(), 2 << 13 | 7)"#)
        .with_victim()
        .at_the_end(),
    python(
        "P23",
        "have the kernel signal another process about a pipe",
        // SIGIO ends a process without a handler.
        VictimGone,
        r#"
import fcntl
reader, writer = os.pipe()
fcntl.fcntl(reader, fcntl.F_SETOWN, int(E["VICTIM"]))
fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
os.write(writer, b"x")
time.sleep(.2)
"#,
    )
    .with_victim(),
    python(
        "P21",
        "stops the process group of its parent",
        Alive,
        r#"
import subprocess
subprocess.Popen(["sleep", sys.argv[1]], start_new_session=True)
if os.fork() == 0:
    os.setpgid(0, os.getpgid(int(E["PARENT"])))
    os.kill(0, signal.SIGSTOP)
time.sleep(600)
"#,
    )
    .for_seconds(2),
    python(
        "P22",
        "chains of processes, each of which starts the next and ends",
        Alive,
        r"
until = time.time() + 20
for _ in range(30):
    if os.fork() == 0:
        while time.time() < until:
            try:
                if os.fork() != 0:
                    os._exit(0)
            except OSError:
                pass
        os._exit(0)
time.sleep(600)
",
    )
    .for_seconds(2),
    python("P18", "run ahead of everybody", Got, "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); got()").root_only(),
    python(
        "I01",
        "shared memory of another process",
        Loot,
        r#"
libc.shmat.restype = ctypes.c_void_p
at = libc.shmat(checked(libc.shmget(int(E["KEY"]), 0, 0), "shmget"), None, 0o10000)
loot(ctypes.string_at(at, 64))
"#,
    ),
    python(
        "I02",
        "message queue of another process",
        Loot,
        r#"
queue = checked(libc.mq_open(b"/bantam-" + E["NAME"].encode(), os.O_RDONLY | os.O_NONBLOCK), "mq_open")
room = ctypes.create_string_buffer(256)
checked(libc.mq_receive(queue, room, 256, None), "mq_receive")
loot(room.raw)
"#,
    ),
    python(
        "I03",
        "delete the message queue of another process",
        Got,
        r#"
checked(libc.mq_unlink(b"/bantam-" + E["NAME"].encode() + b"-2"), "mq_unlink")
got()
"#,
    ),
];

pub const RESOURCES: &[Attack] = &[
    python(
        "D16",
        "take a disk's space without writing, in no time",
        Got,
        r#"
checked(libc.fallocate(os.open("big-D16", os.O_WRONLY | os.O_CREAT), 0, ctypes.c_long(0), ctypes.c_long(1 << 20)), "fallocate")
got()
"#,
    ),
    python(
        "D17",
        "take a disk's space without writing, by ioctl",
        Got,
        r#"
import fcntl
# FS_IOC_RESVSP64, as XFS has it and the kernel for all file systems.
room = struct.pack("=hhxxxxqqiI16x", 0, 0, 0, 1 << 20, 0, 0)
fcntl.ioctl(os.open("big-D17", os.O_WRONLY | os.O_CREAT), 0x4030582A, room)
got()
"#,
    ),
    python(
        "D18",
        "hold the numbers of processes that have ended",
        ManyEnded(ENDED),
        r"
for n in range(200):
    pid = os.fork()
    if pid == 0:
        os.fork()
        os._exit(0)
    os.waitpid(pid, 0)
time.sleep(.5)
",
    ),
    python(
        "D01",
        "fork bomb",
        Many(BOMB),
        r"
for n in range(int(E['BOMB'])):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
time.sleep(1)
",
    )
    .for_seconds(20),
    python(
        "D02",
        "memory bomb",
        Got,
        r#"
size = 2 * int(E["MEMORY_MB"]) << 20
bomb = bytearray(size)
for at in range(0, size, 4096):
    bomb[at] = 1
got()
"#,
    ),
    python(
        "D03",
        "one huge file",
        Seen(|fixture, _, _| fixture.length("home/workspace/big-D03") > 300 << 20),
        r#"
with open("big-D03", "wb") as f:
    f.seek(300 << 20)
    f.write(b"end")
"#,
    ),
    sh(
        "D05",
        "output without end",
        Seen(|_, _, told| told.len() > 1 << 20),
        "yes 'a line of no interest'",
    )
    .for_seconds(2),
    sh(
        "D06",
        "output that is no text",
        Seen(|_, _, told| told.contains('\0')),
        r"printf 'a\000b\377\376c'",
    ),
    sh(
        "D07",
        "read the agent's input",
        Loot,
        r#"dd bs=4096 count=1 of="$LOOT""#,
    )
    .for_seconds(2),
    sh(
        "D08",
        "wait for a pipe for ever",
        Alive,
        r#"mkfifo pipe-D08; cat pipe-D08 "$1""#,
    )
    .for_seconds(1),
    sh(
        "D09",
        "spin for ever",
        Alive,
        "(while :; do :; done) & exit 0",
    ),
    python(
        "D10",
        "dump core",
        Got,
        r"
if os.fork() == 0:
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    os.abort()
if os.WCOREDUMP(os.wait()[1]):
    got()
",
    ),
    sh(
        "D11",
        "a sparse file of 10 GB",
        Seen(|fixture, _, _| fixture.length("home/workspace/big-D11") > 9 << 30),
        "truncate -s 10G big-D11",
    ),
    sh(
        "D13",
        "read the agent's input by name",
        Loot,
        r#"dd bs=4096 count=1 if=/dev/stdin of="$LOOT""#,
    )
    .for_seconds(2),
    sh(
        "D14",
        "one line without end",
        Seen(|_, _, told| told.len() > 1 << 20),
        "head -c 20000000 /dev/zero | tr '\\0' a",
    ),
];

pub const PRIVILEGE: &[Attack] = &[
    sh(
        "S01",
        "a setuid program",
        Seen(|fixture, _, _| fixture.owner("home/workspace/file-S01") == Some(12345)),
        r"echo x >file-S01; ./chown-S01 12345 file-S01",
    ),
    python(
        "S02",
        "a user namespace and a mount in it",
        Got,
        r#"
os.makedirs("from-S02/inner")
os.mkdir("mnt-S02")
# Without a map of its users, nothing can be created any more.
loot("")
checked(libc.unshare(0x10020000), "unshare")
checked(libc.mount(b"from-S02", b"mnt-S02", None, 0x1000, None), "mount")
if os.path.exists("mnt-S02/inner"):
    got()
"#,
    ),
    python(
        "S03",
        "set the host's name",
        Seen(|_, _, _| crate::fixture::host_name() == "hacked-S03"),
        r#"socket.sethostname("hacked-S03")"#,
    )
    .root_only(),
    python(
        "S04",
        "open a file by its handle",
        Loot,
        r#"
raw = bytes.fromhex(E["HANDLE"])
handle = struct.pack("=Ii", len(raw), int(E["HANDLE_KIND"])) + raw
fd = call("open_by_handle_at", os.open(".", os.O_RDONLY), ctypes.create_string_buffer(handle), 0)
loot(os.read(fd, 4096))
"#,
    )
    .root_only(),
    python(
        "S05",
        "read a disk by its device",
        Got,
        r#"
if open(OUT + "/disk", "rb", 0).read(1) == b"\0":
    got()
"#,
    ),
    python(
        "S06",
        "open the kernel's switches for writing",
        Got,
        r#"
# Opened, never written: this file makes every core dump on the machine run a program as root.
os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
got()
"#,
    )
    .root_only(),
    python(
        "S08",
        "bpf",
        Got,
        r#"
attributes = struct.pack("=IIII", 2, 4, 8, 1) + bytes(112)
call("bpf", 0, ctypes.create_string_buffer(attributes), len(attributes))
got()
"#,
    )
    .root_only(),
    python("S09", "io_uring", Got, r#"call("io_uring_setup", 4, ctypes.create_string_buffer(256)); got()"#),
    python("S10", "userfaultfd", Got, r#"call("userfaultfd", 1); got()"#),
    python(
        "S11",
        "the user's keyring",
        Loot,
        r#"
key = call("keyctl", 10, ctypes.c_long(-4), b"user", b"bantam-" + E["NAME"].encode(), ctypes.c_long(0))
room = ctypes.create_string_buffer(256)
call("keyctl", 11, ctypes.c_long(key), room, ctypes.c_long(256))
loot(room.raw)
"#,
    ),
    sh(
        "S12",
        "sysctl of the host's network",
        Seen(|_, _, _| crate::fixture::network_switch() == "77"),
        "echo 77 >/proc/sys/net/ipv4/ip_default_ttl",
    )
    .root_only(),
    python(
        "S14",
        "a lease on what may only be read",
        Got,
        r#"
import fcntl
# Whoever opens the file then waits for the holder of the lease.
fd = os.open(E["BHOME"] + "/agent/prompts/p.md", os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
got()
"#,
    ),
    python(
        "S15",
        "signals about what others do in a directory",
        Got,
        r#"
import fcntl
fcntl.fcntl(os.open(E["BHOME"] + "/agent/prompts", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_MODIFY)
got()
"#,
    ),
    python(
        "S13",
        "open another switch in /proc for writing",
        Got,
        r#"
# Opened, never written.
for name in ["sysrq-trigger", "irq/default_smp_affinity", "dynamic_debug/control", "mtrr", "sys/vm/drop_caches",
             "bus/pci/devices", "kcore", "kpageflags", "slabinfo"]:
    try:
        os.close(os.open("/proc/" + name, os.O_WRONLY))
        got()
    except OSError:
        pass
"#,
    )
    .root_only(),
];
