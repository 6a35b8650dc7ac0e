//! Confinement by namespaces: the outer process creates them, the inner one finishes the sandbox.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use super::root;
use super::seccomp;
use super::{all_except, die_with_parent, drop_capabilities, filter_context, grants, landlock};
use crate::access::{Access, open_straight};
use crate::child::Network;
use crate::error::{Context, Result};
use crate::proxy::listener;
use crate::sys;
use crate::worker::protocol::{Message, Setup, send_message};

/// Id in the sandbox if root owns the workspace; never 0.
const ORDINARY_ID: u32 = 1000;

/// Capabilities that the inner process needs to build its root, and then drops.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SETPCAP);

/// Creates the namespaces; the next started process is process 1 in them.
pub(crate) fn make_namespaces(setup: &Setup) -> Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let mut flags = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    if setup.policy.network != Network::Full {
        flags |= UnshareFlags::NEWNET;
    }
    sys::unshare(flags).doing("making namespaces")?;
    let inner = |id: u32| if id == 0 { ORDINARY_ID } else { id };
    write_proc("setgroups", "deny")?;
    write_proc("uid_map", &format!("{} {uid} 1", inner(uid)))?;
    write_proc("gid_map", &format!("{} {gid} 1", inner(gid)))?;
    // Fails first if a policy removes the capabilities of new namespaces, as Ubuntu's does.
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .doing("making mounts private")?;
    rustix::system::sethostname(b"bantam").doing("setting the host name")?;
    if setup.policy.network != Network::Full {
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        sys::raise_loopback(any.as_fd()).doing("bringing up the loopback interface")?;
    }
    keep_needed_capabilities().doing("dropping capabilities")
}

/// Sends the listener of the sandbox's proxy to `caller` if the network is guarded. A failure does not mean that the system
/// lacks support, because commands can exhaust the necessary resources.
pub(crate) fn send_listener(setup: &Setup, caller: BorrowedFd) -> Result<()> {
    if setup.policy.network != Network::Guarded {
        return Ok(());
    }
    let mut message = Vec::new();
    send_message(&mut message, &Message::Listening)?;
    listener::send(caller, &message).doing("sending the proxy's listener")
}

/// An ordinary user loses its capabilities when it executes a program, unless they are ambient.
fn keep_needed_capabilities() -> Result<()> {
    for n in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << n);
        if !NEEDED.contains(capability) {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                // The kernel has no more capabilities.
                Err(Errno::INVAL) => break,
                result => result?,
            }
        }
    }
    let sets = CapabilitySets {
        effective: NEEDED,
        permitted: NEEDED,
        inheritable: NEEDED,
    };
    rustix::thread::set_capabilities(None, sets)?;
    for capability in NEEDED.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

fn write_proc(name: &str, text: &str) -> Result<()> {
    std::fs::write(format!("/proc/self/{name}"), text).doing(format_args!("writing its {name}"))
}

/// Finishes the sandbox of [`make_namespaces`], as process 1 in it.
pub(crate) fn enter_namespaces(setup: &Setup) -> Result<()> {
    die_with_parent()?;
    let open_trees = setup
        .policy
        .all_except
        .as_deref()
        .map(all_except::list)
        .unwrap_or_default();
    root::enter(setup, &open_trees, &etc_files(setup))?;
    for capability in NEEDED.iter() {
        rustix::thread::remove_capability_from_bounding_set(capability)
            .doing("dropping capabilities")?;
    }
    drop_capabilities()?;
    // Without a usable Landlock, the mounts are the only protection of files.
    if sys::landlock_abi().is_ok_and(|abi| abi >= landlock::OLDEST_ABI) {
        let own = ["/tmp", "/dev", "."].map(Path::new);
        let open = open_trees
            .iter()
            .filter_map(|path| open_straight(path).ok());
        let writable = landlock::open_existing(own.into_iter())
            .chain(open)
            .chain(grants(setup, Access::Write)?)
            .collect();
        landlock::enter(
            landlock::open_existing([Path::new("/")].into_iter()).collect(),
            writable,
            true,
        )?;
    }
    seccomp::enter(filter_context(setup)?).doing("applying the seccomp filter")
}

/// Returns the files of the new `/etc`, as name and text.
fn etc_files(setup: &Setup) -> Vec<(&'static str, String)> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let workspace = setup.policy.workspace.path.display();
    let mut files = vec![
        (
            "passwd",
            format!("agent:x:{uid}:{gid}::{workspace}:/bin/sh\nroot:x:0:0::/:/bin/sh\n"),
        ),
        ("group", format!("agent:x:{gid}:\nroot:x:0:\n")),
        ("gitconfig", "[safe]\n\tdirectory = *\n".to_owned()),
    ];
    // With the host's network, the host's files are used.
    if setup.policy.network != Network::Full {
        files.push((
            "hosts",
            "127.0.0.1 localhost bantam\n::1 localhost\n".to_owned(),
        ));
        files.push((
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n".to_owned(),
        ));
    }
    files
}
