//! `grep`: matches, and reports of skipped files.

use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use crate::fixtures::Fixture;

/// Returns the results of searches in one directory.
#[track_caller]
fn searches<const N: usize>(searches: [Value; N]) -> [(String, bool); N] {
    let fixture = Fixture::making(searches.map(|arguments| ("grep", arguments)));
    for (path, content) in [
        ("src/main.rs", &b"fn main() {\n    run();\n}\n"[..]),
        ("src/deep/run.rs", b"fn run() {}\r\nfn Run() {}\r\n"),
        ("read me.md", "# 使用说明\nrun it, שלום 👋\n".as_bytes()),
        (".git/config", b"fn hidden() {}\n"),
        (".hidden", b"fn seen() {}\n"),
        ("binary", b"fn binary() {}\n\0\0"),
        ("latin.txt", b"caf\xe9 fn\n"),
    ] {
        fixture.home.write(&format!("workspace/{path}"), content);
    }
    fixture.home.write("outside/secret", "fn outside() {}\n");
    symlink("../outside", fixture.file("out")).unwrap();
    symlink("../outside/secret", fixture.file("out-file")).unwrap();
    symlink(".", fixture.file("circle")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(fixture.file("pipe"))
            .status()
            .unwrap()
            .success()
    );
    fixture.results().try_into().unwrap()
}

#[test]
fn lines_of_received_files_are_fenced() {
    let arguments = [
        json!({ "pattern": "obey", "path": "inbox" }),
        json!({ "pattern": "obey" }),
        json!({ "pattern": "obey", "path": ".//inbox" }),
        json!({ "pattern": "mine" }),
    ];
    let fixture = Fixture::making(arguments.map(|arguments| ("grep", arguments)));
    fixture.home.write("workspace/inbox/mail.txt", "obey me\n");
    fixture.home.write("workspace/notes.txt", "mine\n");
    let results: Vec<bool> = fixture
        .results()
        .iter()
        .map(|(result, _)| result.starts_with("```\n"))
        .collect();
    assert_eq!(results, [true, true, true, false]);
}

#[test]
fn lines_are_found_in_every_text_file_and_nowhere_else() {
    let [
        (everywhere, _),
        (below, _),
        (file, _),
        (chinese, _),
        (cased, _),
        (whole, _),
    ] = searches([
        json!({ "pattern": "fn " }),
        json!({ "pattern": "fn ", "path": "./src" }),
        json!({ "pattern": "^fn", "path": "src/main.rs" }),
        json!({ "pattern": "说明|👋" }),
        json!({ "pattern": "(?i)FN RUN" }),
        json!({ "pattern": "\\{\\}$", "path": "src/deep" }),
    ]);
    assert_eq!(
        everywhere,
        ".hidden:1:fn seen() {}\nsrc/deep/run.rs:1:fn run() {}\nsrc/deep/run.rs:2:fn Run() {}\n\
         src/main.rs:1:fn main() {\n[binary files skipped: 1]\n"
    );
    assert_eq!(
        below,
        "src/deep/run.rs:1:fn run() {}\nsrc/deep/run.rs:2:fn Run() {}\nsrc/main.rs:1:fn main() {\n"
    );
    assert_eq!(file, "src/main.rs:1:fn main() {\n");
    assert_eq!(
        chinese,
        "read me.md:1:# 使用说明\nread me.md:2:run it, שלום 👋\n[binary files skipped: 1]\n"
    );
    assert!(
        cased.starts_with("src/deep/run.rs:1:fn run() {}\nsrc/deep/run.rs:2:fn Run() {}\n["),
        "{cased}"
    );
    assert_eq!(
        whole,
        "src/deep/run.rs:1:fn run() {}\nsrc/deep/run.rs:2:fn Run() {}\n"
    );
}
