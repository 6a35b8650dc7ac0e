//! A call is executed with all of its arguments or refused: names of other programs, and unknown arguments.

use serde_json::{Value, json};

use crate::fixtures::calls;
use crate::harness::Home;
use crate::model::{Model, Reply, written_call};

/// Makes the model make this call in a separate home. Returns the home and the call's result.
fn called(name: &str, args: &Value, files: &[(&str, &str)]) -> (Home, String) {
    let model = Model::scripted([Reply::call(name, args), Reply::text("Done.")]);
    let home = Home::with(&model.config());
    for (path, text) in files {
        home.write(path, *text);
    }
    home.agent(["-m", "go"]).answers("Done.\n");
    let result = model.request(1).texts("tool").remove(0);
    (home, result)
}

fn read(home: &Home, path: &str) -> String {
    std::fs::read_to_string(home.path(path)).unwrap_or_default()
}

#[test]
fn call_with_unknown_argument_changes_nothing() {
    let files = [
        ("memory/MEMORY.md", "Likes tea.\n"),
        ("workspace/a.txt", "one\n"),
        ("workspace/build/x", "x"),
    ];
    // A call, and a word of its result.
    for row in r#"
write_file {"path": "a.txt", "content": "two", "append": true} | unknown field "append"
write_file {"path": "a.txt", "file_path": "b.txt", "content": "two"} | unknown field "file_path"
edit_file {"path": "a.txt", "old_text": "one", "new_text": "two", "line": 1} | unknown field "line"
memory {"action": "write", "content": "Likes coffee."} | need a key
memory {"action": "delete"} | need a key
memory {"action": "write", "topic": "tea", "content": "Likes coffee."} | unknown field "topic"
exec {"command": "rm -rf build", "root": "sub"} | unknown field "root"
exec {"command": "rm -rf build", "timeout": 120000} | at most 600
subagent {"task": "look", "context": "here"} | unknown field "context""#
        .lines()
        .skip(1)
    {
        let (row, word) = row.split_once(" | ").unwrap();
        let (name, args) = calls(row).remove(0);
        let (home, result) = called(name, &args, &files);
        assert!(result.contains(word), "{name} {args}: {result}");
        for (path, text) in files {
            assert_eq!(read(&home, path), text, "{name} {args} changed {path}");
        }
    }
}

#[test]
fn arguments_by_the_names_of_other_programs_are_understood() {
    let files = [
        ("memory/MEMORY.md", "Likes tea.\n"),
        ("workspace/a.txt", "one\n"),
        ("workspace/build/x", "x"),
        ("workspace/sub/build/x", "x"),
    ];
    let changed = |name: &str, args: &Value, path: &str| {
        let (home, result) = called(name, args, &files);
        let others = files.iter().filter(|(other, _)| *other != path);
        for (other, text) in others {
            assert_eq!(read(&home, other), *text, "{name} {args} changed {other}");
        }
        (read(&home, path), result)
    };
    let note = json!({ "action": "write", "name": "garden.md", "text": "Water it." });
    let (text, result) = changed("memory", &note, "memory/garden.md");
    assert_eq!(text.trim(), "Water it.", "{result}");
    let remove = json!({ "cmd": "rm -rf build", "cwd": "sub", "explanation": "to be clean" });
    let (text, result) = changed("exec", &remove, "workspace/sub/build/x");
    assert_eq!(text, "", "{result}");
    let edit = json!({ "file_path": "a.txt", "old_string": "one", "new_string": "two" });
    let (text, result) = changed("edit_file", &edit, "workspace/a.txt");
    assert_eq!(text, "two\n", "{result}");
    let (_, result) = changed("list_dir", &json!({}), "");
    assert!(result.contains("a.txt"), "{result}");
}

#[test]
fn foreign_tool_name_is_reported_not_run() {
    let (_, result) = called("Run_Shell_Command", &json!({ "command": "ls" }), &[]);
    assert!(result.contains("did you mean exec?"), "{result}");
    let files = [("workspace/a.txt", "")];
    let (_, result) = called("functions.ListDir:0", &json!({}), &files);
    assert!(result.contains("a.txt"), "{result}");
}

#[test]
fn the_model_is_told_that_calls_were_left_out() {
    let look = |n| {
        written_call(
            &format!("c{n}"),
            "list_dir",
            &format!(r#"{{"path":"d{n}"}}"#),
        )
    };
    let model = Model::scripted([Reply::calls((0..70).map(look)), Reply::text("Done.")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "go"]).exits(0).prints("Done.\n");
    let results = model.request(1).texts("tool");
    assert_eq!(results.len(), 64);
    assert!(results[63].contains("only the first 64"), "{}", results[63]);
}
