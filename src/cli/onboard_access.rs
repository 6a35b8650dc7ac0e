//! `bantam onboard access`: asks what tools may reach. The first answer to each question is the safe one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::onboard::{ask_until, input_is_over, unless_over};
use super::{print, table, tell};
use crate::app::{self, Parts};
use crate::config::{Config, Env, edit, path};
use crate::error::{Error, Result};
use crate::paths::Home;
use crate::text::one_line;

/// What an answer means, in words and in the file.
struct Answer {
    name: &'static str,
    means: String,
    value: Value,
}

impl Answer {
    fn new(name: &'static str, means: impl Into<String>, value: Value) -> Self {
        Self {
            name,
            means: means.into(),
            value,
        }
    }
}

struct Question<'a> {
    asked: &'a str,
    /// The setting that holds the answer.
    setting: [&'a str; 3],
    answers: Vec<Answer>,
    takes_a_folder: bool,
}

/// Asks all three questions, and writes each answer at once.
pub(super) fn ask(home: &Home, env: &Env) -> Result<()> {
    for question in questions(home, env)? {
        if input_is_over() {
            return Ok(());
        }
        question.ask(home, env).or_else(unless_over)?;
    }
    Ok(())
}

/// What the configuration opens, in one line.
pub(super) fn summary(config: &Config) -> String {
    let or_none = |names: &[String], none: &str| {
        if names.is_empty() {
            none.to_owned()
        } else {
            names.join(", ")
        }
    };
    let tools = &config.tools;
    let files = if config.agents.defaults.restrict_to_workspace {
        or_none(&tools.read_paths, "workspace only")
    } else {
        "everything".to_owned()
    };
    let network = json!(tools.exec.network);
    format!(
        "files: {files}; command network: {}; asks before: {}",
        network.as_str().unwrap_or_default(),
        or_none(&tools.confirm, "nothing")
    )
}

fn questions<'a>(home: &Home, env: &Env) -> Result<[Question<'a>; 3]> {
    let config = super::load(env)?.1.config;
    let parts = Parts {
        home,
        config: &config,
        env,
    };
    let workspace = app::workspace(parts)?.display().to_string();
    let mut files = vec![Answer::new(
        "none",
        format!("it sees only its workspace, {workspace}"),
        json!([]),
    )];
    if let Some(folder) = this_folder(&workspace) {
        let folder = folder.display().to_string();
        files.push(Answer::new(
            "this folder",
            format!(
                "it can also read everything in {folder}, and sends what it reads to the model's host"
            ),
            json!([folder]),
        ));
    }
    Ok([
        Question {
            asked: "May it read your files?",
            setting: ["tools", "read_paths", ""],
            answers: files,
            takes_a_folder: true,
        },
        Question {
            asked: "May commands use the network?",
            setting: ["tools", "exec", "network"],
            answers: vec![
                Answer::new(
                    "no",
                    "commands have no network; the agent can still search and fetch public pages",
                    json!("none"),
                ),
                Answer::new(
                    "public",
                    "commands reach public addresses (pip, git clone), but not your own network",
                    json!("guarded"),
                ),
                Answer::new(
                    "yes",
                    "commands reach all that you can, including your router and services on this machine",
                    json!("full"),
                ),
            ],
            takes_a_folder: false,
        },
        Question {
            asked: "Ask before it changes or runs something?",
            setting: ["tools", "confirm", ""],
            answers: vec![
                Answer::new(
                    "yes",
                    "you approve each change and command; where nobody can answer (jobs, pipes, subagents, HTTP), both are refused",
                    json!(["writes", "runs"]),
                ),
                Answer::new(
                    "commands",
                    "you approve each command; it changes files in its workspace without asking",
                    json!(["runs"]),
                ),
                Answer::new(
                    "no",
                    "it never asks, and stays within what you allowed above",
                    json!([]),
                ),
            ],
            takes_a_folder: false,
        },
    ])
}

/// The current directory, unless that is in the workspace or holds it.
fn this_folder(workspace: &str) -> Option<PathBuf> {
    let folder = std::env::current_dir().ok()?;
    let workspace = Path::new(workspace);
    let overlaps = folder.starts_with(workspace) || workspace.starts_with(&folder);
    (!overlaps && folder != Path::new("/")).then_some(folder)
}

impl Question<'_> {
    fn path(&self) -> &[&str] {
        let len = self
            .setting
            .iter()
            .take_while(|name| !name.is_empty())
            .count();
        &self.setting[..len]
    }

    fn ask(&self, home: &Home, env: &Env) -> Result<()> {
        let loaded = super::load(env)?.1;
        let current = path::get(&loaded.file, self.path()).cloned();
        tell(&format!("\n{}", self.asked));
        let rows: Vec<_> = (1..)
            .zip(&self.answers)
            .map(|(n, answer)| {
                [
                    format!("  {n}"),
                    answer.name.to_owned(),
                    answer.means.clone(),
                ]
            })
            .collect();
        tell(table(&rows).trim_end());
        let enter = match &current {
            Some(value) => format!("Enter keeps {}", self.name_of(value)),
            None => format!("[1, {}]", self.answers[0].name),
        };
        let kinds = if self.takes_a_folder {
            "Number, name or another folder"
        } else {
            "Number or name"
        };
        ask_until(
            &format!("{kinds}, {enter}: ").replace(", [", " ["),
            |text| {
                let value = match (text, &current) {
                    ("", Some(_)) => return Ok(()),
                    ("", None) => self.answers[0].value.clone(),
                    _ => self.answer(text, env)?,
                };
                // The defaults stay out of the file.
                let is_default = match &value {
                    Value::Array(items) => items.is_empty(),
                    value => value == "none",
                };
                if current.as_ref() == Some(&value) || (current.is_none() && is_default) {
                    return Ok(());
                }
                self.write(home, env, &value)
            },
        )
    }

    fn answer(&self, text: &str, env: &Env) -> Result<Value, String> {
        let by_number = text.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
        let chosen = by_number
            .and_then(|n| self.answers.get(n))
            .or_else(|| self.answers.iter().find(|answer| answer.name == text));
        if let Some(answer) = chosen {
            return Ok(answer.value.clone());
        }
        if self.takes_a_folder && text.starts_with(['/', '~', '.']) {
            return folder(text, env).map(|folder| json!([folder]));
        }
        let names: Vec<_> = self.answers.iter().map(|answer| answer.name).collect();
        let mut expected = names.join(", ");
        if self.takes_a_folder {
            expected.push_str(", or the path of a folder");
        }
        Err(format!(
            "\"{}\" is not one of: {expected}",
            one_line(text, 40)
        ))
    }

    /// The name of an answer, or the value itself.
    fn name_of(&self, value: &Value) -> String {
        let known = self.answers.iter().find(|answer| answer.value == *value);
        known.map_or_else(
            || match value {
                Value::Array(items) => {
                    let texts: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                    one_line(&texts.join(", "), 200)
                }
                value => one_line(&value.to_string(), 200),
            },
            |answer| answer.name.to_owned(),
        )
    }

    fn write(&self, home: &Home, env: &Env, value: &Value) -> Result<(), String> {
        let check = |config: &Arc<Config>| -> Vec<Error> {
            let parts = Parts { home, config, env };
            app::workers(parts).err().into_iter().collect()
        };
        let written = edit::edit(home, env, &check, |file| {
            edit::set_in(file, self.path(), value.clone())
        });
        written.map_err(|e| e.message)?;
        print(&format!("set      {} = {value}\n", self.path().join("."))).map_err(|e| e.message)
    }
}

/// The absolute path of a folder that is there.
fn folder(text: &str, env: &Env) -> Result<String, String> {
    let path = match (text.strip_prefix('~'), env.get("HOME")) {
        (Some(rest), Some(user)) if rest.is_empty() || rest.starts_with('/') => {
            PathBuf::from(format!("{user}{rest}"))
        }
        _ => PathBuf::from(text),
    };
    match fs_err::canonicalize(&path) {
        Ok(path) if path.is_dir() => Ok(path.display().to_string()),
        Ok(path) => Err(format!("{} is not a folder", path.display())),
        Err(_) => Err(format!("there is no folder {}", one_line(text, 200))),
    }
}
