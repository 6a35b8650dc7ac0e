//! `--schema`: requires an answer in JSON that fits a schema, which is a file or JSON text.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::args::Args;
use super::input;
use crate::bus::{Response, TurnStop};
use crate::error::{Context, Error, Result};
use crate::json::{explain, parse_json};
use crate::paths::shown_key;
use crate::text::{foreign_line, to_single_line};
use crate::tool::schema::Schema;

/// Maximum size of a schema, in bytes; each request contains it twice.
const MAX_SCHEMA: usize = 64 << 10;

/// Maximum length of an error, which quotes the answer or the schema, in characters.
const MAX_ERROR: usize = 500;

/// Required format of an answer.
pub(super) struct AnswerSchema(Schema);

impl AnswerSchema {
    /// Reads the schema of `--schema`, if given: JSON text, a file or a pipe.
    ///
    /// # Errors
    /// Returns [`crate::error::Kind::Usage`] if it is missing, too large, not a JSON object, or has an unsupported keyword.
    pub(super) fn read_from(args: &Args) -> Result<Option<Self>> {
        let Some(given) = args.value("schema") else {
            return Ok(None);
        };
        let (name, content) = if given.trim_start().starts_with('{') {
            ("--schema".to_owned(), given.as_bytes().to_vec())
        } else {
            let shown = to_single_line(given, 200);
            let file = input::open(Path::new(given), &shown).doing("--schema")?;
            let content = input::read(file, MAX_SCHEMA)?;
            (format!("--schema {shown}"), content)
        };
        let wrong = |what: String| {
            Error::usage(format!("{name}: {}", foreign_line(&what, MAX_ERROR)))
                .hint("write a JSON Schema, such as `{\"required\": [\"title\"]}`")
        };
        if content.len() > MAX_SCHEMA {
            return Err(wrong("larger than 64 KB".to_owned()));
        }
        let text = String::from_utf8(content).map_err(|_| wrong("not UTF-8".to_owned()))?;
        let text = text.trim_start_matches('\u{feff}');
        let schema: Value = parse_json(text).map_err(|e| wrong(explain(&e)))?;
        Schema::of_answer(schema).map(Self).map(Some).map_err(wrong)
    }

    /// Returns the end of the system prompt.
    pub(super) fn instruction(&self) -> String {
        format!(
            "Your final answer is JSON alone, without a fence or any other text, that fits this JSON Schema:\n{}",
            self.0.value()
        )
    }

    /// Returns the fields that request this format in OpenAI's API. A host that refuses them is asked without them.
    pub(super) fn fields(&self) -> Map<String, Value> {
        let format = json!({
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": self.0.value()},
        });
        Map::from_iter([("response_format".to_owned(), format)])
    }

    /// Converts the output of a response to JSON on one line. If it does not fit the schema, `ask_again` gets a message with
    /// the error, unless the answer was cut.
    pub(super) fn enforce(
        &self,
        mut response: Response,
        ask_again: impl FnOnce(String) -> Response,
    ) -> Response {
        if response.error.is_some() {
            return response;
        }
        let mut read = self.read_answer(&response.output);
        if let Err(why) = &read {
            if response.stop != TurnStop::Length {
                let answer = ask_again(format!(
                    "The answer does not fit the schema: {why}. Answer again, with the JSON alone."
                ));
                response.output.clear();
                response.join(answer);
                if response.error.is_some() {
                    return response;
                }
                read = self.read_answer(&response.output);
            }
        }
        match read {
            Ok(json) => response.output = json,
            Err(why) => {
                response.output.clear();
                let error = Error::failed(format!("the answer does not fit the schema: {why}"));
                response.error = Some(
                    match shell_words::quote(&shown_key(&response.session)).as_ref() {
                        "''" => error,
                        key => error.hint(format!("run `bantam sessions show {key}` to read it")),
                    },
                );
                response.stop = TurnStop::Error;
            }
        }
        response
    }

    /// Converts an answer to JSON on one line, or returns its error.
    fn read_answer(&self, answer: &str) -> Result<String, String> {
        let json = without_fence(answer);
        let value: Value = parse_json(json).map_err(|e| format!("not JSON ({e})"))?;
        let cut = |why: String| foreign_line(&why, MAX_ERROR);
        self.0.check(&value).map_err(cut)?;
        Ok(value.to_string())
    }
}

/// Returns the content of a text that is one Markdown fence, or else the text.
fn without_fence(text: &str) -> &str {
    let text = text.trim();
    let inner = text
        .strip_prefix("```")
        .and_then(|text| text.strip_suffix("```"));
    let inner = inner.and_then(|inner| inner.split_once('\n'));
    inner.map_or(text, |(_, content)| content)
}
