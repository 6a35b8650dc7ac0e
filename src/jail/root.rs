//! The file system that a jailed process sees: made from nothing on a tmpfs, and the old one gone.
//!
//! Trees are taken as detached mounts before anything is covered, so no path of ours is looked up twice; mount points are
//! made only on the fresh tmpfs, or exist in a tree below which nothing is followed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, statat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, mount_move, move_mount, open_tree, unmount,
};

use crate::error::{Context, Error, Result};
use crate::sys;

/// Trees of programs and libraries. A symbolic link among them (`/bin` on most systems) becomes the same link.
pub const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu", "/run/current-system"];

/// What programs need of `/etc`, and no secrets: certificates but not keys, no accounts.
pub const ETC: &[&str] = &[
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/java",
    "/etc/java-11-openjdk",
    "/etc/java-17-openjdk",
    "/etc/java-21-openjdk",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.conf",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/perl",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/python3",
    "/etc/python3.11",
    "/etc/python3.13",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
];

/// With the host's network its names are needed, too. On most systems `/etc/resolv.conf` is a link to one of the others.
pub const ETC_NETWORK: &[&str] = &[
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/run/NetworkManager/resolv.conf",
    "/run/connman/resolv.conf",
    "/run/resolvconf/resolv.conf",
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
];

/// Devices that are harmless.
pub const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Parts of /proc that reach the whole machine. To be read at most.
const PROC_MACHINE: &[&str] = &["sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr"];

/// Bytes of `/tmp` and of `/dev/shm`: both are memory.
const SCRATCH: &CStr = c"32m";

/// What goes into the new root.
pub struct Plan<'a> {
    /// The directory that may be changed: this process's working directory.
    pub workspace: &'a Path,
    /// Trees that may be read, at their own paths.
    pub look: Vec<&'a Path>,
    /// Trees that may be changed, at their own paths.
    pub change: Vec<&'a Path>,
    /// More trees that may be changed, which cover all of the above. Links among them become the same links.
    pub beside: Vec<PathBuf>,
    /// Files of `/etc` to make: name and text.
    pub etc: Vec<(&'static str, String)>,
    pub host_network: bool,
}

/// A tree taken from the old root, on its way into the new one.
struct Taken<'a> {
    tree: OwnedFd,
    at: &'a Path,
    /// It may go away at any moment: then it is not there.
    passing: bool,
}

/// Makes the new root and makes it this process's only one. The working directory is the workspace afterwards.
pub fn enter(plan: &Plan) -> Result<()> {
    let guarded = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let readable = guarded | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let mut taken = Vec::new();
    let mut links = Vec::new();
    let network = if plan.host_network { ETC_NETWORK } else { &[] };
    for path in SYSTEM.iter().chain(ETC).chain(network).map(Path::new) {
        match fs_err::symlink_metadata(path) {
            Ok(meta) if meta.is_symlink() => links.push((path, fs_err::read_link(path)?)),
            Ok(_) => taken.push(take(path, readable)?),
            Err(_) => {}
        }
    }
    for path in DEVICES.iter().map(Path::new) {
        taken.push(take(path, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC)?);
    }
    for path in &plan.look {
        if path.exists() {
            taken.push(take(path, readable)?);
        }
    }
    let workspace = open_tree(
        CWD,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH,
    )
    .doing("taking the workspace")?;
    sys::set_mount_attributes(workspace.as_fd(), guarded, true).doing("guarding the workspace")?;
    taken.push(Taken { tree: workspace, at: plan.workspace, passing: false });
    for path in &plan.change {
        if path.exists() {
            taken.push(take(path, guarded)?);
        }
    }
    for path in &plan.beside {
        match fs_err::read_link(path) {
            Ok(target) if !links.iter().any(|(known, _)| known == path) => links.push((path, target)),
            Ok(_) => {}
            // One that may not be entered, or that went away meanwhile, is not there.
            Err(_) => taken.extend(take(path, guarded).ok().map(|taken| Taken { passing: true, ..taken })),
        }
    }

    let root = tmpfs(c"4m", guarded)?;
    // Any directory will do to hang it on: it becomes the root in a moment, and the mount namespace is ours alone.
    let hook = ["/tmp", "/mnt", "/usr"].into_iter().find(|dir| Path::new(dir).is_dir());
    let hook = hook.ok_or_else(|| Error::failed("there is no directory to build the jail on"))?;
    attach(root.as_fd(), CWD, Path::new(hook)).doing("attaching the new root")?;
    let root = root.as_fd();

    make_dirs(root, Path::new("tmp"))?;
    attach(tmpfs(SCRATCH, guarded)?.as_fd(), root, Path::new("tmp")).doing("attaching /tmp")?;
    make_dirs(root, Path::new("dev/shm"))?;
    attach(tmpfs(SCRATCH, guarded | MountAttrFlags::MOUNT_ATTR_NOEXEC)?.as_fd(), root, Path::new("dev/shm"))
        .doing("attaching /dev/shm")?;
    for (path, target) in [
        ("dev/fd", "/proc/self/fd"),
        ("dev/stdin", "/proc/self/fd/0"),
        ("dev/stdout", "/proc/self/fd/1"),
        ("dev/stderr", "/proc/self/fd/2"),
    ] {
        symlinkat(target, root, path).doing(path)?;
    }
    for (path, target) in links {
        let path = below_root(path);
        make_dirs(root, path.parent().unwrap_or(Path::new("")))?;
        symlinkat(&target, root, &path).doing(path.display())?;
    }
    make_dirs(root, Path::new("etc"))?;
    for (name, text) in &plan.etc {
        write(root, &Path::new("etc").join(name), text)?;
    }
    for Taken { tree, at, passing } in &taken {
        let target = below_root(at);
        make_mount_point(root, &target, tree.as_fd()).doing(at.display())?;
        match attach(tree.as_fd(), root, &target) {
            Err(_) if *passing => {}
            result => result.doing(format_args!("attaching {}", at.display()))?,
        }
    }
    mount_proc(root)?;
    // From now on only what hangs in it can be written.
    sys::set_mount_attributes(root, MountAttrFlags::MOUNT_ATTR_RDONLY, false).doing("closing the root")?;

    rustix::process::fchdir(root).doing("entering the new root")?;
    match rustix::process::pivot_root(".", ".") {
        // The old root is mounted over the new one now: this takes it away, and with it the last way back.
        Ok(()) => unmount(".", UnmountFlags::DETACH).doing("leaving the old root")?,
        // A system that runs from its initial ramdisk has a root that cannot be changed. The new one covers it instead, and
        // what could uncover it (a descriptor outside, a capability) nobody inside has.
        Err(Errno::INVAL) => {
            mount_move(".", "/").doing("covering the old root")?;
            rustix::process::chroot(".").doing("changing the root")?;
        }
        Err(e) => return Err(Error::from(e).doing("changing the root")),
    }
    std::env::set_current_dir(plan.workspace).doing("entering the workspace")
}

fn take(path: &Path, attributes: MountAttrFlags) -> Result<Taken<'_>> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, path, flags).doing(format_args!("taking {}", path.display()))?;
    sys::set_mount_attributes(tree.as_fd(), attributes, true).doing(format_args!("guarding {}", path.display()))?;
    Ok(Taken { tree, at: path, passing: false })
}

fn tmpfs(size: &CStr, attributes: MountAttrFlags) -> Result<OwnedFd> {
    let make = || -> Result<OwnedFd, Errno> {
        let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&fs, "size", size)?;
        fsconfig_set_string(&fs, "nr_inodes", "16k")?;
        fsconfig_set_string(&fs, "mode", "0755")?;
        fsconfig_create(&fs)?;
        fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    make().doing("making a tmpfs")
}

/// A fresh /proc shows the jail's own processes. Where it is masked (in some containers) a fresh one is forbidden; then
/// there is none, which programs put up with better than one might think.
fn mount_proc(root: BorrowedFd) -> Result<()> {
    make_dirs(root, Path::new("proc"))?;
    let make = || -> Result<OwnedFd, Errno> {
        let fs = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&fs)?;
        let attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    let proc = match make() {
        Err(Errno::PERM) => return Ok(()),
        result => result.doing("making /proc")?,
    };
    attach(proc.as_fd(), root, Path::new("proc")).doing("attaching /proc")?;
    // Their modes let uid 0 write, and root is what the hands are on the outside where root owns the workspace.
    for name in PROC_MACHINE {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = match open_tree(&proc, *name, flags) {
            Err(Errno::NOENT) => continue,
            result => result.doing(format_args!("taking /proc/{name}"))?,
        };
        sys::set_mount_attributes(tree.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, true)
            .doing(format_args!("guarding /proc/{name}"))?;
        attach(tree.as_fd(), root, &Path::new("proc").join(name)).doing(format_args!("attaching /proc/{name}"))?;
    }
    Ok(())
}

/// Hangs a detached mount on a directory or file below `at`, of which no component may be a symbolic link.
fn attach(tree: BorrowedFd, at: impl AsFd, path: &Path) -> io::Result<()> {
    let target = openat2(
        at,
        path,
        OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        if path.is_absolute() { ResolveFlags::NO_SYMLINKS } else { ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS },
    )?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", &target, "", flags)?)
}

fn below_root(path: &Path) -> PathBuf {
    path.components().filter(|c| matches!(c, Component::Normal(_))).collect()
}

/// Makes the directories of `path` that are missing.
fn make_dirs(root: BorrowedFd, path: &Path) -> io::Result<()> {
    let mut so_far = PathBuf::new();
    for component in path.components() {
        so_far.push(component);
        match mkdirat(root, &so_far, Mode::from_raw_mode(0o755)) {
            // A read-only tree that is already there may have it.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(Errno::ROFS) if statat(root, &so_far, AtFlags::empty()).is_ok() => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// A directory for a directory, an empty file for anything else.
fn make_mount_point(root: BorrowedFd, path: &Path, tree: BorrowedFd) -> Result<()> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(tree)?.st_mode);
    if kind == FileType::Directory {
        return Ok(make_dirs(root, path)?);
    }
    make_dirs(root, path.parent().unwrap_or(Path::new("")))?;
    if statat(root, path, AtFlags::SYMLINK_NOFOLLOW).is_err() {
        write(root, path, "")?;
    }
    Ok(())
}

fn write(root: BorrowedFd, path: &Path, text: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(root, path, flags, Mode::from_raw_mode(0o644)).doing(path.display())?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let n = rustix::io::write(&file, rest)?;
        rest = &rest[n..];
    }
    Ok(())
}
