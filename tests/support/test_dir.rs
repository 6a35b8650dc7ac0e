//! Temporary directories of unit tests.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::paths::Home;

/// A new, empty, private directory, which is removed when dropped. Its path is free of links.
pub(crate) struct TestDir(PathBuf);

impl TestDir {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let parent = std::env::temp_dir().canonicalize().unwrap();
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("bantam-test-{}-{count}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                // A killed process with the same id left this directory.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                created => {
                    created.unwrap();
                    return Self(path);
                }
            }
        }
    }

    /// Returns the directory as the home of an agent.
    pub(crate) fn home(&self) -> Home {
        Home::new(self.0.clone())
    }
}

impl Deref for TestDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let removed = fs_err::remove_dir_all(&self.0);
        // A second panic would hide the failure of the test.
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}
