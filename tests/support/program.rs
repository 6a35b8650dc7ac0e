//! The program under test, and the directory of the tests.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Creates the directory and the copy, and removes them when standard input closes, however this process ends. A separate
/// process makes the copy, because a program cannot start while a fork of this one has it open for writing.
const DIRECTORY: &str = r#"
dir=$(mktemp -d /var/tmp/bantam-tests-XXXXXX) && cp "$0" "$dir/bantam" && chmod 755 "$dir" "$dir/bantam" && echo "$dir"
cat >/dev/null
rm -rf "$dir"
"#;

/// Returns a directory for this process's copy of the program and the homes of its tests. The checkout may be inaccessible to
/// other users, or in `/tmp`, which the sandbox replaces.
pub fn directory() -> &'static Path {
    static MADE: OnceLock<(PathBuf, Child)> = OnceLock::new();
    let make = || {
        let built = std::env::var("BANTAM_TEST_BINARY")
            .unwrap_or_else(|_| env!("CARGO_BIN_EXE_bantam").to_owned());
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", DIRECTORY, &built])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // Protects the process from Ctrl-C.
        let mut child = command.process_group(0).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(
            line.ends_with('\n'),
            "copying {built} to a directory in /var/tmp failed"
        );
        (line.trim_end().into(), child)
    };
    &MADE.get_or_init(make).0
}

/// Returns the program under test: `BANTAM_TEST_BINARY`, or else the program that Cargo built for the tests.
pub fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| directory().join("bantam").to_str().unwrap().to_owned())
}
