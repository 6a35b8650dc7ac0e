//! The race that has broken many file tools: a checked path is swapped for a link before it is opened.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use crate::harness::Home;
use crate::model::{Model, Reply, call};

const INSIDE: &str = "inside\n";
const OUTSIDE: &str = "OUTSIDE\n";

/// A workspace in which a directory and a file change places all the time with links that lead out of it.
struct RacyWorkspace<'h> {
    home: &'h Home,
    workspace: PathBuf,
    outside: PathBuf,
}

impl<'h> RacyWorkspace<'h> {
    fn new(home: &'h Home) -> Self {
        let (workspace, outside) = (home.dir("workspace"), home.dir("outside"));
        home.write("workspace/dir/file", INSIDE);
        home.write("workspace/file", INSIDE);
        home.write("outside/file", OUTSIDE);
        std::os::unix::fs::symlink("../outside", workspace.join("dir-link")).unwrap();
        std::os::unix::fs::symlink("../outside/file", workspace.join("file-link")).unwrap();
        Self { home, workspace, outside }
    }

    /// Swaps as fast as it can while `work` runs.
    fn while_swapping<T>(&self, work: impl FnOnce() -> T) -> T {
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
            // Also when the work panics, or the scope would wait for ever.
            let _stop = StopOnDrop(&stop);
            work()
        })
    }

    /// A write that loses the race puts its file where the link is by then, which is no escape, but leaves none.
    fn restore_link(&self) {
        let [a, b, new] = ["file", "file-link", "new-link"].map(|name| self.workspace.join(name));
        if !a.is_symlink() && !b.is_symlink() {
            std::os::unix::fs::symlink("../outside/file", &new).unwrap();
            fs::rename(new, b).unwrap();
        }
    }

    /// Nothing outside has changed, appeared or gone.
    #[track_caller]
    fn is_unchanged(&self) {
        assert_eq!(fs::read_to_string(self.outside.join("file")).unwrap(), OUTSIDE);
        assert_eq!(fs::read_dir(&self.outside).unwrap().count(), 1, "{:?}", self.home.files());
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Looks where the path leads, and then opens it: how many tries it took until one of them read what is outside.
fn naive(racy: &RacyWorkspace) -> Option<usize> {
    let until = Instant::now() + Duration::from_secs(15);
    (1..usize::MAX).take_while(|_| Instant::now() < until).find(|n| {
        let path = racy.workspace.join(if n % 2 == 0 { "dir/file" } else { "file" });
        let checked = path.canonicalize().is_ok_and(|real| real.starts_with(&racy.workspace));
        checked && fs::read_to_string(&path).is_ok_and(|text| text == OUTSIDE)
    })
}

#[test]
fn the_real_program_wins_a_race_against_swapped_links() {
    let calls = |n: usize| {
        let calls = (0..50).map(|at| {
            // The same place by another path each time: nobody may call the same thing over and over.
            let detour = "./".repeat(n * 50 + at);
            let path = format!("{detour}{}", ["dir/file", "file"][at / 5 % 2]);
            let (tool, arguments) = match at % 5 {
                0 => ("write_file", json!({ "path": path, "content": INSIDE })),
                1 => ("edit_file", json!({ "path": path, "old_text": "side", "new_text": "SIDE" })),
                2 => ("append_file", json!({ "path": path, "content": INSIDE })),
                3 => ("grep", json!({ "pattern": ".", "path": format!("{detour}.") })),
                _ => ("read_file", json!({ "path": path })),
            };
            call(&format!("call_{n}_{at}"), tool, &arguments)
        });
        Reply::calls(calls)
    };
    let model = Model::scripted((0..6).map(calls).chain([Reply::text("Done.")]));
    let home = Home::with(&model.config());
    let racy = RacyWorkspace::new(&home);
    racy.while_swapping(|| {
        assert!(naive(&racy).is_some(), "inconclusive: here even a check before opening wins the race");
        home.agent(["-m", "do it"]).exits(0);
    });
    racy.is_unchanged();
    let results = model.request(6).texts("tool");
    assert_eq!(results.len(), 300);
    assert!(results.iter().all(|text| !text.contains(OUTSIDE.trim_end())), "{results:?}");
}
