//! A cgroup with a memory limit, for both versions of the controller.

use std::fs;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};

use super::process::field;

pub struct Cgroup {
    path: PathBuf,
    is_version_2: bool,
}

impl Cgroup {
    /// Creates a private cgroup with this many bytes and no swap.
    pub fn with_memory(bytes: u64) -> Result<Self> {
        let name = format!("bantam-siege-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let is_version_2 = controllers.split_whitespace().any(|one| one == "memory");
        let above = if is_version_2 {
            fs::write(root.join("cgroup.subtree_control"), "+memory")?;
            root.to_path_buf()
        } else {
            root.join("memory")
        };
        if !above.join("cgroup.procs").exists() {
            return Err(Error::other("there is no memory controller"));
        }
        let path = above.join(name);
        fs::create_dir(&path)?;
        let group = Self { path, is_version_2 };
        let (limit, swap, most) = if is_version_2 {
            ("memory.max", "memory.swap.max", 0)
        } else {
            // Version 1 limits memory and swap together.
            (
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                bytes,
            )
        };
        fs::write(group.path.join(limit), bytes.to_string())?;
        // A kernel without swap lacks this file.
        fs::write(group.path.join(swap), most.to_string()).ok();
        Ok(group)
    }

    pub fn version(&self) -> u8 {
        if self.is_version_2 { 2 } else { 1 }
    }

    /// Returns the file to which a process writes `0` to join.
    pub fn door(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    pub fn oom_kills(&self) -> u64 {
        self.field("memory.events", "memory.oom_control", "oom_kill ")
    }

    /// Returns the peak memory in bytes, including the page cache.
    pub fn peak(&self) -> u64 {
        let name = if self.is_version_2 {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        let peak = fs::read_to_string(self.path.join(name)).unwrap_or_default();
        peak.trim().parse().unwrap_or(0)
    }

    /// Returns the current anonymous memory, in bytes.
    pub fn anonymous(&self) -> u64 {
        self.field("memory.stat", "memory.stat", self.anonymous_name())
    }

    fn anonymous_name(&self) -> &'static str {
        if self.is_version_2 {
            "anon "
        } else {
            "total_rss "
        }
    }

    fn field(&self, version_2: &str, version_1: &str, name: &str) -> u64 {
        let file = if self.is_version_2 {
            version_2
        } else {
            version_1
        };
        field(self.path.join(file).to_str().unwrap(), name)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.path).ok();
    }
}
