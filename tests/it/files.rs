//! The file tools see the workspace and nothing else.

use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::json;

use crate::desk::Desk;
use crate::harness::Home;
use crate::model::{Model, Reply};

#[test]
fn a_file_is_read_by_a_relative_and_by_an_absolute_path() {
    Desk::calling("read_file", &json!({ "path": "notes.txt" })).is_told("second");
    Desk::calling("read_file", &json!({ "path": "./notes.txt" })).is_told("second");
    let model = Model::answering(|request, n| {
        let system = request.last("system");
        // The model learns the workspace's own path from the system prompt, so it will use it.
        let workspace =
            system.split(['`', '"', ' ', '\n']).find(|word| word.ends_with("/workspace")).unwrap().to_owned();
        match n {
            0 => Reply::call("read_file", &json!({ "path": format!("{workspace}/notes.txt") })),
            _ => Reply::text("Done."),
        }
    });
    let home = Home::with(&model.config());
    home.write("workspace/notes.txt", "second\n");
    home.agent(["-m", "do it"]).exits(0);
    assert!(model.request(1).last("tool").contains("second"), "{}", model.request(1).last("tool"));
}

#[test]
fn a_file_is_read_from_a_line_on_and_for_so_many_lines() {
    let (result, failed) =
        Desk::calling("read_file", &json!({ "path": "notes.txt", "offset": 2, "limit": 2 })).result();
    assert!(!failed, "{result}");
    assert!(result.contains("second") && result.contains("third"), "{result}");
    assert!(!result.contains("first") && !result.contains("fourth"), "{result}");
}

#[test]
fn a_file_that_does_not_exist_is_told_by_its_name() {
    let (result, failed) = Desk::calling("read_file", &json!({ "path": "nowhere.txt" })).result();
    assert!(failed && result.contains("nowhere.txt"), "{result}");
}

#[test]
fn a_directory_is_not_read_as_a_file() {
    Desk::calling("read_file", &json!({ "path": "." })).is_refused();
}

#[test]
fn a_path_with_dots_cannot_leave_the_workspace() {
    Desk::calling("read_file", &json!({ "path": "../config.json" })).is_refused();
    Desk::calling("read_file", &json!({ "path": "a/../../config.json" })).is_refused();
    Desk::calling("list_dir", &json!({ "path": ".." })).is_refused();
}

#[test]
fn an_absolute_path_outside_of_the_workspace_is_refused() {
    Desk::calling("read_file", &json!({ "path": "/etc/passwd" })).is_refused();
    Desk::calling("list_dir", &json!({ "path": "/" })).is_refused();
    let desk = Desk::calling("read_file", &json!({ "path": "/proc/self/environ" }));
    desk.is_refused();
}

#[test]
fn a_path_through_proc_is_refused() {
    Desk::calling("read_file", &json!({ "path": "/proc/self/root/etc/passwd" })).is_refused();
    Desk::calling("read_file", &json!({ "path": "/proc/self/cwd/notes.txt" })).is_refused();
}

#[test]
fn a_symlink_that_leaves_the_workspace_is_refused() {
    let desk = Desk::calling("read_file", &json!({ "path": "link" }));
    symlink("../config.json", desk.home.path("workspace/link")).unwrap();
    desk.is_refused();

    let desk = Desk::calling("read_file", &json!({ "path": "link" }));
    symlink("/etc/passwd", desk.home.path("workspace/link")).unwrap();
    desk.is_refused();

    let desk = Desk::calling("read_file", &json!({ "path": "up/config.json" }));
    symlink("..", desk.home.path("workspace/up")).unwrap();
    desk.is_refused();

    let desk = Desk::calling("read_file", &json!({ "path": "root/etc/passwd" }));
    symlink("/proc/self/root", desk.home.path("workspace/root")).unwrap();
    desk.is_refused();

    let desk = Desk::calling("list_dir", &json!({ "path": "root" }));
    symlink("/", desk.home.path("workspace/root")).unwrap();
    desk.is_refused();
}

#[test]
fn a_workspace_that_is_swapped_for_a_symlink_is_not_followed_to_another_tree() {
    let desk = Desk::calling("read_file", &json!({ "path": "sub/config.json" }));
    desk.home.dir("workspace/sub");
    std::fs::remove_dir(desk.home.path("workspace/sub")).unwrap();
    symlink(desk.home.path(""), desk.home.path("workspace/sub")).unwrap();
    desk.is_refused();
}

#[test]
fn a_fifo_is_refused_at_once() {
    let desk = Desk::calling("read_file", &json!({ "path": "pipe" }));
    let made = Command::new("mkfifo").arg(desk.home.path("workspace/pipe")).status().unwrap();
    assert!(made.success());
    desk.is_refused();
}

#[test]
fn a_directory_is_listed() {
    let desk = Desk::calling("list_dir", &json!({ "path": "." }));
    desk.home.write("workspace/sub/deep.txt", "deep\n");
    let (result, failed) = desk.result();
    assert!(!failed && result.contains("notes.txt") && result.contains("sub"), "{result}");
}

#[test]
fn a_directory_of_many_files_is_listed_in_part_and_says_so() {
    let desk = Desk::calling("list_dir", &json!({ "path": "many" }));
    for n in 0..250 {
        desk.home.write(&format!("workspace/many/file-{n:03}"), "");
    }
    let (result, failed) = desk.result();
    assert!(!failed && result.contains("50 more"), "{result}");
}

#[test]
fn a_file_that_is_no_text_is_told_as_text() {
    let desk = Desk::calling("read_file", &json!({ "path": "latin.txt" }));
    desk.home.write("workspace/latin.txt", b"caf\xe9\n");
    desk.is_told("caf");
}

#[test]
fn a_name_with_control_characters_does_not_reach_a_terminal() {
    let desk = Desk::calling("list_dir", &json!({ "path": "." }));
    desk.home.write("workspace/\x1b]0;owned\x07name", "");
    let run = desk.home.agent(["-v", "-m", "do it"]);
    run.exits(0).says("list_dir");
    assert!(!run.stderr.contains('\x1b'), "{:?}", run.stderr);
}
