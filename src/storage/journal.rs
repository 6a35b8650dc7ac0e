//! An append-only log of JSON Lines: `{"crc":"8 hex","seq":N,...}`. `crc` is the CRC-32 (IEEE) of the bytes after the first
//! comma up to the newline; bare JSON Lines would accept four of ten single-bit flips as another valid record. `seq` counts
//! lines from 0, so that missing and repeated lines are detected.
//!
//! Acknowledged data is on disk: an append is one write and one fdatasync. A repair only cuts off bytes after the last newline
//! (a write cut short by a crash).

use std::io::{BufRead, BufReader, ErrorKind, Read, Take, Write};
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt;
use fs_err::{File, OpenOptions};
use serde_json::{Map, Value};

use super::{make_dir, parent, sync_all, sync_dir};
use crate::error::{Error, Result};
use crate::json::parse_json;
use crate::text::{counted, size};

/// A line's fields, without `crc` and `seq`.
pub(crate) type Fields = Map<String, Value>;

/// Converts JSON objects to fields of lines to append.
pub(super) fn fields(lines: &[Value]) -> Vec<Fields> {
    let objects = lines.iter().filter_map(Value::as_object);
    objects.cloned().collect()
}

/// When an append must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before the call returns.
    Now,
    /// With the next append that is [`Durability::Now`]. A power cut may lose it, a crash of the program does not.
    Later,
}

/// An open log. The caller owns its lock.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(super) file: File,
    pub(super) path: PathBuf,
    /// Length of the complete lines, in bytes.
    pub(super) len: u64,
    /// `seq` of the next line.
    pub(crate) next: u64,
    /// A sync failed, or a failed write could not be undone, so further writes through this handle are refused.
    pub(super) suspect: bool,
}

impl Journal {
    /// Creates a log that begins with these lines, on disk before this returns.
    pub(crate) fn create(path: &Path, first: &[Fields]) -> Result<Self> {
        let dir = parent(path);
        let is_new = make_dir(dir)?;
        let file = open_to_append().create_new(true).mode(0o600).open(path)?;
        let mut journal = Self {
            file,
            path: path.to_owned(),
            len: 0,
            next: 0,
            suspect: false,
        };
        let written = journal.append(first, Durability::Now);
        // The entries of a new directory and its parents must also survive a power cut, which costs one wait for all.
        let sync_names = if is_new { sync_all } else { sync_dir };
        if let Err(e) = written.and_then(|()| sync_names(dir)) {
            // Nothing was acknowledged. If the removal also fails, the empty file counts as a missing log.
            drop(fs_err::remove_file(path));
            return Err(e);
        }
        Ok(journal)
    }

    /// Opens and reads a log, and repairs a tail that a crash cut short. `None` if the file is missing or has no complete line.
    pub(super) fn open_file(path: &Path) -> Result<Option<(Self, Contents)>> {
        let file = match open_to_append().read(true).open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut log = LogReader::new(file, path)?;
        let mut found = Contents::read(&mut log)?;
        let file = log.file.into_inner().into_inner();
        if let Some(torn) = &mut found.torn {
            file.set_len(found.len)?;
            file.sync_all()?;
            torn.push_str("; it was removed");
        }
        if found.len == 0 {
            return Ok(None);
        }
        let journal = Self {
            file,
            path: path.to_owned(),
            len: found.len,
            next: found.lines.len() as u64,
            suspect: false,
        };
        Ok(Some((journal, found)))
    }

    /// Appends these lines with one write. On an error, the file contains only the earlier lines.
    pub(crate) fn append(&mut self, lines: &[Fields], durability: Durability) -> Result<()> {
        let encoded = lines.iter().zip(self.next..);
        let encoded: Vec<Vec<u8>> = encoded.map(|(line, seq)| encode(line, seq)).collect();
        let bytes = encoded.concat();
        self.write(&bytes, durability).map_err(|e| {
            e.doing(format_args!("saving to {}", self.path.display()))
                .hint("free some space or repair the disk; saved data is intact")
        })?;
        self.next += lines.len() as u64;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], durability: Durability) -> Result<()> {
        if self.suspect {
            return Err(Error::failed("an earlier write failed"));
        }
        let written = self.file.write_all(bytes).and_then(|()| match durability {
            Durability::Now => self.file.sync_data().inspect_err(|_| self.suspect = true),
            Durability::Later => Ok(()),
        });
        if let Err(e) = written {
            // Cuts off unacknowledged bytes. After a failed sync the kernel reports success, even if it has dropped data,
            // so the next opening reads the file.
            self.suspect |= self.file.set_len(self.len).is_err();
            return Err(e.into());
        }
        self.len += bytes.len() as u64;
        Ok(())
    }
}

/// Contents of a log.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Lines by number; damaged and missing lines are empty.
    pub lines: Vec<Fields>,
    /// One sentence for each damaged, missing or repeated line.
    pub damage: Vec<String>,
    /// Sentence about an incomplete last line, or about its repair.
    pub torn: Option<String>,
    /// Length of the complete lines, in bytes.
    pub(super) len: u64,
}

/// Reads the whole log in this file and changes nothing. `None` if the file is missing.
pub(super) fn read_file(path: &Path) -> Result<Option<Contents>> {
    let mut log = LogReader::open(path)?;
    log.as_mut().map(Contents::read).transpose()
}

/// Maximum size of a log that is read, in bytes; a small board has 512 MB of memory.
pub(crate) const MAX_LOG: u64 = 16 << 20;
/// Maximum line number; the shortest line has more than 16 bytes, so a higher number is damage.
const MAX_SEQ: usize = (MAX_LOG / 16) as usize;
/// Bytes of a log that are read at a time.
const CHUNK: u64 = 64 << 10;

/// Part of a log.
pub(crate) enum LogItem {
    /// A line and its number.
    Line(usize, Fields),
    /// Sentence about a damaged, missing or repeated line.
    Damage(String),
    /// Sentence about an incomplete last line.
    Torn(String),
}

/// Reads the lines of a log one at a time and changes nothing. Needs no lock, because lines are only ever appended, so a
/// partial write is at the end.
pub(crate) struct LogReader {
    file: BufReader<Take<File>>,
    path: PathBuf,
    /// Buffer of the current line.
    line: Vec<u8>,
    /// Number of lines read, damaged ones included.
    count: usize,
    /// Number of the line after the last intact one.
    next: usize,
    /// Damaged lines after the last intact one.
    bad: usize,
    /// Length of the complete lines, in bytes.
    len: u64,
    /// Line after a report about missing ones.
    pending: Option<LogItem>,
}

impl LogReader {
    /// Opens a log; `None` if the file is missing.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        // Non-blocking, because opening a named pipe would otherwise wait for a writer.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            file => Self::new(file?, path).map(Some),
        }
    }

    fn new(file: File, path: &Path) -> Result<Self> {
        let (meta, path) = (file.metadata()?, path.to_owned());
        if !meta.is_file() {
            return Err(Error::failed(format!(
                "{} is not a regular file",
                path.display()
            )));
        }
        // Later appends are found by the next read.
        let len = meta.len();
        if len > MAX_LOG {
            let (path, len, most) = (path.display(), size(len), size(MAX_LOG));
            return Err(
                Error::failed(format!("{path} has grown to {len}; the limit is {most}"))
                    .hint(format!("run `mv {path} {path}.old` to start without it")),
            );
        }
        let chunk = usize::try_from(len.min(CHUNK)).unwrap_or_default();
        Ok(Self {
            file: BufReader::with_capacity(chunk, file.take(len)),
            path,
            line: Vec::new(),
            count: 0,
            next: 0,
            bad: 0,
            len: 0,
            pending: None,
        })
    }

    fn read(&mut self) -> Result<Option<LogItem>> {
        self.line.clear();
        let bytes = self.file.read_until(b'\n', &mut self.line)?;
        if bytes == 0 {
            return Ok(None);
        }
        self.count += 1;
        if !self.line.ends_with(b"\n") {
            let torn = format!("{}: the line was cut short ({bytes} bytes)", self.place());
            return Ok(Some(LogItem::Torn(torn)));
        }
        self.len += bytes as u64;
        let damage = match decode(&mut self.line) {
            Some((seq, _)) if seq < self.next => format!("line {seq} is repeated"),
            Some((seq, fields)) => {
                let missing = seq.saturating_sub(self.next + self.bad);
                (self.next, self.bad) = (seq + 1, 0);
                let line = LogItem::Line(seq, fields);
                if missing == 0 {
                    return Ok(Some(line));
                }
                self.pending = Some(line);
                format!("{} missing before this one", counted(missing, "line"))
            }
            None => {
                self.bad += 1;
                "the line is damaged (its checksum does not match) and was left out".to_owned()
            }
        };
        let place = self.place();
        Ok(Some(LogItem::Damage(format!("{place}: {damage}"))))
    }

    /// Returns the file and the number of the current line.
    fn place(&self) -> String {
        format!("{}:{}", self.path.display(), self.count)
    }
}

impl Iterator for LogReader {
    type Item = Result<LogItem>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.pending.take() {
            None => self.read().transpose(),
            pending => pending.map(Ok),
        }
    }
}

impl Contents {
    fn read(log: &mut LogReader) -> Result<Self> {
        let mut found = Self::default();
        for item in log.by_ref() {
            match item? {
                LogItem::Line(seq, fields) => {
                    found.lines.resize(seq, Fields::new());
                    found.lines.push(fields);
                }
                LogItem::Damage(what) => found.damage.push(what),
                LogItem::Torn(torn) => found.torn = Some(torn),
            }
        }
        found.lines.resize(log.next + log.bad, Fields::new());
        found.len = log.len;
        Ok(found)
    }
}

fn open_to_append() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).custom_flags(libc::O_NOFOLLOW);
    options
}

/// Length of [`checksum`], in bytes.
const PREFIX: usize = 18;

/// Returns the beginning of a line.
fn checksum(crc: u32) -> String {
    format!("{{\"crc\":\"{crc:08x}\",")
}

fn encode(fields: &Fields, seq: u64) -> Vec<u8> {
    // Maps always convert to JSON.
    let object = serde_json::to_string(fields).unwrap_or_default();
    let comma = if fields.is_empty() { "" } else { "," };
    let rest = format!("\"seq\":{seq}{comma}{}", &object[1..]);
    format!("{}{rest}\n", checksum(crc32fast::hash(rest.as_bytes()))).into_bytes()
}

/// Reads a line and its number. To avoid a copy, this overwrites the byte before the fields.
pub(crate) fn decode(line: &mut [u8]) -> Option<(usize, Fields)> {
    let (prefix, rest) = line.strip_suffix(b"\n")?.split_at_checked(PREFIX)?;
    if prefix != checksum(crc32fast::hash(rest)).as_bytes() {
        return None;
    }
    let object = line.get_mut(PREFIX - 1..)?;
    object[0] = b'{';
    let Value::Object(mut fields) = parse_json(object).ok()? else {
        return None;
    };
    let seq = usize::try_from(fields.remove("seq")?.as_u64()?).ok()?;
    (seq <= MAX_SEQ).then_some((seq, fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use serde_json::json;

    fn fields(n: u64) -> Fields {
        json!({"n": n, "text": "日本 \u{1f414}"})
            .as_object()
            .cloned()
            .unwrap()
    }

    fn open(path: &Path) -> Result<Option<(Journal, Contents)>> {
        Journal::open(path)
    }

    fn numbers(found: &Contents) -> Vec<u64> {
        let number = |line: &Fields| line.get("n")?.as_u64();
        found.lines.iter().filter_map(number).collect()
    }

    #[test]
    fn oversized_journal_is_refused_with_a_hint() {
        let dir = TestDir::new();
        let path = dir.join("j.jsonl");
        drop(Journal::create(&path, &[fields(0)]).unwrap());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(MAX_LOG + 1).unwrap();
        let e = open(&path).unwrap_err();
        assert!(e.message.contains("has grown to 16.0 MB"), "{e:?}");
        assert!(e.hint.unwrap().contains("mv "));
    }

    #[test]
    fn lost_and_doubled_lines_are_reported_and_the_rest_is_kept() {
        let dir = TestDir::new();
        let path = dir.join("j.jsonl");
        drop(Journal::create(&path, &[fields(0), fields(1), fields(2)]).unwrap());
        let good = fs_err::read_to_string(&path).unwrap();
        let line: Vec<&str> = good.split_inclusive('\n').collect();
        fs_err::write(&path, [line[0], line[2]].concat()).unwrap();
        let (journal, found) = open(&path).unwrap().unwrap();
        assert_eq!((numbers(&found), found.damage.len()), (vec![0, 2], 1));
        assert_eq!((journal.next, found.lines[1].len()), (3, 0));
        fs_err::write(&path, [line[0], line[1], line[1], line[2]].concat()).unwrap();
        let (_, found) = open(&path).unwrap().unwrap();
        assert_eq!((numbers(&found), found.damage.len()), (vec![0, 1, 2], 1));
    }

    #[test]
    fn reading_changes_nothing_and_needs_a_regular_file() {
        let dir = TestDir::new();
        let path = dir.join("j.jsonl");
        assert!(read_file(&path).unwrap().is_none());
        drop(Journal::create(&path, &[fields(0), fields(1)]).unwrap());
        let mut bytes = fs_err::read(&path).unwrap();
        bytes.extend_from_slice(b"{\"crc\":\"torn");
        fs_err::write(&path, &bytes).unwrap();
        let found = read_file(&path).unwrap().unwrap();
        assert_eq!((found.lines.len(), found.damage.len()), (2, 0));
        assert!(found.torn.unwrap().contains("j.jsonl:3: "));
        assert_eq!(fs_err::read(&path).unwrap(), bytes);
        assert!(read_file(&dir).is_err());
    }
}
