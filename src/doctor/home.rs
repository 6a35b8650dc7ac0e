//! Checks the home directory: permissions, owners, free space, configuration, instructions, conversations and jobs.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use rustix::process::geteuid;

use super::{Check, has_program, quoted};
use crate::app::facts::Facts;
use crate::cron::Jobs;
use crate::error::Error;
use crate::paths::{Home, shown_key};
use crate::session::SessionInfo;
use crate::text::{counted, size};

/// Free bytes below which a disk counts as full.
const MIN_FREE: u64 = 1 << 20;

/// Checks the home and its files.
pub(crate) fn checks(facts: &Facts) -> Vec<Check> {
    let home = &facts.app.home;
    // Files of another user may be unreadable.
    if let Some(owner) = owners(home) {
        return vec![owner];
    }
    let mut checks = vec![directory(home)];
    checks.extend(full_disk(home));
    checks.extend(configuration(facts));
    checks.extend(agent(home));
    checks.extend(sessions(facts));
    checks.push(jobs(facts));
    checks.extend(pdftotext(facts));
    checks
}

fn directory(home: &Home) -> Check {
    const NAME: &str = "home";
    let root = home.root();
    let (shown, fix) = (root.display(), format!("chmod 700 {}", quoted(root)));
    let mode = fs_err::metadata(root).map_or(0, |meta| meta.mode() & 0o777);
    if !root.exists() {
        Check::ok(NAME, format!("{shown}: does not exist yet"))
    } else if let Err(e) = access(root, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        Check::fail(NAME, format!("cannot write {shown}: {}", Error::from(e))).fix(fix)
    } else if mode & 0o077 != 0 {
        let found = format!("{shown}: mode {mode:04o}: other users can read it");
        Check::fail(NAME, found).fix(fix)
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
    let real = fs_err::canonicalize(home.root()).ok()?;
    let device = |dir: &Path| fs_err::metadata(dir).map_or(0, |meta| meta.dev());
    let same = real
        .ancestors()
        .take_while(|dir| device(dir) == device(&real));
    let mount = quoted(same.last()?);
    let largest = "shows the largest directories; delete or move some";
    let fix = format!("du -xh {mount} 2>/dev/null | sort -h | tail    # {largest}");
    let (root, left) = (home.root().display(), size(free));
    let found = format!(
        "the disk is full: {left} and {} files left at {root}",
        disk.f_favail
    );
    (free < MIN_FREE || !has_files).then(|| Check::fail("disk", found).fix(fix))
}

/// Returns a failure for the first file of another user, such as one that a command of root created.
fn owners(home: &Home) -> Option<Check> {
    let root = home.root();
    let me = geteuid();
    // Root may run the program for the home's owner.
    let owner = if me.is_root() {
        fs_err::metadata(root).ok()?.uid()
    } else {
        me.as_raw()
    };
    let entries = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs_err::read_dir(dir).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| *path != home.workspace()).collect()
    };
    let top = entries(root);
    let dirs = top
        .iter()
        .filter(|path| path.is_dir() && !path.is_symlink());
    let below = dirs.flat_map(|dir| entries(dir));
    let own = std::iter::once(root.to_owned()).chain(top.clone());
    let mut strange = own.chain(below).filter_map(|path| {
        let user = path.symlink_metadata().ok()?.uid();
        (user != owner).then_some((path, user))
    });
    let (path, user) = strange.next()?;
    let found = format!("{} belongs to user {user}, not to {owner}", path.display());
    Some(Check::fail("owner", found).fix(format!("sudo chown -R {owner} {}", quoted(root))))
}

fn configuration(facts: &Facts) -> Vec<Check> {
    const NAME: &str = "config";
    let path = facts.app.home.config();
    let shown = path.display();
    let mode = fs_err::metadata(&path).map(|meta| meta.mode() & 0o777);
    let mut checks = vec![match (&facts.loaded, &mode) {
        (Err(e), _) => Check::of_error(NAME, e.clone()),
        (Ok(_), Err(_)) => Check::ok(NAME, format!("no file {shown}; the defaults apply")),
        (Ok(_), Ok(_)) => Check::ok(NAME, format!("{shown} is valid")),
    }];
    let warnings = facts.loaded.iter().flat_map(|loaded| &loaded.warnings);
    checks.extend(warnings.map(|warning| Check::info(NAME, warning)));
    // A user who can write it can choose the key's command, the sandbox and the model.
    if let Some(mode) = mode.ok().filter(|mode| mode & 0o022 != 0) {
        let found = format!("{shown}: mode {mode:04o}: others can write it");
        checks.push(Check::fail(NAME, found).fix(format!("chmod go-w {}", quoted(&path))));
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

/// Reports conversations whose current file has damage, which the next turn repairs.
fn sessions(facts: &Facts) -> Vec<Check> {
    const NAME: &str = "sessions";
    let check = |info: &SessionInfo| {
        let path = facts.app.home.session(&info.key);
        let path = path.display();
        let name = shown_key(&info.key);
        let key = shell_words::quote(&name);
        if info.state == "unreadable" {
            let fix = format!("bantam sessions show {key}    # shows why");
            return Some(Check::fail(NAME, format!("cannot read {path}")).fix(fix));
        }
        let fix =
            format!("bantam -s {key} \"Go on\"    # keeps each intact line, and the damaged file");
        let damage = info.damage.first()?;
        Some(Check::fail(NAME, damage).fix(fix))
    };
    let listed = fs_err::read_dir(facts.app.home.sessions()).map(drop);
    if let Some(e) = listed.err().filter(|e| e.kind() != ErrorKind::NotFound) {
        return vec![Check::fail(NAME, Error::from(e).message)];
    }
    let count = counted(facts.sessions.len(), "conversation");
    let mut checks: Vec<Check> = facts.sessions.iter().filter_map(check).collect();
    if checks.is_empty() {
        checks.push(Check::ok(NAME, format!("{count} without damage")));
    }
    checks
}

/// Checks the list of scheduled jobs.
fn jobs(facts: &Facts) -> Check {
    const NAME: &str = "jobs";
    let home = &facts.app.home;
    match Jobs::new(home.clone(), &facts.app.env).list() {
        Ok(jobs) => Check::ok(NAME, counted(jobs.len(), "job")),
        Err(e) => {
            let path = quoted(&home.cron_jobs());
            // What cannot be read may be in order.
            let fix = match fs_err::read(home.cron_jobs()) {
                Ok(_) => format!("mv {path} {path}.broken"),
                Err(_) => format!("sudo chown \"$(id -u)\" {path}"),
            };
            Check::fail(NAME, e.message).fix(fix)
        }
    }
}

/// Reports a missing reader of PDFs.
fn pdftotext(facts: &Facts) -> Option<Check> {
    let is_there = has_program("pdftotext", &facts.app.env);
    let found = "pdftotext is not installed, so only models that take PDFs can read them";
    (!is_there).then(|| Check::info("pdf", found).fix("sudo apt install poppler-utils"))
}
