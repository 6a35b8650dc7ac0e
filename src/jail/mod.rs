//! The jail: what the kernel holds a hands process to, whatever runs in it.
//!
//! Two ways, because neither is everywhere: Raspberry Pi OS has no Landlock, Ubuntu restricts user namespaces.
//!
//! - [`Confinement::Namespaces`]: a first process makes new namespaces. The second one, process 1 in them, makes a root from nothing,
//!   drops every capability, and adds Landlock where there is one. Nothing outside exists for it.
//! - [`Confinement::Landlock`]: the second process stays where it is. The outside exists, and Landlock and the filter keep it shut.
//!
//! Both end in the filter of system calls, and the second process is held before it reads its job. The first one is not
//! held and cannot be reached from inside: it ends what the second one leaves behind.

mod beside;
mod landlock;
mod root;
mod seccomp;

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Uid;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{DumpableBehavior, Gid, Signal, getegid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use crate::child::Network;
use crate::error::{Context, Error, Result};
use crate::proxy::listener;
use crate::sys;
use crate::wire::{Confinement, Setup};
use landlock::Tcp;
use seccomp::Beside;

/// The tree that every jail lets commands read in which `path` lies, if it lies in one.
pub fn readable(path: &Path) -> Option<&'static str> {
    let real = |tree: &str| Path::new(tree).canonicalize();
    root::SYSTEM
        .iter()
        .copied()
        .find(|tree| path.starts_with(tree) || real(tree).is_ok_and(|tree| path.starts_with(tree)))
}

/// The id that the inside has where root owns the workspace: never 0.
const ORDINARY: u32 = 1000;

/// What the process inside needs to make its root, and gives up then.
const KEPT: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_CHROOT).union(CapabilitySet::SETPCAP);

/// Takes root's place: becomes the workspace's owner, who is its starter where that is an ordinary user. The working
/// directory is the workspace afterwards.
pub fn become_owner(setup: &Setup) -> Result<()> {
    std::env::set_current_dir(&setup.workspace)
        .doing(format_args!("entering the workspace {}", setup.workspace.display()))?;
    if !geteuid().is_root() {
        return Ok(());
    }
    let stat = rustix::fs::stat(".").doing("looking at the workspace")?;
    match rustix::thread::set_thread_groups(&[]) {
        // Root in a user namespace, or without the capability: outside it is an ordinary user, who keeps groups too.
        Ok(()) | Err(rustix::io::Errno::PERM) => {}
        Err(e) => return Err(Error::from(e).doing("giving up groups")),
    }
    if stat.st_uid == 0 {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).doing("becoming the workspace's owner")?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).doing("becoming the workspace's owner")?;
    // A change of ids closes a process's own /proc to it, where the maps are to be written.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).doing("opening its own maps")
}

/// Makes the namespaces. What this process starts next is process 1 in them. `caller` is who gets the proxy's listener,
/// where one is wanted.
pub fn make_namespaces(setup: &Setup, caller: BorrowedFd) -> Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let mut flags = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    if setup.network != Network::Full {
        flags |= UnshareFlags::NEWNET;
    }
    sys::unshare(flags).doing("making namespaces")?;
    let inner = |id: u32| if id == 0 { ORDINARY } else { id };
    write_proc("setgroups", "deny")?;
    write_proc("uid_map", &format!("{} {uid} 1", inner(uid)))?;
    write_proc("gid_map", &format!("{} {gid} 1", inner(gid)))?;
    // Where a policy takes the capabilities of a new namespace away (Ubuntu's does), this is the first to fail.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).doing("parting the mounts")?;
    rustix::system::sethostname(b"bantam").doing("naming the jail")?;
    if setup.network != Network::Full {
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        sys::raise_loopback(any.as_fd()).doing("raising the loopback")?;
    }
    if setup.network == Network::Guarded {
        listener::send(caller).doing("handing over the proxy's listener")?;
    }
    // An ordinary id loses its capabilities when it starts a program; an ambient one stays.
    for n in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << n);
        if !KEPT.contains(capability) {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                // Past the last one that this kernel knows.
                Err(rustix::io::Errno::INVAL) => break,
                result => result.doing("giving up capabilities")?,
            }
        }
    }
    rustix::thread::set_capabilities(None, CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: KEPT })
        .doing("giving up capabilities")?;
    for capability in KEPT.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true).doing("keeping a capability")?;
    }
    Ok(())
}

fn write_proc(name: &str, text: &str) -> Result<()> {
    std::fs::write(format!("/proc/self/{name}"), text).doing(format_args!("writing its {name}"))
}

/// Finishes the jail of [`make_namespaces`], as process 1 in it.
pub fn settle_in(setup: &Setup) -> Result<()> {
    // The starter is one thread that only waits: its end is the end of the caller or of the call.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).doing("tying itself to its starter")?;
    let uid = geteuid().as_raw();
    let etc = vec![
        (
            "passwd",
            format!(
                "agent:x:{uid}:{}::{}:/bin/sh\nroot:x:0:0::/:/bin/sh\n",
                getegid().as_raw(),
                setup.workspace.display()
            ),
        ),
        ("group", format!("agent:x:{}:\nroot:x:0:\n", getegid().as_raw())),
        ("hosts", "127.0.0.1 localhost bantam\n::1 localhost\n".to_owned()),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
        ("gitconfig", "[safe]\n\tdirectory = *\n".to_owned()),
    ];
    let host_network = setup.network == Network::Full;
    let ours = |name: &&str| !host_network || !matches!(*name, "hosts" | "nsswitch.conf");
    let plan = root::Plan {
        workspace: &setup.workspace,
        look: setup.look().collect(),
        change: setup.write_paths.iter().map(PathBuf::as_path).collect(),
        beside: setup.all_except.as_deref().map(beside::beside).unwrap_or_default(),
        etc: etc.into_iter().filter(|(name, _)| ours(name)).collect(),
        host_network,
    };
    root::enter(&plan)?;
    for capability in KEPT.iter() {
        rustix::thread::remove_capability_from_bounding_set(capability).doing("giving up capabilities")?;
    }
    give_up_capabilities()?;
    match sys::landlock_abi() {
        Ok(abi) if abi >= landlock::OLDEST => {
            let all = [Path::new("/")];
            let scratch = ["/tmp", "/dev"].map(Path::new);
            let beside = plan.beside.iter().filter(|path| !path.is_symlink()).map(PathBuf::as_path);
            let change = plan.change.iter().copied().chain([plan.workspace]).chain(beside).chain(scratch);
            let change: Vec<&Path> = change.collect();
            landlock::enter(&all, &change, Tcp::Open).doing("entering Landlock")?;
        }
        // There is none, or an old one: what hangs in the root is all there is.
        Ok(_) | Err(_) => {}
    }
    let beside = Beside { landlock_alone: false, host_network, signals_held: true };
    seccomp::enter(beside).doing("entering the filter of system calls")
}

/// The other way: everything is there, and Landlock and the filter keep it shut.
pub fn shut_in(setup: &Setup) -> Result<()> {
    let abi = sys::landlock_abi().doing("asking for Landlock")?;
    if abi < landlock::OLDEST {
        return Err(Error::failed(format!("Landlock is too old: version {abi}, and {} is needed", landlock::OLDEST)));
    }
    // This process's own starter stands outside and ends what it leaves; should that one be ended, so is this one.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).doing("tying itself to its starter")?;
    give_up_capabilities()?;
    let host_network = setup.network == Network::Full;
    let names = if host_network { root::ETC_NETWORK } else { &[] };
    let look: Vec<&Path> =
        root::SYSTEM.iter().chain(root::ETC).chain(names).map(Path::new).chain(setup.look()).collect();
    let devices = root::DEVICES.iter().map(Path::new);
    let mut beside = setup.all_except.as_deref().map(beside::beside).unwrap_or_default();
    // A rule for a link would be one for whatever it leads to.
    beside.retain(|path| !path.is_symlink());
    let opened = setup.write_paths.iter().chain([&setup.workspace]).chain(&beside).map(PathBuf::as_path);
    let change: Vec<&Path> = opened.chain(devices).collect();
    landlock::enter(&look, &change, if host_network { Tcp::Open } else { Tcp::Closed }).doing("entering Landlock")?;
    let beside = Beside { landlock_alone: true, host_network, signals_held: abi >= landlock::HOLDS_SIGNALS };
    seccomp::enter(beside).doing("entering the filter of system calls")
}

/// The last step before a command: what only the hands themselves may call.
pub fn seal() -> Result<()> {
    seccomp::seal().doing("sealing the jail")
}

/// Every capability, in every set.
fn give_up_capabilities() -> Result<()> {
    let none = CapabilitySet::empty();
    rustix::thread::clear_ambient_capability_set().doing("giving up capabilities")?;
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .doing("giving up capabilities")
}

/// Processes and threads that a call may have at once.
pub const MOST_PROCESSES: u64 = 256;

/// The limit on processes for this process's user. In namespaces only the jail's own count; outside them all of the
/// user's do. `None` where the kernel does not hold this user to it: root, who is watched instead, and where commands run
/// with all rights.
///
/// Asked before the jail is entered: inside, /proc tells nothing.
pub fn processes_allowed(way: Confinement) -> Option<u64> {
    match way {
        Confinement::Namespaces => Some(MOST_PROCESSES),
        Confinement::Landlock => Some(MOST_PROCESSES + tasks_of(geteuid())),
        Confinement::Unconfined | Confinement::Disabled => None,
    }
}

/// Processes and threads of a user, as /proc shows them.
fn tasks_of(uid: Uid) -> u64 {
    let Ok(entries) = fs_err::read_dir("/proc") else { return 0 };
    let tasks = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        path.file_name()?.to_str()?.parse::<u32>().ok()?;
        let tasks = fs_err::metadata(path.join("task")).ok()?;
        // Each thread is a directory in it, and so one more link to it.
        (tasks.uid() == uid.as_raw()).then(|| tasks.nlink().saturating_sub(2))
    });
    tasks.sum()
}

/// How this process is held, a line for each layer, for people.
pub fn layers(setup: &Setup) -> String {
    let abi = sys::landlock_abi().map_or("none".to_owned(), |abi| format!("version {abi}"));
    let uid = geteuid().as_raw();
    match setup.way {
        Confinement::Namespaces => format!(
            "namespaces: user, mount, pid, ipc, uts, cgroup{}\nlandlock: {abi}\nseccomp: on\nuser: {uid}\n",
            if setup.network == Network::Full { "" } else { ", net" }
        ),
        Confinement::Landlock => format!("namespaces: none\nlandlock: {abi}\nseccomp: on\nuser: {uid}\n"),
        Confinement::Unconfined | Confinement::Disabled => {
            format!("namespaces: none\nlandlock: not used\nseccomp: not used\nuser: {uid}\n")
        }
    }
}
