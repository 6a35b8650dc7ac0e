//! The workspace of a home, and the workers that reach it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{grants, workspace};
use crate::access::Access;
use crate::child::Network;
use crate::config::Loaded;
use crate::error::{Context, Error, Result};
use crate::ssrf::AddressGuard;
use crate::template;
use crate::worker::Workers;
use crate::worker::protocol::Policy;

/// Reports files in the workspace that look like bantam's instructions or notes, but are ignored there.
pub(crate) fn misplaced(loaded: &Loaded) -> Option<String> {
    let workspace = workspace(loaded).ok()?;
    let mut names = vec!["IDENTITY.md", "AGENT.md", "SOUL.md"];
    if workspace == loaded.home.workspace() {
        names.extend(["AGENTS.md", "HEARTBEAT.md", "USER.md", "memory/MEMORY.md"]);
    }
    // One listing of the workspace before each question is cheaper than a look for each name.
    let listed = std::fs::read_dir(&workspace).into_iter().flatten();
    let listed = listed.flatten().map(|entry| entry.file_name());
    let there: Vec<String> = listed.filter_map(|name| name.into_string().ok()).collect();
    let may_be = |name: &str| there.iter().any(|top| name.starts_with(top));
    names.retain(|name| may_be(name) && workspace.join(name).is_file());
    (!names.is_empty()).then(|| {
        format!(
            "not used: {} in {}; bantam's instructions are in {}, and its notes in {}",
            names.join(", "),
            workspace.display(),
            loaded.home.agent().display(),
            loaded.home.notes().display()
        )
    })
}

/// Creates the workspace from the template if it is missing.
pub(crate) fn make_workspace(loaded: &Loaded) -> Result<()> {
    let workspace = &workspace(loaded)?;
    if workspace.is_dir() {
        return Ok(());
    }
    let created = if workspace.exists() {
        let what = format!("{} is a file, not a directory", workspace.display());
        Err(Error::config(what))
    } else if *workspace == loaded.home.workspace() {
        template::write("workspace", workspace).map(drop)
    } else {
        fs_err::create_dir_all(workspace).map_err(Error::from)
    };
    let hint = "set BANTAM_HOME or agents.defaults.workspace to a directory that you can write";
    let created = created.doing("creating the workspace");
    // A full disk has a hint of its own.
    created.map_err(|mut e| {
        e.hint.get_or_insert_with(|| hint.to_owned());
        e
    })
}

/// Returns the workers for the file and exec jobs of all tools.
pub(crate) fn workers(loaded: &Loaded) -> Result<Workers> {
    let config = &loaded.config;
    // Under Landlock alone, a command may have removed the permissions needed to find files in them.
    make_searchable(&loaded.home.agent());
    make_searchable(&loaded.home.notes());
    let (grants, exec) = (grants::grants(loaded)?, &config.tools.exec);
    let mut opened = grants.beside_workspace(&grants::tools_grants(loaded)?)?;
    let restricted = config.agents.defaults.restrict_to_workspace;
    let named_sockets = exec.network == Network::Full || restricted && opened.is_empty();
    opened.extend(grants.always_readable(grants::zones(&loaded.env)));
    let policy = Policy {
        network: exec.network,
        workspace: grants.workspace(),
        grants: opened,
        notes: Some(grants.notes(Access::Read)),
        all_except: (!restricted).then(|| grants.home().to_owned()),
        named_sockets,
        user_home: loaded.env.get("HOME").cloned(),
        memory_mb: exec.memory_mb,
    };
    let guard = AddressGuard::new(config.tools.web.fetch.allow_private);
    let workers = Workers::new(policy, grants.home(), exec.sandbox, guard);
    let is_own_workspace = workspace(loaded)? == loaded.home.workspace();
    let kept = loaded.home.notes_copy();
    Ok(workers.with_notes(grants.notes(Access::Write), kept, is_own_workspace))
}

/// Lets the owner find files in a directory. Errors are reported later, when it is used.
fn make_searchable(dir: &Path) {
    let Ok(meta) = std::fs::symlink_metadata(dir) else {
        return;
    };
    let mode = meta.permissions().mode();
    if meta.is_dir() && mode & 0o500 != 0o500 {
        drop(std::fs::set_permissions(
            dir,
            std::fs::Permissions::from_mode(mode | 0o700),
        ));
    }
}
