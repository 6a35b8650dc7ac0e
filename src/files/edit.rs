//! Changing files: each change whole or not at all, one at a time, and of nothing but the file's content.
//!
//! The new content is written to a temporary file beside the old one and renamed over it, by the handle of the directory
//! that holds it, so no link or race can turn the write elsewhere. The directory is locked meanwhile: of two changes to
//! one file the second sees what the first did. Nothing is synced: this is the user's work, not our record of it.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fs_err::File;
use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, Gid, Mode, OFlags, Stat, Uid, fallocate, fchmod, fchown, flock, fstat,
    mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::encoding::Encoding;
use super::replace::{Change, replaced};
use super::{Access, Target, Trees, text};
use crate::beneath::{self, Dir, Links};
use crate::error::{Context, Error, Result};
use crate::text::size;
use crate::wire::{Incoming, Reply};

/// The longest file that is edited in memory.
const MOST_EDITED: u64 = 32 << 20;

/// How long another change in the same directory may take.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Makes a file, or replaces what is in it.
pub fn write_file(target: Target, content: &str, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    let spot = Spot::lock(target, hung_up)?;
    let old = spot.open(OFlags::WRONLY)?;
    spot.put(old.as_ref(), content.as_bytes())?;
    let done = if old.is_some() { "replaced the content of" } else { "made" };
    Ok(text(format!("{done} {}: {}", target.asked.display(), size(content.len() as u64))))
}

/// Adds to the end of a file, or makes it.
pub fn append_file(target: Target, content: &str, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    append(target, content, None, hung_up)
}

/// Adds lines of their own to the end of a file that may not become longer than so many bytes, or makes it.
pub fn append_lines(target: Target, lines: &str, most: u64, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    append(target, lines, Some(most), hung_up)
}

/// `most` is there for lines of their own.
fn append(target: Target, content: &str, most: Option<u64>, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    let spot = Spot::lock(target, hung_up)?;
    let name = target.asked.display();
    let Some(old) = spot.open(OFlags::RDWR | OFlags::APPEND)? else {
        spot.put(None, content.as_bytes())?;
        return Ok(text(format!("made {name}: {}", size(content.len() as u64))));
    };
    let len = u64::try_from(old.stat.st_size).unwrap_or(0);
    let mut start = [0; 3];
    let known = old.file.file().read_at(&mut start, 0)?;
    let (encoding, mark) = Encoding::of(&start[..known]);
    let mut end = [0; 2];
    let unit = encoding.unit();
    let joined = len > mark as u64
        && old.file.file().read_exact_at(&mut end[..unit], len.saturating_sub(unit as u64)).is_ok()
        && end[..unit] != encoding.encode("\n");
    let mut bytes = encoding.encode(content);
    if let Some(most) = most {
        if joined {
            bytes = [encoding.encode("\n"), bytes].concat();
        }
        if len.saturating_add(bytes.len() as u64) > most {
            return Err(Error::failed(format!(
                "{name} would become too long: it has {} of {}, and this is {} more",
                size(len),
                size(most),
                size(bytes.len() as u64)
            )));
        }
    }
    let mut file = &old.file;
    if let Err(e) = file.write_all(&bytes) {
        // What got in before the disk was full goes out again.
        file.set_len(len).doing(format_args!("taking back a part of what was written to {name}"))?;
        return Err(Error::from(e));
    }
    let joined = joined && most.is_none();
    let note = if joined { "; its last line had no line end, so the text goes on in that line" } else { "" };
    Ok(text(format!("added {} to {name}{note}", size(content.len() as u64))))
}

/// Removes a file.
pub fn remove_file(target: Target, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    let spot = Spot::lock(target, hung_up)?;
    if spot.open(OFlags::RDONLY)?.is_none() {
        return Err(beneath::explain(Errno::NOENT, target.asked));
    }
    unlinkat(&spot.dir, &spot.name, AtFlags::empty()).map_err(|e| beneath::explain(e, target.asked))?;
    Ok(text(format!("deleted {}", target.asked.display())))
}

/// Changes a part of a file.
pub fn edit_file(target: Target, change: &Change, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    let spot = Spot::lock(target, hung_up)?;
    let Some(old) = spot.open(OFlags::RDWR)? else {
        return Err(beneath::explain(Errno::NOENT, target.asked));
    };
    let name = target.asked.display();
    let len = u64::try_from(old.stat.st_size).unwrap_or(u64::MAX);
    if len > MOST_EDITED {
        return Err(Error::failed(format!("{name} is too large to be edited ({}): use a command", size(len))));
    }
    let mut content = Vec::new();
    (&old.file).take(MOST_EDITED).read_to_end(&mut content)?;
    let (changed, report) = replaced(&content, change).map_err(|e| e.doing(&name))?;
    spot.put(Some(&old), &changed)?;
    Ok(text(format!("changed {name}: {report}")))
}

/// Names that are tried for a file that came from outside.
const MOST_NAMES: usize = 1000;

/// Adds a part to a file that comes from outside. With the last one it gets its name, and that is the answer: with a number
/// when the name is taken, but by the same file.
pub fn take_file(trees: &Trees, part: &Incoming) -> Result<Reply> {
    let temporary = format!(".bantam-{}", part.key);
    let path = format!("{}/{temporary}", part.dir);
    let target = trees.find(&path, Access::Write)?;
    let spot = Spot::lock(target, &|| false)?;
    if spot.name != *temporary {
        return Err(Error::failed(format!("{path} is a link")));
    }
    let taken = take_part(&spot, part);
    if taken.is_err() {
        // If it cannot be removed, the error that is on its way out already says more.
        unlinkat(&spot.dir, &spot.name, AtFlags::empty()).ok();
    }
    taken
}

fn take_part(spot: &Spot, part: &Incoming) -> Result<Reply> {
    let bytes = STANDARD.decode(&part.content).map_err(|e| Error::failed(e.to_string()))?;
    let mut flags = OFlags::RDWR | OFlags::APPEND;
    if part.offset == 0 {
        // A crash may have left the beginning.
        match unlinkat(&spot.dir, &spot.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => flags |= OFlags::CREATE | OFlags::EXCL,
            Err(e) => return Err(beneath::explain(e, spot.asked)),
        }
    }
    let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = openat(&spot.dir, &spot.name, flags | careful, Mode::from_raw_mode(0o666));
    let fd = fd.map_err(|e| beneath::explain(e, spot.asked))?;
    let stat = fstat(&fd)?;
    if beneath::is_regular(&stat, spot.asked).is_err() || u64::try_from(stat.st_size) != Ok(part.offset) {
        return Err(Error::failed("something else changed it meanwhile"));
    }
    let mut file = spot.file(fd);
    file.write_all(&bytes)?;
    if !part.is_last {
        return Ok(text(""));
    }
    let (stem, end) = match part.name.rsplit_once('.') {
        Some((stem, end)) if !stem.is_empty() => (stem, format!(".{end}")),
        _ => (part.name.as_str(), String::new()),
    };
    for n in 1..=MOST_NAMES {
        let name = if n == 1 { part.name.clone() } else { format!("{stem}-{n}{end}") };
        match statat(&spot.dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => renameat(&spot.dir, &spot.name, &spot.dir, &name),
            Ok(_) if is_same(spot, &name, &mut file) => unlinkat(&spot.dir, &spot.name, AtFlags::empty()),
            Ok(_) => continue,
            Err(e) => Err(e),
        }
        .map_err(|e| beneath::explain(e, spot.asked))?;
        return Ok(text(format!("{}/{name}", part.dir)));
    }
    Err(Error::failed(format!("there are {MOST_NAMES} files of that name")))
}

/// Whether the file `name` holds the same as `file`.
fn is_same(spot: &Spot, name: &str, file: &mut File) -> bool {
    let Ok(other) = spot.dir.read(Path::new(name), Path::new(name), Links::Refuse) else { return false };
    if file.seek(SeekFrom::Start(0)).is_err() {
        return false;
    }
    let mut others = BufReader::new(other).bytes();
    let mut own = BufReader::new(file).bytes();
    loop {
        match (own.next(), others.next()) {
            (None, None) => return true,
            (Some(Ok(own)), Some(Ok(other))) if own == other => {}
            _ => return false,
        }
    }
}

/// Where a file is or will be: its directory, held and locked, and its name there.
struct Spot<'a> {
    /// Locked as long as it is open.
    dir: Dir,
    name: OsString,
    asked: &'a Path,
}

/// A file to be changed, as it was found.
struct Old {
    file: File,
    stat: Stat,
}

impl<'a> Spot<'a> {
    /// Makes the directories that are missing.
    fn lock(target: Target<'a>, hung_up: &dyn Fn() -> bool) -> Result<Self> {
        let Target { tree, path, asked } = target;
        let last = asked.as_os_str().as_encoded_bytes().rsplit(|b| *b == b'/').next();
        if matches!(last, None | Some(b"" | b"." | b"..")) {
            return Err(Error::failed(format!("{} names a directory, not a file", asked.display())));
        }
        let placed = match tree.place(path) {
            Err(Errno::NOENT) => {
                make_parents(tree, path).map_err(|e| beneath::explain(e, asked))?;
                tree.place(path)
            }
            result => result,
        };
        let (dir, name) = placed.map_err(|e| beneath::explain(e, asked))?;
        let until = Instant::now() + LOCK_WAIT;
        let mut pause = Duration::from_millis(1);
        loop {
            match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until && !hung_up() => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(50));
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    let dir = asked.parent().unwrap_or(asked).display();
                    return Err(Error::failed(format!("something else is changing files in \"{dir}\": try again")));
                }
                // Some network file systems lock no directories. A rename is whole there too; what is lost is the
                // order of two changes at the same moment.
                Err(Errno::BADF | Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => break,
                Err(e) => {
                    return Err(Error::from(e).doing(format_args!("locking the directory of {}", asked.display())));
                }
            }
        }
        Ok(Self { dir, name, asked })
    }

    /// Opens what is there. `None` when nothing is.
    fn open(&self, flags: OFlags) -> Result<Option<Old>> {
        let explain = |e| beneath::explain(e, self.asked);
        // Looks first: merely opening some devices does something.
        match statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(explain(e)),
            Ok(stat) => beneath::is_regular(&stat, self.asked)?,
        }
        let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&self.dir, &self.name, flags | careful, Mode::empty()).map_err(explain)?;
        let stat = fstat(&fd)?;
        beneath::is_regular(&stat, self.asked)?;
        if stat.st_nlink > 1 {
            return Err(Error::failed(format!(
                "{} is not changed: it has {} names (hard links), and the others may be outside",
                self.asked.display(),
                stat.st_nlink
            )));
        }
        Ok(Some(Old { file: self.file(fd), stat }))
    }

    fn file(&self, fd: OwnedFd) -> File {
        File::from_parts(fd.into(), self.asked)
    }

    /// Puts `content` where `old` was, or where nothing was.
    fn put(&self, old: Option<&Old>, content: &[u8]) -> Result<()> {
        let temporary = match Temporary::new(self, old) {
            Ok(temporary) => temporary,
            Err(e) => match old {
                // The directory takes no new files, or a new one could not belong to the same user.
                Some(old) if matches!(e, Errno::ACCESS | Errno::PERM | Errno::ROFS) => return overwrite(old, content),
                _ => return Err(beneath::explain(e, self.asked)),
            },
        };
        (&temporary.file).write_all(content)?;
        temporary.rename().map_err(|e| beneath::explain(e, self.asked))
    }
}

/// A new file beside the one that it is to replace. Dropped before that, it is removed.
struct Temporary<'a> {
    spot: &'a Spot<'a>,
    name: OsString,
    file: File,
    renamed: bool,
}

impl<'a> Temporary<'a> {
    /// With the mode and owner of `old`, or those of a new file.
    fn new(spot: &'a Spot<'a>, old: Option<&Old>) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        // By chance and not by process number: each of us may be number 1 of a namespace.
        let name = OsString::from(format!(".bantam-{:016x}", RandomState::new().build_hasher().finish()));
        let fd = openat(&spot.dir, &name, flags, Mode::from_raw_mode(mode))?;
        let temporary = Self { spot, name, file: spot.file(fd), renamed: false };
        if let Some(Old { stat, .. }) = old {
            let own = fstat(&temporary.file)?;
            if (own.st_uid, own.st_gid) != (stat.st_uid, stat.st_gid) {
                fchown(&temporary.file, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
            }
            fchmod(&temporary.file, Mode::from_raw_mode(stat.st_mode & 0o777))?;
        }
        Ok(temporary)
    }

    fn rename(mut self) -> Result<(), Errno> {
        renameat(&self.spot.dir, &self.name, &self.spot.dir, &self.spot.name)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // If it cannot be removed, the error that is on its way out already says more.
            unlinkat(&self.spot.dir, &self.name, AtFlags::empty()).ok();
        }
    }
}

/// Writes over a file in its place, after making sure that there is room. A crash meanwhile leaves a mixture.
fn overwrite(old: &Old, content: &[u8]) -> Result<()> {
    let mut file = &old.file;
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, content.len().max(1) as u64) {
        // Not every file system can promise room.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(e) => return Err(Error::from(e).doing("making room")),
    }
    file.seek(SeekFrom::Start(0))?;
    file.write_all(content)?;
    Ok(file.set_len(content.len() as u64)?)
}

/// Makes the directories above `path` that are not there, each beneath `tree`.
fn make_parents(tree: &Dir, path: &Path) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut so_far = PathBuf::new();
    for component in path.parent().unwrap_or(Path::new("")).components() {
        so_far.push(component);
        match tree.open_at(&so_far, flags, Mode::empty(), Links::Follow) {
            Err(Errno::NOENT) if component != Component::ParentDir => {
                let (dir, name) = tree.place(&so_far)?;
                match mkdirat(&dir, &name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(_) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
