//! The tools that work on files. Each is one job for the hands, and the arguments of a call are that job's fields.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::Result;
use crate::hands::Hands;
use crate::message::Image;
use crate::text::one_line;
use crate::wire::{FileJob, Header, Job, Reply};

/// A tool as the model is told of it.
struct Offer {
    name: &'static str,
    description: &'static str,
    risk: Risk,
    /// Name, type and meaning of each argument.
    arguments: &'static [(&'static str, &'static str, &'static str)],
    /// How many of them, from the first, a call must have.
    required: usize,
}

const PATH: (&str, &str, &str) = ("path", "string", "Relative to the workspace, or absolute");

const OFFERS: [Offer; 6] = [
    Offer {
        name: "list_dir",
        description: "List a directory, 200 entries at most.",
        risk: Risk::Safe,
        arguments: &[
            ("path", "string", "Relative to the workspace, or absolute; . is the workspace itself"),
            ("depth", "integer", "Levels to go down, from 1 to 10; default 1"),
        ],
        required: 1,
    },
    Offer {
        name: "read_file",
        description: "Read a text file, at most 2000 lines at once, or look at an image (PNG, JPEG, GIF, WebP).",
        risk: Risk::Safe,
        arguments: &[
            PATH,
            ("offset", "integer", "The first line to read, from 1; default 1"),
            ("limit", "integer", "How many lines to read; default 2000"),
        ],
        required: 1,
    },
    Offer {
        name: "grep",
        description: "Search files for lines that match. Each is given as path:number:text. Binary files, links and \
                      .git are left out.",
        risk: Risk::Safe,
        arguments: &[
            ("pattern", "string", "A regular expression without look-around; (?i) in front ignores case"),
            ("path", "string", "A file, or a directory to search with all below it; default: the workspace"),
            ("glob", "string", "Which files: *.rs by name, src/**/*.rs by path"),
            ("max", "integer", "Lines to give, at most 1000; default 100"),
        ],
        required: 1,
    },
    Offer {
        name: "write_file",
        description: "Write a text file: a new one, with the directories it needs, or all of an old one anew.",
        risk: Risk::Writes,
        arguments: &[PATH, ("content", "string", "All that is to be in it")],
        required: 2,
    },
    Offer {
        name: "append_file",
        description: "Add text to the end of a file. Makes the file if need be.",
        risk: Risk::Writes,
        arguments: &[PATH, ("content", "string", "Added as it is; end it with a line feed")],
        required: 2,
    },
    Offer {
        name: "edit_file",
        description: "Replace a part of a text file.",
        risk: Risk::Writes,
        arguments: &[
            PATH,
            ("old_text", "string", "Exactly as it is in the file, and there only once"),
            ("new_text", "string", "What is to stand there instead"),
            ("replace_all", "boolean", "Replace it wherever it is; default false"),
        ],
        required: 3,
    },
];

impl Offer {
    fn spec(&self) -> ToolSpec {
        let (mut properties, mut required) = (String::new(), String::new());
        for (n, (name, kind, about)) in self.arguments.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            // Nothing is counted below zero, and the job's field cannot hold it.
            let least = if *kind == "integer" { ",\"minimum\":0" } else { "" };
            properties += &format!("{comma}\"{name}\":{{\"type\":\"{kind}\",\"description\":\"{about}\"{least}}}");
            if n < self.required {
                required += &format!("{comma}\"{name}\"");
            }
        }
        ToolSpec {
            name: self.name.into(),
            description: self.description.into(),
            schema: format!("{{\"type\":\"object\",\"properties\":{{{properties}}},\"required\":[{required}]}}").into(),
            risk: self.risk,
            source: "built in".into(),
        }
    }
}

/// One of them.
pub struct FileTool {
    spec: ToolSpec,
    hands: Arc<Hands>,
}

impl FileTool {
    /// All of them.
    pub fn all(hands: &Arc<Hands>) -> impl Iterator<Item = Self> + use<> {
        let hands = hands.clone();
        OFFERS.iter().map(move |offer| Self { spec: offer.spec(), hands: hands.clone() })
    }
}

impl Tool for FileTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        let said = |name| args.get(name).and_then(Value::as_str);
        one_line(&[said("pattern").unwrap_or_default(), said("path").unwrap_or(".")].join(" "), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let mut job = Map::new();
        job.insert(self.spec.name.to_string(), args.clone());
        let job: FileJob = arguments(&Value::Object(job))?;
        let Reply { header, body } = self.hands.call(&Job::File(job), turn.cancel)?;
        match header {
            Header::Text => {
                Ok(ToolOutput { text: String::from_utf8_lossy(&body).into_owned(), ..ToolOutput::default() })
            }
            Header::Image { kind } => {
                let (mime, kilobytes) = (kind.mime().to_owned(), body.len().div_ceil(1024));
                let text = format!("[an image, {mime}, {kilobytes} KB: it is shown after the results]");
                let images = vec![Image { mime, base64: STANDARD.encode(&body) }];
                Ok(ToolOutput { text, failed: false, images })
            }
            other => Err(other.into_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_offered_is_a_job() {
        for offer in OFFERS {
            let value = |kind: &str| match kind {
                "string" => json!("text"),
                "integer" => json!(2),
                "boolean" => json!(true),
                kind => panic!("a job has no {kind}"),
            };
            let fields = |count: usize| {
                let fields = offer.arguments[..count].iter();
                json!({ offer.name: fields.map(|(name, kind, _)| ((*name).to_owned(), value(kind))).collect::<Map<_, _>>() })
            };
            let all = offer.arguments.len();
            // What the job makes of it is all that was given: no argument is told to the model and then ignored.
            let job: FileJob = serde_json::from_value(fields(all)).unwrap();
            assert_eq!(serde_json::to_value(job).unwrap(), fields(all));
            assert!(serde_json::from_value::<FileJob>(fields(offer.required)).is_ok(), "{}", offer.name);
            assert!(serde_json::from_value::<FileJob>(fields(offer.required - 1)).is_err(), "{}", offer.name);
            let schema: Value = serde_json::from_str(&offer.spec().schema).unwrap();
            assert_eq!(schema["properties"].as_object().unwrap().len(), all);
        }
        let schema: Value = serde_json::from_str(&OFFERS[0].spec().schema).unwrap();
        assert_eq!(schema["required"], json!(["path"]));
        assert_eq!(schema["properties"]["depth"]["type"], "integer");
    }
}
