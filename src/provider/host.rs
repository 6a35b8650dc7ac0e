//! One model at one host: sends requests, and adapts them to the host's refusals.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::host_facts::{self, HostFacts};
use super::outgoing::{self, Outgoing};
use super::refusal::{Change, Refusal, Sent, classify};
use super::reply::{Read, ReplyBuilder};
use super::response::Response;
use super::{Provider, ProviderError, Request, Sink, anthropic, catalog, openai};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::config::keys::ApiKey;
use crate::config::proxy::{self, http_settings};
use crate::config::vendors::Protocol;
use crate::config::{Env, Model, Parts};
use crate::error::Result;
use crate::http::{self, Body, Client, Head, authority};
use crate::json::parse_json;
use crate::message::{MediaKind, Message, Price, Reply};
use crate::paths::Home;
use crate::redact::Redactor;
use crate::secret::Secret;
use crate::ssrf;
use crate::sync;
use crate::tries::Tries;

/// Maximum silence of a host, unless its entry sets another limit.
const SILENCE: Duration = Duration::from_secs(90);
/// Time limit for endpoints other than chat.
const PATIENCE: Duration = Duration::from_secs(300);
/// Maximum number of changes to one request.
const MAX_CHANGES: u32 = 8;

/// Kinds of media, and their names for the user.
const MEDIA: [(MediaKind, &str); 3] = [
    (MediaKind::Image, "images"),
    (MediaKind::Pdf, "PDF files"),
    (MediaKind::Audio, "recordings"),
];

/// A model with one of its keys.
pub(crate) struct Host {
    pub model: Model,
    key: Option<ApiKey>,
    client: Client,
    url: String,
    facts: Mutex<HostFacts>,
    /// Home directory that stores the facts; `None` discards them.
    home: Option<Home>,
    /// Replacement for a default model that its host has retired.
    replacement: OnceLock<Model>,
}

/// Error of a request, and the changes that the host asks for.
struct Failure {
    error: ProviderError,
    changes: Vec<Change>,
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        Self {
            error,
            changes: Vec::new(),
        }
    }
}

impl Host {
    /// `env` provides the proxy unless the model's entry sets one.
    pub(crate) fn new(model: Model, key: Option<ApiKey>, facts: HostFacts, env: &Env) -> Self {
        let settings = http_settings(&model.base, &model.entry.proxy, env);
        Self {
            url: url(&model, chat(model.protocol)),
            model,
            key,
            client: Client::new(settings),
            facts: Mutex::new(facts),
            home: None,
            replacement: OnceLock::new(),
        }
    }

    /// Returns the host of a configured model with one of its keys and its known facts; `None` for the demo.
    pub(crate) fn configured(
        model: &Model,
        key: Option<&Secret>,
        facts: HostFacts,
        parts: Parts,
        redactor: &Redactor,
    ) -> Option<Self> {
        if model.protocol == Protocol::Demo {
            return None;
        }
        let Parts { home, env, .. } = parts;
        let key = key.map(|key| {
            let (env, config) = (Arc::new(env.clone()), home.config());
            ApiKey::new(key.clone(), env, config, redactor.clone())
        });
        let home = Some(home.clone());
        Some(Self {
            home,
            ..Self::new(model.clone(), key, facts, env)
        })
    }

    fn facts(&self) -> MutexGuard<'_, HostFacts> {
        sync::lock(&self.facts)
    }

    fn model(&self) -> &Model {
        self.replacement.get().unwrap_or(&self.model)
    }

    /// Replaces a default model that its host has retired, with a notice to the user. Returns whether it did.
    fn replaces_default(&self, sink: &dyn Sink) -> bool {
        if !self.model.is_default || self.replacement.get().is_some() {
            return false;
        }
        let Ok(model) = catalog::replaced(self, self.home.as_ref()) else {
            return false;
        };
        sink.event(Event::Warning(format!(
            "{} is no longer offered: asking {} from now on",
            self.model.name, model.name
        )));
        *self.facts() = HostFacts::default();
        self.replacement.set(model).is_ok()
    }

    /// Serializes the body of a request.
    fn body(&self, request: &Request, facts: &HostFacts) -> String {
        let model = self.model();
        let out = Outgoing {
            model,
            request,
            facts,
        };
        match model.protocol {
            Protocol::Anthropic => out.text(anthropic::Body::new(&out)),
            _ => out.text(openai::Body::new(&out)),
        }
    }

    /// Gets another page of the server: its list of models, or the page at `path`.
    pub(crate) fn get(&self, path: Option<&str>, cancel: &Cancel) -> Result<Value, ProviderError> {
        let root = self
            .url
            .match_indices('/')
            .nth(2)
            .map_or(&*self.url, |(at, _)| &self.url[..at]);
        let models = || url(&self.model, "/models");
        let url = path.map_or_else(models, |path| format!("{root}{path}"));
        self.fetch(url, None, cancel)
    }

    /// Posts to an endpoint other than chat.
    pub(super) fn post(
        &self,
        endpoint: &str,
        body: Body,
        cancel: &Cancel,
    ) -> Result<Value, ProviderError> {
        self.fetch(url(&self.model, endpoint), Some(body), cancel)
    }

    fn fetch(
        &self,
        url: String,
        body: Option<Body>,
        cancel: &Cancel,
    ) -> Result<Value, ProviderError> {
        let (mut response, head) = self.begin(url, body, (PATIENCE, PATIENCE), cancel)?;
        let body = response.body()?;
        let sent = Sent {
            has_key: self.has_key(),
            ..Sent::default()
        };
        let refused = || classify(&self.read_refusal(&head, &body), &sent).0;
        if head.is_success() {
            parse_json(&body).map_err(|_| refused())
        } else {
            Err(refused())
        }
    }

    /// Parses an error response. This host's keys are redacted before the text is truncated.
    fn read_refusal(&self, head: &Head, body: &[u8]) -> Refusal {
        let redactor = Redactor::new(self.secrets().into_iter().map(Secret::new));
        let body = redactor.redact_known(String::from_utf8_lossy(body).into_owned());
        Refusal::read(head.status, Some(head), &body, SystemTime::now())
    }

    /// Whether requests have a key, or a custom authentication header in its place.
    fn has_key(&self) -> bool {
        let (auth, _) = auth(self.model.protocol, "");
        let is_auth = |name: &String| {
            name.eq_ignore_ascii_case(auth) || name.eq_ignore_ascii_case("authorization")
        };
        self.key.is_some() || self.model.entry.headers.keys().any(is_auth)
    }

    fn is_private(&self) -> bool {
        ssrf::is_private(&proxy::host(&self.url))
    }

    /// Classifies a refusal of a request.
    fn failure(&self, refusal: &Refusal, request: &Request) -> Failure {
        let facts = self.facts().clone();
        let model = self.model();
        let out = Outgoing {
            model,
            request,
            facts: &facts,
        };
        let body = parse_json(self.body(request, &facts)).unwrap_or_default();
        let fields = body.as_object().into_iter().flatten();
        let fields: Vec<String> = fields.map(|(name, _)| name.clone()).collect();
        let sent = Sent {
            fields: &fields,
            tools: &out.tools(),
            max_tokens: out.max_tokens(),
            messages: request.messages.len(),
            has_key: self.has_key(),
            is_private: self.is_private(),
        };
        let (error, changes) = classify(refusal, &sent);
        Failure { error, changes }
    }

    /// Returns the headers of a request; the user's headers override the defaults.
    fn headers(&self) -> Result<Vec<(String, Secret)>> {
        let mut headers = BTreeMap::from([
            ("accept".to_owned(), Secret::new("application/json")),
            ("accept-encoding".to_owned(), Secret::new("identity")),
        ]);
        if self.model.protocol == Protocol::Anthropic {
            let (name, version) = anthropic::VERSION;
            headers.insert(name.to_owned(), Secret::new(version));
        }
        if let Some(key) = &self.key {
            let (name, value) = auth(self.model.protocol, key.get()?.reveal());
            headers.insert(name.to_owned(), Secret::new(value));
        }
        let own = &self.model.entry.headers;
        headers.extend(
            own.iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), value.clone())),
        );
        Ok(headers.into_iter().collect())
    }

    /// Timeouts for the first and for further content. A model on this machine or a private network may read its prompt for
    /// minutes, and a retry would start over, so the turn's time is the limit there, unless the entry sets one.
    fn patience(&self) -> (Duration, Duration) {
        match self.model.entry.request_timeout {
            0 if self.is_private() => (Duration::MAX, SILENCE),
            0 => (SILENCE, SILENCE),
            seconds => (Duration::from_secs(seconds), Duration::from_secs(seconds)),
        }
    }

    /// Sends a request, and waits for the start of the response.
    fn begin(
        &self,
        url: String,
        body: Option<Body>,
        patience: (Duration, Duration),
        cancel: &Cancel,
    ) -> Result<(Response<'_>, Head), ProviderError> {
        let headers = self.headers().map_err(ProviderError::NotSent)?;
        let exchange = self
            .client
            .send(http::Outgoing { url, headers, body }, cancel)
            .map_err(ProviderError::NotSent)?;
        let mut response = Response::new(authority(&self.url), exchange, patience);
        let head = response.head()?;
        Ok((response, head))
    }

    /// Makes one HTTP request.
    fn send(&self, request: &Request, sink: &dyn Sink) -> Result<Reply, Failure> {
        let trusted = self.client.trusts_system();
        let begin = || {
            let body = self.body(request, &self.facts());
            let body = Some(Body::json_text(body));
            self.begin(self.url.clone(), body, self.patience(), request.cancel)
        };
        let (mut response, head) = match begin() {
            // Once more with a change: the certificates of this system.
            Err(_) if !trusted && self.client.trusts_system() => begin()?,
            begun => begun?,
        };
        if !head.is_success() {
            let body = response.error_body();
            return Err(self.failure(&self.read_refusal(&head, &body), request));
        }
        let read: Read = match self.model.protocol {
            Protocol::Anthropic => anthropic::read,
            _ => openai::read,
        };
        let reply = response.reply((ReplyBuilder::new(request.tools), read), &head, sink);
        let reply = reply.map(|mut reply| {
            reply.limit = self.limit(request);
            reply
        });
        reply.map_err(|error| match error {
            ReadError::Provider(error) => error.into(),
            ReadError::Refusal(body) => {
                let failure = self.failure(&self.read_refusal(&head, body.as_bytes()), request);
                // Nothing is repeated after a part of the reply was shown.
                if response.has_shown {
                    failure.error.into()
                } else {
                    failure
                }
            }
        })
    }

    /// Returns the maximum length of the requested reply, in tokens.
    fn limit(&self, request: &Request) -> u64 {
        let out = Outgoing {
            model: self.model(),
            request,
            facts: &self.facts(),
        };
        out.max_tokens()
    }

    /// Applies the first change that was not `tried` and changes the request. Returns whether there was one.
    fn adapt(&self, changes: Vec<Change>, request: &Request, tried: &mut Vec<Change>) -> bool {
        let before = self.facts().clone();
        let sent = self.body(request, &before);
        for change in changes {
            if tried.contains(&change) {
                continue;
            }
            let mut facts = before.clone();
            facts.apply(&change);
            tried.push(change);
            if self.body(request, &facts) != sent {
                *self.facts() = facts;
                return true;
            }
        }
        false
    }

    /// Stores the facts that made the difference, and reports withheld tools to the user.
    fn keep(&self, before: &HostFacts, sink: &dyn Sink) {
        let facts = self.facts().lasting();
        if facts != *before {
            let known = before.words();
            for words in facts
                .words()
                .into_iter()
                .filter(|words| !known.contains(words))
            {
                let line = format!("{} {words} (learned from its refusal)", self.model().name);
                let is_loss = words.ends_with(" tools") || words.starts_with("refuses the tool");
                sink.event(if is_loss {
                    Event::Warning(line)
                } else {
                    Event::Trace(line)
                });
            }
            if let Some(home) = &self.home {
                host_facts::keep(home, self.model(), |stored| stored.clone_from(&facts));
            }
        }
        *self.facts() = facts;
    }

    /// Reports the user's new files that were left out.
    fn tell_left_out(&self, request: &Request, sink: &dyn Sink) {
        let facts = self.facts();
        let left_out = MEDIA
            .iter()
            .find(|(kind, _)| facts.refuses(*kind) && has_new(request, *kind));
        if let Some((_, what)) = left_out {
            let name = &self.model().name;
            sink.event(Event::Warning(format!(
                "{name} takes no {what}: it was asked without them"
            )));
        }
    }
}

/// Reason for a reply that could not be read.
pub(super) enum ReadError {
    Provider(ProviderError),
    /// Body of an error in place of a reply.
    Refusal(String),
}

impl From<ProviderError> for ReadError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

/// Endpoint for chats.
fn chat(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Anthropic => anthropic::CHAT,
        _ => openai::CHAT,
    }
}

/// Address of an endpoint.
fn url(model: &Model, endpoint: &str) -> String {
    match model.protocol {
        Protocol::Anthropic => anthropic::api_url(&model.base, endpoint),
        _ => openai::url(model, endpoint),
    }
}

/// Header with the key.
fn auth(protocol: Protocol, key: &str) -> (&'static str, String) {
    match protocol {
        Protocol::Anthropic => ("x-api-key", key.to_owned()),
        Protocol::Azure => ("api-key", key.to_owned()),
        _ => ("authorization", format!("Bearer {key}")),
    }
}

impl Provider for Host {
    fn model(&self) -> &str {
        &self.model().name
    }

    /// The entry's price takes precedence over the price in the host's list.
    fn price(&self) -> Price {
        match self.model.entry.price {
            price if price == Price::default() => self.facts().price.unwrap_or_default(),
            price => price,
        }
    }

    fn secrets(&self) -> Vec<String> {
        let key = self.key.iter().filter_map(ApiKey::known);
        let secrets = key.chain(self.model.entry.headers.values());
        secrets.map(|secret| secret.reveal().to_owned()).collect()
    }

    fn preview(&self, request: &Request) -> Value {
        parse_json(self.body(request, &self.facts())).unwrap_or_default()
    }

    /// Sends the request again for each change that a refusal asks for. Discards changes that did not help, except limits that
    /// the host states.
    fn chat(&self, request: &Request, sink: &dyn Sink) -> Result<Reply, ProviderError> {
        let (before, mut tried) = (self.facts().clone(), Vec::new());
        let mut tries = Tries::with_changes(MAX_CHANGES);
        // Current credit is no lasting limit of the model.
        let mut is_short_of_credit = false;
        loop {
            let Failure { error, changes } = match self.send(request, sink) {
                Ok(mut reply) => {
                    if is_short_of_credit {
                        self.facts().max_tokens = before.max_tokens;
                    }
                    // The host lets the model call withheld tools, so later requests omit the tools instead.
                    if request.withheld && !reply.calls.is_empty() {
                        self.facts().without.insert("tool_choice".to_owned());
                    }
                    self.keep(&before, sink);
                    self.tell_left_out(request, sink);
                    outgoing::sign(&mut reply, &self.model().name);
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            is_short_of_credit |= matches!(error, ProviderError::Quota(_));
            let window = changes.iter().find_map(|change| match change {
                Change::Window(window) => Some(*window),
                _ => None,
            });
            if self.adapt(changes, request, &mut tried) && tries.change() {
                continue;
            }
            let known = window.or(self.facts().window);
            self.facts().clone_from(&before);
            if matches!(error, ProviderError::TooLong { .. }) && known.is_some() {
                self.facts().window = known;
                self.keep(&before, sink);
            }
            let is_gone = matches!(error, ProviderError::NotFound(_));
            if is_gone && self.replaces_default(sink) && tries.change() {
                continue;
            }
            return Err(error);
        }
    }
}

/// Whether the messages after the model's last reply have media of this kind.
fn has_new(request: &Request, kind: MediaKind) -> bool {
    let new = request
        .messages
        .rsplit(|message| matches!(message, Message::Assistant(_)))
        .next()
        .unwrap_or_default();
    new.iter()
        .flat_map(Message::media)
        // The extracted text of a PDF replaces it.
        .any(|media| media.kind() == kind && media.text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn local_host_gets_the_full_turn_timeout() {
        let patience = |base: &str, seconds: u64| {
            let list = format!(
                r#"{{"model_list":[{{"model":"x/y","api_base":"{base}","request_timeout":{seconds}}}]}}"#
            );
            let config = Config::load(Some(("c", &list)), &Env::new(), Vec::new())
                .unwrap()
                .config;
            let model = config.choose_model(&Env::new()).unwrap().unwrap();
            Host::new(model, None, HostFacts::default(), &Env::new()).patience()
        };
        for base in [
            "http://127.0.0.1:8080/v1",
            "http://[::1]:1",
            "http://pi.local/v1",
            "https://10.0.0.7",
            "http://nas:1",
        ] {
            assert_eq!(patience(base, 0), (Duration::MAX, SILENCE), "{base}");
            assert_eq!(patience(base, 5).0, Duration::from_secs(5), "{base}");
        }
        assert_eq!(
            patience("https://api.example.com/v1", 0),
            (SILENCE, SILENCE)
        );
    }
}
