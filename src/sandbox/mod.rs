//! Confines a worker process by means of the kernel, independent of the program in it.
//!
//! Two confinements are supported, because neither is available everywhere: Raspberry Pi OS has no Landlock, Ubuntu restricts
//! user namespaces.
//!
//! - [`Confinement::Namespaces`]: the outer process creates new namespaces. The inner one, process 1 in them, builds a root
//!   directory from scratch, drops every capability, and adds Landlock if available. The rest of the host is invisible to it.
//! - [`Confinement::Landlock`]: the host is visible, but Landlock and the filter restrict the access to it.
//!
//! Both finally apply the seccomp filter, before the job is read.

mod all_except;
mod landlock;
mod namespaces;
mod paths;
mod root;
mod seccomp;

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::Uid;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Signal, geteuid, getpid, getppid, test_kill_process};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::access::{Access, NEVER_OPEN, Resolved, open_straight, unescape};
use crate::child::Network;
use crate::error::{Context, Error, Result};
use crate::sys;
use crate::worker::protocol::{Confinement, Setup};
pub(crate) use namespaces::{enter_namespaces, make_namespaces, send_listener};
use seccomp::FilterContext;

/// Maximum number of processes and threads of a call.
pub(crate) const MAX_PROCESSES: usize = 256;

/// Returns the system tree that contains `path`; system trees are readable in every sandbox.
pub(crate) fn readable(path: &Path) -> Option<&'static str> {
    paths::SYSTEM
        .iter()
        .copied()
        .find(|tree| path.starts_with(tree))
}

pub(crate) fn enter_workspace(setup: &Setup) -> Result<()> {
    let path = setup.policy.workspace.path.display();
    let entering = format!("entering the workspace {path}");
    let Some(dir) = setup.policy.workspace.open().doing(&entering)? else {
        return Err(Error::config(format!("there is no workspace {path}")));
    };
    rustix::process::fchdir(dir).doing(entering)
}

/// Enters the workspace and changes root's ids to those of the workspace's owner.
pub(crate) fn become_owner(setup: &Setup) -> Result<()> {
    enter_workspace(setup)?;
    if !geteuid().is_root() {
        return Ok(());
    }
    let stat = rustix::fs::stat(".").doing("reading the workspace's owner")?;
    match rustix::thread::set_thread_groups(&[]) {
        // Root of a user namespace, or root without the capability, is an ordinary user outside and retains its groups.
        Ok(()) | Err(Errno::PERM) => {}
        Err(e) => return Err(Error::from(e).doing("dropping groups")),
    }
    if stat.st_uid == 0 {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).doing("becoming the workspace's owner")?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).doing("becoming the workspace's owner")?;
    // Changing ids makes a process's /proc files inaccessible to itself, but the id maps must be written there.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)
        .doing("opening its own id maps")
}

/// Confines this process with Landlock, without namespaces.
pub(crate) fn enter_landlock(setup: &Setup) -> Result<()> {
    let abi = sys::landlock_abi().doing("asking for Landlock")?;
    if abi < landlock::OLDEST_ABI {
        let oldest = landlock::OLDEST_ABI;
        return Err(Error::failed(format!(
            "Landlock version {abi} is too old: {oldest} is needed"
        )));
    }
    die_with_parent()?;
    drop_capabilities()?;
    let host_network = setup.policy.network == Network::Full;
    // Skips system paths that link elsewhere, for example to bantam's home. A new root does not follow such links either.
    let system = paths::system(setup.policy.network).filter(|path| {
        readable(path).is_none() || readable(&Resolved::follow(path).real).is_some()
    });
    let readable = landlock::open_existing(system)
        .chain(grants(setup, Access::Read)?)
        .collect();
    // Opened by the working directory, because only root may have access to the directories above it.
    let own = paths::DEVICES.iter().map(Path::new).chain([".".as_ref()]);
    let open = setup
        .policy
        .all_except
        .as_deref()
        .map(all_except::list)
        .unwrap_or_default();
    let open = open.iter().filter_map(|path| open_straight(path).ok());
    let writable = landlock::open_existing(own)
        .chain(open)
        .chain(grants(setup, Access::Write)?)
        .collect();
    landlock::enter(readable, writable, host_network)?;
    seccomp::enter(filter_context(setup)?).doing("applying the seccomp filter")
}

/// Returns handles of the grants with this access.
fn grants(setup: &Setup, access: Access) -> Result<Vec<OwnedFd>> {
    setup
        .policy
        .grants_to(access)
        .filter_map(|grant| grant.open().transpose())
        .collect()
}

/// The parent is single-threaded, so the signal is only sent when the process ends.
fn die_with_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .doing("tying itself to its parent")
}

fn drop_capabilities() -> Result<()> {
    let none = CapabilitySet::empty();
    rustix::thread::clear_ambient_capability_set().doing("dropping capabilities")?;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )
    .doing("dropping capabilities")
}

fn filter_context(setup: &Setup) -> Result<FilterContext> {
    let landlock_alone = setup.confinement == Confinement::Landlock;
    let families = match setup.policy.network {
        Network::None | Network::Guarded if landlock_alone => &[],
        // Landlock only restricts connections to sockets with a path since Linux 7.1.
        _ if landlock_alone || !setup.policy.named_sockets => seccomp::INTERNET,
        _ => seccomp::ALL_FAMILIES,
    };
    let signals_confined = !landlock_alone || confines_signals()?;
    Ok(FilterContext {
        landlock_alone,
        families,
        user: geteuid().as_raw(),
        signals_confined,
    })
}

fn confines_signals() -> Result<bool> {
    Ok(sys::landlock_abi().doing("asking for Landlock")? >= landlock::SIGNALS_ABI)
}

/// Makes a command start in a separate session, outside this program's process group, and in a sandbox without the calls that
/// only this program needs. With Landlock alone, the command cannot signal this process, which monitors it.
pub(crate) fn confine(command: &mut Command, setup: &Setup) -> Result<()> {
    let (mut domain, mut filter) = (None, None);
    if setup.confinement.is_sandboxed() {
        let context = filter_context(setup)?;
        filter = Some(seccomp::for_command(context));
        if context.landlock_alone {
            domain = landlock::signal_scope()?;
        }
    }
    sys::start_confined(command, domain, filter);
    Ok(())
}

/// Keeps this process's signals inside its sandbox, where the kernel can. Returns whether they only reach processes there.
pub(crate) fn keep_signals_inside(confinement: Confinement) -> Result<bool> {
    Ok(match confinement {
        Confinement::Namespaces => getpid().is_init(),
        // The parent is outside and has the same user. If it can be signalled, so can all processes of the user.
        Confinement::Landlock => {
            landlock::keep_signals_inside()?;
            confines_signals()?
                && getppid().is_some_and(|parent| test_kill_process(parent) == Err(Errno::PERM))
        }
        Confinement::Unconfined | Confinement::Disabled => false,
    })
}

/// Returns `RLIMIT_NPROC` for this process, read before the sandbox hides /proc. In a namespace the limit counts only its
/// processes; otherwise it counts all processes of the user. Root is exempt, so its processes are counted instead.
pub(crate) fn process_limit(confinement: Confinement) -> Option<u64> {
    match confinement {
        Confinement::Namespaces => Some(MAX_PROCESSES as u64),
        Confinement::Landlock => Some(MAX_PROCESSES as u64 + tasks_of(geteuid())),
        Confinement::Unconfined | Confinement::Disabled => None,
    }
}

/// Returns the number of a user's processes and threads in /proc.
fn tasks_of(uid: Uid) -> u64 {
    let Ok(entries) = fs_err::read_dir("/proc") else {
        return 0;
    };
    let tasks = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        path.file_name()?.to_str()?.parse::<u32>().ok()?;
        let tasks = fs_err::metadata(path.join("task")).ok()?;
        // Each thread is a subdirectory, which adds a link.
        (tasks.uid() == uid.as_raw()).then(|| tasks.nlink().saturating_sub(2))
    });
    tasks.sum()
}

/// Returns the mount points, except those of services and of the sandbox. Read before the sandbox hides /proc.
pub(crate) fn mount_points() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table
        .lines()
        .filter_map(|line| Some(unescape(line.split(' ').nth(4)?)));
    let is_closed = |point: &String| NEVER_OPEN.iter().any(|at| Path::new(point).starts_with(at));
    points.filter(|point| !is_closed(point)).collect()
}
