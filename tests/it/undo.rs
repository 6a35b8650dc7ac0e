//! `/undo` at the terminal: the question, its answer, and the files changed by its file tools.

use std::fs;

use serde_json::json;

use crate::bot::{self, ends, serving};
use crate::harness::{Home, Running};
use crate::model::{Model, Reply, call};

const OWNER: i64 = 42;

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
    let (_model, home) = Home::of(Model::scripted([
        Reply::calls([
            write("kept.txt", "by the model"),
            write("kept.txt", "by the model, again"),
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
            call(
                "m",
                "memory",
                &json!({"action": "write", "key": "garden", "content": "nonsense"}),
            ),
        ]),
        Reply::text("Done."),
        Reply::text("Nothing."),
    ]));
    let before = [
        ("kept.txt", "as it was"),
        ("mine.txt", "as it was"),
        ("edited.txt", "abc"),
        ("log.txt", "one\n"),
    ];
    for (name, content) in before {
        home.write(&format!("workspace/{name}"), content);
    }
    home.write("memory/garden.md", "A quince\n");
    let file = |name: &str| fs::read_to_string(home.path(&format!("workspace/{name}")));
    let mut talk = talk(&home);
    talk.types_until("change them\r", "Done.\r\n\r\n\u{1b}[?2004h");
    assert_eq!(file("kept.txt").unwrap(), "by the model, again");
    assert!(home.path("state/undo/cli_work").is_dir());
    home.write("workspace/mine.txt", "by the user, since");
    talk.types("/undo\r");
    for line in [
        "bantam: undone: change them",
        "garden.md",
        "bantam: restored log.txt",
        "bantam: restored edited.txt",
        "bantam: mine.txt is unchanged: it was changed again",
        "bantam: removed new.txt, which was new",
        "bantam: restored kept.txt",
    ] {
        talk.wait_for_next_stdout(line);
    }
    for (name, content) in [
        ("kept.txt", "as it was"),
        ("edited.txt", "abc"),
        ("log.txt", "one\n"),
        ("mine.txt", "by the user, since"),
        ("made.txt", "made\n"),
        ("../memory/garden.md", "A quince\n"),
    ] {
        assert_eq!(file(name).unwrap(), content, "{name}");
    }
    assert!(file("new.txt").is_err());
    // A turn without changes restores no files.
    talk.types_until_next("and now\r", "Nothing.\r\n");
    talk.types_until_next("/undo\r", "bantam: undone: and now\r\n");
    talk.types("/quit\r");
    talk.finish().exits(0);
    // An erased conversation leaves no versions.
    home.run(["sessions", "erase", "work", "--yes"]).exits(0);
    assert!(!home.path("state/undo/cli_work").exists());
}

/// Returns a model that writes the last word of a question, such as "notes=two", and then answers "Done NUMBER.".
fn writing() -> Model {
    Model::answering(|request, _| {
        let asked = request.texts("user");
        if request
            .messages()
            .last()
            .is_some_and(|last| last["role"] == "tool")
        {
            return Reply::text(&format!("Done {}.", asked.len()));
        }
        let question = request.last("user");
        let word = question
            .trim()
            .rsplit([' ', '\n'])
            .next()
            .unwrap()
            .to_owned();
        let (file, content) = word.split_once('=').unwrap_or((&word, ""));
        Reply::call(
            "write_file",
            &json!({ "path": format!("{file}.txt"), "content": content }),
        )
    })
}

#[test]
fn bot_undo_restores_files_once_also_across_a_restart() {
    let model = writing();
    let (api, home) = bot::home(&model);
    home.write("workspace/notes.txt", "mine");
    let file = |name: &str| fs::read_to_string(home.path(&format!("workspace/{name}.txt")));
    let gateway = serving(&home);
    for (number, word) in ["notes=one", "notes=two", "new=made"].iter().enumerate() {
        api.text(OWNER, &format!("write {word}"));
        let said = api.wait_for_texts(OWNER, number + 1);
        assert_eq!(said[number], format!("Done {}.", number + 1));
    }
    api.text(OWNER, "/undo");
    assert_eq!(
        api.wait_for_texts(OWNER, 4)[3],
        "Undone: write new=made\nremoved new.txt, which was new"
    );
    assert!(file("new").is_err());
    ends(gateway);
    // Another program of the same home knows that it was undone.
    let gateway = serving(&home);
    api.text(OWNER, "/undo");
    assert_eq!(api.wait_for_texts(OWNER, 5)[4], "Nothing to undo.");
    assert_eq!(file("notes").unwrap(), "two");
    api.text(OWNER, "/undo 3");
    let help = &api.wait_for_texts(OWNER, 6)[5];
    assert!(help.contains("/undo undo the last question"), "{help}");
    ends(gateway);
}
