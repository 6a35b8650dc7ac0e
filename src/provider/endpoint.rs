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
use crate::usage::{Account, Ledger};

/// A second of speech has some 2,000 bytes, and hosts that count tokens count about 20.
const BYTES_OF_A_TOKEN: u64 = 100;

/// A model that does something else than chat.
pub(crate) struct Endpoint {
    /// Where the configuration names it.
    pub setting: &'static str,
    pub host: Host,
    pub ledger: Ledger,
}

impl Endpoint {
    /// What is said in a recording.
    pub(crate) fn transcribe(
        &self,
        recording: &Media,
        cancel: &Cancel,
        account: &Account,
    ) -> Result<String> {
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
        let expected = len / BYTES_OF_A_TOKEN;
        let transcript: Transcript =
            self.post("/audio/transcriptions", body, cancel, account, expected)?;
        Ok(transcript.text.trim().to_owned())
    }

    /// A vector for each text.
    pub(crate) fn embed(
        &self,
        texts: &[&str],
        cancel: &Cancel,
        account: &Account,
    ) -> Result<Vec<Vec<f32>>> {
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
        let expected = texts.iter().map(|text| text.len() as u64).sum::<u64>() / 4;
        let rows: Rows = self.post("/embeddings", body, cancel, account, expected)?;
        let mut rows = rows.data;
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

    /// Asks the host, if the account may pay for about so many tokens.
    fn post<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        body: Body,
        cancel: &Cancel,
        account: &Account,
        expected: u64,
    ) -> Result<T> {
        let model = &self.host.model;
        let ask = || {
            let answer = self.host.post(endpoint, body, cancel);
            answer.map_err(|e| match e.into_error(&model.name) {
                e if e.kind == Kind::Failed => {
                    e.hint(format!("check {} in config.json", self.setting))
                }
                e => e,
            })
        };
        let priced = (model.name.as_str(), model.entry.price);
        let answer = self.ledger.pay(account, priced, expected, ask)?;
        T::deserialize(answer).doing(format_args!("asking {}", model.name))
    }
}
