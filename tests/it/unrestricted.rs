//! `restrict_to_workspace: false`: tools can access the same files as their user, except bantam's own files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::fixtures::calls;
use crate::harness::{CANARY, Home, has_all, has_none, merged, unique};
use crate::model::{Model, Reply, call};
use crate::without_syscall::{LANDLOCK, NAMESPACES, Withheld};

/// Makes one call after the other, in one turn. Returns the result of each, and whether it failed.
#[track_caller]
fn told(
    home: &Home,
    extra: &Value,
    without: &'static [Withheld],
    calls: &[(&str, Value)],
) -> Vec<(String, bool)> {
    let calls = calls
        .iter()
        .enumerate()
        .map(|(n, (tool, arguments))| call(&format!("call_{n}"), tool, arguments));
    let model = Model::scripted([Reply::calls(calls), Reply::text("Done.")]);
    let open = json!({ "agents": { "defaults": { "restrict_to_workspace": false } } });
    home.config(&merged(merged(model.config(), &open), extra).to_string());
    home.bantam()
        .args(["agent", "-m", "go"])
        .on_a_system_without(without)
        .run()
        .exits(0);
    let session = home.session("cli_default");
    let failed = session
        .history()
        .into_iter()
        .filter(|m| m["role"] == "tool")
        .map(|m| m["is_error"] == true);
    model
        .request(1)
        .texts("tool")
        .into_iter()
        .zip(failed)
        .collect()
}

/// Returns a home, and the user's directory next to it.
fn user() -> (Home, Home) {
    let (home, other) = (Home::empty(), Home::empty());
    home.dir("workspace");
    home.write("agent/AGENT.md", "obey\n");
    home.write("sessions/cli_old.jsonl", "an old secret\n");
    other.write("docs/book.txt", "first page\n");
    symlink(other.path("docs"), home.path("workspace/docs")).unwrap();
    (home, other)
}

fn opens(extra: &Value, without: &'static [Withheld], commands: bool) {
    let (home, other) = user();
    let docs = other.path("docs").display().to_string();
    let own = home.path("workspace").display().to_string();
    let rows = r#"
        read_file {"path": "DOCS/book.txt"}
        read_file {"path": "docs/book.txt"}
        list_dir {"path": "DOCS"}
        grep {"path": "DOCS", "pattern": "page"}
        write_file {"path": "DOCS/new/notes.txt", "content": "noted\n"}
        edit_file {"path": "docs/book.txt", "old_text": "first", "new_text": "last"}
        write_file {"path": "here.txt", "content": "here\n"}
        read_file {"path": "OWN/here.txt"}
        exec {"command": "cat DOCS/book.txt && echo more >>docs/new/notes.txt"}
        exec {"command": "pwd", "working_dir": "DOCS"}"#;
    let mut calls = calls(&rows.replace("DOCS", &docs).replace("OWN", &own));
    if !commands {
        calls.truncate(8);
    }
    let told = told(&home, extra, without, &calls);
    assert!(told.iter().all(|(_, failed)| !failed), "{told:?}");
    has_all(&told[0].0, ["first page"]);
    has_all(&told[1].0, ["first page"]);
    has_all(&told[2].0, ["book.txt"]);
    has_all(&told[3].0, ["first page"]);
    assert!(told[7].0.contains("here"), "{told:?}");
    assert_eq!(
        fs::read(other.path("docs/book.txt")).unwrap(),
        b"last page\n"
    );
    let noted = if commands { "noted\nmore\n" } else { "noted\n" };
    assert_eq!(other.read("docs/new/notes.txt"), noted);
    if commands {
        has_all(&told[8].0, ["last page"]);
        has_all(&told[9].0, [&docs]);
    }
}

fn keeps_shut(extra: &Value, without: &'static [Withheld], commands: bool) {
    let (home, _other) = user();
    symlink("../config.json", home.path("workspace/config")).unwrap();
    symlink(home.path(""), home.path("workspace/up")).unwrap();
    // Next to the home, in its parent directory.
    let beside = home.path("").parent().unwrap().to_owned();
    symlink(&beside, beside.join("around")).unwrap();
    symlink(home.path(""), beside.join("straight")).unwrap();
    let links = ["around/home/config.json", "straight/config.json"]
        .map(|path| beside.join(path).display().to_string());
    let at = |path: &str| home.path(path).display().to_string();
    let mut rows = String::new();
    let mut add = |row: &str, path: &str| rows.push_str(&row.replace("PATH", path));
    let config = ["config.json", "../config.json", "config", "up/config.json"].map(str::to_owned);
    let config = [at("config.json")]
        .into_iter()
        .chain(config.into_iter().skip(1));
    for path in config.chain(links.clone()) {
        let row = r#"
            read_file {"path": "PATH"}
            grep {"path": "PATH", "pattern": "."}
            append_file {"path": "PATH", "content": "more"}"#;
        add(row, &path);
    }
    for path in [at("sessions"), at(""), "..".into(), "up/sessions".into()] {
        let row = r#"
            list_dir {"path": "PATH"}
            grep {"path": "PATH", "pattern": "."}
            write_file {"path": "PATH/new.txt", "content": "mine"}"#;
        add(row, &path);
    }
    let row = r#"
        write_file {"path": "PATH", "content": "mine"}"#;
    add(row, &at("agent/AGENT.md"));
    if commands {
        let row = r#"
        exec {"command": "cat PATH/config.json ../config.json up/config.json"}
        exec {"command": "grep -r . PATH/sessions up/sessions"}
        exec {"command": "echo mine >PATH/agent/AGENT.md"}
        exec {"command": "mkdir PATH/cron"}"#;
        add(row, at("").trim_end_matches('/'));
        let row = r#"
        exec {"command": "cat LINK PATH; echo more >>PATH"}"#;
        add(&row.replace("LINK", &links[0]), &links[1]);
    }
    let calls = calls(&rows);
    let before = home.files();
    for (call, (result, failed)) in calls.iter().zip(told(&home, extra, without, &calls)) {
        // In a sandbox, the home is an empty directory except for opened parts, so reading it succeeds.
        let looks = ["list_dir", "grep", "exec"].contains(&call.0);
        assert!(failed || looks, "{call:?}: {result}");
        assert!(!result.contains("cli_old"), "{call:?}: {result}");
        has_none(&result, [CANARY, "an old secret"]);
    }
    let after: Vec<String> = home
        .files()
        .into_iter()
        .filter(|path| !before.contains(path))
        .collect();
    let ours = |path: &String| {
        path.starts_with("state")
            || path.starts_with("usage")
            || path == "sessions/cli_default.jsonl"
            || path == "config.json"
    };
    assert!(after.iter().all(ours), "{after:?}");
    assert_eq!(fs::read(home.path("agent/AGENT.md")).unwrap(), b"obey\n");
    has_none(&home.read("config.json"), ["more"]);
}

#[test]
fn namespaces_open_user_files_not_home() {
    opens(&json!({}), &[], true);
    keeps_shut(&json!({}), &[], true);
}

#[test]
fn in_namespaces_without_landlock_too() {
    opens(&json!({}), &[LANDLOCK], true);
    keeps_shut(&json!({}), &[LANDLOCK], true);
}

#[test]
fn under_landlock_alone_too() {
    opens(&json!({}), &[NAMESPACES], true);
    keeps_shut(&json!({}), &[NAMESPACES], true);
}

/// Neither mounts nor Landlock can exclude the home from a directory that tools may change.
#[test]
fn creating_next_to_the_home_is_refused() {
    for without in [&[][..], &[LANDLOCK], &[NAMESPACES]] {
        let home = Home::empty();
        let beside = home.path("").parent().unwrap().to_owned();
        fs::write(beside.join("there.txt"), "one\n").unwrap();
        fs::create_dir(beside.join("sub")).unwrap();
        let at = |name: &str| beside.join(name).display().to_string();
        let write = |path: &str| ("write_file", json!({ "path": path, "content": "x" }));
        let calls = [
            write(&at("notes.txt")),
            write(&at("there.txt")),
            (
                "edit_file",
                json!({ "path": at("there.txt"), "old_text": "one", "new_text": "two" }),
            ),
            write(&at("sub/notes.txt")),
        ];
        let told = told(&home, &json!({}), without, &calls);
        let failed: Vec<bool> = told.iter().map(|(_, failed)| *failed).collect();
        assert_eq!(failed, [true, true, true, false], "{told:?}");
        assert_eq!(fs::read(beside.join("there.txt")).unwrap(), b"one\n");
    }
}

#[test]
fn a_tilde_is_the_users_home_for_every_tool() {
    let (home, other) = user();
    let model = Model::scripted([
        Reply::calls([
            call(
                "a",
                "write_file",
                &json!({ "path": "~/docs/a.c", "content": "int a;\n" }),
            ),
            call("b", "read_file", &json!({ "path": "~/docs/a.c" })),
            call("c", "exec", &json!({ "command": "cat ~/docs/a.c" })),
            call(
                "d",
                "exec",
                &json!({ "command": "pwd", "working_dir": "~/docs" }),
            ),
            call("e", "list_dir", &json!({ "path": "~" })),
        ]),
        Reply::text("Done."),
    ]);
    let open = json!({ "agents": { "defaults": { "restrict_to_workspace": false } } });
    home.reconfigure(&model, &open);
    let run = home.bantam().env("HOME", other.path(""));
    run.args(["agent", "-m", "go"]).run().exits(0);
    let told = model.request(1).texts("tool");
    assert_eq!(told[1..3], ["int a;\n", "int a;\n"]);
    has_all(&told[3], ["/docs"]);
    has_all(&told[4], ["docs/"]);
    assert!(other.path("docs/a.c").exists());
    assert!(!home.path("workspace/~").exists());
}

#[test]
fn a_file_that_the_sandbox_hides_is_said_to_be_out_of_reach() {
    let (home, _other) = user();
    let name = std::env::temp_dir().join(format!("bantam-out-{}", unique()));
    fs::write(&name, "there\n").unwrap();
    let path = name.display().to_string();
    let read = |path: &str| ("read_file", json!({ "path": path }));
    let calls = [
        read(&path),
        read("/tmp/bantam-none"),
        ("list_dir", json!({ "path": "/run/bantam-none" })),
        read("/nowhere/a"),
    ];
    let told = told(&home, &json!({}), &[], &calls);
    fs::remove_file(&name).unwrap();
    // It looks the same whether the file exists or not.
    for (text, failed) in &told[..3] {
        assert!(*failed && text.contains("out of reach"), "{told:?}");
    }
    assert!(told[3].0.contains("does not exist"), "{told:?}");
}

/// Only a sandbox could hide the home, so file tools are restricted to the workspace.
fn stays_in_the_workspace(extra: &Value, without: &'static [Withheld]) {
    let (home, other) = user();
    let book = other.path("docs/book.txt").display().to_string();
    let new = other.path("docs/new.txt").display().to_string();
    let calls = [
        (
            "write_file",
            json!({ "path": "here.txt", "content": "here\n" }),
        ),
        ("read_file", json!({ "path": "here.txt" })),
        ("read_file", json!({ "path": book })),
        ("read_file", json!({ "path": "docs/book.txt" })),
        ("write_file", json!({ "path": new, "content": "noted\n" })),
    ];
    let told = told(&home, extra, without, &calls);
    assert!(!told[0].1 && !told[1].1, "{told:?}");
    assert!(told[2..].iter().all(|(_, failed)| *failed), "{told:?}");
    assert!(!other.path("docs/new.txt").exists());
    keeps_shut(extra, without, false);
}

#[test]
fn without_a_sandbox_file_tools_stay_in_the_workspace() {
    stays_in_the_workspace(&json!({}), &[NAMESPACES, LANDLOCK]);
}

#[test]
fn with_the_sandbox_off_file_tools_stay_in_the_workspace() {
    let off = json!({ "tools": { "exec": { "sandbox": "off" } } });
    stays_in_the_workspace(&off, &[]);
}

#[test]
fn a_home_behind_a_link_that_tools_could_replace_is_refused() {
    let model = Model::never_asked();
    let (home, other) = (Home::empty(), Home::empty());
    let links = other.dir("links");
    symlink(home.path(""), links.join("home")).unwrap();
    let all = json!({ "agents": { "defaults": { "restrict_to_workspace": false } } });
    let some = json!({ "tools": { "write_paths": [links] } });
    for (open, by) in [(all, "restrict_to_workspace"), (some, "tools.write_paths")] {
        home.reconfigure(&model, &open);
        let run = home
            .bantam()
            .env("BANTAM_HOME", links.join("home"))
            .args(["agent", "-m", "hi"])
            .run();
        run.fails(3).says("links/home").says(by);
    }
}

/// A directory in `/tmp`, removed when dropped.
struct BelowTmp(PathBuf);

impl BelowTmp {
    fn new() -> Self {
        let path = PathBuf::from(format!(
            "/tmp/bantam-test-{}-{}",
            std::process::id(),
            unique()
        ));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("there.txt"), "the user's\n").unwrap();
        Self(path)
    }
}

impl Drop for BelowTmp {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn write_outside_the_sandbox_is_refused() {
    let (tmp, shm) = (
        BelowTmp::new(),
        format!("/dev/shm/bantam-test-{}", std::process::id()),
    );
    let at = |name: &str| tmp.0.join(name).display().to_string();
    let (home, _other) = user();
    symlink("/tmp", home.path("workspace/tmp")).unwrap();
    let through_a_link = format!("tmp/bantam-test-{}", unique());
    let mut calls = Vec::new();
    for path in [
        at("new.txt"),
        at("there.txt"),
        at("new/new.txt"),
        shm.clone(),
        through_a_link,
    ] {
        calls.push(("write_file", json!({ "path": path, "content": "kept?" })));
        calls.push(("append_file", json!({ "path": path, "content": "kept?" })));
        calls.push(("read_file", json!({ "path": path })));
    }
    calls.push(("list_dir", json!({ "path": "/tmp" })));
    for (call, (result, failed)) in calls
        .iter()
        .zip(told(&home, &json!({}), &[LANDLOCK], &calls))
    {
        assert!(failed, "{call:?}: {result}");
    }
    assert_eq!(fs::read_dir(&tmp.0).unwrap().count(), 1);
    assert!(!Path::new(&shm).exists());
    // If the user has opened it, it is the real one.
    let (home, _other) = user();
    let open = json!({ "tools": { "write_paths": [tmp.0] } });
    let calls = [
        (
            "write_file",
            json!({ "path": at("new.txt"), "content": "kept" }),
        ),
        ("write_file", json!({ "path": "a", "content": "b" })),
    ];
    assert!(
        told(&home, &open, &[], &calls)
            .iter()
            .all(|(_, failed)| !failed)
    );
    assert_eq!(fs::read(at("new.txt")).unwrap(), b"kept");
}

#[test]
fn home_below_tmp_keeps_neighbours_writable() {
    let tmp = BelowTmp::new();
    let beside = BelowTmp::new();
    let model_home = tmp.0.join("home");
    let calls = [
        (
            "write_file",
            json!({ "path": beside.0.join("new.txt"), "content": "kept" }),
        ),
        (
            "write_file",
            json!({ "path": format!("/tmp/bantam-test-{}", unique()), "content": "lost" }),
        ),
        (
            "write_file",
            json!({ "path": "here.txt", "content": "here" }),
        ),
    ];
    let asked = calls
        .iter()
        .enumerate()
        .map(|(n, (tool, arguments))| call(&format!("call_{n}"), tool, arguments));
    let model = Model::scripted([Reply::calls(asked), Reply::text("Done.")]);
    let open = json!({ "agents": { "defaults": { "restrict_to_workspace": false } } });
    let home = Home::empty();
    fs::create_dir(&model_home).unwrap();
    fs::write(
        model_home.join("config.json"),
        merged(model.config(), &open).to_string(),
    )
    .unwrap();
    home.bantam()
        .args(["agent", "-m", "go"])
        .env("BANTAM_HOME", &model_home)
        .run()
        .exits(0);
    let told = model.request(1).texts("tool");
    assert!(
        told[0].starts_with("created") && told[2].starts_with("created"),
        "{told:?}"
    );
    assert!(told[1].starts_with("error: "), "{told:?}");
    assert_eq!(fs::read(beside.0.join("new.txt")).unwrap(), b"kept");
    assert_eq!(
        fs::read(model_home.join("workspace/here.txt")).unwrap(),
        b"here"
    );
}
