//! The home: who may read and change it, the configuration, the workspace, the conversations.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use super::Check;
use crate::config::Loaded;
use crate::error::Result;
use crate::paths::Home;
use crate::session;

/// More lines of damage than this are counted, not shown.
const SHOWN: usize = 20;

/// `$BANTAM_HOME` itself.
pub fn directory(home: &Home) -> Check {
    const WHAT: &str = "home";
    const ELSEWHERE: &str = "export BANTAM_HOME=/a/directory/you/can/write";
    let root = home.root();
    let shown = root.display();
    let quoted = quoted(root);
    let meta = match fs_err::metadata(root) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let above = root.ancestors().skip(1).find(|dir| dir.exists()).unwrap_or(Path::new("/"));
            return match access(above, Access::WRITE_OK | Access::EXEC_OK) {
                Ok(()) => Check::well(WHAT, format!("{shown}: not there yet, and can be made")),
                Err(_) => {
                    Check::fails(WHAT, format!("{shown}: not there, and {} is not yours to write", above.display()))
                        .fix(ELSEWHERE)
                }
            };
        }
        Err(e) => return Check::fails(WHAT, e.to_string()).fix(ELSEWHERE),
    };
    let (mode, me) = (meta.mode() & 0o777, geteuid());
    if !meta.is_dir() {
        Check::fails(WHAT, format!("{shown} is not a directory")).fix(ELSEWHERE)
    } else if meta.uid() != me.as_raw() && !me.is_root() {
        Check::fails(WHAT, format!("{shown} belongs to user {}, not to you", meta.uid()))
            .fix(format!("sudo chown -R \"$(id -u):$(id -g)\" {quoted}"))
    } else if meta.uid() != me.as_raw() {
        Check::aside(
            WHAT,
            format!("{shown} belongs to user {}, and this is root: what root makes there is root's", meta.uid()),
        )
        .fix(format!("sudo -u '#{}' bantam doctor", meta.uid()))
    } else if let Err(e) = access(root, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        Check::fails(WHAT, format!("{shown} cannot be written: {}", std::io::Error::from(e)))
            .fix(format!("chmod 700 {quoted}"))
            .fix(ELSEWHERE)
    } else if mode & 0o077 != 0 {
        Check::fails(WHAT, format!("{shown}: mode {mode:04o}: others on this machine can look into it"))
            .fix(format!("chmod 700 {quoted}"))
    } else {
        Check::well(WHAT, format!("{shown}: yours alone"))
    }
}

fn quoted(path: &Path) -> String {
    shell_words::quote(&path.to_string_lossy()).into_owned()
}

/// config.json, as it was `loaded`; `there` is whether there is one.
pub fn configuration(home: &Home, there: bool, loaded: &Result<Loaded>) -> Vec<Check> {
    const WHAT: &str = "config";
    let path = home.config();
    let shown = path.display();
    let mut checks = match loaded {
        Err(e) => vec![Check::of_error(WHAT, e.clone())],
        Ok(_) if !there => vec![Check::well(WHAT, format!("{shown}: none, so the defaults hold"))],
        Ok(loaded) => [Check::well(WHAT, format!("{shown}: understood"))]
            .into_iter()
            .chain(loaded.warnings.iter().map(|warning| Check::aside(WHAT, warning)))
            .collect(),
    };
    // Whoever can write it chooses the key's command, the jail and the model.
    if let Ok(meta) = fs_err::metadata(&path) {
        let me = geteuid();
        if meta.mode() & 0o022 != 0 {
            let found = format!("{shown}: mode {:04o}: others can write it", meta.mode() & 0o777);
            checks.push(Check::fails(WHAT, found).fix(format!("chmod go-w {}", quoted(&path))));
        }
        if meta.uid() != me.as_raw() && meta.uid() != 0 && !me.is_root() {
            let found = format!("{shown} belongs to user {}, who can write it", meta.uid());
            checks.push(Check::fails(WHAT, found).fix(format!("sudo chown \"$(id -u)\" {}", quoted(&path))));
        }
    }
    checks
}

/// Every conversation: its lines are checked, none is mended.
pub fn sessions(home: &Home) -> Vec<Check> {
    const WHAT: &str = "sessions";
    let dir = home.sessions();
    let entries = match fs_err::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return vec![Check::well(WHAT, "none yet")],
        Err(e) => return vec![Check::fails(WHAT, e.to_string()).fix(format!("chmod 700 {}", quoted(&dir)))],
    };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "jsonl"));
    paths.sort_unstable();
    let mut checks = Vec::new();
    for path in &paths {
        let (damage, torn) = match session::inspect(path) {
            Ok(found) => found,
            Err(e) => (vec![e.message], None),
        };
        let more = damage.len().saturating_sub(SHOWN);
        let aside = quoted(path);
        let count = damage.len().min(SHOWN);
        for (n, found) in damage.into_iter().take(SHOWN).enumerate() {
            let mut check = Check::fails(WHAT, found);
            if n + 1 == count {
                if more > 0 {
                    check.found.push_str(&format!("; and {more} more"));
                }
                check = check
                    .fix(format!("mv {aside} {aside}.damaged    # or go on: what is whole is used, nothing is lost"));
            }
            checks.push(check);
        }
        if let Some(torn) = torn {
            checks.push(Check::aside(WHAT, format!("{torn}; the next turn mends that")));
        }
    }
    if checks.is_empty() {
        checks.push(Check::well(WHAT, format!("{} of them, every line whole", paths.len())));
    }
    checks
}
