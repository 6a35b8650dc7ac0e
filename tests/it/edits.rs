//! The tools that change files: their changes, the preserved rest, and refusals.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use crate::fixtures::{Fixture, calls};
use crate::harness::{Home, config_for, has_all, merged};
use crate::model::{Model, Reply, call};

/// Returns calls that write to, append to and edit `path`.
fn every_change(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        (
            "write_file",
            json!({ "path": path, "content": "changed\n" }),
        ),
        (
            "append_file",
            json!({ "path": path, "content": "changed\n" }),
        ),
        (
            "edit_file",
            json!({ "path": path, "old_text": "first", "new_text": "changed" }),
        ),
    ]
}

#[test]
fn a_file_is_written_with_the_directories_it_needs() {
    for (path, content) in [
        ("new.txt", "no line end"),
        ("empty", ""),
        ("a/b/c/deep.txt", "one\r\ntwo\r\n"),
        ("文件夹/笔记 📝.md", "你好，世界\n👩‍👩‍👧 family\n"),
        ("שלום/it's \"quoted\" \\ \u{200f}.txt", "مرحبا\n"),
        (" leading and trailing ", "a\0b"),
    ] {
        let fixture = Fixture::calling("write_file", &json!({ "path": path, "content": content }));
        fixture.is_told("created ");
        assert_eq!(fixture.bytes(path), content.as_bytes(), "{path}");
        fixture.has_no_leftovers();
    }
}

#[test]
fn a_file_is_written_anew_and_keeps_its_mode() {
    let fixture = Fixture::calling(
        "write_file",
        &json!({ "path": "run.sh", "content": "#!/bin/sh\n" }),
    );
    let script = fixture
        .home
        .write("workspace/run.sh", "#!/bin/sh\nexit 1\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    fixture.is_told("replaced run.sh");
    assert_eq!(fixture.bytes("run.sh"), b"#!/bin/sh\n");
    assert_eq!(fs::metadata(script).unwrap().mode() & 0o7777, 0o755);
    fixture.has_no_leftovers();
}

/// Windows programs can read their files afterwards, and binary content is preserved.
#[test]
fn a_change_keeps_encoding_mark_and_line_ends() {
    let utf16 = |text: &str| -> Vec<u8> {
        let units = "\u{feff}".encode_utf16().chain(text.encode_utf16());
        units.flat_map(u16::to_le_bytes).collect()
    };
    let marked = |text: &str| ["\u{feff}", text].concat().into_bytes();
    let plain = |text: &str| text.as_bytes().to_vec();
    let styles = [&utf16 as &dyn Fn(&str) -> Vec<u8>, &marked, &plain];
    for written in styles {
        let old = written("first €\r\nsecond\r\n");
        for ((tool, mut args), becomes) in every_change("a.txt").into_iter().zip([
            "changed\r\n",
            "first €\r\nsecond\r\nchanged\r\n",
            "changed €\r\nsecond\r\n",
        ]) {
            args["path"] = "a.txt".into();
            let fixture = Fixture::calling(tool, &args);
            fixture.home.write("workspace/a.txt", &old);
            fixture.is_told("a.txt");
            assert_eq!(fixture.bytes("a.txt"), written(becomes), "{tool}");
        }
        let fixture = Fixture::calling("read_file", &json!({ "path": "a.txt" }));
        fixture.home.write("workspace/a.txt", &old);
        fixture.is_told("first €\r\nsecond\r\n");
    }
}

#[test]
fn bytes_that_are_no_text_are_told_and_not_lost() {
    let latin1 = b"caf\xe9 = 1\n";
    let rows = calls(
        r#"
        read_file {"path": "a"}
        write_file {"path": "a", "content": "caf\ufffd = 2\n"}
        edit_file {"path": "a", "old_text": "= 1", "new_text": "= 2"}
        append_file {"path": "a", "content": "new\n"}
        write_file {"path": "a", "content": "new\n"}"#,
    );
    for ((tool, args), (says, becomes)) in rows.into_iter().zip([
        ("caf\u{fffd} = 1\n", &latin1[..]),
        ("edit_file", latin1),
        ("edited a", b"caf\xe9 = 2\n"),
        ("appended", b"caf\xe9 = 1\nnew\n"),
        ("replaced a", b"new\n"),
    ]) {
        let fixture = Fixture::calling(tool, &args);
        fixture.home.write("workspace/a", latin1);
        let (told, _) = fixture.result();
        assert!(told.contains(says), "{tool}: {told}");
        assert_eq!(fixture.bytes("a"), becomes, "{tool}");
    }
}

#[test]
fn ambiguous_edit_changes_nothing() {
    for (old_text, says) in [
        ("r", "old_text occurs 3 times, first in line 1"),
        (
            "first  second",
            "line 1 has the same text with other white space, letter case, quotes or dashes: \"first\\nsecond\"",
        ),
    ] {
        let fixture = Fixture::calling(
            "edit_file",
            &json!({ "path": "notes.txt", "old_text": old_text, "new_text": "x" }),
        );
        fixture.is_refused_saying(says);
        assert_eq!(
            fixture.bytes("notes.txt"),
            b"first\nsecond\nthird\nfourth\n"
        );
        fixture.has_no_leftovers();
    }
    let call = json!({ "path": "empty", "old_text": "a", "new_text": "b" });
    let fixture = Fixture::calling("edit_file", &call);
    fixture.home.write("workspace/empty", "");
    fixture.is_refused_saying("the file is empty");
    Fixture::calling(
        "edit_file",
        &json!({ "path": "nowhere", "old_text": "a", "new_text": "b" }),
    )
    .is_refused_saying("nowhere does not exist");
}

#[test]
fn a_link_that_stays_inside_is_followed_and_stays_a_link() {
    let fixture = Fixture::making(every_change("dir/link"));
    fixture.home.write("workspace/real/target.txt", "first\n");
    fixture.home.dir("workspace/dir");
    symlink("../to-real/target.txt", fixture.file("dir/link")).unwrap();
    symlink("real", fixture.file("to-real")).unwrap();
    let results = fixture.results();
    assert!(!results[0].1 && !results[1].1, "{results:?}");
    assert_eq!(fixture.bytes("real/target.txt"), b"changed\nchanged\n");
    assert_eq!(
        fs::read_link(fixture.file("dir/link")).unwrap(),
        Path::new("../to-real/target.txt")
    );
    assert_eq!(fs::read_dir(fixture.file("dir")).unwrap().count(), 1);
    fixture.has_no_leftovers();
}

#[test]
fn a_file_with_another_name_outside_is_not_changed() {
    let fixture = Fixture::making(every_change("linked"));
    let outside = fixture.home.write("outside/file", "first\n");
    fs::hard_link(&outside, fixture.file("linked")).unwrap();
    fixture.is_refused_saying("hard links");
    assert_eq!(fs::read(outside).unwrap(), b"first\n");
    fixture.has_no_leftovers();
}

#[test]
fn no_path_of_any_form_leads_a_tool_out() {
    let long = "a/".repeat(2500);
    let long_name = "n".repeat(256);
    let mut calls = Vec::new();
    let paths = ".. / a/../../config.json /etc/passwd /proc/self/root/etc/passwd";
    for path in paths.split_whitespace() {
        calls.push((path, "leads out of the workspace"));
    }
    calls.push(("/proc/self/cwd/notes.txt", "leads out of the workspace"));
    calls.push(("nul\0byte", "Invalid argument"));
    calls.push((&long, "the path is too long: 5000 bytes"));
    calls.push((&long_name, "is too long"));
    let tools = |path: &str| {
        let mut tools = every_change(path);
        tools.push(("read_file", json!({ "path": path })));
        tools.push(("list_dir", json!({ "path": path })));
        tools.push(("grep", json!({ "path": path, "pattern": "." })));
        tools
    };
    let fixture = Fixture::making(calls.iter().flat_map(|(path, _)| tools(path)));
    let expected = calls
        .iter()
        .flat_map(|(path, says)| tools(path).into_iter().map(move |call| (call, says)));
    for ((result, failed), ((tool, arguments), says)) in fixture.results().into_iter().zip(expected)
    {
        // A path in the form of a directory is refused for that reason.
        let known = result.contains(says) || result.contains("names a directory");
        assert!(failed && known, "{tool} {arguments}: {result}");
    }
    assert_eq!(
        fixture
            .home
            .files()
            .iter()
            .filter(|path| path.starts_with("workspace/"))
            .count(),
        1
    );
}

/// Returns a home, a directory next to it that tools may read, and another one that they may also change.
fn opened(calls: impl FnOnce(&str, &str) -> Vec<(&'static str, Value)>) -> (Fixture, Home) {
    let other = Home::empty();
    let [read, write] = ["read", "write"].map(|name| other.dir(name).display().to_string());
    other.write("read/book.txt", "first page\n");
    other.write("write/draft.txt", "first words\n");
    let paths = json!({ "tools": { "read_paths": [read], "write_paths": [write] } });
    (Fixture::configured(&paths, calls(&read, &write)), other)
}

#[test]
fn granted_trees_are_readable_or_writable() {
    const CALLS: &str = r#"
        read_file {"path": "READ/book.txt"}
        list_dir {"path": "READ"}
        grep {"pattern": "page", "path": "READ"}
        grep {"pattern": "words", "path": "WRITE/draft.txt"}
        edit_file {"path": "WRITE/draft.txt", "old_text": "first", "new_text": "last"}
        append_file {"path": "WRITE/draft.txt", "content": "more\n"}
        write_file {"path": "WRITE//./new/file", "content": "new\n"}"#;
    let (fixture, other) =
        opened(|read, write| calls(&CALLS.replace("READ", read).replace("WRITE", write)));
    let told = fixture.succeeds();
    has_all(&told[0], ["first page"]);
    has_all(&told[1], ["book.txt"]);
    assert!(told[2].contains("/read/book.txt:1:first page"), "{told:?}");
    has_all(&told[3], ["/write/draft.txt:1:first words"]);
    assert_eq!(
        fs::read(other.path("write/draft.txt")).unwrap(),
        b"last words\nmore\n"
    );
    assert_eq!(fs::read(other.path("write/new/file")).unwrap(), b"new\n");
}

#[test]
fn a_tilde_of_a_tool_is_no_folder_of_the_workspace() {
    let home = Home::empty();
    let user = Home::empty();
    let path = json!({ "path": "~/notes/a.txt", "content": "x\n" });
    let model = Model::scripted([
        Reply::calls([
            call(
                "a",
                "write_file",
                &json!({ "path": "~/a.txt", "content": "x\n" }),
            ),
            call("b", "write_file", &path),
        ]),
        Reply::text("Done."),
    ]);
    user.dir("notes");
    let open = json!({ "tools": { "write_paths": ["~/notes"] } });
    home.reconfigure(&model, &open);
    let run = home.bantam().env("HOME", user.path(""));
    run.args(["agent", "-m", "go"]).run().exits(0);
    let told = model.request(1).texts("tool");
    assert!(told[0].contains("leads out of the workspace"), "{told:?}");
    assert!(user.path("notes/a.txt").exists(), "{told:?}");
    assert!(!home.path("workspace/~").exists());
}

#[test]
fn read_only_tree_is_not_changed() {
    let (fixture, other) = opened(|read, _| every_change(&format!("{read}/book.txt")));
    fixture.is_refused_saying("is read-only");
    assert_eq!(
        fs::read(other.path("read/book.txt")).unwrap(),
        b"first page\n"
    );

    let (fixture, other) = opened(|read, write| {
        let mut calls = every_change(&format!("{write}/link"));
        calls.extend(every_change(&format!("{write}/../secret")));
        calls.push(("read_file", json!({ "path": format!("{read}/link") })));
        calls.push(("read_file", json!({ "path": format!("{read}/../secret") })));
        calls.push((
            "grep",
            json!({ "path": format!("{read}er/x"), "pattern": "." }),
        ));
        calls
    });
    other.write("secret", "first secret\n");
    symlink("../secret", other.path("read/link")).unwrap();
    symlink("../secret", other.path("write/link")).unwrap();
    fixture.is_refused_saying("leads out of the workspace");
    assert_eq!(fs::read(other.path("secret")).unwrap(), b"first secret\n");
}

#[test]
fn no_setting_opens_bantams_own_files_to_its_tools() {
    for (setting, below) in [
        ("read_paths", ""),
        ("write_paths", "agent"),
        ("read_paths", "sessions/"),
        ("read_paths", ".."),
    ] {
        let home = Home::with(&config_for("http://127.0.0.1:9"));
        home.dir("agent");
        let tree = home.path(below).display().to_string();
        let config = merged(
            config_for("http://127.0.0.1:9"),
            &json!({ "tools": { setting: [tree] } }),
        );
        home.config(&config.to_string());
        home.agent(["-m", "hi"])
            .exits(3)
            .says(&format!("tools.{setting}"))
            .fails_with_a_hint();
    }
    let home = Home::empty();
    let workspace = home.path("..").display().to_string();
    let config = json!({ "agents": { "defaults": { "workspace": workspace } } });
    home.config(&merged(config_for("http://127.0.0.1:9"), &config).to_string());
    home.agent(["-m", "hi"])
        .exits(3)
        .says("agents.defaults.workspace")
        .fails_with_a_hint();
}

#[test]
fn missing_or_nested_grants_are_refused() {
    let other = Home::empty();
    let at = |path: &str| other.path(path).display().to_string();
    other.dir("data/inner");
    other.dir("links");
    symlink(other.path("data"), other.path("links/data")).unwrap();
    let (data, inner, linked) = (at("data"), at("data/inner"), at("links/data"));
    let refused = |tools: Value, names: &[&str]| {
        let home = Home::with(&merged(
            config_for("http://127.0.0.1:9"),
            &json!({ "tools": tools }),
        ));
        let run = home.agent(["-m", "hi"]);
        run.fails(3);
        for name in names {
            run.says(name);
        }
    };
    refused(
        json!({ "read_paths": [at("none")] }),
        &["tools.read_paths", &at("none"), "does not exist"],
    );
    refused(
        json!({ "read_paths": [linked], "write_paths": [inner] }),
        &["tools.read_paths", "tools.write_paths", " is in "],
    );
    // A link that tools could replace.
    refused(
        json!({ "read_paths": [linked], "write_paths": [at("links")] }),
        &["links/data", "tools.write_paths"],
    );
    // The user's links lead to one directory, which may be named twice.
    other.write("data/inner/book.txt", "first page\n");
    let paths = json!({ "tools": { "read_paths": [linked, data] } });
    let read = |path: String| ("read_file", json!({ "path": path }));
    let calls = vec![
        read(format!("{linked}/inner/book.txt")),
        read(format!("{inner}/book.txt")),
        (
            "exec",
            json!({ "command": format!("cat {linked}/inner/book.txt {inner}/book.txt") }),
        ),
    ];
    let told = Fixture::configured(&paths, calls).succeeds();
    assert!(
        told.iter().all(|text| text.contains("first page")),
        "{told:?}"
    );
}

#[test]
fn no_prompt_is_made_from_a_workspace_that_became_a_link() {
    let other = Home::empty();
    let around = other.dir("around");
    other.dir("around/ws");
    other.write("theirs/USER.md", "their secret\n");
    let command = format!(
        "cd {0} && mv ws old && ln -s {1} ws",
        around.display(),
        other.path("theirs").display()
    );
    let model = Model::scripted([
        Reply::call("exec", &json!({ "command": command })),
        Reply::call("subagent", &json!({ "task": "look" })),
        Reply::text("Nothing."),
        Reply::text("Done."),
    ]);
    let open = json!({ "workspace": around.join("ws"), "restrict_to_workspace": false });
    let open = json!({ "agents": { "defaults": open } });
    Home::asking(&model, &open)
        .agent(["-m", "go"])
        .answers("Done.\n");
    assert!(other.path("around/ws").is_symlink());
    assert!(!model.request(2).body.to_string().contains("their secret"));
}

#[test]
fn two_that_edit_one_file_at_the_same_time_lose_nothing() {
    const EDITS: usize = 40;
    let model = Model::answering(|request, _| {
        let who = usize::from(request.texts("user").concat().contains("odd"));
        if request.messages().last().unwrap()["role"] == "tool" {
            return Reply::text("Done.");
        }
        Reply::calls((0..EDITS).map(|n| {
            let number = 2 * n + who;
            let arguments = json!({
                "path": "shared.txt", "old_text": format!("<{number}>"), "new_text": format!("[{number}]")
            });
            call(&format!("call_{n}"), "edit_file", &arguments)
        }))
    });
    let home = Home::with(&model.config());
    let numbers = |open: &str, close: &str| {
        let lines: Vec<String> = (0..2 * EDITS)
            .map(|n| format!("{open}{n}{close}\n"))
            .collect();
        lines.concat()
    };
    home.write("workspace/shared.txt", numbers("<", ">"));
    let runs =
        ["even", "odd"].map(|who| home.bantam().args(["agent", "-s", who, "-m", who]).spawn());
    for run in runs {
        run.finish().exits(0);
    }
    assert_eq!(home.read("workspace/shared.txt"), numbers("[", "]"));
    for session in ["cli_even", "cli_odd"] {
        let session = home.session(session);
        assert!(
            session
                .history()
                .iter()
                .all(|message| message["is_error"] != true),
            "{session:?}"
        );
    }
}

#[test]
fn full_disk_leaves_the_old_file_unchanged() {
    // With a limit of 1 MiB per file, a write gets an error like on a full disk.
    let limited = "trap '' XFSZ\nulimit -f 2048";
    let full = [&b"first\n"[..], &vec![b'x'; (1 << 20) - 1000]].concat();
    let more = "more ".repeat(1000);
    let rows = r#"
        append_file {"path": "large.txt", "content": "MORE"}
        edit_file {"path": "large.txt", "old_text": "first", "new_text": "MORE"}
        append_file {"path": "large.txt", "content": "fits\n"}"#;
    let fixture = Fixture::making(calls(&rows.replace("MORE", &more)));
    fixture.home.write("workspace/large.txt", &full);
    fixture
        .home
        .bantam()
        .after(limited)
        .args(["agent", "-m", "do it"])
        .run()
        .exits(0);
    let results = fixture.model.request(1).texts("tool");
    has_all(&results[0], ["too large"]);
    has_all(&results[1], ["too large"]);
    assert!(results[2].contains("appended"), "{results:?}");
    assert!(
        fixture.bytes("large.txt") == [&full[..], b"fits\n"].concat(),
        "the file is not as it was"
    );
    fixture.has_no_leftovers();
}
