//! The tools that work on files. Each is one job for the hands, and the arguments of a call are the fields of that job.
//! All of them come from the model; a tool that needs a setting is a file of its own.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::Takes::{AtLeast, Flag, Text};
use super::function::Function;
use super::{Parameter, Risk, ToolOutput, ToolSpec, Turn, arguments, text};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::hands::Hands;
use crate::message::{MAX_FILE, Media, MediaKind};
use crate::reach::Tree;
use crate::session::versions::{MOST_KEPT, Old};
use crate::text::{fenced, one_line, size};
use crate::usage::Account;
use crate::wire::{FileJob, Header, Job};

struct Definition {
    name: &'static str,
    description: &'static str,
    risk: Risk,
    parameters: &'static [Parameter<'static>],
    /// How many of the parameters, from the first, are required.
    required: usize,
}

/// The prompt says what paths are relative to.
const PATH: Parameter<'_> = ("path", Text, "");

const DEFINITIONS: [Definition; 6] = [
    Definition {
        name: "list_dir",
        description: "List a directory, up to 200 entries.",
        risk: Risk::Safe,
        parameters: &[PATH, ("depth", AtLeast(0), "Levels, 1 to 10; default 1")],
        required: 1,
    },
    Definition {
        name: "read_file",
        description: "Read a text file, up to 2000 lines at once, a PDF or a recording, or view an image.",
        risk: Risk::Safe,
        parameters: &[
            PATH,
            ("offset", AtLeast(0), "The first line is 1"),
            ("limit", AtLeast(0), "Lines; default 2000"),
            ("pages", Text, "Of a PDF: 3-12"),
        ],
        required: 1,
    },
    Definition {
        name: "grep",
        description: "Search files for lines that match. Skips binary files, links and .git.",
        risk: Risk::Safe,
        parameters: &[
            (
                "pattern",
                Text,
                "Regular expression without look-around; (?i) ignores case",
            ),
            ("path", Text, "File or directory; default: the workspace"),
            ("glob", Text, "*.rs by name, src/**/*.rs by path"),
            ("max", AtLeast(0), "Up to 1000; default 100"),
        ],
        required: 1,
    },
    Definition {
        name: "write_file",
        description: "Create a text file and its directories, or replace its content.",
        risk: Risk::Writes,
        parameters: &[PATH, ("content", Text, "")],
        required: 2,
    },
    Definition {
        name: "append_file",
        description: "Append text to a file, or create it.",
        risk: Risk::Writes,
        parameters: &[PATH, ("content", Text, "End it with a line feed")],
        required: 2,
    },
    Definition {
        name: "edit_file",
        description: "Replace text in a file.",
        risk: Risk::Writes,
        parameters: &[
            PATH,
            (
                "old_text",
                Text,
                "Exactly as in the file, where it occurs once",
            ),
            ("new_text", Text, ""),
            ("replace_all", Flag, ""),
        ],
        required: 3,
    },
];

impl Definition {
    fn spec(&self) -> ToolSpec {
        ToolSpec::built_in(
            self.name,
            self.risk,
            self.description,
            self.parameters,
            self.required,
        )
    }
}

/// Makes words of a recording.
pub(crate) type Transcribe = dyn Fn(&Media, &Cancel, &Account) -> Result<String> + Send + Sync;

/// All of them. Recordings are read where there is something that makes words of them.
pub(crate) fn file_tools(
    hands: &Arc<Hands>,
    transcribe: Option<Arc<Transcribe>>,
) -> impl Iterator<Item = Function> + use<> {
    let hands = hands.clone();
    DEFINITIONS.iter().map(move |definition| {
        let (name, hands, transcribe) = (definition.name, hands.clone(), transcribe.clone());
        Function::of(
            definition.spec(),
            &["pattern", "path"],
            move |args, turn| {
                let job = Value::Object(Map::from_iter([(name.to_owned(), args.clone())]));
                let job = Job::File(arguments::<FileJob>(&job)?);
                let path = plain_path(text(args, "path"), hands.workspace());
                let versions = turn.versions.filter(|_| definition.risk == Risk::Writes);
                let before = versions
                    .filter(|versions| !versions.has(&path))
                    .and_then(|_| content(&hands, &path, turn.cancel));
                let reply = hands.call(&job, turn.cancel)?;
                if let (Some(versions), Header::Changed { stamp, is_new }) =
                    (versions, &reply.header)
                {
                    let before = match &before {
                        _ if *is_new => Old::Absent,
                        Some((content, stamp)) => Old::Content(content, stamp),
                        None => Old::Unknown,
                    };
                    if let Err(e) = versions.changed(&path, before, stamp.clone()) {
                        let what = format!("/undo will not take {path} back: {}", e.message);
                        (turn.events)(Event::Notice(what));
                    }
                }
                match reply.header {
                    Header::Image => shown(&reply.body),
                    Header::Recording => {
                        heard(&hands, transcribe.as_deref(), text(args, "path"), turn)
                    }
                    _ => {
                        let content = reply.into_text()?;
                        let is_foreign = name == "read_file"
                            && is_in_inbox(text(args, "path"), hands.workspace());
                        Ok(ToolOutput::text(if is_foreign {
                            fenced(&content)
                        } else {
                            content
                        }))
                    }
                }
            },
        )
    })
}

/// What a file holds, if it may be kept, and its stamp.
fn content(hands: &Hands, path: &str, cancel: &Cancel) -> Option<(Vec<u8>, String)> {
    let mut content = Vec::new();
    let read = hands.give_file(path, MOST_KEPT, cancel, &mut |part| {
        content.extend_from_slice(part);
        Ok(())
    });
    read.ok().map(|stamp| (content, stamp))
}

/// One name for a file of the workspace, however the model writes its path.
fn plain_path(path: &str, workspace: &Tree) -> String {
    let path = Path::new(path);
    let below = path
        .strip_prefix(&workspace.path)
        .or_else(|_| path.strip_prefix(&workspace.real))
        .unwrap_or(path);
    let parts = below.components().filter(|part| *part != Component::CurDir);
    parts.collect::<PathBuf>().display().to_string()
}

fn shown(file: &[u8]) -> Result<ToolOutput> {
    let image = Media::image(file).ok_or_else(|| Error::failed("the file is no image any more"))?;
    let text = format!(
        "[an image, {}, {}: it follows the results]",
        image.mime,
        size(file.len() as u64)
    );
    Ok(ToolOutput {
        images: vec![image],
        ..ToolOutput::text(text)
    })
}

/// The words of a recording, which are somebody's and no instructions.
fn heard(
    hands: &Hands,
    transcribe: Option<&Transcribe>,
    path: &str,
    turn: &Turn,
) -> Result<ToolOutput> {
    let name = one_line(path, 200);
    let Some(transcribe) = transcribe else {
        return Err(Error::failed(format!(
            "{name} is a recording, and tools.transcribe.model, which makes words of one, is not set in config.json"
        )));
    };
    let mut bytes = Vec::new();
    hands.give_file(path, MAX_FILE as u64, turn.cancel, &mut |part| {
        bytes.extend_from_slice(part);
        Ok(())
    })?;
    let recording = Media::of(&bytes).filter(|media| media.kind() == MediaKind::Audio);
    let recording =
        recording.ok_or_else(|| Error::failed(format!("{name} is no recording any more")))?;
    drop(bytes);
    let words = transcribe(&recording, turn.cancel, &turn.account)?;
    Ok(ToolOutput::text(format!(
        "[what is said in {name}]\n{}",
        fenced(&words)
    )))
}

/// Whether a file came from outside: other people's words, which the agent reads and does not edit.
fn is_in_inbox(path: &str, workspace: &Tree) -> bool {
    let path = Path::new(path);
    let below = path
        .strip_prefix(&workspace.path)
        .or_else(|_| path.strip_prefix(&workspace.real))
        .unwrap_or(path);
    let first = below.components().find(|part| *part != Component::CurDir);
    first == Some(Component::Normal("inbox".as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::Takes::OneOf;
    use serde_json::json;

    #[test]
    fn what_is_offered_is_a_job() {
        for definition in DEFINITIONS {
            let value = |takes| match takes {
                Text => json!("text"),
                Flag => json!(true),
                AtLeast(least) => json!(least + 2),
                OneOf(words) => json!(words[0]),
            };
            let fields = |count: usize| {
                let fields = definition.parameters[..count].iter();
                json!({ definition.name: fields.map(|(name, takes, _)| ((*name).to_owned(), value(*takes))).collect::<Map<_, _>>() })
            };
            let all = definition.parameters.len();
            // What the job makes of it is all that was given: no argument is told to the model and then ignored.
            let job: FileJob = serde_json::from_value(fields(all)).unwrap();
            assert_eq!(serde_json::to_value(job).unwrap(), fields(all));
            assert!(
                serde_json::from_value::<FileJob>(fields(definition.required)).is_ok(),
                "{}",
                definition.name
            );
            assert!(
                serde_json::from_value::<FileJob>(fields(definition.required - 1)).is_err(),
                "{}",
                definition.name
            );
            let schema: Value = serde_json::from_str(&definition.spec().schema).unwrap();
            assert_eq!(schema["properties"].as_object().unwrap().len(), all);
        }
        let schema: Value = serde_json::from_str(&DEFINITIONS[0].spec().schema).unwrap();
        assert_eq!(schema["required"], json!(["path"]));
        assert_eq!(schema["properties"]["depth"]["type"], "integer");
    }
}
