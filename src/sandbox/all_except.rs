//! Lists everything except one directory, for users who open all their files to the tools.
//!
//! Neither mounts nor Landlock can exclude a directory from an open tree. So the directories above it are closed, and all their
//! entries except those that lead to it are opened. Entries that are created there later remain closed.

use std::path::{Path, PathBuf};

use crate::access::NEVER_OPEN;

/// Returns the entries of every directory above `denied_tree` that do not lead to it, by name or through a link. `denied_tree`
/// is absolute and free of links. Unreadable directories have no entries.
pub(super) fn list(denied_tree: &Path) -> Vec<PathBuf> {
    let entries = |dir: &Path| {
        fs_err::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    let leads_there = |path: &Path| denied_tree.starts_with(path) || path.starts_with(denied_tree);
    let is_open = |path: &PathBuf| {
        !leads_there(path)
            && !path.canonicalize().is_ok_and(|real| leads_there(&real))
            && !NEVER_OPEN.iter().any(|closed| path == Path::new(closed))
    };
    denied_tree
        .ancestors()
        .skip(1)
        .flat_map(entries)
        .filter(is_open)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn everything_but_the_way_to_a_directory_is_listed() {
        let root = TestDir::new();
        std::fs::create_dir_all(root.join("home/denied/inner")).unwrap();
        std::fs::create_dir_all(root.join("home/denied-not")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        for (target, link) in [
            ("home", "to-home"),
            ("home/denied", "to-denied"),
            ("home/denied/inner", "to-inner"),
            ("file", "to-file"),
        ] {
            std::os::unix::fs::symlink(root.join(target), root.join(link)).unwrap();
        }
        let denied = root.join("home/denied");
        let found = list(&denied);
        assert!(
            found.contains(&root.join("home/denied-not")) && found.contains(&root.join("file")),
            "{found:?}"
        );
        assert!(
            found.contains(&PathBuf::from("/usr")) && !found.contains(&PathBuf::from("/proc")),
            "{found:?}"
        );
        assert!(
            !found
                .iter()
                .any(|path| denied.starts_with(path) || path.starts_with(&denied)),
            "{found:?}"
        );
        let links: Vec<&PathBuf> = found
            .iter()
            .filter(|path| path.starts_with(&*root) && path.is_symlink())
            .collect();
        assert_eq!(links, [&root.join("to-file")]);
    }
}
