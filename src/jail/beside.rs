//! Everything but one directory, for those who let their agent see what they see.
//!
//! Neither mounts nor Landlock can take a directory out of a tree that is open. So the tree is not opened: all that lies
//! beside the way down to that directory is, entry by entry. What comes into being beside the way later stays shut.

use std::path::{Path, PathBuf};

/// What a jail has of its own, and what holds sockets of services that act for whoever speaks to them.
const OWN: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/tmp"];

/// The entries of each directory above `shut` that do not lead to it, by name or through a link, nor lie in it. `shut` is
/// absolute and without links. Directories that may not be listed have none.
pub fn beside(shut: &Path) -> Vec<PathBuf> {
    let listed = |dir: &Path| fs_err::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let above = shut.ancestors().skip(1).flat_map(listed);
    let leads_there = |path: &Path| shut.starts_with(path) || path.starts_with(shut);
    let is_apart = |path: &PathBuf| {
        let real = path.canonicalize();
        !leads_there(path)
            && !real.is_ok_and(|real| leads_there(&real))
            && !OWN.iter().any(|own| path == Path::new(own))
    };
    above.filter(is_apart).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beside_a_directory_is_all_but_the_way_to_it() {
        let root = std::env::temp_dir().join(format!("bantam-beside-{}", std::process::id()));
        std::fs::create_dir_all(root.join("home/shut/inner")).unwrap();
        std::fs::create_dir_all(root.join("home/shutters")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        for (target, link) in
            [("home", "to-home"), ("home/shut", "to-shut"), ("home/shut/inner", "to-inner"), ("file", "to-file")]
        {
            std::os::unix::fs::symlink(root.join(target), root.join(link)).unwrap();
        }
        let found = beside(&root.join("home/shut"));
        assert!(found.contains(&root.join("to-file")), "{found:?}");
        assert!(found.contains(&root.join("home/shutters")) && found.contains(&root.join("file")), "{found:?}");
        assert!(found.contains(&PathBuf::from("/usr")) && !found.contains(&PathBuf::from("/proc")), "{found:?}");
        assert!(!found.iter().any(|path| root.join("home/shut").starts_with(path)), "{found:?}");
        let links: Vec<&PathBuf> = found.iter().filter(|path| path.starts_with(&root) && path.is_symlink()).collect();
        assert!(links.is_empty() || links == [&root.join("to-file")], "{links:?}");
        assert!(!found.iter().any(|path| path.starts_with(root.join("home/shut"))), "{found:?}");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
