//! What passes between the program and its hands: one order on the command line and standard input, one reply.
//!
//! The setup is an argument, because the process confines itself by it before it reads the job. A reply is
//! `u32 header length, u32 body length` (big-endian), the header as JSON, the body as raw bytes. It comes from a process
//! that may have run anything, so its lengths are checked before memory is set aside, and its header has a fixed schema.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::beneath::{Exclusion, Reach};
use crate::child::Network;
use crate::error::{Context, Error, Result};

/// The most bytes of a reply, header and body together.
pub const MAX_REPLY: usize = 1 << 20;
/// The most bytes of a job.
const MAX_JOB: usize = 64 << 20;

/// How a process is held.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Confinement {
    Namespaces,
    Landlock,
    /// By nothing but held directories: for file tools where the kernel offers no jail.
    Unconfined,
    /// By nothing, as the configuration says.
    Disabled,
}

impl Confinement {
    /// Whether a command may run.
    pub fn is_sandboxed(self) -> bool {
        matches!(self, Self::Namespaces | Self::Landlock)
    }
}

/// What a hands process is before it knows its job.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Setup {
    /// How it confines itself before it reads the job.
    pub way: Confinement,
    pub network: Network,
    /// The tree it works in; absolute.
    pub workspace: PathBuf,
    /// The files that bantam obeys, which may be read; absolute.
    pub agent_dir: Option<PathBuf>,
    /// Trees it may read besides; absolute.
    pub read_paths: Vec<PathBuf>,
    /// Trees it may read and change besides; absolute.
    pub write_paths: Vec<PathBuf>,
    /// Instead of single trees, all that its user may see but for this one: bantam's home. Absolute, without links.
    pub all_except: Option<PathBuf>,
    /// The most data memory a process of it may have, in MiB; 0 for no limit.
    pub memory_mb: u64,
}

impl Setup {
    /// The trees that may be read and not changed.
    pub fn look(&self) -> impl Iterator<Item = &Path> {
        self.read_paths.iter().chain(&self.agent_dir).map(PathBuf::as_path)
    }

    /// How far a path from the workspace leads.
    pub fn reach(&self) -> Reach {
        match &self.all_except {
            None => Reach::Beneath,
            // In a jail there is no such tree.
            Some(_) if self.way.is_sandboxed() => Reach::Everywhere,
            Some(home) => {
                let open = self.workspace.canonicalize().unwrap_or_else(|_| self.workspace.clone());
                Reach::Except(Arc::new(Exclusion { closed: home.clone(), open }))
            }
        }
    }
}

/// The one thing a hands process does.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    File(FileJob),
    Exec {
        command: String,
        working_dir: String,
        timeout_secs: u64,
        /// Variables of the user's that the command gets. Here and not in the setup, which others can see.
        env: Vec<(String, String)>,
    },
    /// Tells how the process is held, a line for each layer.
    Layers,
}

/// A job with files, as a call asks for it. Paths are relative to the workspace, or absolute and within one of the trees.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum FileJob {
    ListDir {
        path: String,
        /// Levels to go down; 1 is the directory alone.
        depth: Option<u32>,
    },
    ReadFile {
        path: String,
        /// The first line to give, from 1.
        offset: Option<u64>,
        /// Lines to give.
        limit: Option<u64>,
    },
    /// A part of a file that came from outside, to be kept. The answer to the last one is its path.
    TakeFile(Incoming),
    /// A part of a regular file, whatever is in it. Replies are bounded, so a large one is given in parts.
    GiveFile {
        path: String,
        /// The first byte to give, from 0.
        offset: u64,
        /// The most bytes that the whole of it may have.
        most: u64,
    },
    Grep {
        pattern: String,
        path: Option<String>,
        /// Which files to look into: by name, or by path when it has a slash.
        glob: Option<String>,
        /// Lines to give.
        max: Option<usize>,
    },
    WriteFile {
        path: String,
        content: String,
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
    Memory {
        ask: Remember,
        /// Local time, as [`crate::text::LocalTime`] tells it: the job has neither the user's zone nor a need for the clock.
        now: String,
    },
}

/// A part of a file that came from outside.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Incoming {
    /// The directory that is to hold it, and its name there; where that is taken by another file, a number is added.
    pub dir: String,
    pub name: String,
    /// Letters, digits and dashes; the same for all parts of a file, and for no other file.
    pub key: String,
    /// Bytes that came before.
    pub offset: u64,
    /// In base64.
    pub content: String,
    pub is_last: bool,
}

/// What is asked of the notes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Remember {
    pub action: Action,
    /// Which note.
    pub key: Option<String>,
    pub content: Option<String>,
    pub query: Option<String>,
}

/// What is done with the notes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    #[default]
    View,
    Write,
    Append,
    Search,
    Delete,
}

impl Job {
    /// How long the job may take by itself, in seconds; past that and some grace the process is ended from outside.
    pub fn seconds(&self) -> u64 {
        match self {
            Self::Exec { timeout_secs, .. } => *timeout_secs,
            Self::File(_) | Self::Layers => 60,
        }
    }
}

/// The header of a reply.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Header {
    /// The body is the text asked for.
    Text,
    /// The body is an image file.
    Image { kind: ImageKind },
    /// The body is a part of a file, and the last one when there is room for more. The stamp is another one when the file
    /// has changed, or is another.
    Part(String),
    /// The job could not be done; the reason is for the model.
    Refused { why: String },
    /// This way of confining itself is not to be had here. Sent in place of reading the job.
    Unavailable { why: String },
    /// A command has ended; the body is what it printed.
    Exited {
        end: End,
        /// Bytes it printed beyond those in the body.
        dropped: u64,
    },
}

/// The images that models can see.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ImageKind {
    Png,
    Jpeg,
    Gif,
    Webp,
}

impl ImageKind {
    /// By the first bytes of a file, as the formats define them.
    pub fn of(start: &[u8]) -> Option<Self> {
        match start {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Webp),
            _ => None,
        }
    }

    /// The IANA media type.
    pub fn mime(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }
}

impl Header {
    /// The error for a caller that asked for something else.
    pub fn refusal(self) -> Error {
        match self {
            Self::Refused { why } | Self::Unavailable { why } => Error::failed(why),
            Self::Text | Self::Image { .. } | Self::Part(_) | Self::Exited { .. } => {
                Error::failed("the hands answered another question")
            }
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Code(i32),
    Signal(i32),
    TimedOut,
    /// It left too little free space.
    DiskFull,
    TooManyProcesses,
    /// The caller went away or asked to stop.
    Cancelled,
}

/// A reply: header and body.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub header: Header,
    pub body: Vec<u8>,
}

/// Room for the header within [`MAX_REPLY`].
const HEADER_ROOM: usize = 16 << 10;
/// The most bytes of a reply's body.
pub const MAX_BODY: usize = MAX_REPLY - HEADER_ROOM;

/// A job as it is sent: its length, then itself.
pub fn encode_job(job: &Job) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(job).map_err(|e| Error::failed(e.to_string()))?;
    let len = u32::try_from(json.len()).ok().filter(|_| json.len() <= MAX_JOB);
    let len = len.ok_or_else(|| Error::failed("the arguments are too large"))?;
    Ok([&len.to_be_bytes()[..], &json].concat())
}

pub fn receive_job(from: &mut impl Read) -> Result<Job> {
    let len = read_len(from)?;
    if len > MAX_JOB {
        return Err(Error::failed("the job is too long"));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    // By way of a `Value`, as tools read their arguments: a second reader of jobs would cost 10 KB of program.
    let job: Value =
        serde_json::from_slice(&bytes).map_err(|e| Error::failed(e.to_string())).doing("reading the job")?;
    Job::deserialize(&job).map_err(|e| Error::failed(e.to_string())).doing("reading the job")
}

pub fn send_reply(to: &mut impl Write, reply: &Reply) -> Result<()> {
    let header = serde_json::to_vec(&reply.header).map_err(|e| Error::failed(e.to_string()))?;
    let len = |n: usize| u32::try_from(n).map_err(|e| Error::failed(e.to_string()));
    to.write_all(&len(header.len())?.to_be_bytes())?;
    to.write_all(&len(reply.body.len())?.to_be_bytes())?;
    to.write_all(&header)?;
    to.write_all(&reply.body)?;
    Ok(to.flush()?)
}

pub fn receive_reply(from: &mut impl Read) -> Result<Reply> {
    let (header, body) = (read_len(from)?, read_len(from)?);
    if header.saturating_add(body) > MAX_REPLY {
        return Err(Error::failed("the reply is too long"));
    }
    let mut bytes = vec![0; header];
    from.read_exact(&mut bytes)?;
    let header = serde_json::from_slice(&bytes).map_err(|e| Error::failed(e.to_string())).doing("reading the reply")?;
    let mut body = vec![0; body];
    from.read_exact(&mut body)?;
    Ok(Reply { header, body })
}

fn read_len(from: &mut impl Read) -> Result<usize> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    usize::try_from(u32::from_be_bytes(len)).map_err(|e| Error::failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_arrives_as_it_was_sent() {
        let exec = Job::Exec { command: "ls".into(), working_dir: ".".into(), timeout_secs: 1, env: Vec::new() };
        let grep = FileJob::Grep { pattern: "a".into(), path: Some("文".into()), glob: None, max: Some(3) };
        for job in [exec, Job::File(grep)] {
            let mut bytes = Vec::new();
            bytes.extend(encode_job(&job).unwrap());
            assert_eq!(receive_job(&mut bytes.as_slice()).unwrap(), job);
        }
    }

    #[test]
    fn a_reply_arrives_as_it_was_sent() {
        let reply = Reply { header: Header::Exited { end: End::Signal(9), dropped: 3 }, body: vec![0, 255, 10] };
        let mut bytes = Vec::new();
        send_reply(&mut bytes, &reply).unwrap();
        assert_eq!(receive_reply(&mut bytes.as_slice()).unwrap(), reply);
    }

    #[test]
    fn hostile_replies_are_refused_before_memory_is_set_aside_for_them() {
        let huge = [u32::MAX.to_be_bytes(), u32::MAX.to_be_bytes()].concat();
        assert!(receive_reply(&mut huge.as_slice()).unwrap_err().message.contains("too long"));
        let not_json = [&2u32.to_be_bytes()[..], &0u32.to_be_bytes()[..], b"{]"].concat();
        assert!(receive_reply(&mut not_json.as_slice()).is_err());
        let unknown = br#"{"grant":{}}"#;
        let len = u32::try_from(unknown.len()).unwrap().to_be_bytes();
        let bytes = [&len[..], &0u32.to_be_bytes()[..], &unknown[..]].concat();
        assert!(receive_reply(&mut bytes.as_slice()).is_err());
        assert!(receive_reply(&mut &b"\0\0"[..]).is_err());
    }
}
