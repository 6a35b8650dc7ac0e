//! Where skills come from: a folder, a zip file, the address of one, or a git repository. What others packed is unpacked in a
//! worker process without network; git runs in a sandbox that reaches public addresses alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::access::{Access, Tree};
use crate::cancel::Cancel;
use crate::child::Network;
use crate::config::Parts;
use crate::config::proxy::http_settings;
use crate::error::{Context, Error, Result};
use crate::http::{Client, Settings};
use crate::ssrf::AddressGuard;
use crate::storage;
use crate::text::{one_line, size};
use crate::web;
use crate::worker::protocol::{Archive, ExecJob, FileJob, Header, Job, Setup, Termination};
use crate::worker::{Confinement, Workers};

/// The most bytes of a zip file.
const MAX_ARCHIVE: usize = 20 << 20;
/// The data memory of what unpacks and of git, in MiB.
const MEMORY_MB: u64 = 512;
/// How long a download and a clone may take.
const DOWNLOAD: Duration = Duration::from_secs(120);
const CLONE_SECS: u64 = 180;

/// A folder to install from. What was fetched into it is deleted with this.
pub(crate) struct Fetched {
    pub folder: PathBuf,
    /// What a skill is called that is this folder and does not name itself, unless the folder does.
    pub called: Option<String>,
    staging: Option<PathBuf>,
}

impl Drop for Fetched {
    fn drop(&mut self) {
        if let Some(staging) = &self.staging {
            // What is left goes with the next installation.
            drop(storage::remove(staging));
        }
    }
}

/// Whether it is the address of something that others made.
pub(crate) fn is_remote(source: &str) -> bool {
    source.starts_with("https://") || source.starts_with("http://")
}

/// Brings what `source` names into a folder. The caller holds a lock.
pub(crate) fn fetch(parts: Parts, source: &str) -> Result<Fetched> {
    let is_zip = source
        .split(['?', '#'])
        .next()
        .is_some_and(|path| path.to_ascii_lowercase().ends_with(".zip"));
    if is_remote(source) {
        let staging = Staging::new(parts)?;
        if is_zip {
            let archive = download(parts, source)?;
            staging.unzip(parts, archive)?;
        } else {
            staging.clone(parts, source)?;
        }
        return Ok(staging.fetched(source));
    }
    if source.contains("://") || source.starts_with("git@") {
        let hint = "give an https address, or clone it and name its folder";
        return Err(Error::usage("only http and https addresses are fetched").hint(hint));
    }
    let path = Path::new(source);
    if path.is_file() && is_zip {
        let length = fs_err::metadata(path)?.len();
        if length > MAX_ARCHIVE as u64 {
            return Err(too_large(length));
        }
        let staging = Staging::new(parts)?;
        staging.unzip(parts, fs_err::read(path)?)?;
        return Ok(staging.fetched(source));
    }
    let folder = path.canonicalize().ok().filter(|path| path.is_dir());
    let folder = folder.ok_or_else(|| {
        Error::failed(format!("there is no folder {}", one_line(source, 200)))
            .hint("name the folder of a skill, a .zip file, or an https address")
    })?;
    Ok(Fetched {
        called: None,
        folder,
        staging: None,
    })
}

/// The last name of a path or an address, without the end of a zip file or a repository.
fn name_in(source: &str) -> String {
    let path = source.split(['?', '#']).next().unwrap_or_default();
    let last = path.trim_end_matches('/').rsplit('/').next();
    let last = last.unwrap_or_default();
    let bare = [".zip", ".ZIP", ".git"]
        .into_iter()
        .find_map(|end| last.strip_suffix(end));
    bare.unwrap_or(last).to_owned()
}

fn download(parts: Parts, url: &str) -> Result<Vec<u8>> {
    let guard = AddressGuard::new(parts.config.tools.web.fetch.allow_private);
    let connect = |url: &str| {
        Client::new(Settings {
            guard: Some(guard.clone()),
            ..http_settings(url, "", parts.env)
        })
    };
    let cancel = Cancel::new(None);
    let archive = web::download(&connect, url, MAX_ARCHIVE, DOWNLOAD, &cancel)
        .doing("downloading the skill")?;
    if archive.len() > MAX_ARCHIVE {
        return Err(too_large(archive.len() as u64));
    }
    Ok(archive)
}

fn too_large(length: u64) -> Error {
    let most = size(MAX_ARCHIVE as u64);
    Error::failed(format!(
        "the zip file has {}; the limit is {most}",
        size(length)
    ))
}

/// A directory of our own to unpack into.
struct Staging(PathBuf);

impl Staging {
    fn new(parts: Parts) -> Result<Self> {
        let dir = parts.home.state().join("skill.new");
        storage::remove(&dir)?;
        storage::make_dir(&dir)?;
        Ok(Self(dir))
    }

    fn fetched(self, source: &str) -> Fetched {
        Fetched {
            folder: self.0.clone(),
            called: Some(name_in(source)),
            staging: Some(self.0),
        }
    }

    /// Runs jobs in this directory, and nowhere else.
    fn workers(&self, parts: Parts, network: Network, trees: Vec<Tree>) -> Workers {
        let config = parts.config;
        let setup = Setup {
            confinement: Confinement::Unconfined,
            network,
            workspace: Tree::at(self.0.clone(), Access::Write),
            trees,
            all_except: None,
            named_sockets: false,
            memory_mb: MEMORY_MB,
        };
        let guard = AddressGuard::new(config.tools.web.fetch.allow_private);
        Workers::new(setup, parts.home.root(), config.tools.exec.sandbox, guard)
    }

    fn unzip(&self, parts: Parts, content: Vec<u8>) -> Result<()> {
        let job = Job::File(FileJob::Unzip(Archive { content }));
        let reply = self
            .workers(parts, Network::None, Vec::new())
            .call(&job, &Cancel::new(None))?;
        reply.into_text().map(drop)
    }

    /// Clones a repository. One history is enough where the server gives a part of it.
    fn clone(&self, parts: Parts, url: &str) -> Result<()> {
        let git = "git -c protocol.allow=never -c protocol.https.allow=always -c protocol.http.allow=always clone --quiet";
        let url = shell_words::quote(url);
        let command = format!(
            "export GIT_TERMINAL_PROMPT=0; ulimit -f 204800; {git} --depth 1 -- {url} . 2>/dev/null || {git} -- {url} ."
        );
        // Authorities that the user trusts beside those of the system.
        let trusted = parts
            .env
            .get("SSL_CERT_FILE")
            .filter(|path| path.starts_with('/'));
        let trees = trusted
            .iter()
            .map(|path| Tree::at(PathBuf::from(path), Access::Read));
        let trees: Vec<Tree> = trees.collect();
        let env = trusted.map(|path| ("GIT_SSL_CAINFO".to_owned(), path.clone()));
        let job = Job::Exec(ExecJob {
            env: env.into_iter().collect(),
            command,
            working_dir: ".".to_owned(),
            timeout_secs: CLONE_SECS,
            ..ExecJob::default()
        });
        let reply = self
            .workers(parts, Network::Guarded, trees)
            .call(&job, &Cancel::new(None))
            .doing("cloning the repository")?;
        let said = one_line(&String::from_utf8_lossy(&reply.body), 500);
        match reply.header {
            Header::Exited {
                end: Termination::Code(0),
                ..
            } => Ok(()),
            Header::Exited { .. } => Err(Error::failed(format!("cloning the repository: {said}"))
                .hint("git runs in a sandbox that reaches public addresses only, and has no keys")),
            other => Err(other.into_error()),
        }
    }
}
