//! Checks the home directory: its permissions, its configuration and its conversations.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use super::{Check, quoted};
use crate::config::Loaded;
use crate::error::{Error, Result};
use crate::paths::Home;
use crate::session;
use crate::storage::segments::{self, Part};
use crate::text::counted;

/// Checks `$BANTAM_HOME` itself.
pub(crate) fn directory(home: &Home) -> Check {
    const NAME: &str = "home";
    const ELSEWHERE: &str = "export BANTAM_HOME=/a/directory/you/can/write";
    let root = home.root();
    let (shown, quoted) = (root.display(), quoted(root));
    let meta = match fs_err::metadata(root) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Check::ok(NAME, format!("{shown}: does not exist yet"));
        }
        Err(e) => return Check::fail(NAME, Error::from(e).message).fix(ELSEWHERE),
    };
    let (mode, owner) = (meta.mode() & 0o777, meta.uid());
    if owner != geteuid().as_raw() && geteuid().is_root() {
        Check::info(
            NAME,
            format!("{shown} belongs to user {owner}, but files that root creates there will belong to root"),
        )
        .fix(format!("sudo -u '#{owner}' bantam doctor"))
    } else if owner != geteuid().as_raw() {
        Check::fail(NAME, format!("{shown} belongs to user {owner}, not to you"))
            .fix(format!("sudo chown -R \"$(id -u):$(id -g)\" {quoted}"))
    } else if let Err(e) = access(root, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        Check::fail(NAME, format!("cannot write {shown}: {}", Error::from(e)))
            .fix(format!("chmod 700 {quoted}    # or: {ELSEWHERE}"))
    } else if mode & 0o077 != 0 {
        Check::fail(
            NAME,
            format!("{shown}: mode {mode:04o}: other users can read it"),
        )
        .fix(format!("chmod 700 {quoted}"))
    } else {
        Check::ok(NAME, format!("{shown}: only you can read it"))
    }
}

/// Checks `config.json`, as `loaded`; `exists` is whether the file exists.
pub(crate) fn configuration(
    home: &Home,
    exists: bool,
    loaded: &Result<&Arc<Loaded>>,
) -> Vec<Check> {
    const NAME: &str = "config";
    let path = home.config();
    let shown = path.display();
    let mut checks = match loaded {
        Err(e) => vec![Check::of_error(NAME, e.clone())],
        Ok(_) if !exists => vec![Check::ok(
            NAME,
            format!("{shown} does not exist: the defaults apply"),
        )],
        Ok(loaded) => [Check::ok(NAME, format!("{shown} is valid"))]
            .into_iter()
            .chain(
                loaded
                    .warnings
                    .iter()
                    .map(|warning| Check::info(NAME, warning)),
            )
            .collect(),
    };
    // A user who can write it can choose the key's command, the sandbox and the model.
    if let Ok(meta) = fs_err::metadata(&path) {
        if meta.mode() & 0o022 != 0 {
            let found = format!(
                "{shown}: mode {:04o}: others can write it",
                meta.mode() & 0o777
            );
            checks.push(Check::fail(NAME, found).fix(format!("chmod go-w {}", quoted(&path))));
        }
        if ![0, geteuid().as_raw()].contains(&meta.uid()) && !geteuid().is_root() {
            let found = format!("{shown} belongs to user {}, who can write it", meta.uid());
            checks.push(
                Check::fail(NAME, found).fix(format!("sudo chown \"$(id -u)\" {}", quoted(&path))),
            );
        }
    }
    checks
}

/// Reports copies of notes.
pub(crate) fn notes(home: &Home) -> Option<Check> {
    let kept = home.notes_copy();
    let copied = segments::entries(&kept).unwrap_or_default().len();
    let found = format!(
        "{} kept as before the last day's changes: {}",
        counted(copied, "note"),
        kept.display()
    );
    (copied > 0).then(|| Check::ok("memory", found))
}

/// Checks the live segment of every conversation without repairs. Archived segments may contain known damage.
pub(crate) fn sessions(home: &Home) -> Vec<Check> {
    const NAME: &str = "sessions";
    let dir = home.sessions();
    let entries = match fs_err::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return vec![Check::ok(NAME, "none yet")],
        Err(e) => {
            return vec![
                Check::fail(NAME, Error::from(e).message)
                    .fix(format!("chmod 700 {}", quoted(&dir))),
            ];
        }
    };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        matches!(segments::part(&name), Some((_, Part::Live)))
    });
    paths.sort();
    let mut checks = Vec::new();
    for path in &paths {
        let (damage, torn) = session::inspect(path).unwrap_or_else(|e| (vec![e.message], None));
        if let Some(first) = damage.first() {
            let more = damage.len() - 1;
            let more = if more > 0 {
                format!("; and {more} more")
            } else {
                String::new()
            };
            checks.push(
                Check::fail(NAME, format!("{first}{more}"))
                    .fix("go on with it: the next turn takes over every undamaged line, and keeps the damaged file"),
            );
        }
        if let Some(torn) = torn {
            checks.push(Check::info(
                NAME,
                format!("{torn}; the next turn repairs that"),
            ));
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok(
            NAME,
            format!("{} without damage", counted(paths.len(), "file")),
        ));
    }
    checks
}
