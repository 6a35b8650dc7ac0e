//! Messages between this program and its worker processes.
//!
//! The setup is an environment variable, because the process confines itself before it reads the job. A message is a length
//! (`u32`, big-endian) and JSON of that length, over a socket. A job is followed by its bytes, up to the end of the stream.
//! Results are raw bytes on the worker's standard output. A worker may have run anything, so its messages are untrusted:
//! lengths are checked before memory is allocated, and the schema is fixed.

use std::io::{Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::access::{Access, Grant};
use crate::child::Network;
use crate::error::{Context, Error, Result};
use crate::json::from_json;
use crate::message::{MAX_FILE, MAX_IMAGE};

/// Maximum size of a worker's message, in bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Maximum size of a text result, in bytes.
pub(crate) const MAX_BODY: usize = (1 << 20) - (16 << 10);
/// Maximum size of a job, and of the bytes that follow it.
const MAX_JOB: usize = 64 << 20;

/// Confinement of a worker process, strongest first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Confinement {
    /// Namespaces and a new root, a seccomp filter, and Landlock where the kernel has it.
    Namespaces,
    /// Landlock and a seccomp filter.
    Landlock,
    /// Access only through open directories, for file tools on kernels without a sandbox.
    Unconfined,
    /// Sandbox off, as configured.
    Disabled,
}

impl Confinement {
    pub(crate) fn is_sandboxed(self) -> bool {
        matches!(self, Self::Namespaces | Self::Landlock)
    }
}

/// Access of one kind of call. Paths are absolute.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Policy {
    /// Network of commands and servers. Other jobs have no network.
    pub network: Network,
    /// Working directory.
    pub workspace: Grant,
    /// Other grants. A missing one is left out.
    pub grants: Vec<Grant>,
    /// User's notes, which only commands read.
    pub notes: Option<Grant>,
    /// Allows everything its user may access except this directory, bantam's home. Free of symbolic links.
    pub all_except: Option<PathBuf>,
    /// The user's home, for paths that start with `~`.
    pub user_home: Option<String>,
    /// Allows named sockets and connections to them. Off if a grant may contain sockets of services.
    pub named_sockets: bool,
    /// Limit on the data segment of each process, in MiB; 0 for no limit.
    pub memory_mb: u64,
}

impl Policy {
    /// Grants other than the workspace.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Grant> {
        self.grants.iter().chain(&self.notes)
    }

    /// Grants with this access, other than the workspace.
    pub(crate) fn grants_to(&self, access: Access) -> impl Iterator<Item = &Grant> {
        self.others().filter(move |grant| grant.access == access)
    }
}

/// Programs that a job starts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Programs {
    None,
    Command,
    Server,
}

/// How a worker process confines itself for one job.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Setup {
    #[serde(flatten)]
    pub policy: Policy,
    pub confinement: Confinement,
    pub programs: Programs,
}

impl Setup {
    pub(crate) fn new(policy: &Policy, confinement: Confinement, job: &Job) -> Self {
        let mut policy = policy.clone();
        let programs = match job {
            Job::File(_) | Job::Read(_) => Programs::None,
            Job::Exec(_) => Programs::Command,
            Job::Serve(_) => Programs::Server,
        };
        if programs == Programs::None {
            policy.network = Network::None;
        }
        if programs != Programs::Command {
            policy.notes = None;
        }
        Self {
            policy,
            confinement,
            programs,
        }
    }

    /// Whether there is a `/tmp` in memory. File jobs lack it, because files written there would be lost with the call.
    pub(crate) fn has_scratch(&self) -> bool {
        self.programs != Programs::None
    }
}

/// Job of a worker process.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Job {
    File(FileJob),
    Exec(ExecJob),
    Serve(ServeJob),
    Read(ReadingJob),
}

/// Untrusted bytes to parse. They are sent after the job while they arrive, so that the caller never needs all of them in
/// memory. The result is made by [`crate::web`].
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct ReadingJob {
    pub what: Reading,
    /// Whether the bytes are compressed.
    pub is_gzip: bool,
}

/// Returns the next bytes to read; `None` at the end.
pub(crate) type Pieces<'a> = dyn FnMut() -> Result<Option<Vec<u8>>> + 'a;

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reading {
    /// A page, converted to Markdown; an image or a PDF, unchanged.
    Page {
        content_type: String,
        /// URL of the page, the base of its links.
        address: String,
        max_chars: usize,
    },
    /// Results of a search engine.
    Hits {
        /// Path of the results in JSON, and names of their fields; `None` for a page of `DuckDuckGo`.
        names: Option<[String; 4]>,
        count: usize,
    },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct ExecJob {
    pub command: String,
    pub working_dir: String,
    pub timeout_secs: u64,
    /// The user's environment variables for the command.
    pub env: Vec<(String, String)>,
    /// Standard input, sent after the job.
    #[serde(skip)]
    pub input: Vec<u8>,
}

/// A program that runs until its caller hangs up. Its standard input is the rest of the socket, and its standard output is the
/// worker's.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct ServeJob {
    pub program: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: String,
    /// The program's `HOME`.
    pub home: PathBuf,
}

/// A job with a file or a directory.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct FileJob {
    /// Relative to the workspace, or absolute and within a grant; the workspace if empty.
    pub path: String,
    pub action: FileAction,
    /// Content of a file to store or to restore, sent after the job.
    #[serde(skip)]
    pub content: Vec<u8>,
}

/// Lines of a text file.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct LineRange {
    /// Number of the first line, from 1.
    pub offset: Option<u64>,
    /// Number of lines.
    pub limit: Option<u64>,
    /// Maximum size of the result, in bytes.
    pub room: Option<usize>,
}

/// An operation on a path. The fields of the tools' actions are their arguments.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileAction {
    ListDir {
        /// Depth to descend; 1 for the directory alone.
        depth: Option<u32>,
    },
    /// Reads text; the caller selects the pages of a PDF.
    ReadFile(LineRange),
    /// Stores a file from outside in the directory, and returns its path. A number is added to a taken name.
    TakeFile {
        name: String,
    },
    /// Restores a file that a tool changed.
    PutBack {
        /// State in which the tool left it.
        state: String,
        /// Whether the file existed, with the job's content.
        was_there: bool,
    },
    /// Sends a regular file unchanged, if it has up to `most` bytes.
    SendFile {
        most: u64,
    },
    Grep {
        pattern: String,
        /// Pattern for names, or for paths if it contains a slash.
        glob: Option<String>,
        /// Maximum number of lines.
        max: Option<usize>,
    },
    WriteFile {
        content: String,
        /// State of the file when the user allowed replacing it, empty if it was missing; `None` if the user was not asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shown: Option<String>,
    },
    AppendFile {
        content: String,
    },
    EditFile {
        old_text: String,
        new_text: String,
        replace_all: Option<bool>,
    },
    RemoveFile,
    /// Returns the passages of the notes, one line of JSON each: `[KEY, LINE, TEXT]`.
    Passages,
}

impl FileJob {
    pub(crate) fn new(path: impl Into<String>, action: FileAction) -> Self {
        Self {
            path: path.into(),
            action,
            content: Vec::new(),
        }
    }

    /// Whether the job may change an existing file.
    pub(crate) fn changes_files(&self) -> bool {
        matches!(
            self.action,
            FileAction::WriteFile { .. }
                | FileAction::AppendFile { .. }
                | FileAction::EditFile { .. }
                | FileAction::RemoveFile
                | FileAction::PutBack { .. }
        )
    }
}

impl Job {
    /// Returns the job's own time limit, in seconds.
    pub(crate) fn seconds(&self) -> u64 {
        match self {
            Self::Exec(job) => job.timeout_secs,
            Self::Read(_) => 40,
            Self::File(_) | Self::Serve(_) => 60,
        }
    }

    /// Returns the raw bytes that follow the job.
    pub(crate) fn body(&self) -> &[u8] {
        match self {
            Self::Exec(job) => &job.input,
            Self::File(job) => &job.content,
            Self::Serve(_) | Self::Read(_) => &[],
        }
    }
}

/// Message of a worker.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// Comes with the listener of the sandbox's proxy.
    Listening,
    /// The worker has confined itself and waits for the job.
    Ready,
    /// This confinement is unavailable. Sent instead of [`Message::Ready`].
    Unavailable { why: String },
    /// The job has ended, or its server has started. Only the reason for a server's end may follow.
    Done(Header),
}

/// Outcome of a job. Its result is on the worker's standard output.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Header {
    /// The result is text.
    Text,
    /// A file has changed; the result is a text about it for the model.
    Changed { before: String, after: String },
    /// The result is an image.
    Image,
    /// The file is a recording, which the caller may fetch.
    Recording,
    /// The result is a PDF.
    Pdf,
    /// The result is an unchanged file.
    Sent { state: String },
    /// The program has started.
    Started,
    /// A command has ended.
    Exited(Termination),
    /// The job failed, for this reason, meant for the model.
    Refused { why: String },
}

impl Header {
    /// Returns the maximum size of such a result, in bytes.
    fn most(&self) -> usize {
        match self {
            Self::Image => MAX_IMAGE,
            Self::Pdf => MAX_FILE,
            _ => MAX_BODY,
        }
    }

    /// Converts an unexpected outcome to an error.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Refused { why } => Error::failed(why),
            _ => Error::failed("unexpected reply from the worker process"),
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
    /// Disk space ran low.
    DiskFull,
    TooManyProcesses,
    /// The caller hung up.
    Cancelled,
}

/// Outcome and result of a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub header: Header,
    pub body: Vec<u8>,
}

impl Reply {
    /// # Errors
    /// Returns an error if the result is too large for its kind.
    pub(crate) fn new(header: Header, body: Vec<u8>) -> Result<Self> {
        if body.len() > header.most() {
            return Err(Error::failed("the worker process gave too much"));
        }
        Ok(Self { header, body })
    }

    /// Returns the text, or the job's error.
    pub(crate) fn into_text(self) -> Result<String> {
        match self.header {
            Header::Text | Header::Changed { .. } => {
                Ok(String::from_utf8_lossy(&self.body).into_owned())
            }
            other => Err(other.into_error()),
        }
    }
}

fn send(to: &mut dyn Write, value: &impl Serialize, most: usize) -> Result<()> {
    let json = serde_json::to_vec(value)?;
    match u32::try_from(json.len()) {
        Ok(len) if json.len() <= most => {
            to.write_all(&[&len.to_be_bytes()[..], &json].concat())?;
            Ok(())
        }
        _ => Err(Error::failed("the message is too large")),
    }
}

fn receive<T: DeserializeOwned>(from: &mut dyn Read, most: usize) -> Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > most {
        return Err(Error::failed("the message is too long"));
    }
    let mut json = vec![0; len];
    from.read_exact(&mut json)?;
    Ok(from_json(&json)?)
}

/// Sends a job without the bytes that follow it.
///
/// # Errors
/// Returns an error if it is too large, or the worker has ended.
pub(super) fn send_job(to: &mut dyn Write, job: &Job) -> Result<()> {
    send(to, job, MAX_JOB).doing("sending the arguments")
}

/// Receives a job with the bytes that follow it, except those for reading and serving, which are read later.
pub(super) fn receive_job(from: &mut dyn Read) -> Result<Job> {
    let mut job = receive(from, MAX_JOB).doing("reading the job")?;
    match &mut job {
        Job::Exec(job) => job.input = receive_rest(from, MAX_JOB)?,
        Job::File(job) => job.content = receive_rest(from, MAX_JOB)?,
        Job::Serve(_) | Job::Read(_) => {}
    }
    Ok(job)
}

/// Receives the bytes after a job, up to `most`.
pub(super) fn receive_rest(from: &mut dyn Read, most: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most as u64 + 1)
        .read_to_end(&mut bytes)
        .doing("reading the job")?;
    if bytes.len() > most {
        return Err(Error::failed("there is too much to read"));
    }
    Ok(bytes)
}

pub(crate) fn send_message(to: &mut dyn Write, message: &Message) -> Result<()> {
    send(to, message, MAX_MESSAGE)
}

pub(crate) fn receive_message(from: &mut dyn Read) -> Result<Message> {
    receive(from, MAX_MESSAGE).doing("reading the reply")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_messages_are_refused_before_memory_is_set_aside_for_them() {
        let refusal = |bytes: &[u8]| receive_message(&mut &*bytes).unwrap_err().message;
        let message = |json: &str| {
            let len = u32::try_from(json.len()).unwrap().to_be_bytes();
            [&len[..], json.as_bytes()].concat()
        };
        assert!(refusal(&u32::MAX.to_be_bytes()).contains("too long"));
        assert!(refusal(&65_537_u32.to_be_bytes()).contains("too long"));
        for json in ["{]", r#""granted""#, r#"{"done":{"grant":{}}}"#] {
            assert!(
                refusal(&message(json)).contains("reading the reply"),
                "{json}"
            );
        }
        assert!(refusal(&message(r#""ready""#)[..8]).contains("fill whole buffer"));
        assert!(!refusal(b"\0\0").is_empty());
        let done = Message::Done(Header::Exited(Termination::Signal(9)));
        let mut bytes = Vec::new();
        send_message(&mut bytes, &done).unwrap();
        assert_eq!(receive_message(&mut bytes.as_slice()).unwrap(), done);
    }
}
