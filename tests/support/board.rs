//! Runs the recipes of docs/scripting.md with `/bin/sh`, as a script or as a crontab line, in a nearly empty environment,
//! without a terminal, and in a read-only directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::harness::{CANARY, Home, Run};
use super::model::{Model, Reply};

/// Directory in which even root cannot create files.
const NOT_TO_BE_WRITTEN: &str = "/proc";

/// Returns the title and the shell block of each recipe.
pub fn recipes() -> Vec<(String, String)> {
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/scripting.md")).unwrap();
    let section = page
        .split("\n## ")
        .find(|section| section.starts_with("Recipes\n"))
        .expect("a section of recipes");
    let parts = section.split("\n### ").skip(1).map(|part| {
        let (title, text) = part.split_once('\n').unwrap();
        let blocks: Vec<&str> = text.split("\n```sh\n").skip(1).collect();
        assert_eq!(blocks.len(), 1, "a recipe is one block: {title}");
        let (script, _) = blocks[0].split_once("```").expect("the block ends");
        (title.to_owned(), script.to_owned())
    });
    parts.collect()
}

/// Splits a crontab line into its schedule and its command, as cron passes it to the shell: `\%` is a percent sign, and text
/// after a bare one would be standard input.
pub fn crontab(line: &str) -> (&str, String) {
    let line = line.trim_end();
    assert!(!line.contains('\n'), "a crontab entry is one line: {line}");
    let fields = if line.starts_with('@') { 1 } else { 5 };
    let at = line
        .match_indices(' ')
        .nth(fields - 1)
        .expect("a command behind the schedule")
        .0;
    let (schedule, command) = line.split_at(at);
    match schedule.strip_prefix('@') {
        Some(word) => assert!(
            ["hourly", "daily", "weekly", "monthly", "reboot"].contains(&word),
            "{schedule}"
        ),
        None => assert!(
            schedule
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || " */,-".contains(c)),
            "{schedule}"
        ),
    }
    let command = command.trim().replace("\\%", "\u{0}");
    assert!(
        !command.contains('%'),
        "cron would end the command at the bare %: {command}"
    );
    (schedule, command.replace('\u{0}', "%"))
}

/// A user's home with bantam, and the model that it asks.
pub struct Board {
    pub model: Model,
    pub home: Home,
}

impl Board {
    pub fn with(replies: impl IntoIterator<Item = Reply>) -> Self {
        let (model, home) = Home::of(Model::scripted(replies));
        let board = Self { model, home };
        fs::create_dir_all(board.user(".cargo/bin")).unwrap();
        fs::create_dir_all(board.user("programs")).unwrap();
        symlink(board.home.path(""), board.user(".bantam")).unwrap();
        symlink(super::program::program(), board.user(".cargo/bin/bantam")).unwrap();
        board
    }

    /// Returns a path in the user's home.
    pub fn user(&self, below: &str) -> PathBuf {
        self.home.path("").parent().unwrap().join(below)
    }

    /// Installs a program that reports facts about a machine which a test lacks.
    pub fn program(&self, name: &str, script: &str) {
        let path = self.user("programs").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns the search path of the user's shell.
    pub fn search_path(&self) -> String {
        let [bantam, others] = [".cargo/bin", "programs"].map(|dir| self.user(dir));
        format!("{}:{}:/usr/bin:/bin", bantam.display(), others.display())
    }

    /// Runs the recipe with this title.
    #[track_caller]
    pub fn cooks(&self, title: &str) -> Run {
        self.cooks_in(Path::new(NOT_TO_BE_WRITTEN), title)
    }

    #[track_caller]
    pub fn cooks_in(&self, cwd: &Path, title: &str) -> Run {
        let (_, script) = recipes()
            .into_iter()
            .find(|(name, _)| name == title)
            .expect("a recipe of this title");
        let path = self.search_path();
        self.shell(cwd, &script, &[("PATH", &path)])
    }

    /// Runs a recipe of one line as cron does.
    #[track_caller]
    pub fn is_due(&self, title: &str) -> Run {
        let (_, line) = recipes()
            .into_iter()
            .find(|(name, _)| name == title)
            .expect("a recipe of this title");
        let (_, command) = crontab(&line);
        let path = format!("{}:/usr/bin:/bin", self.user("programs").display());
        let env = [
            ("PATH", path.as_str()),
            ("LOGNAME", "somebody"),
            ("SHELL", "/bin/sh"),
        ];
        self.shell(&self.user(""), &command, &env)
    }

    #[track_caller]
    pub fn shell(&self, cwd: &Path, script: &str, env: &[(&str, &str)]) -> Run {
        let started = std::time::Instant::now();
        let mut shell = Command::new("/usr/bin/timeout");
        shell
            .args(["60", "/bin/sh", "-c", script])
            .env_clear()
            .env("HOME", self.user(""))
            .current_dir(cwd);
        shell.envs(env.iter().copied()).stdin(Stdio::null());
        let output = shell.output().unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(
            !stdout.contains(CANARY) && !stderr.contains(CANARY),
            "the key is shown"
        );
        Run {
            code: output.status.code(),
            killed_by: None,
            stdout,
            stderr,
            took: started.elapsed(),
        }
    }

    pub fn read(&self, below: &str) -> String {
        fs::read_to_string(self.user(below)).unwrap_or_else(|e| panic!("{below}: {e}"))
    }
}
