//! Models behind other endpoints than chat, as OpenAI has them: `/audio/transcriptions` and `/embeddings`.

use std::io::Cursor;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::ProviderError;
use super::answer::Answer;
use super::dialect::Dialect;
use super::errors::classify;
use super::openai::url;
use crate::cancel::Cancel;
use crate::config::Model;
use crate::config::keys::ApiKey;
use crate::error::{Context, Error, Kind, Result};
use crate::http::{Body, Client, Outgoing, Settings, authority};
use crate::message::Media;
use crate::secret::Secret;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Separates the parts of a form. No file holds it by chance.
const BOUNDARY: &str = "bantam-8d1f6c2e94b7a053";

pub(crate) struct Endpoint {
    /// Where the configuration names the model.
    pub setting: &'static str,
    pub dialect: &'static Dialect,
    pub model: Model,
    pub key: Option<ApiKey>,
    pub client: Client,
}

impl Endpoint {
    pub(crate) fn new(
        setting: &'static str,
        dialect: &'static Dialect,
        model: Model,
        key: Option<ApiKey>,
        settings: Settings,
    ) -> Self {
        Self { setting, dialect, model, key, client: Client::new(settings) }
    }

    /// What is said in a recording.
    pub(crate) fn transcribe(&self, recording: &Media, cancel: &Cancel) -> Result<String> {
        #[derive(Deserialize)]
        struct Transcript {
            text: String,
        }
        let bytes = STANDARD.decode(&recording.base64).map_err(|_| Error::failed("the recording is not base64"))?;
        let mut form = Vec::new();
        for (name, value) in [("model", self.model.id.as_str()), ("response_format", "json")] {
            let part = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
            form.extend_from_slice(part.as_bytes());
        }
        // Hosts go by the ending of the name.
        let ending = recording.mime.rsplit('/').next().unwrap_or_default();
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"recording.{ending}\"\r\n\
             Content-Type: {}\r\n\r\n",
            recording.mime
        );
        form.extend_from_slice(head.as_bytes());
        form.extend_from_slice(&bytes);
        form.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
        let body = Body {
            content_type: format!("multipart/form-data; boundary={BOUNDARY}"),
            len: form.len() as u64,
            reader: Box::new(Cursor::new(form)),
        };
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
        let body = Body::json(&json!({"model": self.model.id, "input": texts}));
        let mut rows = self.post::<Rows>("/embeddings", body, cancel)?.data;
        rows.sort_by_key(|row| row.index);
        if rows.len() != texts.len() {
            let (given, wanted) = (rows.len(), texts.len());
            return Err(Error::failed(format!("{}: {given} vectors for {wanted} texts", self.model.name)));
        }
        Ok(rows.into_iter().map(|row| row.embedding).collect())
    }

    fn post<T: DeserializeOwned>(&self, endpoint: &str, body: Body, cancel: &Cancel) -> Result<T> {
        let answer = self.ask(endpoint, body, cancel).map_err(|e| match e.into_error(&self.model.name) {
            e if e.kind == Kind::Failed => e.hint(format!("check {} in config.json", self.setting)),
            e => e,
        })?;
        serde_json::from_slice(&answer).doing(format_args!("asking {}", self.model.name))
    }

    fn ask(&self, endpoint: &str, body: Body, cancel: &Cancel) -> Result<Vec<u8>, ProviderError> {
        let mut headers = vec![("accept".to_owned(), Secret::new("application/json"))];
        if let Some(key) = &self.key {
            let (name, value) = (self.dialect.auth)(key.get().map_err(ProviderError::Unasked)?.reveal());
            headers.push((name.to_owned(), Secret::new(value)));
        }
        let own = &self.model.entry.headers;
        headers.extend(own.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())));
        let url = url(&self.model, endpoint);
        let request = Outgoing { url: url.clone(), headers, body: Some(body) };
        let exchange = self.client.send(request, cancel).map_err(ProviderError::Unasked)?;
        let mut answer = Answer::new(authority(&url), exchange, PATIENCE, PATIENCE);
        let head = answer.head()?;
        if !(200..300).contains(&head.status) {
            return Err(classify(head.status, Some(&head), &answer.error_body(), SystemTime::now()));
        }
        answer.body()
    }
}
