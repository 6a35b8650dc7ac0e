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

#[test]
fn files_are_chosen_by_name_or_by_path() {
    let [(by_name, _), (by_path, _), (at_any_depth, _), (none, _)] = searches([
        json!({ "pattern": "run", "glob": "*.{md,txt}" }),
        json!({ "pattern": "fn", "glob": "src/*.rs" }),
        json!({ "pattern": "fn", "glob": "**/run.rs", "path": "src" }),
        json!({ "pattern": "fn", "glob": "*.py" }),
    ]);
    assert_eq!(by_name, "read me.md:2:run it, שלום 👋\n");
    assert_eq!(by_path, "src/main.rs:1:fn main() {\n");
    assert_eq!(
        at_any_depth,
        "src/deep/run.rs:1:fn run() {}\nsrc/deep/run.rs:2:fn Run() {}\n"
    );
    assert_eq!(none, "no matches\n");
}

#[test]
fn truncated_matches_are_reported() {
    let fixture = Fixture::making([
        (
            "grep",
            json!({ "pattern": "hit", "path": "many.txt", "max": 3 }),
        ),
        (
            "grep",
            json!({ "pattern": "hit", "path": "many.txt", "max": 1000 }),
        ),
        ("grep", json!({ "pattern": "needle", "path": "long.txt" })),
        (
            "grep",
            json!({ "pattern": "hit", "path": "few.txt", "max": 2 }),
        ),
    ]);
    fixture.home.write(
        "workspace/many.txt",
        "hit, and some more text to fill the line\n".repeat(5000),
    );
    fixture.home.write("workspace/few.txt", "hit\nhit\n");
    let long = format!(
        "{}needle{}\n{}needle\n",
        "a".repeat(5000),
        "b".repeat(5000),
        "c".repeat(100_000)
    );
    fixture.home.write("workspace/long.txt", long);
    let told = fixture.succeeds();
    assert_eq!(told[0].lines().count(), 4);
    assert!(
        told[0].ends_with("[there are more matches]\n"),
        "{}",
        told[0]
    );
    assert!(
        told[1].len() < 30_000 && told[1].ends_with("[there are more matches]\n"),
        "{} bytes",
        told[1].len()
    );
    assert!(
        told[2].starts_with("long.txt:1:…aaa") && told[2].contains("aneedleb"),
        "{}",
        told[2]
    );
    assert!(
        told[2].ends_with("bbb…\n[lines searched only at their start: 1]\n"),
        "{}",
        told[2]
    );
    assert_eq!(told[3], "few.txt:1:hit\nfew.txt:2:hit\n");
}

#[test]
fn a_search_that_cannot_be_done_says_why() {
    let [pattern, slow, glob, missing, pipe, out, dots] = searches([
        json!({ "pattern": "fn (" }),
        json!({ "pattern": "(.{0,99}){0,99}x" }),
        json!({ "pattern": "fn", "glob": "[" }),
        json!({ "pattern": "fn", "path": "nowhere" }),
        json!({ "pattern": "fn", "path": "pipe" }),
        json!({ "pattern": "fn", "path": "out/secret" }),
        json!({ "pattern": "fn", "path": "../outside" }),
    ]);
    for ((result, failed), says) in [
        (pattern, "invalid pattern: "),
        // It would be slow on every line.
        (slow, "invalid pattern: "),
        (glob, "invalid glob: "),
        (missing, "nowhere does not exist"),
        (pipe, "pipe is not a regular file"),
        (out, "leads out of the workspace"),
        (dots, "leads out of the workspace"),
    ] {
        assert!(failed && result.contains(says), "{says}: {result}");
    }
}
