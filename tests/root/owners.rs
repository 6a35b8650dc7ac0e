//! Files and directories that belong to another user, or that only root can create.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::harness::{Home, config_for, has_all, merged};
use crate::model::{Model, Reply};

/// A user that does not exist on this machine.
const STRANGER: u32 = 61_001;

#[test]
fn key_command_in_a_strangers_file_is_refused() {
    for owned in ["config.json", ".."] {
        let model = Model::never_asked();
        let other = Home::empty();
        let ran = other.path("ran");
        let mut config = model.config();
        config["model_list"][0]["api_key"] = json!(format!(
            "cmd:/bin/sh -c 'echo >{}; echo key'",
            ran.display()
        ));
        let home = Home::with(&config);
        let place = home.path(owned).canonicalize().unwrap();
        chown(&place, Some(STRANGER), None).unwrap();
        let run = home.agent(["-m", "hi"]);
        run.fails(3)
            .says("user 61001 owns")
            .says(place.to_str().unwrap());
        assert!(!ran.exists(), "{owned}");
    }
}

#[test]
fn home_in_opt_is_refused() {
    let model = Model::scripted([
        Reply::call("list_dir", &json!({ "path": "." })),
        Reply::text("Refused."),
    ]);
    let place = Path::new("/opt").join(format!("bantam-test-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("config.json"), model.config().to_string()).unwrap();
    let home = Home::empty();
    let run = home
        .bantam()
        .env("BANTAM_HOME", &place)
        .args(["agent", "-m", "hi"])
        .run();
    fs::remove_dir_all(&place).unwrap();
    run.exits(0);
    let result = model.request(1).last("tool");
    assert!(result.contains("/opt"), "{result}");
}

/// Root may run tools for the owner of the workspace, who cannot pass through root's home.
#[test]
fn notes_are_kept_where_another_user_owns_the_workspace() {
    let note = json!({ "action": "append", "content": "Likes tea" });
    let user = json!({ "path": "USER.md", "content": "Ann\n" });
    let (model, home) = Home::of(Model::scripted([
        Reply::call("memory", &note),
        Reply::call("write_file", &user),
        Reply::call("read_file", &json!({ "path": "memory/MEMORY.md" })),
        Reply::text("Done."),
    ]));
    chown(home.dir("workspace"), Some(STRANGER), Some(STRANGER)).unwrap();
    home.agent(["-m", "remember it"]).exits(0);
    let told = model.request(3).last("tool");
    assert!(told.contains("Likes tea"), "{told}");
    let text = home.read("memory/USER.md");
    assert_eq!(text, "Ann\n");
    assert!(!home.path("workspace/USER.md").exists());
}

/// The tools of another user may link to files that only root can read.
#[test]
fn root_attaches_no_file_through_a_link_that_tools_can_change() {
    let model = Model::scripted([Reply::text("A line.")]);
    let place = Home::empty();
    let shared = place.dir("shared");
    let secret = place.write("shared/secret.txt", "root's\n");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let config = json!({ "tools": { "write_paths": [shared] } });
    let home = Home::asking(&model, &config);
    let link = home.dir("workspace").join("report.txt");
    symlink(&secret, &link).unwrap();
    chown(home.path("workspace"), Some(STRANGER), Some(STRANGER)).unwrap();
    let attach = |path: &Path| {
        let agent = home.bantam().args(["agent", "-n", "-m", "what?", "-a"]);
        agent.arg(path).run()
    };
    attach(&link).exits(2).says("that tools can change");
    attach(&secret).exits(0);
}

/// The home's content must not be accessible by another path of its disk.
#[test]
fn bind_mount_does_not_expose_the_home() {
    let place = Home::empty();
    let (disk, shown) = (place.dir("disk"), place.dir("shown"));
    place.dir("disk/u");
    let all = json!({ "agents": { "defaults": { "restrict_to_workspace": false } } });
    let some = json!({ "tools": { "read_paths": [disk] } });
    for (open, by) in [(all, "restrict_to_workspace"), (some, "tools.read_paths")] {
        let config = merged(config_for("http://127.0.0.1:9/v1"), &open);
        place.write("disk/u/config.json", config.to_string());
        let (from, to) = (disk.display(), shown.display());
        let script = format!(
            "mount --bind '{from}' '{to}' && BANTAM_HOME='{to}/u' exec '{}' agent -m hi",
            env!("CARGO_BIN_EXE_bantam")
        );
        let run = Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(3), "{said}");
        assert!(said.contains(by) && said.contains("shown/u"), "{said}");
    }
}

#[test]
fn doctor_names_files_of_another_user() {
    let home = Home::with(&config_for("http://127.0.0.1:9/v1"));
    let session = home.write("sessions/cli_x.jsonl", "");
    chown(&session, Some(STRANGER), None).unwrap();
    let run = home.run(["doctor"]);
    run.exits(1);
    assert_eq!(run.stdout.matches("FAIL  ").count(), 1, "{}", run.stdout);
    let cause = format!("{} belongs to user {STRANGER}", session.display());
    run.shows(&cause);
    has_all(&run.stdout, ["fix: sudo chown -R 0 "]);
}
