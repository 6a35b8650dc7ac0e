//! Builds a sandboxed process's root directory on a tmpfs, and leaves the old root.
//!
//! Trees are opened as detached mounts before they are covered, so no path is looked up twice. Mount points are created only on
//! the fresh tmpfs, or exist in a tree in which links are not followed.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, statat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_move, move_mount, open_tree,
    unmount,
};

use super::paths;
use crate::access::{Access, Dir, Grant, Links, open_straight};
use crate::error::{Context, Error, Result};
use crate::sys;
use crate::worker::protocol::Setup;

/// Parts of /proc that everyone may read but that reveal other users' keys in the kernel.
const PROC_KEYS: [&[u8]; 2] = [b"keys", b"key-users"];

const DEVICE_LINKS: &[(&str, &str)] = &[
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
];

/// Scratch directories in memory, and their size.
const SCRATCH: &[(&str, MountAttrFlags)] = &[
    ("/tmp", GUARDED),
    ("/dev/shm", GUARDED.union(MountAttrFlags::MOUNT_ATTR_NOEXEC)),
];
const SCRATCH_SIZE: &str = "32m";

const GUARDED: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
const GUARDED_READ_ONLY: MountAttrFlags = GUARDED.union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// A read-only mount protects the mode and the owner of a device, but does not prevent writing to it.
const DEVICE: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_RDONLY);

const CLONE_TREE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_RECURSIVE)
    .union(OpenTreeFlags::AT_EMPTY_PATH);

/// A detached mount that is moved from the old root to the new one.
struct Mount<'a> {
    fd: OwnedFd,
    at: &'a Path,
    /// Whether the mount may disappear at any time, and is skipped then.
    is_optional: bool,
}

/// Builds the new root and makes it this process's only root, with the workspace as working directory.
///
/// In addition to the system's trees it contains those of `setup` and then the writable `open_trees`, all at their original
/// paths, and files in `/etc`, by name and text. Links among the open trees become identical links.
pub(super) fn enter(setup: &Setup, open_trees: &[PathBuf], etc: &[(&str, String)]) -> Result<()> {
    let mut links = Vec::new();
    let mounts = take_trees(setup, open_trees, &mut links)?;
    let root = Dir::from(tmpfs("4m", GUARDED)?);
    // Any directory will do as the mount point, because it becomes the root and the mount namespace is private.
    let mount_point = ["/tmp", "/mnt", "/usr"]
        .into_iter()
        .find(|dir| Path::new(dir).is_dir());
    let mount_point = mount_point
        .ok_or_else(|| Error::failed("there is no directory to build the sandbox on"))?;
    let mount_point =
        open_straight(Path::new(mount_point)).doing("finding a place for the new root")?;
    move_mount(&root, "", &mount_point, "", BY_DESCRIPTORS).doing("attaching the new root")?;
    if setup.has_scratch() {
        make_scratch(&root)?;
    }
    fill(&root, etc, &links)?;
    for mount in &mounts {
        let target = below_root(mount.at);
        make_mount_point(&root, &target, &mount.fd).doing(mount.at.display())?;
        match attach(&mount.fd, &root, &target) {
            Err(_) if mount.is_optional => {}
            result => result.doing(format_args!("attaching {}", mount.at.display()))?,
        }
    }
    mount_proc(&root)?;
    make_read_only(&root)?;
    pivot(&root)?;
    super::enter_workspace(setup)
}

fn make_read_only(mount: &Dir) -> Result<()> {
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
    sys::set_mount_attributes(mount.as_fd(), read_only, false).doing("making a mount read-only")
}

/// Opens the trees of the new root in the old one, and collects the symbolic links to create.
fn take_trees<'a>(
    setup: &'a Setup,
    open_trees: &'a [PathBuf],
    links: &mut Vec<(&'a Path, PathBuf)>,
) -> Result<Vec<Mount<'a>>> {
    let mut mounts = Vec::new();
    for path in paths::system(setup.policy.network) {
        match fs_err::symlink_metadata(path) {
            Ok(meta) if meta.is_symlink() => links.push((path, fs_err::read_link(path)?)),
            Ok(_) => mounts.push(take(CWD, path, path, GUARDED_READ_ONLY)?),
            Err(_) => {}
        }
    }
    for path in paths::DEVICES.iter().map(Path::new) {
        mounts.push(take(CWD, path, path, DEVICE)?);
    }
    let take_held = |grant: &'a Grant, attributes| {
        grant
            .open()?
            .map(|held| take(held, Path::new(""), &grant.real, attributes))
            .transpose()
    };
    for grant in setup.policy.grants_to(Access::Read) {
        mounts.extend(take_held(grant, GUARDED_READ_ONLY)?);
    }
    // Opened by the working directory, because only root may have access to the directories above it.
    mounts.push(take(
        CWD,
        Path::new("."),
        &setup.policy.workspace.real,
        GUARDED,
    )?);
    for grant in setup.policy.grants_to(Access::Write) {
        mounts.extend(take_held(grant, GUARDED)?);
    }
    for path in open_trees {
        match fs_err::read_link(path) {
            Ok(target) if !links.iter().any(|(known, _)| known == path) => {
                links.push((path, target));
            }
            Ok(_) => {}
            Err(_) => {
                let held = open_straight(path).ok();
                let mount = held.and_then(|held| take(held, Path::new(""), path, GUARDED).ok());
                mounts.extend(mount.map(|mount| Mount {
                    is_optional: true,
                    ..mount
                }));
            }
        }
    }
    // The configured paths of grants are links to their real paths.
    let grants = setup.policy.others().chain([&setup.policy.workspace]);
    links.extend(
        grants
            .filter(|grant| grant.path != grant.real)
            .map(|grant| (&*grant.path, grant.real.clone())),
    );
    Ok(mounts)
}

/// Opens the tree at `path` below `held`, to be mounted at `at`.
fn take<'a>(
    held: impl AsFd,
    path: &Path,
    at: &'a Path,
    attributes: MountAttrFlags,
) -> Result<Mount<'a>> {
    let fd = take_mount(held, path, attributes).doing(format_args!("taking {}", at.display()))?;
    Ok(Mount {
        fd,
        at,
        is_optional: false,
    })
}

/// Copies the mounts at `path`, with additional attributes.
fn take_mount(at: impl AsFd, path: &Path, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let mount = open_tree(at, path, CLONE_TREE)?;
    sys::set_mount_attributes(mount.as_fd(), attributes, true)?;
    Ok(mount)
}

fn make_scratch(root: &Dir) -> Result<()> {
    for (path, attributes) in SCRATCH {
        let path = below_root(Path::new(path));
        make_dirs(root, &path)?;
        attach(&tmpfs(SCRATCH_SIZE, *attributes)?, root, &path).doing(path.display())?;
    }
    Ok(())
}

/// Creates the parts that are not from the old root: links and files of `/etc`.
fn fill(root: &Dir, etc: &[(&str, String)], links: &[(&Path, PathBuf)]) -> Result<()> {
    make_dirs(root, Path::new("dev"))?;
    for (path, target) in DEVICE_LINKS {
        symlinkat(*target, root, *path).doing(path)?;
    }
    for (path, target) in links {
        let path = below_root(path);
        make_dirs(root, path.parent().unwrap_or(&path))?;
        match symlinkat(target, root, &path) {
            // The path is a directory above another tree, or an existing link.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(Error::from(e).doing(path.display())),
        }
    }
    make_dirs(root, Path::new("etc"))?;
    for (name, text) in etc {
        write(root, &Path::new("etc").join(name), text)?;
    }
    Ok(())
}

fn pivot(root: &Dir) -> Result<()> {
    rustix::process::fchdir(root).doing("entering the new root")?;
    match rustix::process::pivot_root(".", ".") {
        // The old root is now mounted over the new one. Unmounting it removes the last path back.
        Ok(()) => unmount(".", UnmountFlags::DETACH).doing("leaving the old root"),
        // A system that runs from its initial ramdisk cannot change its root, so the new one covers it. Uncovering it requires
        // a descriptor outside or a capability; processes inside have neither.
        Err(Errno::INVAL) => {
            mount_move(".", "/").doing("covering the old root")?;
            rustix::process::chroot(".").doing("changing the root")
        }
        Err(e) => Err(Error::from(e).doing("changing the root")),
    }
}

fn tmpfs(size: &str, attributes: MountAttrFlags) -> Result<OwnedFd> {
    new_fs(
        "tmpfs",
        &[("size", size), ("nr_inodes", "16k"), ("mode", "0755")],
        attributes,
    )
    .doing("making a tmpfs")
}

fn new_fs(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        fsconfig_set_string(&fs, *name, *value)?;
    }
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A fresh /proc only shows the processes of the sandbox. Some containers forbid it; the sandbox then has no /proc, which most
/// programs tolerate.
///
/// It is read-only, and an empty file or directory covers each part that only root can read, because a command has root's user
/// id outside if root owns the workspace. The parts of `/proc/sys` are too many to look at.
fn mount_proc(root: &Dir) -> Result<()> {
    let at = Path::new("proc");
    make_dirs(root, at)?;
    let proc = match new_fs("proc", &[], GUARDED | MountAttrFlags::MOUNT_ATTR_NOEXEC) {
        Err(Errno::PERM) => return Ok(()),
        result => Dir::from(result.doing("making /proc")?),
    };
    make_read_only(&proc)?;
    let mut covers = Vec::new();
    for part in ["", "tty"].map(Path::new) {
        // A kernel may lack the second one.
        let names = proc.dir_at(part, Links::Refuse).map(|dir| dir.names());
        for name in names.unwrap_or(Ok(Vec::new()))? {
            let path = part.join(&name);
            let mode = statat(&proc, &path, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
            let is_secret = mode & 0o004 == 0 || PROC_KEYS.contains(&name.as_bytes());
            // Processes have numbers, and are those of the sandbox.
            if !is_secret || name.as_bytes()[0].is_ascii_digit() {
                continue;
            }
            let cover = match FileType::from_raw_mode(mode) {
                FileType::Directory => take_mount(root, at, GUARDED_READ_ONLY),
                _ => take_mount(CWD, Path::new("/dev/null"), DEVICE),
            };
            covers.push((cover.doing("taking a cover")?, at.join(path)));
        }
    }
    attach(&proc, root, at).doing("attaching /proc")?;
    for (cover, path) in covers {
        attach(&cover, root, &path).doing(format_args!("covering /{}", path.display()))?;
    }
    Ok(())
}

const BY_DESCRIPTORS: MoveMountFlags =
    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH.union(MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH);

/// Attaches a detached mount to a file or directory of the root without following symbolic links.
fn attach(tree: impl AsFd, root: &Dir, path: &Path) -> Result<(), Errno> {
    let target = root.open_at(
        path,
        OFlags::PATH | OFlags::NOFOLLOW,
        Mode::empty(),
        Links::Refuse,
    )?;
    move_mount(tree, "", &target, "", BY_DESCRIPTORS)
}

fn below_root(path: &Path) -> PathBuf {
    path.components()
        .filter(|c| matches!(c, Component::Normal(_)))
        .collect()
}

fn make_dirs(root: &Dir, path: &Path) -> Result<(), Errno> {
    root.make_dirs(path, Mode::from_raw_mode(0o755), Links::Refuse)
}

/// Creates a directory for a directory, and an empty file otherwise.
fn make_mount_point(root: &Dir, path: &Path, tree: &OwnedFd) -> Result<()> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(tree)?.st_mode);
    if kind == FileType::Directory {
        return Ok(make_dirs(root, path)?);
    }
    make_dirs(root, path.parent().unwrap_or(path))?;
    if statat(root, path, AtFlags::SYMLINK_NOFOLLOW).is_err() {
        write(root, path, "")?;
    }
    Ok(())
}

fn write(root: &Dir, path: &Path, text: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(root, path, flags, Mode::from_raw_mode(0o644)).doing(path.display())?;
    Ok(fs_err::File::from_parts(file.into(), path).write_all(text.as_bytes())?)
}
