//! Finds other paths of a directory, which bind mounts give it or a part of it.

use std::path::{Path, PathBuf};

use rustix::fs::stat;

/// Undoes the kernel's escapes in a path of `mountinfo`.
pub(crate) fn unescape(path: &str) -> String {
    path.replace(r"\040", " ")
        .replace(r"\011", "\t")
        .replace(r"\012", "\n")
        .replace(r"\134", r"\")
}

/// Parses a line of `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`): the number of the file system, its mounted directory, and
/// where that is.
fn parse(line: &str) -> Option<(&str, PathBuf, PathBuf)> {
    let mut fields = line.split(' ').skip(2);
    let device = fields.next()?;
    let mut path = || Some(PathBuf::from(unescape(fields.next()?)));
    Some((device, path()?, path()?))
}

/// Returns other paths of bantam's home or its parts, except the workspace. `dir` has no links. Empty if /proc cannot be read.
pub(super) fn other_paths(dir: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let id = |path: &Path| stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino));
    let found = paths_in(&table, dir).into_iter();
    // Skips mounts that are covered by another one.
    let is_open = |(path, below): &(PathBuf, PathBuf)| {
        let own = id(&dir.join(below));
        !below.starts_with("workspace") && own.is_some() && id(path) == own
    };
    found.filter(is_open).map(|(path, _)| path).collect()
}

/// Returns these paths, each with its part of `dir`.
fn paths_in(table: &str, dir: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mounts: Vec<_> = table.lines().filter_map(parse).collect();
    let holding = mounts.iter().filter(|(_, _, at)| dir.starts_with(at));
    let Some((own, root, at)) = holding.max_by_key(|(_, _, at)| at.components().count()) else {
        return Vec::new();
    };
    let inside = root.join(dir.strip_prefix(at).unwrap_or(dir));
    let mut found = Vec::new();
    for (_, root, at) in mounts.iter().filter(|(device, ..)| device == own) {
        let (path, part) = match (inside.strip_prefix(root), root.strip_prefix(&inside)) {
            (Ok(rest), _) => (at.join(rest), PathBuf::new()),
            (_, Ok(part)) => (at.clone(), part.to_owned()),
            _ => continue,
        };
        if path != dir.join(&part) {
            found.push((path, part));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_mounts_are_found() {
        let table = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 8:2 / /data rw shared:1 - ext4 /dev/sda2 rw
24 22 8:2 /home /home rw - ext4 /dev/sda2 rw
25 22 8:1 /srv /mnt/with\\040space\\011and\\134 rw - ext4 /dev/sda1 rw
26 22 8:2 /home/u/.bantam/sessions /var/spool/s rw - ext4 /dev/sda2 rw
27 24 8:2 /home/u/.bantam /home/u/.bantam rw - ext4 /dev/sda2 rw
28 22 8:3 /home /other rw - ext4 /dev/sda3 rw
";
        let found = |dir: &str| -> Vec<String> {
            let paths = paths_in(table, Path::new(dir)).into_iter();
            paths.map(|(path, _)| path.display().to_string()).collect()
        };
        assert_eq!(
            found("/home/u/.bantam"),
            ["/data/home/u/.bantam", "/var/spool/s"]
        );
        assert_eq!(found("/srv/.bantam"), ["/mnt/with space\tand\\/.bantam"]);
        assert_eq!(found("/root/.bantam"), [""; 0]);
    }
}
