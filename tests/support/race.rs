//! The race that has broken many file tools: a checked path is swapped for a link before it is opened.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

pub const INSIDE: &str = "inside\n";
pub const OUTSIDE: &str = "OUTSIDE\n";

/// A workspace in which a directory and a file are constantly swapped with links that lead out of it.
pub struct RacyWorkspace {
    pub workspace: PathBuf,
    outside: PathBuf,
}

impl RacyWorkspace {
    /// Fills the directories `workspace` and `outside` of `root`.
    pub fn new(root: &Path) -> Self {
        let (workspace, outside) = (root.join("workspace"), root.join("outside"));
        fs::create_dir_all(workspace.join("dir")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(workspace.join("dir/file"), INSIDE).unwrap();
        fs::write(workspace.join("file"), INSIDE).unwrap();
        fs::write(outside.join("file"), OUTSIDE).unwrap();
        symlink("../outside", workspace.join("dir-link")).unwrap();
        symlink("../outside/file", workspace.join("file-link")).unwrap();
        Self { workspace, outside }
    }

    /// Swaps as fast as possible while `work` runs, which starts once a check before opening has lost the race.
    #[track_caller]
    pub fn while_swapping<T>(&self, work: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        let swap = |a: &str, b: &str| {
            let [a, b] = [a, b].map(|name| self.workspace.join(name));
            renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    self.restore_link();
                    for _ in 0..50 {
                        swap("dir", "dir-link");
                        swap("file", "file-link");
                    }
                }
            });
            // Stops also after a panic of the work; otherwise the scope would wait forever.
            let _stop = StopOnDrop(&stop);
            assert!(
                self.naive().is_some(),
                "inconclusive: here even a check before opening wins the race"
            );
            work()
        })
    }

    /// A write that loses the race replaces the link by a file, which is no escape, so this restores the link.
    fn restore_link(&self) {
        let [a, b, new] = ["file", "file-link", "new-link"].map(|name| self.workspace.join(name));
        if !a.is_symlink() && !b.is_symlink() {
            symlink("../outside/file", &new).unwrap();
            fs::rename(new, b).unwrap();
        }
    }

    /// Checks the path before opening it. Returns the number of tries until a file outside was read.
    fn naive(&self) -> Option<usize> {
        let until = Instant::now() + Duration::from_secs(60);
        (1..usize::MAX)
            .take_while(|_| Instant::now() < until)
            .find(|n| {
                let path = self
                    .workspace
                    .join(if n % 2 == 0 { "dir/file" } else { "file" });
                let checked = path
                    .canonicalize()
                    .is_ok_and(|real| real.starts_with(&self.workspace));
                checked && fs::read_to_string(&path).is_ok_and(|text| text == OUTSIDE)
            })
    }

    /// Checks that nothing outside has changed, appeared or disappeared.
    #[track_caller]
    pub fn is_unchanged(&self) {
        assert_eq!(
            fs::read_to_string(self.outside.join("file")).unwrap(),
            OUTSIDE
        );
        assert_eq!(fs::read_dir(&self.outside).unwrap().count(), 1);
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
