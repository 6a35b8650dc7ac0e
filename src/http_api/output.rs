//! Output of a turn for the client: one response at the end, or a stream of chunks.

use std::io;

use serde_json::{Value, json};

use super::Answer;
use super::chat::{self, Completion};
use super::response::{EventStream, Refusal, Responder};
use crate::bus::Event;
use crate::error::Kind;

/// The requested format of the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    Stream,
    /// A stream with tool activity and thoughts as `reasoning_content`.
    StreamWithProgress,
}

/// Sends the output of a turn to the client.
pub(super) struct Output<'a> {
    responder: &'a Responder<'a>,
    completion: &'a Completion,
    /// Created at the first event, so that a turn which fails earlier has an HTTP status.
    stream: Option<EventStream<'a>>,
    form: Form,
    /// Whether writing to the client has failed.
    pub(super) is_gone: bool,
    /// Whether the text so far came with tool calls.
    after_progress: bool,
}

impl<'a> Output<'a> {
    pub(super) fn new(
        responder: &'a Responder<'a>,
        completion: &'a Completion,
        form: Form,
    ) -> Self {
        Self {
            responder,
            completion,
            stream: None,
            form,
            is_gone: false,
            after_progress: false,
        }
    }

    pub(super) fn show(&mut self, event: &Event) {
        match event {
            Event::Delta(text) => {
                if std::mem::take(&mut self.after_progress) {
                    self.delta(&json!({"content": "\n\n"}));
                }
                self.delta(&json!({"content": text}));
            }
            Event::Thought(text) if self.form == Form::StreamWithProgress => {
                self.delta(&json!({"reasoning_content": text}));
            }
            Event::Progress(text) => self.after_progress |= !text.trim().is_empty(),
            Event::ToolStarted { summary } if self.form == Form::StreamWithProgress => {
                self.delta(&json!({"reasoning_content": format!("{summary}\n")}));
            }
            _ => {}
        }
    }

    fn delta(&mut self, delta: &Value) {
        let piece = self.completion.piece(delta).to_string();
        self.write(|stream| stream.data(&piece));
    }

    pub(super) fn keep_alive(&mut self) {
        self.write(EventStream::keep_alive);
    }

    /// Writes to the stream, after starting it if necessary.
    fn write(&mut self, write: impl FnOnce(&mut EventStream<'a>) -> io::Result<()>) {
        if self.form == Form::Whole || self.is_gone {
            return;
        }
        let begun = match self.stream.take() {
            Some(stream) => Ok(stream),
            None => self.begin(),
        };
        let written = begun.and_then(|mut stream| {
            write(&mut stream)?;
            Ok(stream)
        });
        match written {
            Ok(stream) => self.stream = Some(stream),
            Err(_) => self.is_gone = true,
        }
    }

    fn begin(&self) -> io::Result<EventStream<'a>> {
        let mut stream = self.responder.events()?;
        let first = json!({"role": "assistant", "content": ""});
        stream.data(&self.completion.piece(&first).to_string())?;
        Ok(stream)
    }

    /// Sends the whole response, or the end of the stream.
    pub(super) fn finish(mut self, answer: &Answer, include_usage: bool) -> Result<(), Refusal> {
        let Answer { response, calls } = answer;
        let failed = response.error.as_ref().filter(|e| {
            // A turn that ended at a limit may still have an answer.
            e.kind != Kind::Limit || response.output.is_empty() || response.partial
        });
        if self.is_gone {
            return Ok(());
        }
        if let (Some(e), None) = (failed, &self.stream) {
            return Err(Refusal {
                has_acted: response.steps > 0,
                ..chat::refusal(e)
            });
        }
        if self.form == Form::Whole {
            let body = self.completion.whole(response, calls);
            return Ok(self.responder.json(200, &body, &[])?);
        }
        if let Some(e) = failed {
            let error = chat::refusal(e).body().to_string();
            self.write(|stream| stream.data(&error));
        } else {
            for piece in self.completion.call_pieces(calls) {
                let piece = piece.to_string();
                self.write(|stream| stream.data(&piece));
            }
            let last = self.completion.last_piece(response, calls).to_string();
            self.write(|stream| stream.data(&last));
            if include_usage {
                let usage = self.completion.usage_piece(response).to_string();
                self.write(|stream| stream.data(&usage));
            }
        }
        self.write(|stream| stream.data("[DONE]"));
        Ok(self.stream.take().map_or(Ok(()), EventStream::end)?)
    }
}
