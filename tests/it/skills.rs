//! Skills and subagents.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::harness::{Home, has_all, has_none, until};
use crate::model::{Model, Reply, USAGE, call};

const TEA: &str =
    "---\nname: tea\ndescription: Makes tea. 茶\n---\nBoil water, then run sh scripts/steep.sh.\n";

/// Returns a home with the skill `tea`, and a script next to it.
fn with_tea(model: &Model) -> Home {
    let home = Home::with(&model.config());
    home.write("agent/skills/tea/SKILL.md", TEA);
    home.write("agent/skills/tea/scripts/steep.sh", "echo steeped\n");
    home
}

#[test]
fn skill_is_listed_and_read_on_demand() {
    let model = Model::scripted([
        Reply::call("skill", &json!({ "name": "tea" })),
        Reply::call(
            "exec",
            &json!({ "command": "sh \"$OLDPWD/x\" 2>/dev/null; echo in the sandbox" }),
        ),
        Reply::text("Done."),
    ]);
    let home = with_tea(&model);
    home.write(
        "agent/skills/quiet/SKILL.md",
        "---\ndescription: Hush.\ndisable-model-invocation: true\n---\nx\n",
    );
    home.write(
        "agent/skills/far/SKILL.md",
        "---\ndescription: Far.\nrequires: {\"bins\": [\"no-such-program\"]}\n---\nx\n",
    );
    home.write(
        "agent/skills/house/SKILL.md",
        "---\ndescription: Rules.\nalways: true\n---\nShoes off.\n",
    );
    home.agent(["-m", "tea, please"]).answers("Done.\n");
    let system = model.request(0).last("system");
    has_all(&system, ["[SKILLS]", "- tea: Makes tea. 茶"]);
    has_all(&system, ["Shoes off."]);
    has_none(&system, ["Boil water"]);
    has_none(&system, ["Hush", "Far."]);
    let told = model.request(1).last("tool");
    let folder = home.path("agent/skills/tea").display().to_string();
    has_all(&told, ["Boil water", &folder]);
}

#[test]
fn skill_script_is_executable_but_read_only() {
    let home = Home::empty();
    let folder = home.path("agent/skills/tea/scripts").display().to_string();
    let model = Model::scripted([
        Reply::calls([
            call(
                "a",
                "exec",
                &json!({ "command": format!("sh {folder}/steep.sh") }),
            ),
            call(
                "b",
                "exec",
                &json!({ "command": format!("echo evil >{folder}/steep.sh") }),
            ),
        ]),
        Reply::text("Done."),
    ]);
    home.config(&model.config().to_string());
    home.write("agent/skills/tea/SKILL.md", TEA);
    home.write("agent/skills/tea/scripts/steep.sh", "echo steeped\n");
    home.agent(["-m", "tea"]).exits(0);
    let told = model.request(1).texts("tool");
    has_all(&told[0], ["steeped"]);
    has_all(&told[1], ["[exit code"]);
    assert_eq!(
        home.read("agent/skills/tea/scripts/steep.sh"),
        "echo steeped\n"
    );
}

#[test]
fn the_user_calls_for_a_skill_by_name() {
    let model = Model::scripted([Reply::text("Poured."), Reply::text("Read.")]);
    let home = with_tea(&model);
    home.agent(["-m", "/tea two cups"]).exits(0);
    let said = model.request(0).last("user");
    has_all(&said, ["Boil water", "two cups"]);
    home.agent(["-m", "/etc/hosts says what?"]).exits(0);
    has_all(&model.request(1).last("user"), ["/etc/hosts says what?"]);
}

#[test]
fn subagents_work_side_by_side_in_contexts_of_their_own() {
    let (here, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let model = {
        let (here, seen) = (Arc::clone(&here), Arc::clone(&seen));
        Model::answering(move |request, _| {
            if let Some(task) = request.task() {
                here.fetch_add(1, Ordering::SeqCst);
                // Both are received before either is answered.
                until("both subagents ask", || here.load(Ordering::SeqCst) >= 2);
                seen.fetch_add(1, Ordering::SeqCst);
                return Reply::text(&format!("Report on {task}"));
            }
            if request.texts("tool").is_empty() {
                let one = |id: &str, task: &str| call(id, "subagent", &json!({ "task": task }));
                Reply::calls([one("a", "the moon"), one("b", "the sun")])
            } else {
                Reply::text("Both are bright.")
            }
        })
    };
    let home = Home::with(&model.config());
    let run = home.agent(["-m", "a secret of this conversation", "--json"]);
    let told = run.exits(0).json();
    assert_eq!(
        (&told["output"], seen.load(Ordering::SeqCst)),
        (&json!("Both are bright."), 2)
    );
    // Two requests of the agent, and one for each subagent.
    assert_eq!(told["usage"]["total_tokens"], 4 * USAGE.2);
    let requests = model.requests();
    for request in requests.iter().filter(|request| request.task().is_some()) {
        has_none(&request.body.to_string(), ["a secret of this conversation"]);
        for name in ["subagent", "message", "cron"] {
            assert!(
                !request.tools().contains(&name),
                "{name} is offered to a subagent"
            );
        }
        assert!(request.tools().contains(&"read_file"));
    }
    let last = requests
        .iter()
        .find(|request| !request.texts("tool").is_empty())
        .unwrap();
    assert_eq!(
        last.texts("tool"),
        [
            "```\nReport on the moon\n```",
            "```\nReport on the sun\n```"
        ]
    );
    // Only their reports are stored.
    assert_eq!(home.session("cli_default").history().len(), 5);
    assert!(
        home.files()
            .iter()
            .filter(|path| path.starts_with("sessions/"))
            .count()
            == 1,
        "{:?}",
        home.files()
    );
}

#[test]
fn a_subagent_uses_tools_and_has_none_below_it() {
    let model =
        Model::answering(
            |request, _| match (request.task(), request.texts("tool").len()) {
                (Some(_), 0) => Reply::calls([
                    call(
                        "x",
                        "write_file",
                        &json!({ "path": "moon.txt", "content": "grey\n" }),
                    ),
                    call("y", "subagent", &json!({ "task": "deeper" })),
                    call("z", "skill", &json!({ "name": "tea" })),
                ]),
                (Some(_), _) => Reply::text(&request.texts("tool").join("|")),
                (None, 0) => Reply::call("subagent", &json!({ "task": "write" })),
                (None, _) => Reply::text(&request.last("tool")),
            },
        );
    let home = with_tea(&model);
    let run = home.agent(["-m", "go"]);
    run.exits(0);
    has_all(
        &run.stdout,
        ["created moon.txt", "no tool named", "Boil water"],
    );
    assert_eq!(
        fs::read(home.path("workspace/moon.txt")).unwrap(),
        b"grey\n"
    );
}

#[test]
fn skills_are_installed_listed_shown_and_removed() {
    let other = Home::empty();
    other.write("tea/SKILL.md", TEA);
    let script = other.write("tea/scripts/steep.sh", "echo steeped\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    other.write("tea/.git/config", "x");
    let home = Home::empty();
    let bantam = |args: &[&str]| home.bantam().arg("skills").args(args).run();
    let from = other.path("tea").display().to_string();
    bantam(&["install", "-y", &from]).exits(0);
    assert!(
        home.path("agent/skills/tea/SKILL.md").exists()
            && !home.path("agent/skills/tea/.git").exists()
    );
    let mode = fs::metadata(home.path("agent/skills/tea/scripts/steep.sh"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    let list = bantam(&["list"]);
    // The built-in skills still exist.
    has_all(&list.exits(0).stdout, ["tea"]);
    has_all(&list.stdout, ["journal"]);
    has_all(&bantam(&["show", "tea"]).exits(0).stdout, ["Boil water"]);
    bantam(&["install", "-y", &from]).fails(1);
    bantam(&["remove", "tea"]).fails(2);
    bantam(&["remove", "tea", "-y"]).exits(0);
    assert!(!home.path("agent/skills/tea").exists());
    for (verb, name) in [("remove", "tea"), ("remove", ".."), ("show", "tea")] {
        let args: &[&str] = if verb == "remove" {
            &[verb, name, "-y"]
        } else {
            &[verb, name]
        };
        bantam(args).fails(2);
    }
    assert!(home.path("agent/AGENT.md").exists());
}

#[test]
fn invalid_or_linked_skill_is_not_installed() {
    let home = Home::empty();
    let other = Home::empty();
    other.write("linked/SKILL.md", TEA);
    symlink("/etc/passwd", other.path("linked/passwd")).unwrap();
    other.write("many/SKILL.md", TEA);
    for n in 0..500 {
        other.write(&format!("many/{n}"), "");
    }
    other.write("large/SKILL.md", TEA);
    fs::File::create(other.path("large/blob"))
        .unwrap()
        .set_len(11 << 20)
        .unwrap();
    other.write("Wrong Name/SKILL.md", TEA);
    other.write(
        "open/SKILL.md",
        "---\nname: open\ndescription: Never ends.\n",
    );
    other.write("empty/README.md", "x");
    for (name, says) in [
        ("linked", "a link, a pipe or a device"),
        ("many", "the skill many has 501 files and"),
        ("large", "11.0 MB: the limits are 500 files and 10.0 MB"),
        ("open", "has no end: a line of --- is missing"),
        ("Wrong Name", "invalid skill name"),
        ("empty", "has no SKILL.md"),
    ] {
        let from = other.path(name).display().to_string();
        home.run(["skills", "install", "-y", &from])
            .exits(1)
            .says(says);
    }
    assert_eq!(
        home.run(["skills", "list"])
            .exits(0)
            .stdout
            .matches("tea")
            .count(),
        0
    );
}

/// One of many skills is chosen by its name, and shown before it is installed.
#[test]
fn skill_is_installed_by_name_from_folder() {
    let home = Home::empty();
    let other = Home::empty();
    other.write("all/skills/tea/SKILL.md", TEA);
    other.write("all/skills/tea/scripts/steep.sh", "echo steeped\n");
    other.write("all/skills/soup/SKILL.md", TEA.replace("tea", "soup"));
    let all = other.path("all").display().to_string();
    let install = |from: &str| {
        let args = ["skills", "install", "-y", from];
        home.run(args)
    };
    install(&all)
        .exits(2)
        .says("has 2 skills: soup, tea")
        .says("#soup");
    install(&format!("{all}#cake"))
        .exits(2)
        .says("has 2 skills: soup, tea");
    let run = install(&format!("{all}#tea"));
    run.exits(0);
    let shown = format!(
        "tea: Makes tea. 茶\n  scripts: scripts/steep.sh\n  size: {} bytes in 2 files\nInstalled tea in ",
        TEA.len() + "echo steeped\n".len()
    );
    assert!(run.stdout.starts_with(&shown), "{}", run.stdout);
}

#[test]
fn a_repository_is_named_by_its_https_address() {
    let home = Home::empty();
    for source in [
        "http://127.0.0.2:9/tea.git",
        "ssh://git@127.0.0.2:9/tea.git",
        "git@127.0.0.2:tea.git",
    ] {
        let args = ["skills", "install", "-y", source];
        let run = home.run(args);
        run.exits(2).says("https").fails_with_a_hint();
    }
}

/// Skills are instructions for the agent, so a script must not install one by accident.
#[test]
fn without_a_terminal_a_skill_is_installed_only_with_yes() {
    let home = Home::empty();
    let other = Home::empty();
    other.write("tea/SKILL.md", TEA);
    let from = other.path("tea").display().to_string();
    let install = |args: &[&str]| {
        let given = ["skills", "install", &from];
        home.bantam().args(given).args(args).run()
    };
    let refused = install(&[]);
    refused
        .exits(2)
        .says("standard input is not a terminal")
        .says("--yes")
        .fails_with_a_hint();
    assert!(!home.path("agent/skills/tea").exists());
    install(&["--yes"]).exits(0);
    assert!(home.path("agent/skills/tea/SKILL.md").exists());
}
