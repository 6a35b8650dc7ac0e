//! Sources of skills: a folder, or a git repository. git runs in a sandbox that can reach only public addresses.

use std::path::{Path, PathBuf};

use crate::access::{Access, Grant, Resolved};
use crate::cancel::Cancel;
use crate::child::Network;
use crate::config::Loaded;
use crate::error::{Context, Error, Result};
use crate::ssrf::AddressGuard;
use crate::storage;
use crate::text::{not_found, to_single_line};
use crate::worker::Workers;
use crate::worker::protocol::{ExecJob, Policy, Termination};

/// Data memory of git, in MiB.
const MEMORY_MB: u64 = 512;
/// Time limit of a clone, in seconds.
const CLONE_SECS: u64 = 180;

/// A folder to install from.
pub(crate) struct Fetched {
    pub folder: PathBuf,
    /// Name of a cloned repository, for a skill at its top that does not name itself. A clone is deleted when this is dropped.
    pub called: Option<String>,
}

impl Drop for Fetched {
    fn drop(&mut self) {
        if self.called.is_some() {
            // The next installation removes leftovers.
            drop(storage::remove(&self.folder));
        }
    }
}

/// Fetches `source` into a folder. The caller owns a lock.
pub(crate) fn fetch(loaded: &Loaded, source: &str) -> Result<Fetched> {
    if source.starts_with("https://") {
        let fetched = Fetched {
            folder: loaded.home.state().join("skill.new"),
            called: Some(name_in(source)),
        };
        storage::remove(&fetched.folder)?;
        storage::make_dir(&fetched.folder)?;
        clone(loaded, source, &fetched.folder)?;
        return Ok(fetched);
    }
    if source.contains("://") || source.starts_with("git@") {
        let hint = "give an https address, or clone it and name its folder";
        return Err(Error::usage("repositories are cloned over https only").hint(hint));
    }
    let folder = Path::new(source).canonicalize().ok();
    let folder = folder
        .filter(|path| path.is_dir())
        .ok_or_else(|| not_found("folder", source, [], "bantam help skills install"))?;
    Ok(Fetched {
        called: None,
        folder,
    })
}

/// Returns the last name of an address, without `.git`.
fn name_in(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let last = path.trim_end_matches('/').rsplit('/').next();
    let last = last.unwrap_or_default();
    last.strip_suffix(".git").unwrap_or(last).to_owned()
}

/// Clones a repository, without its history if the server supports that.
fn clone(loaded: &Loaded, url: &str, into: &Path) -> Result<()> {
    let git = "git -c protocol.allow=never -c protocol.https.allow=always clone --quiet";
    let url = shell_words::quote(url);
    let command = format!(
        "export GIT_TERMINAL_PROMPT=0; ulimit -f 204800; {git} --depth 1 -- {url} . 2>/dev/null || {git} -- {url} ."
    );
    // Authorities that the user trusts in addition to the system's.
    let trusted = loaded
        .env
        .get("SSL_CERT_FILE")
        .filter(|path| path.starts_with('/'));
    let grants = trusted
        .iter()
        .map(|path| Grant::at(Resolved::follow(Path::new(path)).real, Access::Read));
    let config = &loaded.config;
    let policy = Policy {
        network: Network::Guarded,
        workspace: Grant::at(Resolved::follow(into).real, Access::Write),
        grants: grants.collect(),
        notes: None,
        all_except: None,
        user_home: None,
        named_sockets: false,
        memory_mb: MEMORY_MB,
    };
    let guard = AddressGuard::new(config.tools.web.fetch.allow_private);
    let home = Resolved::follow(loaded.home.root()).real;
    let workers = Workers::new(policy, &home, config.tools.exec.sandbox, guard);
    let env = trusted.map(|path| ("GIT_SSL_CAINFO".to_owned(), path.clone()));
    let job = ExecJob {
        env: env.into_iter().collect(),
        command,
        working_dir: ".".to_owned(),
        timeout_secs: CLONE_SECS,
        ..ExecJob::default()
    };
    let output = workers
        .run(job, &Cancel::new(None))
        .doing("cloning the repository")?;
    if output.end == Termination::Code(0) {
        return Ok(());
    }
    let said = to_single_line(&String::from_utf8_lossy(&output.printed), 500);
    Err(Error::failed(format!("cloning the repository: {said}"))
        .hint("use a public address: git runs in a sandbox that reaches no other ones, and has no keys"))
}
