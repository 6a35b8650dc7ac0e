//! OpenAI endpoints other than chat: `/audio/transcriptions` and `/embeddings`.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::host::Host;
use super::values::{count, list, string, update_usage};
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::http::Body;
use crate::message::{Media, Usage};
use crate::usage::{Budget, Spend};

/// Bytes of audio per token. A second of speech has about 2,000 bytes, and hosts that count tokens count about 20.
const BYTES_OF_A_TOKEN: u64 = 100;

/// A model for an endpoint other than chat.
pub(crate) struct ModelEndpoint {
    /// Configuration setting that names the model.
    pub setting: &'static str,
    pub host: Host,
}

impl ModelEndpoint {
    /// Transcribes a recording. One without a word is an error.
    pub(crate) fn transcribe(
        &self,
        recording: &Media,
        cancel: &Cancel,
        budget: &Budget,
    ) -> Result<String> {
        let bytes = STANDARD
            .decode(&recording.base64)
            .map_err(|_| Error::failed("the audio is not base64"))?;
        // Hosts detect the format by the file extension.
        let (_, kind) = recording.mime.split_once('/').unwrap_or_default();
        let name = format!("recording.{kind}");
        let params = json!({"model": self.host.model.id, "response_format": "json"});
        let len = bytes.len() as u64;
        let body = Body::form(&params, ("file", &name), Cursor::new(bytes), len);
        let expected = len / BYTES_OF_A_TOKEN;
        let transcript = self.post("/audio/transcriptions", body, cancel, budget, expected)?;
        let text = string(&transcript["text"]).trim();
        if text.is_empty() {
            return Err(Error::failed("nothing was understood"));
        }
        Ok(text.to_owned())
    }

    /// Returns one vector per text.
    pub(crate) fn embed(
        &self,
        texts: &[&str],
        cancel: &Cancel,
        budget: &Budget,
    ) -> Result<Vec<Vec<f32>>> {
        let body = Body::json(&json!({"model": self.host.model.id, "input": texts}));
        let expected = texts.iter().map(|text| text.len() as u64).sum::<u64>() / 4;
        let answer = self.post("/embeddings", body, cancel, budget, expected)?;
        let row = |row: &Value| {
            let vector = Vec::deserialize(&row["embedding"]).ok()?;
            Some((count(&row["index"])?, vector))
        };
        let mut rows: Vec<(u64, Vec<f32>)> = list(&answer["data"]).iter().filter_map(row).collect();
        rows.sort_by_key(|(index, _)| *index);
        if rows.len() != texts.len() {
            let (name, given, wanted) = (&self.host.model.name, rows.len(), texts.len());
            let text = format!("{name}: {given} vectors for {wanted} strings");
            return Err(Error::failed(text));
        }
        Ok(rows.into_iter().map(|(_, vector)| vector).collect())
    }

    /// Sends a request if the budget allows `expected` tokens.
    fn post(
        &self,
        endpoint: &str,
        body: Body,
        cancel: &Cancel,
        budget: &Budget,
        expected: u64,
    ) -> Result<Value> {
        let model = &self.host.model;
        budget.begin(Spend::Other, || expected)?;
        let answer = self.host.fetch(endpoint, Some(body), cancel);
        let answer = answer.map_err(|e| match e.into_error(&model.name) {
            e if e.kind == Kind::Failed => e.hint(format!("check {} in config.json", self.setting)),
            e => e,
        })?;
        let mut usage = Usage::default();
        update_usage(&mut usage, &answer["usage"]);
        let estimated = usage == Usage::default();
        if estimated {
            usage.prompt_tokens = expected;
        }
        budget.record(&model.name, usage, estimated, model.entry.price.of(usage));
        Ok(answer)
    }
}
