//! The messages between this program and its worker processes.
//!
//! The setup is an environment variable, because the process confines itself by it before it reads the job. A job and a reply
//! are each a header, which is JSON, and a body of raw bytes. The reply comes from a process that may have run anything: its
//! lengths are checked before memory is allocated, and its header has a fixed schema.

use std::io::{Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::access::{Access, Grant};
use crate::child::Network;
use crate::error::{Context, Error, Result};
use crate::json::from_json;
use crate::message::MAX_IMAGE;

/// Bytes of a reply's header, and of its body.
const MAX_HEADER: usize = 16 << 10;
pub(crate) const MAX_BODY: usize = (1 << 20) - MAX_HEADER;
/// Bytes of a line that a running command has printed.
pub(crate) const MAX_LINE: usize = 400;
/// Bytes of a job's header, and of its body.
const MAX_JOB: usize = 64 << 20;
/// Bytes to be read for their content, in all, and in one piece.
const MAX_READ: usize = 24 << 20;
const MAX_PIECE: usize = 1 << 20;

/// What confines a worker process, strongest first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Confinement {
    /// Namespaces and a new root, a seccomp filter, and Landlock where the kernel has it.
    Namespaces,
    /// Landlock and a seccomp filter.
    Landlock,
    /// Held directories only: for file tools where the kernel offers no sandbox.
    Unconfined,
    /// Nothing, as the configuration says.
    Disabled,
}

impl Confinement {
    pub(crate) fn is_sandboxed(self) -> bool {
        matches!(self, Self::Namespaces | Self::Landlock)
    }
}

/// How a worker process confines itself. Paths are absolute.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Setup {
    pub confinement: Confinement,
    pub network: Network,
    /// The directory it works in.
    pub workspace: Grant,
    /// What it may reach besides; where one does not exist, there is none.
    pub grants: Vec<Grant>,
    /// The user's notes, which commands read.
    pub notes: Option<Grant>,
    /// Allows everything its user may access except this directory, bantam's home. Free of symbolic links.
    pub all_except: Option<PathBuf>,
    /// There is a `/tmp` in memory. File jobs have none: what they wrote there would be lost with the call.
    pub has_scratch: bool,
    /// Sockets can have names, and be connected to by them. Not where a grant may hold those of services.
    pub named_sockets: bool,
    /// The data segment of each process, in MiB; 0 for no limit.
    pub memory_mb: u64,
}

impl Setup {
    /// The setup of one job: only commands see the notes.
    pub(crate) fn for_job(mut self, job: &Job) -> Self {
        self.has_scratch = matches!(job, Job::Exec(_) | Job::Serve(_));
        if !matches!(job, Job::Exec(_)) {
            self.notes = None;
        }
        self
    }

    /// The grants besides the workspace.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Grant> {
        self.grants.iter().chain(&self.notes)
    }

    /// The grants with this access, but the workspace.
    pub(crate) fn grants_to(&self, access: Access) -> impl Iterator<Item = &Grant> {
        self.others().filter(move |grant| grant.access == access)
    }
}

/// The one thing a worker process does.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Job {
    File(FileJob),
    Exec(ExecJob),
    Serve(ServeJob),
    Read(ReadingJob),
}

/// Another's bytes, to be read for their content: they follow the job in pieces, so that nobody else holds all of them.
/// The reply's body is what [`crate::web`] makes of them.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct ReadingJob {
    pub what: Reading,
    /// The bytes are packed.
    pub is_gzip: bool,
    /// What has come, in the process that reads it.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

impl ReadingJob {
    pub(crate) fn new(what: Reading, is_gzip: bool) -> Self {
        Self {
            what,
            is_gzip,
            bytes: Vec::new(),
        }
    }
}

/// Gives the next bytes to be read; `None` at their end.
pub(crate) type Pieces<'a> = dyn FnMut() -> Result<Option<Vec<u8>>> + 'a;

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reading {
    /// A page, as Markdown; an image as it is.
    Page {
        content_type: String,
        /// Where it came from: what its links start from.
        address: String,
        max_chars: usize,
        /// The pages of a PDF, as the model wrote them.
        pages: String,
    },
    /// What a search engine found.
    Hits {
        /// Where the results are in its JSON, and the names of their parts; `None` for a page of `DuckDuckGo`.
        names: Option<[String; 4]>,
        count: usize,
    },
    /// The text of a PDF: its first pages, up to so many bytes.
    Pdf { most: usize },
}

/// What was read of a PDF. Its text follows on the next line.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(default)]
pub(crate) struct PdfPart {
    /// The pages that are left, as `pages` takes them; empty if there are none.
    pub more: String,
}

/// How the rest of a PDF in the workspace is read, below its first part; empty if there is no rest.
pub(crate) fn more_pages(more: &str, path: &str) -> String {
    match (more, path) {
        ("", _) => String::new(),
        (_, "") => format!("\n[the rest is missing here: pages {more}]"),
        _ => format!("\n[there is more: read_file {path} with pages {more}]"),
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct ExecJob {
    pub command: String,
    pub working_dir: String,
    pub timeout_secs: u64,
    /// Variables of the user's that the command gets.
    pub env: Vec<(String, String)>,
    /// Its standard input.
    #[serde(skip)]
    pub input: Vec<u8>,
}

/// A program that runs for as long as its caller wants. It gets the rest of the job's pipe as its standard input, and its
/// standard output follows an empty reply.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct ServeJob {
    pub program: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: String,
    /// The program's `HOME`.
    pub home: PathBuf,
    /// The kernel's limit does not bind root, so its processes are counted.
    pub counts_processes: bool,
}

/// The path of the workspace, for tools.
fn workspace() -> String {
    ".".to_owned()
}

/// A job with files. Paths are relative to the workspace, or absolute and within one of the grants.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileJob {
    ListDir {
        #[serde(default = "workspace")]
        path: String,
        /// Levels to descend; 1 is the directory alone.
        depth: Option<u32>,
    },
    ReadFile {
        path: String,
        /// The first line, from 1.
        offset: Option<u64>,
        /// Lines.
        limit: Option<u64>,
        /// The pages of a PDF: `7` or `3-12`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pages: Option<String>,
    },
    /// Stores a file that came from outside, and returns its path.
    TakeFile(IncomingFile),
    /// Makes a file what it was before a tool changed it.
    PutBack(OldFile),
    /// Returns a part of a regular file. Replies are bounded, so a large file takes several.
    GiveFile {
        path: String,
        /// The first byte, from 0.
        offset: u64,
        /// Bytes that the whole file may have.
        most: u64,
    },
    Grep {
        pattern: String,
        path: Option<String>,
        /// Matches names, or paths when it contains a slash.
        glob: Option<String>,
        /// Lines.
        max: Option<usize>,
    },
    WriteFile {
        path: String,
        content: String,
        /// The file that the user allowed to be replaced; `None` if nobody was asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shown: Option<Shown>,
    },
    AppendFile {
        path: String,
        content: String,
    },
    EditFile {
        path: String,
        old_text: String,
        new_text: String,
        replace_all: Option<bool>,
    },
    RemoveFile {
        path: String,
    },
    /// Returns what the notes say in passages, a line for each: `[KEY, LINE, TEXT]` as JSON.
    Passages,
}

impl FileJob {
    /// Whether it changes a file that is there.
    pub(crate) fn changes_files(&self) -> bool {
        matches!(
            self,
            Self::WriteFile { .. }
                | Self::AppendFile { .. }
                | Self::EditFile { .. }
                | Self::RemoveFile { .. }
                | Self::PutBack(_)
        )
    }

    /// The path of a job about one file.
    pub(crate) fn path(&self) -> &str {
        match self {
            Self::ListDir { path, .. }
            | Self::ReadFile { path, .. }
            | Self::GiveFile { path, .. }
            | Self::WriteFile { path, .. }
            | Self::AppendFile { path, .. }
            | Self::EditFile { path, .. }
            | Self::RemoveFile { path } => path,
            Self::Grep { path, .. } => path.as_deref().unwrap_or(""),
            Self::PutBack(file) => &file.path,
            Self::TakeFile(file) => &file.dir,
            Self::Passages => "",
        }
    }
}

/// A file as a question about its replacement showed it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) enum Shown {
    Absent,
    /// The CRC-32 of its content.
    Content(u32),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct IncomingFile {
    /// The directory to store it in, and its name there. A taken name gets a number.
    pub dir: String,
    pub name: String,
    #[serde(skip)]
    pub content: Vec<u8>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct OldFile {
    pub path: String,
    /// What the tool left; with another one, somebody has changed it since.
    pub stamp: String,
    /// There was a file, with this content.
    pub was_there: bool,
    #[serde(skip)]
    pub content: Vec<u8>,
}

impl Job {
    /// The job's own time limit, in seconds.
    pub(crate) fn seconds(&self) -> u64 {
        match self {
            Self::Exec(job) => job.timeout_secs,
            Self::Read(_) => 40,
            Self::File(_) | Self::Serve(_) => 60,
        }
    }

    /// What is sent after it as raw bytes.
    pub(crate) fn body(&self) -> &[u8] {
        match self {
            Self::Exec(job) => &job.input,
            Self::File(FileJob::TakeFile(file)) => &file.content,
            Self::File(FileJob::PutBack(file)) => &file.content,
            Self::File(_) | Self::Serve(_) | Self::Read(_) => &[],
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Header {
    /// The process has confined itself and waits for the job. The first thing that it says.
    Ready,
    /// The body is the text asked for.
    Text,
    /// A file has changed; the body says so to the model. The stamp changes with the file.
    Changed { stamp: String, is_new: bool },
    /// The body is an image file.
    Image,
    /// The file is a recording, which the caller may fetch.
    Recording,
    /// The body is a PDF. It never leaves the process, which reads it.
    Pdf,
    /// The body is a part of a file, the last one if it is not full. The stamp changes with the file.
    Part(String),
    /// The job failed; the reason is for the model.
    Refused { why: String },
    /// This confinement is unavailable. Said instead of [`Header::Ready`].
    Unavailable { why: String },
    /// A command goes on; the body is the last line that it has printed.
    Printed,
    /// A command has ended; the body is its output.
    Exited {
        end: Termination,
        /// The middle of the output, if it did not fit the body.
        dropped: Option<Dropped>,
    },
}

/// What is missing of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dropped {
    /// Where in the body it was: both sides may end in the middle of a word.
    pub(crate) at: usize,
    pub(crate) bytes: u64,
}

impl Header {
    /// The most bytes of the body behind it.
    fn most(&self) -> usize {
        match self {
            Self::Image => MAX_IMAGE,
            Self::Printed => MAX_LINE,
            _ => MAX_BODY,
        }
    }

    /// The error for a caller that expected another header.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Refused { why } => Error::failed(why),
            Self::Ready
            | Self::Unavailable { .. }
            | Self::Text
            | Self::Changed { .. }
            | Self::Image
            | Self::Recording
            | Self::Pdf
            | Self::Part(_)
            | Self::Printed
            | Self::Exited { .. } => Error::failed("unexpected reply from the worker process"),
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Termination {
    Code(i32),
    Signal(i32),
    TimedOut,
    /// Too little disk space was left.
    DiskFull,
    TooManyProcesses,
    /// The caller has gone or asked to stop.
    Cancelled,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub header: Header,
    pub body: Vec<u8>,
}

impl Reply {
    /// The text asked for, or why there is none.
    pub(crate) fn into_text(self) -> Result<String> {
        match self.header {
            Header::Text | Header::Changed { .. } => {
                Ok(String::from_utf8_lossy(&self.body).into_owned())
            }
            other => Err(other.into_error()),
        }
    }
}

/// The beginning of a message: the length of the header (`u32`, big-endian), and the header with the body's length as JSON. The
/// body follows as it is.
fn encode(header: &impl Serialize, body: &[u8], max: usize, max_body: usize) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(&(header, body.len()))?;
    match u32::try_from(json.len()) {
        Ok(len) if json.len() <= max && body.len() <= max_body => {
            Ok([&len.to_be_bytes()[..], &json].concat())
        }
        _ => Err(Error::failed("the message is too large")),
    }
}

/// A header of at most `max` bytes, and a body of at most what `max_body` allows behind it.
fn receive<T: DeserializeOwned>(
    from: &mut dyn Read,
    max: usize,
    max_body: impl Fn(&T) -> usize,
) -> Result<(T, Vec<u8>)> {
    let too_long = || Error::failed("the message is too long");
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    let mut json = vec![0; Some(len).filter(|len| *len <= max).ok_or_else(too_long)?];
    from.read_exact(&mut json)?;
    let (header, len) = from_json::<(T, usize)>(&json)?;
    let mut body = vec![
        0;
        Some(len)
            .filter(|len| *len <= max_body(&header))
            .ok_or_else(too_long)?
    ];
    from.read_exact(&mut body)?;
    Ok((header, body))
}

/// The message's beginning. [`Job::body`] follows.
pub(crate) fn encode_job(job: &Job) -> Result<Vec<u8>> {
    encode(job, job.body(), MAX_JOB, MAX_JOB).doing("sending the arguments")
}

pub(crate) fn receive_job(from: &mut dyn Read) -> Result<Job> {
    let (mut job, body) = receive(from, MAX_JOB, |_| MAX_JOB).doing("reading the job")?;
    match &mut job {
        Job::Exec(job) => job.input = body,
        Job::Read(job) => job.bytes = receive_pieces(from).doing("reading the job")?,
        Job::File(FileJob::TakeFile(file)) => file.content = body,
        Job::File(FileJob::PutBack(file)) => file.content = body,
        Job::File(_) | Job::Serve(_) => {}
    }
    Ok(job)
}

/// One of the pieces behind a reading job, as it is sent. None has no bytes: that is their end.
pub(crate) fn encode_piece(piece: &[u8]) -> Vec<u8> {
    let pieces = piece.chunks(MAX_PIECE);
    let lengths = pieces.map(|piece| {
        // A piece is at most a megabyte.
        let len = u32::try_from(piece.len()).unwrap_or_default();
        [&len.to_be_bytes()[..], piece].concat()
    });
    lengths.collect::<Vec<_>>().concat()
}

/// What stands behind the last piece.
pub(crate) const END_OF_PIECES: [u8; 4] = [0; 4];

fn receive_pieces(from: &mut dyn Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut len = [0; 4];
        from.read_exact(&mut len)?;
        let (len, start) = (u32::from_be_bytes(len) as usize, bytes.len());
        if len == 0 {
            return Ok(bytes);
        }
        if len > MAX_PIECE || start + len > MAX_READ {
            return Err(Error::failed("there is too much to read"));
        }
        bytes.resize(start + len, 0);
        from.read_exact(&mut bytes[start..])?;
    }
}

pub(crate) fn send_reply(to: &mut dyn Write, reply: &Reply) -> Result<()> {
    let most = reply.header.most();
    to.write_all(&encode(&reply.header, &reply.body, MAX_HEADER, most)?)?;
    to.write_all(&reply.body)?;
    Ok(to.flush()?)
}

pub(crate) fn receive_reply(from: &mut dyn Read) -> Result<Reply> {
    let (header, body) = receive(from, MAX_HEADER, Header::most).doing("reading the reply")?;
    Ok(Reply { header, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_arrives_as_it_was_sent() {
        let exec = Job::Exec(ExecJob {
            command: "ls".into(),
            working_dir: ".".into(),
            timeout_secs: 1,
            env: vec![("A".into(), "b".into())],
            input: vec![0, 255],
        });
        let content = b"\xff".to_vec();
        let file = FileJob::TakeFile(IncomingFile {
            dir: "inbox".into(),
            name: "a".into(),
            content,
        });
        let grep = FileJob::Grep {
            pattern: "a".into(),
            path: Some("文".into()),
            glob: None,
            max: Some(3),
        };
        let what = Reading::Hits {
            names: None,
            count: 1,
        };
        let pieces = [vec![1], vec![2; MAX_PIECE + 1], Vec::new(), vec![3]];
        let read = Job::Read(ReadingJob {
            what,
            is_gzip: true,
            bytes: pieces.concat(),
        });
        for job in [exec, Job::File(file), Job::File(grep), read] {
            let mut bytes = [&encode_job(&job).unwrap(), job.body()].concat();
            if matches!(job, Job::Read(_)) {
                bytes.extend(pieces.iter().flat_map(|piece| encode_piece(piece)));
                bytes.extend(END_OF_PIECES);
            }
            assert_eq!(receive_job(&mut bytes.as_slice()).unwrap(), job);
        }
    }

    #[test]
    fn a_reply_arrives_as_it_was_sent() {
        let reply = Reply {
            header: Header::Exited {
                end: Termination::Signal(9),
                dropped: Some(Dropped { at: 1, bytes: 3 }),
            },
            body: vec![0, 255, 10],
        };
        let mut bytes = Vec::new();
        send_reply(&mut bytes, &reply).unwrap();
        assert_eq!(receive_reply(&mut bytes.as_slice()).unwrap(), reply);
    }

    #[test]
    fn hostile_replies_are_refused_before_memory_is_set_aside_for_them() {
        let refusal = |bytes: &[u8]| receive_reply(&mut &*bytes).unwrap_err().message;
        let header = |json: &str| {
            [
                &u32::try_from(json.len()).unwrap().to_be_bytes()[..],
                json.as_bytes(),
            ]
            .concat()
        };
        assert!(refusal(&u32::MAX.to_be_bytes()).contains("too long"));
        assert!(refusal(&header(r#"["text",1048577]"#)).contains("too long"));
        assert!(refusal(&header(r#"["image",5242881]"#)).contains("too long"));
        for json in ["{]", r#"["text",-1]"#, r#"["text"]"#, r#"[{"grant":{}},0]"#] {
            assert!(
                refusal(&header(json)).contains("reading the reply"),
                "{json}"
            );
        }
        assert!(
            refusal(&header(r#"["text",1]"#)).contains("fill whole buffer")
                && !refusal(b"\0\0").is_empty()
        );
    }
}
