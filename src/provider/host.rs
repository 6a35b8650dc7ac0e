//! One model at one host: sends requests in the host's dialect and learns what it refuses.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::answer::{Answer, Shown};
use super::dialect::{self, Dialect};
use super::errors::{classify, window_in};
use super::quirks::{Learned, Quirk};
use super::{Provider, ProviderError, Request};
use crate::cancel::Cancel;
use crate::config::Model;
use crate::config::keys::ApiKey;
use crate::config::proxy;
use crate::error::Result;
use crate::guard;
use crate::http::{Body, Client, Head, Outgoing, Settings, authority};
use crate::message::{Media, MediaKind, Message, Price, Reply};
use crate::secret::Secret;

/// How long a host may be silent unless its entry says otherwise.
const SILENCE: Duration = Duration::from_secs(90);

/// A model, with one of its keys.
pub(crate) struct Host {
    dialect: &'static Dialect,
    model: Model,
    key: Option<ApiKey>,
    client: Client,
    url: String,
    quirks: Mutex<Learned>,
}

impl Host {
    pub(crate) fn new(
        dialect: &'static Dialect,
        model: Model,
        key: Option<ApiKey>,
        settings: Settings,
        learned: Learned,
    ) -> Self {
        let url = (dialect.url)(&model);
        Self { dialect, model, key, client: Client::new(settings), url, quirks: Mutex::new(learned) }
    }

    fn quirks(&self) -> MutexGuard<'_, Learned> {
        self.quirks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn body(&self, request: &Request) -> Value {
        let messages = self.without_refused(request.messages);
        let mut body = (self.dialect.body)(&self.model, &Request { messages: &messages, ..*request });
        for (name, value) in &self.model.entry.extra_body {
            body[name] = value.clone();
        }
        self.quirks().apply(&mut body);
        body
    }

    /// Asks for a page beside the API: its list of models, or what stands at `path` of the same server.
    pub(crate) fn get(&self, path: Option<&str>, cancel: &Cancel) -> Result<Value, ProviderError> {
        let (address, query) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let api = address.trim_end_matches("/chat/completions").trim_end_matches("/messages");
        let root = address.find("://").and_then(|at| address[at + 3..].find('/').map(|end| &address[..at + 3 + end]));
        let url =
            path.map_or_else(|| format!("{api}/models?{query}"), |path| format!("{}{path}", root.unwrap_or(address)));
        let url = url.trim_end_matches('?').to_owned();
        let headers = self.headers(false).map_err(ProviderError::Unasked)?;
        let exchange =
            self.client.send(Outgoing { url, headers, body: None }, cancel).map_err(ProviderError::Unasked)?;
        let mut answer = Answer::new(authority(&self.url), exchange, SILENCE, SILENCE);
        let head = answer.head()?;
        let body = answer.body()?;
        let refused = || classify(head.status, Some(&head), &body, SystemTime::now());
        if !(200..300).contains(&head.status) {
            return Err(refused());
        }
        serde_json::from_slice(&body).map_err(|_| refused())
    }

    /// The conversation with text in place of what the host was found to take no files of.
    fn without_refused<'a>(&self, messages: &'a [Message]) -> Cow<'a, [Message]> {
        let quirks = self.quirks();
        let refused = |media: &Media| match media.kind() {
            MediaKind::Pdf => quirks.knows(&Quirk::NoFiles),
            MediaKind::Audio => quirks.knows(&Quirk::NoAudio),
            MediaKind::Image => false,
        };
        if !messages.iter().flat_map(Message::media).any(refused) {
            return messages.into();
        }
        let mut messages = messages.to_vec();
        for message in &mut messages {
            message.replace_media(refused, "left out: this model does not take it");
        }
        messages.into()
    }

    /// The user's headers win over ours.
    fn headers(&self, stream: bool) -> Result<Vec<(String, Secret)>> {
        let accept = if stream { "text/event-stream" } else { "application/json" };
        let mut headers = BTreeMap::from([("accept".to_owned(), Secret::new(accept))]);
        for (name, value) in self.dialect.headers {
            headers.insert((*name).to_owned(), Secret::new(*value));
        }
        if let Some(key) = &self.key {
            let (name, value) = (self.dialect.auth)(key.get()?.reveal());
            headers.insert(name.to_owned(), Secret::new(value));
        }
        let own = &self.model.entry.headers;
        headers.extend(own.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())));
        Ok(headers.into_iter().collect())
    }

    /// How long the first content may take, and the next. A model on this machine or a private network may read its prompt
    /// for minutes, and asking again would make it start over; so there the turn's time is the limit, unless one is set.
    fn patience(&self) -> (Duration, Duration) {
        match self.model.entry.request_timeout {
            0 if guard::is_private(&proxy::host(&self.url)) => (Duration::MAX, SILENCE),
            0 => (SILENCE, SILENCE),
            seconds => (Duration::from_secs(seconds), Duration::from_secs(seconds)),
        }
    }

    /// Sends a request, and waits until the answer begins.
    fn begin(&self, request: &Request, body: &Value) -> Result<(Answer<'_>, Head), ProviderError> {
        let headers = self.headers(request.stream).map_err(ProviderError::Unasked)?;
        let outgoing = Outgoing { url: self.url.clone(), headers, body: Some(Body::json(body)) };
        let exchange = self.client.send(outgoing, request.cancel).map_err(ProviderError::Unasked)?;
        let (patience, silence) = self.patience();
        let mut answer = Answer::new(authority(&self.url), exchange, patience, silence);
        let head = answer.head()?;
        Ok((answer, head))
    }

    /// Makes one HTTP request.
    fn send(&self, request: &Request, body: &Value, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
        let trusted = self.client.trusts_system();
        let (mut answer, head) = match self.begin(request, body) {
            // Once more with the certificates of this system.
            Err(_) if !trusted && self.client.trusts_system() => self.begin(request, body)?,
            begun => begun?,
        };
        if (200..300).contains(&head.status) {
            let mut shown = Shown { on_delta, on_thought: request.on_thought, thought: 0 };
            answer.reply((self.dialect.reply)(), &head, &mut shown)
        } else {
            Err(classify(head.status, Some(&head), &answer.error_body(), SystemTime::now()))
        }
    }
}

impl Provider for Host {
    fn model(&self) -> &str {
        &self.model.name
    }

    fn price(&self) -> Price {
        self.model.entry.price
    }

    fn preview(&self, request: &Request) -> Value {
        self.body(request)
    }

    fn left_out(&self, request: &Request) -> Option<String> {
        let (name, quirks) = (&self.model.name, self.quirks());
        for (quirk, kind, what) in [
            (Quirk::NoImages, MediaKind::Image, "images"),
            (Quirk::NoFiles, MediaKind::Pdf, "PDF files"),
            (Quirk::NoAudio, MediaKind::Audio, "recordings"),
        ] {
            if quirks.knows(&quirk) && has_new(request, kind) {
                return Some(format!("{name} takes no {what}: it was asked without them"));
            }
        }
        let is_first = matches!(request.messages.last(), Some(Message::User(_)));
        let tools = quirks.knows(&Quirk::NoTools) && is_first && !request.tools.is_empty();
        tools.then(|| format!("{name} takes no tools: it was asked without them"))
    }

    /// Asks once more for each quirk that a refusal teaches. What does not help is forgotten.
    fn chat(&self, request: &Request, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
        let (before, mut tried) = (self.quirks().known().to_vec(), Vec::new());
        // Each new image tests whether the model still takes none.
        if has_new(request, MediaKind::Image) {
            self.quirks().forget(&Quirk::NoImages);
        }
        loop {
            let (body, mut begun) = (self.body(request), false);
            let mut result = self.send(request, &body, &mut |text| {
                begun = true;
                on_delta(text);
            });
            match &mut result {
                Err(ProviderError::Rejected(refusal) | ProviderError::BadRequest(refusal)) => {
                    if !begun && self.quirks().learn(refusal, &body, &mut tried) {
                        continue;
                    }
                    self.quirks().restore(before);
                    return result;
                }
                Err(ProviderError::ContextTooLong(refusal)) => {
                    if let Some(window) = window_in(refusal) {
                        self.quirks().add(Quirk::Window(window));
                    }
                }
                Ok(reply) => dialect::sign(reply, &self.model.name),
                Err(_) => {}
            }
            let quirks = self.quirks();
            if quirks.known() != before {
                quirks.save();
            }
            return result;
        }
    }
}

/// Whether there are media of this kind in what came after the model's last reply.
fn has_new(request: &Request, kind: MediaKind) -> bool {
    let new = request.messages.rsplit(|message| matches!(message, Message::Assistant(_))).next().unwrap_or_default();
    new.iter().flat_map(Message::media).any(|media| media.kind() == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Env};
    use crate::provider::openai::OPENAI;

    #[test]
    fn a_host_on_this_machine_or_network_may_take_the_turns_time_before_its_first_word() {
        let patience = |base: &str, seconds: u64| {
            let list =
                format!(r#"{{"model_list":[{{"model":"x/y","api_base":"{base}","request_timeout":{seconds}}}]}}"#);
            let config = Config::load(Some(("c", &list)), &Env::new(), Vec::new()).unwrap().config;
            let model = config.choose_model(&Env::new()).unwrap().unwrap();
            Host::new(&OPENAI, model, None, Settings::default(), Learned::default()).patience()
        };
        for base in
            ["http://127.0.0.1:8080/v1", "http://[::1]:1", "http://pi.local/v1", "https://10.0.0.7", "http://nas:1"]
        {
            assert_eq!(patience(base, 0), (Duration::MAX, SILENCE), "{base}");
            assert_eq!(patience(base, 5).0, Duration::from_secs(5), "{base}");
        }
        assert_eq!(patience("https://api.example.com/v1", 0), (SILENCE, SILENCE));
    }
}
