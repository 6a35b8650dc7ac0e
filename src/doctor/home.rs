//! Checks the home directory: permissions, owners, free space, configuration, instructions, conversations and jobs.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, access, statvfs};
use rustix::process::geteuid;

use super::{Check, quoted};
use crate::config::{Env, Loaded};
use crate::cron::Jobs;
use crate::error::{Error, Result};
use crate::paths::{Home, shown_key};
use crate::session;
use crate::storage::segments::{self, Part};
use crate::text::{counted, size};

/// Free bytes below which a disk counts as full.
const MIN_FREE: u64 = 1 << 20;

/// Checks the home, with the settings as `loaded`.
pub(crate) fn checks(home: &Home, env: &Env, loaded: &Result<&Arc<Loaded>>) -> Vec<Check> {
    let mut checks = vec![directory(home)];
    checks.extend(full_disk(home));
    checks.extend(owners(home));
    checks.extend(configuration(home, loaded));
    checks.extend(agent(home));
    checks.extend(sessions(home));
    checks.push(jobs(home, env));
    checks.extend(pdftotext(env));
    checks
}

/// Checks `$BANTAM_HOME` itself.
fn directory(home: &Home) -> Check {
    const NAME: &str = "home";
    let root = home.root();
    let (shown, quoted) = (root.display(), quoted(root));
    let meta = match fs_err::metadata(root) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Check::ok(NAME, format!("{shown}: does not exist yet"));
        }
        Err(e) => return Check::fail(NAME, Error::from(e).message),
    };
    let (mode, owner, me) = (meta.mode() & 0o777, meta.uid(), geteuid());
    if owner != me.as_raw() && me.is_root() {
        let found = format!(
            "{shown} belongs to user {owner}, but files that root creates there will belong to root"
        );
        Check::info(NAME, found).fix(format!("sudo -u '#{owner}' bantam doctor"))
    } else if owner != me.as_raw() {
        Check::fail(NAME, format!("{shown} belongs to user {owner}, not to you"))
            .fix(format!("sudo chown -R \"$(id -u):$(id -g)\" {quoted}"))
    } else if let Err(e) = access(root, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        Check::fail(NAME, format!("cannot write {shown}: {}", Error::from(e)))
            .fix(format!("chmod 700 {quoted}"))
    } else if mode & 0o077 != 0 {
        let found = format!("{shown}: mode {mode:04o}: other users can read it");
        Check::fail(NAME, found).fix(format!("chmod 700 {quoted}"))
    } else {
        Check::ok(NAME, format!("{shown}: only you can read it"))
    }
}

/// Returns a failure if the disk of the home is full.
pub(crate) fn full_disk(home: &Home) -> Option<Check> {
    let disk = statvfs(home.root()).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    // Some file systems do not count files.
    let has_files = disk.f_files == 0 || disk.f_favail > 0;
    if free >= MIN_FREE && has_files {
        return None;
    }
    let left = if has_files {
        size(free)
    } else {
        "space for no file".to_owned()
    };
    let found = format!("the disk is full: {left} left at {}", home.root().display());
    let fix = "du -xh / 2>/dev/null | sort -h | tail    # shows the largest directories; delete or move some";
    Some(Check::fail("disk", found).fix(fix))
}

/// Returns a failure if files of the home belong to another user than the home, such as files that a command of root created.
fn owners(home: &Home) -> Option<Check> {
    let root = home.root();
    let owner = fs_err::metadata(root).ok()?.uid();
    let entries = |dir: &PathBuf| -> Vec<PathBuf> {
        let entries = fs_err::read_dir(dir).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| *path != home.workspace()).collect()
    };
    let mut paths = entries(&root.to_owned());
    let below = paths
        .iter()
        .filter(|path| path.is_dir() && !path.is_symlink());
    let below: Vec<_> = below.flat_map(entries).collect();
    paths.extend(below);
    let stranger = |path: PathBuf| {
        let user = path.symlink_metadata().ok()?.uid();
        (user != owner).then_some((path, user))
    };
    let mut strange = paths.into_iter().filter_map(stranger);
    let (first, user) = strange.next()?;
    let more = match strange.count() {
        0 => String::new(),
        more => format!(
            ", and so {} more",
            if more == 1 {
                "does 1".to_owned()
            } else {
                format!("do {more}")
            }
        ),
    };
    let found = format!(
        "{} belongs to user {user}, not to {owner}{more}",
        first.display()
    );
    Some(Check::fail("owner", found).fix(format!("sudo chown -R {owner} {}", quoted(root))))
}

/// Checks `config.json`, as `loaded`.
fn configuration(home: &Home, loaded: &Result<&Arc<Loaded>>) -> Vec<Check> {
    const NAME: &str = "config";
    let path = home.config();
    let shown = path.display();
    let mut checks = match loaded {
        Err(e) => vec![Check::of_error(NAME, e.clone())],
        Ok(_) if !path.exists() => {
            let found = format!("{shown} does not exist: the defaults apply");
            vec![Check::ok(NAME, found)]
        }
        Ok(loaded) => {
            let valid = Check::ok(NAME, format!("{shown} is valid"));
            let warnings = loaded.warnings.iter();
            let warnings = warnings.map(|warning| Check::info(NAME, warning));
            std::iter::once(valid).chain(warnings).collect()
        }
    };
    // A user who can write it can choose the key's command, the sandbox and the model.
    if let Ok(meta) = fs_err::metadata(&path) {
        if meta.mode() & 0o022 != 0 {
            let mode = meta.mode() & 0o777;
            let found = format!("{shown}: mode {mode:04o}: others can write it");
            checks.push(Check::fail(NAME, found).fix(format!("chmod go-w {}", quoted(&path))));
        }
    }
    checks
}

/// Reports a missing directory of instructions.
fn agent(home: &Home) -> Option<Check> {
    let agent = home.agent();
    let found = format!(
        "{} is missing, so the built-in instructions apply",
        agent.display()
    );
    let is_missing = home.root().exists() && !agent.exists();
    is_missing.then(|| Check::info("agent", found).fix("bantam onboard --yes"))
}

/// Checks the live segment of every conversation without repairs. Archived segments may contain known damage.
fn sessions(home: &Home) -> Vec<Check> {
    const NAME: &str = "sessions";
    let dir = home.sessions();
    let entries = match fs_err::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return vec![Check::ok(NAME, "none yet")],
        Err(e) => {
            let fix = format!("chmod 700 {}", quoted(&dir));
            return vec![Check::fail(NAME, Error::from(e).message).fix(fix)];
        }
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths.collect();
    paths.sort();
    let (mut checks, mut count) = (Vec::new(), 0);
    for path in &paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some((key, Part::Live)) = segments::part(&name) else {
            continue;
        };
        count += 1;
        let found = session::inspect(path);
        let (damage, torn) = found.unwrap_or_else(|e| (vec![e.message], None));
        let key = shown_key(key);
        let key = shell_words::quote(&key);
        let fix =
            format!("bantam -s {key} \"Go on\"    # keeps each intact line, and the damaged file");
        if let Some(first) = damage.first() {
            let more = match damage.len() - 1 {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            checks.push(Check::fail(NAME, format!("{first}{more}")).fix(&fix));
        }
        checks.extend(torn.map(|torn| Check::info(NAME, torn).fix(&fix)));
    }
    if checks.is_empty() {
        let found = format!("{} without damage", counted(count, "file"));
        checks.push(Check::ok(NAME, found));
    }
    checks
}

/// Checks the list of scheduled jobs.
fn jobs(home: &Home, env: &Env) -> Check {
    const NAME: &str = "jobs";
    match Jobs::new(home.clone(), env).list() {
        Ok(jobs) => Check::ok(NAME, counted(jobs.len(), "job")),
        Err(e) => {
            let path = quoted(&home.cron_jobs());
            Check::fail(NAME, e.message).fix(format!("mv {path} {path}.broken"))
        }
    }
}

/// Reports a missing reader of PDFs.
fn pdftotext(env: &Env) -> Option<Check> {
    let path = env.get("PATH").map_or("", String::as_str);
    let is_there = path
        .split(':')
        .any(|dir| Path::new(dir).join("pdftotext").exists());
    let found = "pdftotext is not installed, so only models that take PDFs can read them";
    (!is_there).then(|| Check::info("pdf", found).fix("sudo apt install poppler-utils"))
}
