//! `/undo` in a conversation at the terminal: the question, its answer, and the files that its file tools changed.

use std::fs;

use serde_json::json;

use crate::harness::{Home, Running};
use crate::model::{Model, Reply, call};

fn talk(home: &Home) -> Running<'_> {
    home.bantam()
        .args(["agent", "-s", "work"])
        .silent_stdin()
        .on_a_clever_terminal(200)
        .spawn()
}

#[test]
fn undo_takes_back_the_files_that_the_turn_changed() {
    let write = |path: &str, content: &str| {
        call(
            path,
            "write_file",
            &json!({"path": path, "content": content}),
        )
    };
    let model = Model::scripted([
        Reply::calls([
            write("kept.txt", "by the model"),
            write("./kept.txt", "by the model, again"),
            write("new.txt", "new"),
            write("mine.txt", "by the model"),
            call(
                "e",
                "edit_file",
                &json!({"path": "edited.txt", "old_text": "b", "new_text": "x"}),
            ),
            call(
                "a",
                "append_file",
                &json!({"path": "log.txt", "content": "more"}),
            ),
            call("c", "exec", &json!({"command": "echo made > made.txt"})),
        ]),
        Reply::text("Done."),
        Reply::text("Nothing."),
    ]);
    let home = Home::with(&model.config());
    let before = [
        ("kept.txt", "as it was"),
        ("mine.txt", "as it was"),
        ("edited.txt", "abc"),
        ("log.txt", "one\n"),
    ];
    for (name, content) in before {
        home.write(&format!("workspace/{name}"), content);
    }
    let file = |name: &str| fs::read_to_string(home.path(&format!("workspace/{name}")));
    let mut talk = talk(&home);
    talk.types("change them\r");
    talk.wait_for_stdout("Done.\r\n\r\n\u{1b}[?2004h");
    assert_eq!(file("kept.txt").unwrap(), "by the model, again");
    assert!(home.path("state/undo/cli_work").is_dir());
    home.write("workspace/mine.txt", "by the user, since");
    talk.types("/undo\r");
    for line in [
        "bantam: took back: change them",
        "bantam: restored log.txt",
        "bantam: restored edited.txt",
        "bantam: mine.txt stays as it is: it has changed since",
        "bantam: removed new.txt, which was new",
        "bantam: restored kept.txt",
        "bantam: what commands did stays",
    ] {
        talk.wait_for_next_stdout(line);
    }
    for (name, content) in [
        ("kept.txt", "as it was"),
        ("edited.txt", "abc"),
        ("log.txt", "one\n"),
        ("mine.txt", "by the user, since"),
        ("made.txt", "made\n"),
    ] {
        assert_eq!(file(name).unwrap(), content, "{name}");
    }
    assert!(file("new.txt").is_err());
    // A turn that changed nothing takes back nothing.
    talk.types("and now\r");
    talk.wait_for_next_stdout("Nothing.\r\n");
    talk.types("/undo\r");
    talk.wait_for_next_stdout("bantam: took back: and now\r\n");
    talk.types("/quit\r");
    talk.finish().exits(0);
    // Nothing is left of a conversation that is erased.
    home.bantam()
        .args(["sessions", "erase", "work", "--yes"])
        .run()
        .exits(0);
    assert!(!home.path("state/undo/cli_work").exists());
}
