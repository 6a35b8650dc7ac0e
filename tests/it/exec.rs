//! `exec`: the environment of a command, and the end of all its processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{CANARY, Home, has_all, has_none, merged, until};
use crate::marker::Marker;
use crate::model::{Model, Reply, call};
use crate::without_syscall::{DESCRIPTORS, LANDLOCK, NAMESPACES, Withheld};

/// Returns a home with this model in which commands may run without a sandbox, with `extra` among the exec settings.
fn unsandboxed(model: &Model, extra: &Value) -> Home {
    let exec = merged(json!({ "sandbox": "off" }), extra);
    Home::asking(model, &json!({ "tools": { "exec": exec } }))
}

/// Returns the result of one command, run in a separate home.
#[track_caller]
fn result_of(command: &str) -> String {
    let model = Model::scripted([
        Reply::call("exec", &json!({ "command": command })),
        Reply::text("Done."),
    ]);
    let home = unsandboxed(&model, &json!({}));
    home.agent(["-m", "run it"]).answers("Done.\n");
    home.session("cli_default").has_one_result_per_call();
    model.request(1).last("tool")
}

/// As in a container with only this program.
const WITHOUT_SHELL: &str =
    r#"exec unshare -rm sh -c 'mount -t tmpfs none /bin && exec "$0" "$@"' "$0" "$@""#;

#[test]
fn without_a_shell_commands_are_not_offered() {
    let (model, home) = Home::of(Model::scripted([Reply::text("Hello.")]));
    home.bantam()
        .args(["agent", "-m", "hi"])
        .after(WITHOUT_SHELL)
        .run()
        .answers("Hello.\n");
    let body = model.request(0).body.to_string();
    has_all(&body, ["\"read_file\""]);
    has_none(&body, ["\"exec\""]);
    let doctor = home.bantam().arg("doctor").after(WITHOUT_SHELL).run();
    has_all(&doctor.stdout, ["there is no /bin/sh, so no commands run"]);
}

#[test]
fn commands_run_in_a_sandbox_unless_the_configuration_says_otherwise() {
    let secret = "what only the user may read";
    let outside = Home::empty();
    outside.write("diary.txt", secret);
    let diary = outside.path("diary.txt");
    let command = format!(
        "echo made > made.txt; id -u; cat {0}; echo defaced > {0}; cat made.txt",
        diary.display()
    );
    let (model, home) = Home::of(Model::scripted([
        Reply::call("exec", &json!({ "command": command })),
        Reply::text("Done."),
    ]));
    home.agent(["-m", "run it"]).answers("Done.\n");
    let result = model.request(1).last("tool");
    has_all(&result, ["made"]);
    has_none(&result, [secret]);
    assert_ne!(result.lines().next(), Some("0"), "it ran as root: {result}");
    assert_eq!(home.read("workspace/made.txt"), "made\n");
    assert_eq!(std::fs::read_to_string(diary).unwrap(), secret);
}

#[test]
fn a_command_has_the_workspace_no_input_and_its_own_descriptors() {
    // `ls` itself has a directory open as 3.
    let commands = [
        (
            "echo to the left; echo to the right >&2; exit 3",
            ["left", "right", "exit code 3"],
        ),
        (
            "pwd; cat && echo at its end",
            ["/workspace", "at its end", ""],
        ),
        ("kill -SEGV $$", ["signal 11", "", ""]),
        (
            "ls /proc/self/fd | tr '\\n' ' '; echo end",
            ["0 1 2 3 end", "", ""],
        ),
        ("printf 'a\\377\\376b\\000c'; echo end", ["a", "end", ""]),
    ];
    let call = |(n, (command, _)): (usize, &(&str, _))| {
        call(&format!("c{n}"), "exec", &json!({ "command": command }))
    };
    let calls = Reply::calls(commands.iter().enumerate().map(call));
    let model = Model::scripted([calls, Reply::text("Done.")]);
    unsandboxed(&model, &json!({}))
        .agent(["-m", "run them"])
        .exits(0);
    let results = model.request(1).texts("tool");
    for ((command, parts), result) in commands.iter().zip(results) {
        let has_all = parts.iter().all(|part| result.contains(part));
        assert!(has_all && !result.contains('\0'), "{command}: {result}");
    }
}

#[test]
fn output_without_end_is_cut() {
    let result = result_of("yes 'a long line of no interest' | head -c 5000000; echo end");
    assert!(
        result.len() < 200_000,
        "{} bytes went to the model",
        result.len()
    );
}

#[test]
fn a_command_that_takes_too_long_is_ended_and_told_so() {
    let marker = Marker::new();
    let command = format!("echo first; sleep {marker}; echo second");
    let model = Model::scripted([
        Reply::call("exec", &json!({ "command": command })),
        Reply::text("Done.").held(),
    ]);
    let home = unsandboxed(&model, &json!({ "timeout": 1 }));
    let running = home.bantam().args(["agent", "-m", "run it"]).spawn();
    model.wait_for_requests(2);
    marker.is_gone();
    let result = model.request(1).last("tool");
    has_all(&result, ["first"]);
    has_none(&result, ["second"]);
    assert!(
        result.contains("1 s") || result.contains("timed out") || result.contains("timeout"),
        "{result}"
    );
    model.release();
    running.finish().exits(0);
    assert_eq!(home.session("cli_default").history()[2]["is_error"], true);
}

#[test]
fn a_command_sees_no_key_and_an_environment_of_its_own() {
    let command = "env; echo; tr '\\0' '\\n' </proc/self/environ; tr '\\0' '\\n' </proc/$PPID/environ; tr '\\0' ' ' </proc/$PPID/cmdline";
    let model = Model::scripted([
        Reply::call("exec", &json!({ "command": command })),
        Reply::text("Done."),
    ]);
    let home = unsandboxed(&model, &json!({}));
    let run = home
        .bantam()
        .env("OPENAI_API_KEY", CANARY)
        .env("UNRELATED", "a-private-thing");
    run.args(["agent", "-m", "run it"]).run().exits(0);
    let seen = model.request(1).last("tool");
    assert!(seen.contains("PATH="), "{seen}");
    for private in [CANARY, "OPENAI_API_KEY", "UNRELATED", "a-private-thing"] {
        assert!(
            !seen.contains(private),
            "{private} reached the command: {seen}"
        );
    }
    // Every user of the machine can see the arguments of every process.
    let arguments = seen.lines().find(|line| line.starts_with("/proc/self/exe"));
    assert_eq!(
        arguments.map(str::trim_end),
        Some("/proc/self/exe worker"),
        "{seen}"
    );
}

/// Returns the command lines of a process and its descendants.
fn command_lines(pid: &str) -> Vec<Vec<String>> {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split_terminator('\0').map(str::to_owned).collect();
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children: String = tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .collect();
    [words]
        .into_iter()
        .chain(children.split_whitespace().flat_map(command_lines))
        .collect()
}

#[test]
fn sandboxed_processes_hide_their_settings() {
    let model = Model::scripted([Reply::call("exec", &json!({ "command": "sleep 98765" }))]);
    let home = Home::with(&model.config());
    let running = home.bantam().args(["agent", "-m", "run it"]).spawn();
    let mut lines = Vec::new();
    until("the command runs", || {
        lines = command_lines(&running.pid().to_string());
        lines.iter().any(|line| *line == ["sleep", "98765"])
    });
    let inner: Vec<_> = lines
        .iter()
        .filter(|line| line.first().is_some_and(|name| name == "/proc/self/exe"))
        .collect();
    assert!(
        !inner.is_empty() && inner.iter().all(|line| line.len() == 2),
        "{lines:?}"
    );
    running.signal(Signal::INT);
    running.finish().exits(130);
}

/// Runs bantam in a user namespace that allows `$FIRST` nested ones, and `$THEN` once `changed` is in the home.
const NAMESPACES_CHANGE: &str = r#"
exec unshare -Ur /bin/sh -c '
echo "$FIRST" >/proc/sys/user/max_user_namespaces
{ until [ -e "$BANTAM_HOME/changed" ]; do sleep .1; done
echo "$THEN" >/proc/sys/user/max_user_namespaces
touch "$BANTAM_HOME/workspace/done"; } >/dev/null 2>&1 &
exec "$0" "$@"' "$0" "$@"
"#;

/// Returns the results of two commands of one process; the allowed namespaces change in between.
fn before_and_after(first: &str, then: &str, without: &'static [Withheld]) -> [String; 2] {
    let slot: Arc<OnceLock<PathBuf>> = Arc::default();
    let home_dir = Arc::clone(&slot);
    let model = Model::answering(move |request, number| {
        if number == 1 {
            let home = home_dir.get().unwrap();
            fs::write(home.join("changed"), "").unwrap();
            until("the limit has changed", || {
                home.join("workspace/done").exists()
            });
        }
        // In namespaces, the host has this name.
        let command = format!("hostname; : {number}");
        match request.texts("tool").len() {
            2 => Reply::text("Done."),
            _ => Reply::call("exec", &json!({ "command": command })),
        }
    });
    let home = Home::with(&model.config());
    slot.set(home.path("")).unwrap();
    home.bantam()
        .args(["agent", "-m", "run it"])
        .on_a_system_without(without)
        .after(NAMESPACES_CHANGE)
        .env("FIRST", first)
        .env("THEN", then)
        .run()
        .exits(0);
    let told = model.requests().pop().unwrap().texts("tool");
    told.try_into().unwrap()
}

#[test]
fn sandbox_is_chosen_once_per_run() {
    let [first, second] = before_and_after("0", "99", &[]);
    assert_ne!(
        first, "bantam\n",
        "namespaces were there from the beginning"
    );
    assert_eq!(second, first, "by Landlock alone, as before");
    let [first, second] = before_and_after("99", "0", &[]);
    assert_eq!(first, "bantam\n", "the control: namespaces were there");
    assert!(second.contains("entering the sandbox"), "{second}");
    let [first, second] = before_and_after("0", "99", &[LANDLOCK]);
    assert!(first.contains("commands are refused"), "{first}");
    assert_eq!(second, "bantam\n", "there was none before");
}

#[test]
fn the_clock_of_a_command_shows_local_time() {
    for (tz, offset) in [("Asia/Kolkata", "+0530\n"), ("XXX-03:15", "+0315\n")] {
        for without in [&[][..], &[NAMESPACES]] {
            let command = json!({ "command": "date +%z" });
            let model = Model::scripted([Reply::call("exec", &command), Reply::text("Done.")]);
            let home = Home::with(&model.config());
            let run = home.bantam().args(["agent", "-m", "run it"]).env("TZ", tz);
            run.on_a_system_without(without).run().exits(0);
            assert_eq!(
                model.request(1).last("tool"),
                offset,
                "TZ={tz} without {without:?}"
            );
        }
    }
}

#[test]
fn commands_that_spoil_the_machine_are_refused_with_the_sandbox_off() {
    // These commands are harmless where they are not refused.
    for command in [
        "reboot --help",
        "true; sudo mkfs.ext4 -V",
        "sh -c 'shutdown --help'",
    ] {
        let result = result_of(command);
        has_all(&result, ["refused: ask the user"]);
    }
    assert!(result_of("echo 'reboot, mkfs' && echo rm -rf /").contains("rm -rf /"));
}

/// A command that uses up resources needed for another call's sandbox must not weaken that sandbox.
#[test]
fn failed_sandbox_setup_has_no_fallback() {
    let model = Model::scripted([
        Reply::calls([
            call("c", "exec", &json!({ "command": "echo ran" })),
            call("d", "exec", &json!({ "command": "echo ran again" })),
        ]),
        Reply::text("Done."),
    ]);
    let guarded = json!({ "tools": { "exec": { "network": "guarded" } } });
    let home = Home::asking(&model, &guarded);
    home.bantam()
        .args(["agent", "-m", "go"])
        .on_a_system_without(&[DESCRIPTORS])
        .run()
        .exits(0);
    for told in model.request(1).texts("tool") {
        assert!(told.contains("listener") && !told.contains("ran"), "{told}");
    }
}

/// Under Landlock alone, a command of the home's owner can do this.
#[test]
fn directories_that_a_command_closed_are_opened_at_the_next_start() {
    let (model, home) = Home::of(Model::answering(|_, _| Reply::text("Here.")));
    home.write("agent/AGENT.md", "Be kind.\n");
    home.write("memory/USER.md", "Ann\n");
    for dir in ["agent", "memory"] {
        fs::set_permissions(home.path(dir), fs::Permissions::from_mode(0o400)).unwrap();
    }
    home.agent(["-m", "hi"]).exits(0).is_quiet();
    let system = model.request(0).last("system");
    has_all(&system, ["Be kind.", "Ann"]);
    for dir in ["agent", "memory"] {
        let mode = fs::metadata(home.path(dir)).unwrap().permissions().mode();
        assert_eq!(mode & 0o700, 0o700, "{dir}");
    }
}
