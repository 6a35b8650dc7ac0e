//! What an attack is: a few lines that a model could be talked into running, and the effect by which it is judged.
//!
//! Never the exit code, and only where the effect is the kernel handing out an object, the word of the attack itself.

use crate::fixture::Fixture;

/// The attack's text. It finds its target in variables (see [`Fixture::prepare`]).
#[derive(Clone, Copy)]
pub enum Payload {
    Sh(&'static str),
    Python(&'static str),
}

/// What has happened when the attack has succeeded.
#[derive(Clone, Copy)]
pub enum Effect {
    /// Its loot holds the canary that was planted for it.
    Loot,
    /// The kernel gave it what it asked for: its loot says so.
    Got,
    /// The file or directory at this path (below the fixture, or with the fixture's name appended if absolute) is not as
    /// it was: it is new, gone, or differs in content, mode, owner or times.
    Changed(&'static str),
    /// A listener outside has heard it.
    Heard,
    /// Something it started is alive when its result is known.
    Alive,
    /// So many of its processes were alive at one time.
    Many(usize),
    /// So many processes had ended at one time while it ran, and still had their numbers.
    ManyEnded(usize),
    /// Its victim is gone.
    VictimGone,
    /// The process that answers for it was killed.
    AgentGone,
    /// Anything else, seen from outside. The text is what the attack printed, as it was told.
    Seen(fn(&Fixture, &Attack, &str) -> bool),
}

/// Who can do it bare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Anybody,
    /// It takes root: as an ordinary user it fails without any sandbox.
    Root,
}

#[derive(Clone, Copy)]
pub struct Attack {
    pub id: &'static str,
    pub what: &'static str,
    pub payload: Payload,
    pub effect: Effect,
    pub who: Who,
    /// It is aimed at a process of its own.
    pub victim: bool,
    /// The time it is given.
    pub seconds: u64,
    /// It comes last and is judged when everything is over, because what comes after it would suffer.
    pub last: bool,
}

impl Attack {
    const fn new(id: &'static str, what: &'static str, effect: Effect, payload: Payload) -> Self {
        Self {
            id,
            what,
            payload,
            effect,
            who: Who::Anybody,
            victim: false,
            seconds: 10,
            last: false,
        }
    }

    pub const fn root_only(mut self) -> Self {
        self.who = Who::Root;
        self
    }

    pub const fn with_victim(mut self) -> Self {
        self.victim = true;
        self
    }

    /// Runs into its time limit by nature.
    pub const fn for_seconds(mut self, seconds: u64) -> Self {
        self.seconds = seconds;
        self
    }

    pub const fn at_the_end(mut self) -> Self {
        self.last = true;
        self
    }

    /// The name of the file that holds it.
    pub fn file(&self) -> String {
        match self.payload {
            Payload::Sh(_) => format!("{}.sh", self.id),
            Payload::Python(_) => format!("{}.py", self.id),
        }
    }

    /// The text of that file. Both kinds say that they came as far as their first own line.
    pub fn text(&self) -> String {
        match self.payload {
            Payload::Sh(script) => format!(": >\"ran-$ID\"\n{script}\n"),
            Payload::Python(script) => format!("from prelude import *\n{script}\n"),
        }
    }

    /// The command line that runs it, the same bare and in the sandbox.
    pub fn command(&self, marker: &str) -> String {
        let interpreter = match self.payload {
            Payload::Sh(_) => "sh",
            Payload::Python(_) => "python3",
        };
        format!(
            ". ./env-{}; {interpreter} ./{} {marker}",
            self.id,
            self.file()
        )
    }
}

pub const fn sh(
    id: &'static str,
    what: &'static str,
    effect: Effect,
    script: &'static str,
) -> Attack {
    Attack::new(id, what, effect, Payload::Sh(script))
}

pub const fn python(
    id: &'static str,
    what: &'static str,
    effect: Effect,
    script: &'static str,
) -> Attack {
    Attack::new(id, what, effect, Payload::Python(script))
}

/// What every Python attack begins with. `CALL` are the numbers of system calls on this machine.
pub fn prelude() -> String {
    format!(
        r#"import ctypes, os, resource, signal, socket, struct, sys, threading, time
E = os.environ
ID, OUT, WS = E["ID"], E["OUT"], E["WS"]
CALL = {{ "bpf": {}, "io_uring_setup": {}, "userfaultfd": {}, "keyctl": {}, "ioprio_set": {}, "open_by_handle_at": {},
  "process_vm_readv": {}, "add_key": {} }}
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

def checked(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), what + ": " + os.strerror(ctypes.get_errno()))
    return result

def call(name, *args):
    return checked(libc.syscall(CALL[name], *args), name)

def newer(number, older, *args):
    # A system call that the C library does not wrap yet; on a kernel without it, the call that it replaces.
    if libc.syscall(number, -100, *args) < 0:
        print(os.strerror(ctypes.get_errno()))
        older()

def loot(data):
    if isinstance(data, str):
        data = data.encode()
    with open(E["LOOT"], "ab") as f:
        f.write(data)

def got():
    loot("GOT")

open("ran-" + ID, "w").close()
"#,
        libc::SYS_bpf,
        libc::SYS_io_uring_setup,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_ioprio_set,
        libc::SYS_open_by_handle_at,
        libc::SYS_process_vm_readv,
        libc::SYS_add_key,
    )
}
