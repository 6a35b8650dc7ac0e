//! Tests the recipe for commit messages with a real git.

use std::fs;
use std::process::Command;

use crate::board::Board;
use crate::harness::has_all;
use crate::model::Reply;

#[test]
fn a_commit_message() {
    let board = Board::with([
        Reply::error(400, "no"),
        Reply::text("Water the plants\n\nThey were dry."),
    ]);
    let repository = board.user("repository");
    fs::create_dir(&repository).unwrap();
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", board.user(""))
            .current_dir(&repository);
        let output = git.output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    fs::write(
        board.user(".gitconfig"),
        "[user]\nname = A\nemail = a@example.invalid\n",
    )
    .unwrap();
    fs::write(repository.join("plants.txt"), "watered\n").unwrap();
    for args in [&["init", "-q"][..], &["add", "plants.txt"]] {
        assert!(git(args).0, "{args:?}");
    }
    // Without an answer, there is neither a message nor a commit.
    let run = board.cooks_in(&repository, "Write a commit message");
    assert_ne!(run.code, Some(0));
    run.prints("").fails_with_a_hint();
    assert!(!git(&["log"]).0);

    let run = board.cooks_in(&repository, "Write a commit message");
    run.answers("").is_quiet();
    assert_eq!(
        git(&["log", "--format=%B"]).1.trim(),
        "Water the plants\n\nThey were dry."
    );
    has_all(&board.model.request(1).last("user"), ["+watered"]);
}
