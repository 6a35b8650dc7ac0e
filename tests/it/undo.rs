//! `/undo` at the terminal: the question, its answer, and the files changed by its file tools.

use std::fs;

use serde_json::json;

use crate::bot::ends;
use crate::botapi::{BotApi, TOKEN};
use crate::harness::{Home, Running, merged};
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
            call(
                "m",
                "memory",
                &json!({"action": "write", "key": "garden", "content": "nonsense"}),
            ),
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
    home.write("memory/garden.md", "A quince\n");
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
        "garden.md",
        "bantam: restored log.txt",
        "bantam: restored edited.txt",
        "bantam: mine.txt stays as it is: it has changed since",
        "bantam: removed new.txt, which was new",
        "bantam: restored ./kept.txt",
        "bantam: what commands changed stays as it is",
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
    talk.types("and now\r");
    talk.wait_for_next_stdout("Nothing.\r\n");
    talk.types("/undo\r");
    talk.wait_for_next_stdout("bantam: took back: and now\r\n");
    talk.types("/quit\r");
    talk.finish().exits(0);
    // An erased conversation leaves no versions.
    home.bantam()
        .args(["sessions", "erase", "work", "--yes"])
        .run()
        .exits(0);
    assert!(!home.path("state/undo/cli_work").exists());
}

#[test]
fn undo_restores_the_first_content_of_a_file_with_two_paths() {
    let write = |id: &str, path: &str| {
        call(
            id,
            "write_file",
            &json!({"path": path, "content": format!("by {path}")}),
        )
    };
    let model = Model::scripted([
        Reply::calls([
            write("a", "a.txt"),
            write("b", "sub/../a.txt"),
            write("c", "link.txt"),
            write("d", "gone.txt"),
            write("e", "new/inner.txt"),
            write("f", "old/moved.txt"),
            call(
                "x",
                "exec",
                &json!({"command": "rm -r gone.txt new; mv old moved"}),
            ),
            write("g", "moved/moved.txt"),
        ]),
        Reply::text("Done."),
    ]);
    let home = Home::with(&model.config());
    home.write("workspace/a.txt", "as it was");
    home.write("workspace/gone.txt", "as it was");
    fs::create_dir(home.path("workspace/sub")).unwrap();
    std::os::unix::fs::symlink("a.txt", home.path("workspace/link.txt")).unwrap();
    let file = |name: &str| fs::read_to_string(home.path(&format!("workspace/{name}"))).ok();
    let mut talk = talk(&home);
    talk.types("change them\r");
    talk.wait_for_stdout("Done.\r\n\r\n\u{1b}[?2004h");
    assert_eq!(file("a.txt").unwrap(), "by link.txt");
    talk.types("/undo\r");
    for line in [
        "bantam: removed moved/moved.txt, which was new",
        "bantam: new/inner.txt stays as it is",
        "bantam: gone.txt stays as it is: it has changed since",
        "bantam: restored link.txt",
    ] {
        talk.wait_for_next_stdout(line);
    }
    talk.types("/quit\r");
    talk.finish().exits(0);
    assert_eq!(file("a.txt").unwrap(), "as it was");
    assert_eq!(file("gone.txt"), None);
    assert!(!home.path("workspace/new").exists());
}

#[test]
fn undo_works_without_the_versions_of_files() {
    let model = writing();
    let home = Home::with(&model.config());
    let mut talk = talk(&home);
    talk.types("write notes=one\r");
    talk.wait_for_stdout("Done 1.\r\n\r\n\u{1b}[?2004h");
    home.write("state/undo/cli_work/index.json", "");
    talk.types("/undo\r");
    talk.wait_for_next_stdout("bantam: took back: write notes=one");
    talk.wait_for_next_stdout("bantam: what file tools changed stays as it is");
    talk.types("/quit\r");
    talk.finish().exits(0);
}

#[test]
fn undo_leaves_the_files_of_another_workspace_alone() {
    let model = writing();
    let home = Home::with(&model.config());
    let other = home.path("../other");
    fs::create_dir(&other).unwrap();
    home.write("workspace/notes.txt", "mine");
    let mut first = talk(&home);
    first.types("write notes=one\r");
    first.wait_for_stdout("Done 1.\r\n\r\n\u{1b}[?2004h");
    first.types("/quit\r");
    first.finish().exits(0);
    let mut second = home
        .bantam()
        .args(["agent", "-s", "work", "--workspace"])
        .arg(&other)
        .silent_stdin()
        .on_a_clever_terminal(200)
        .spawn();
    second.types("/undo\r");
    second.wait_for_stdout("bantam: notes.txt stays as it is");
    second.types("/quit\r");
    second.finish().exits(0);
    assert!(!other.join("notes.txt").exists());
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
fn second_undo_takes_back_nothing() {
    let model = writing();
    let home = Home::with(&model.config());
    home.write("workspace/notes.txt", "mine");
    let notes = || fs::read_to_string(home.path("workspace/notes.txt")).unwrap();
    let mut talk = talk(&home);
    let write = |talk: &mut Running, word: &str, number: usize| {
        talk.types(&format!("write {word}\r"));
        talk.wait_for_next_stdout(&format!("Done {number}.\r\n\r\n\u{1b}[?2004h"));
    };
    write(&mut talk, "notes=one", 1);
    write(&mut talk, "notes=two", 2);
    talk.types("/undo\r");
    talk.wait_for_next_stdout("bantam: restored notes.txt");
    talk.types("/undo\r");
    talk.wait_for_next_stdout("bantam: there is nothing to take back");
    assert_eq!(notes(), "one");
    // A new turn can be undone again, back to the user's version of the file.
    home.write("workspace/notes.txt", "mine again");
    write(&mut talk, "notes=three", 2);
    talk.types("/undo\r");
    talk.wait_for_next_stdout("bantam: restored notes.txt");
    talk.types("/quit\r");
    talk.finish().exits(0);
    assert_eq!(notes(), "mine again");
}

#[test]
fn refused_question_leaves_the_turn_before_it_to_undo() {
    let model = Model::scripted([
        Reply::call(
            "write_file",
            &json!({ "path": "notes.txt", "content": "one" }),
        ),
        Reply::text("Done."),
        Reply::error(401, "no such key"),
    ]);
    let home = Home::with(&model.config());
    home.write("workspace/notes.txt", "mine");
    let mut talk = talk(&home);
    talk.types("write\r");
    talk.wait_for_stdout("Done.\r\n\r\n\u{1b}[?2004h");
    talk.types("and now\r");
    talk.wait_for_stdout("no such key");
    talk.types("/undo\r");
    talk.wait_for_stdout("bantam: restored notes.txt");
    talk.types("/quit\r");
    talk.finish().exits(0);
}

#[test]
fn a_command_that_takes_nothing_says_what_to_type() {
    let model = writing();
    let home = Home::with(&model.config());
    let mut talk = talk(&home);
    for (typed, said) in [
        ("/undo 3", "hint: type `/undo` alone"),
        ("/quit now", "hint: type `/quit` alone"),
        ("/help", "/model [NAME]   list the models, or change to one"),
        ("/status", "bantam: the model is"),
        ("/nothing", "no command named"),
    ] {
        talk.types(&format!("{typed}\r"));
        talk.wait_for_next_stdout(said);
    }
    talk.types("/quit\r");
    talk.finish()
        .exits(0)
        .does_not_say("no command named \"/undo");
}

#[test]
fn bot_undo_restores_files_once_also_across_a_restart() {
    let (model, api) = (writing(), BotApi::start());
    api.chat(OWNER);
    let bot =
        json!({ "enabled": true, "token": TOKEN, "allow_from": [OWNER], "api_base": api.base() });
    let home = Home::with(&merged(
        model.config(),
        &json!({ "channels": { "telegram": bot } }),
    ));
    home.write("workspace/notes.txt", "mine");
    let file = |name: &str| fs::read_to_string(home.path(&format!("workspace/{name}.txt")));
    let start = || {
        let gateway = home.bantam().arg("gateway").spawn();
        gateway.wait_for_stderr("serving as");
        gateway
    };
    let gateway = start();
    for (number, word) in ["notes=one", "notes=two", "new=made"].iter().enumerate() {
        api.text(OWNER, &format!("write {word}"));
        let said = api.wait_for_texts(OWNER, number + 1);
        assert_eq!(said[number], format!("Done {}.", number + 1));
    }
    api.text(OWNER, "/undo");
    assert_eq!(
        api.wait_for_texts(OWNER, 4)[3],
        "Took back: write new=made\nremoved new.txt, which was new"
    );
    assert!(file("new").is_err());
    ends(gateway);
    // Another program of the same home knows that it was undone.
    let gateway = start();
    api.text(OWNER, "/undo");
    assert_eq!(
        api.wait_for_texts(OWNER, 5)[4],
        "There is nothing to take back."
    );
    assert_eq!(file("notes").unwrap(), "two");
    api.text(OWNER, "/undo 3");
    let help = &api.wait_for_texts(OWNER, 6)[5];
    assert!(help.contains("/undo take back the last question"), "{help}");
    ends(gateway);
}

#[test]
fn a_command_that_was_refused_has_changed_nothing() {
    let model = Model::scripted([
        Reply::call("exec", &json!({"command": "echo made > made.txt"})),
        Reply::text("As you like."),
    ]);
    let confirm = json!({ "tools": { "confirm": ["runs"] } });
    let home = Home::with(&merged(model.config(), &confirm));
    let mut talk = talk(&home);
    talk.types("make it\r");
    talk.wait_for_stdout("in this conversation [n] ");
    talk.types("n\r");
    talk.wait_for_stdout("As you like.\r\n\r\n\u{1b}[?2004h");
    talk.types("/undo\r");
    talk.wait_for_next_stdout("bantam: took back: make it");
    talk.types("/quit\r");
    let run = talk.finish();
    assert!(
        !run.stdout.contains("what commands changed"),
        "{}",
        run.stdout
    );
}
