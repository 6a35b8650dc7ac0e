//! Other endpoints than chat, as OpenAI has them: `/audio/transcriptions` and `/embeddings`.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::host::Host;
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::http::Body;
use crate::message::Media;

/// A model that does something else than chat.
pub(crate) struct Endpoint {
    /// Where the configuration names it.
    pub setting: &'static str,
    pub host: Host,
}

impl Endpoint {
    /// What is said in a recording.
    pub(crate) fn transcribe(&self, recording: &Media, cancel: &Cancel) -> Result<String> {
        #[derive(Deserialize)]
        struct Transcript {
            text: String,
        }
        let bytes = STANDARD
            .decode(&recording.base64)
            .map_err(|_| Error::failed("the recording is not base64"))?;
        // Hosts go by the ending of the name.
        let name = format!(
            "recording.{}",
            recording.mime.rsplit('/').next().unwrap_or_default()
        );
        let (params, len) = (
            json!({"model": self.host.model.id, "response_format": "json"}),
            bytes.len() as u64,
        );
        let body = Body::form(&params, ("file", &name), Cursor::new(bytes), len);
        let transcript: Transcript = self.post("/audio/transcriptions", body, cancel)?;
        Ok(transcript.text.trim().to_owned())
    }

    /// A vector for each text.
    pub(crate) fn embed(&self, texts: &[&str], cancel: &Cancel) -> Result<Vec<Vec<f32>>> {
        #[derive(Deserialize)]
        struct Row {
            index: usize,
            embedding: Vec<f32>,
        }
        #[derive(Deserialize)]
        struct Rows {
            data: Vec<Row>,
        }
        let body = Body::json(&json!({"model": self.host.model.id, "input": texts}));
        let mut rows = self.post::<Rows>("/embeddings", body, cancel)?.data;
        rows.sort_by_key(|row| row.index);
        if rows.len() != texts.len() {
            let (given, wanted) = (rows.len(), texts.len());
            return Err(Error::failed(format!(
                "{}: {given} vectors for {wanted} texts",
                self.host.model.name
            )));
        }
        Ok(rows.into_iter().map(|row| row.embedding).collect())
    }

    fn post<T: DeserializeOwned>(&self, endpoint: &str, body: Body, cancel: &Cancel) -> Result<T> {
        let model = &self.host.model.name;
        let answer =
            self.host
                .post(endpoint, body, cancel)
                .map_err(|e| match e.into_error(model) {
                    e if e.kind == Kind::Failed => {
                        e.hint(format!("check {} in config.json", self.setting))
                    }
                    e => e,
                })?;
        T::deserialize(answer).doing(format_args!("asking {model}"))
    }
}
