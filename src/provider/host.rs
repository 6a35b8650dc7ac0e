//! One model at one host: sends requests, and adapts them to the host's refusals.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use serde_json::Value;

use super::body::{self, BodyWriter, Draft};
use super::facts::{self, HostFacts};
use super::refusal::{Change, HostRefusal, Sent, classify};
use super::reply::{self, Read, ReadError, ReplyBuilder};
use super::response::HostResponse;
use super::{Provider, ProviderError, Request, Sink, anthropic, catalog, openai, responses};
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::config::keys::ApiKey;
use crate::config::proxy::{self, http_settings};
use crate::config::vendors::Protocol;
use crate::config::{Env, Model, check_base, environment};
use crate::error::{Context, Result};
use crate::http::{self, Body, Client, Head, authority};
use crate::json::parse_json;
use crate::message::{Message, Price, Reply};
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
/// Length of a reply that is worth a request, in tokens, or a quarter of a smaller window.
const ENOUGH_REPLY: u64 = 2048;
/// Version of Azure's API.
const AZURE_VERSION: &str = "2024-10-21";
/// Maximum number of changes to one request.
const MAX_CHANGES: u32 = 8;

/// A model at an address with one of its keys, configured or made by [`super::OpenAi`] or [`super::Anthropic`].
pub struct Host {
    pub(crate) model: Model,
    /// An error if the values of a program cannot be used.
    key: Result<Option<ApiKey>>,
    client: Client,
    url: String,
    facts: Mutex<HostFacts>,
    /// Home directory that stores the facts; `None` discards them.
    home: Option<Home>,
    /// Default model that the host lists, if the user named none.
    found: OnceLock<Model>,
    /// Replacement for a default model that its host has retired.
    replacement: OnceLock<Model>,
}

/// An API for chats.
pub(super) struct HostApi {
    /// Endpoint, relative to the base.
    pub chat: &'static str,
    /// Whether it has a format for recordings.
    pub has_audio: bool,
    pub write: for<'a> fn(&Draft<'a>) -> BodyWriter<'a>,
    pub read: Read,
}

/// Error of a request, and the change that the host asks for.
type HostFailure = (ProviderError, Option<Change>);

impl Host {
    /// `env` provides the proxy unless the model's entry sets one.
    pub(crate) fn new(model: Model, key: Option<ApiKey>, env: &Env) -> Self {
        let settings = http_settings(&model.base, &model.entry.proxy, env);
        Self {
            url: url(&model, ""),
            model,
            key: Ok(key),
            client: Client::new(settings),
            facts: Mutex::default(),
            home: None,
            found: OnceLock::new(),
            replacement: OnceLock::new(),
        }
    }

    /// Makes a model with the plain text of its key, or without one. Unusable values fail at the first request.
    pub(super) fn in_code(model: Model, key: &str) -> Self {
        let key = match key.trim() {
            "" => Ok(None),
            key => ApiKey::from_text(key).map(Some),
        };
        let key = check_base("the address", &model.base).and(key);
        Self {
            key,
            ..Self::new(model, None, &environment())
        }
    }

    /// Starts with known facts, and stores what it learns in a home.
    pub(crate) fn in_home(self, home: &Home, facts: HostFacts) -> Self {
        Self {
            home: Some(home.clone()),
            facts: Mutex::new(facts),
            ..self
        }
    }

    fn facts(&self) -> MutexGuard<'_, HostFacts> {
        sync::lock(&self.facts)
    }

    fn model(&self) -> &Model {
        let chosen = self.replacement.get().or(self.found.get());
        chosen.unwrap_or(&self.model)
    }

    /// Finds and stores the default of the host, except for the present one, which the host has retired.
    fn find_default<'a>(
        &self,
        found: &'a OnceLock<Model>,
        cancel: &Cancel,
    ) -> Result<&'a Model, ProviderError> {
        let model = catalog::find_default(self, &self.model().id, cancel)?;
        if let Some(home) = &self.home {
            facts::keep_default(home, &model.base, &model.id);
        }
        *self.facts() = HostFacts::default();
        Ok(found.get_or_init(|| model))
    }

    /// Asks for another page of the server: an endpoint of the API, or one at the root of the server, which begins with `/api/`.
    pub(crate) fn fetch(
        &self,
        path: &str,
        body: Option<Body>,
        cancel: &Cancel,
    ) -> Result<Value, ProviderError> {
        let url = if path.starts_with("/api/") {
            format!("{}{path}", self.url.trim_end_matches("/v1"))
        } else {
            url(&self.model, path)
        };
        let (mut response, head) = self.begin(url, body, (PATIENCE, PATIENCE), cancel)?;
        let body = response.body()?;
        let sent = Sent {
            has_key: self.has_key(),
            ..Sent::default()
        };
        match parse_json(&body) {
            Ok(answer) if head.is_success() => Ok(answer),
            _ => Err(classify(&self.read_refusal(&head, &body), &sent).0),
        }
    }

    /// Parses an error response. This host's keys are redacted before the text is truncated.
    fn read_refusal(&self, head: &Head, body: &[u8]) -> HostRefusal {
        let redactor: Redactor = self.secrets().into_iter().map(Secret::new).collect();
        let body = redactor.redact_known(String::from_utf8_lossy(body).into_owned());
        HostRefusal::read(head.status, Some(head), &body)
    }

    /// Whether requests have a key, or custom headers, of which one may be in its place.
    fn has_key(&self) -> bool {
        !self.model.entry.headers.is_empty() || matches!(self.key, Ok(Some(_)))
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
        if let Some(key) = self.key.as_ref().map_err(Clone::clone)? {
            let (name, value) = auth(self.model.protocol, key.get().doing("no API key")?.reveal());
            headers.insert(name.to_owned(), Secret::new(value));
        }
        for (name, value) in &self.model.entry.headers {
            headers.insert(name.to_ascii_lowercase(), value.clone());
        }
        Ok(headers.into_iter().collect())
    }

    /// Timeouts for the first and for further content. A model on this machine or a private network may read its prompt for
    /// minutes, and a retry would start over, so the turn's time is the limit there, unless the entry sets one.
    fn patience(&self) -> (Duration, Duration) {
        match self.model.entry.request_timeout {
            0 if ssrf::is_private(&proxy::host(&self.url)) => (Duration::MAX, SILENCE),
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
    ) -> Result<(HostResponse<'_>, Head), ProviderError> {
        let headers = self.headers().map_err(ProviderError::NotSent)?;
        let request = http::Outgoing { url, headers, body };
        let exchange = self.client.send(request, cancel);
        let exchange = exchange.map_err(ProviderError::NotSent)?;
        let mut response = HostResponse::new(authority(&self.url), exchange, patience);
        let head = response.head()?;
        Ok((response, head))
    }

    /// Makes one HTTP request.
    fn send(&self, draft: &Draft, sink: &dyn Sink) -> Result<Reply, HostFailure> {
        let trusted = self.client.trusts_system();
        let (api, request) = (draft.api(), draft.request);
        let begin = || {
            let body = (api.write)(draft);
            let text = Some(Body::json_text(body.text));
            let url = url(&self.model, api.chat);
            let begun = self.begin(url, text, self.patience(), request.cancel);
            begun.map(|(response, head)| (response, head, body.names))
        };
        let begun = match begin() {
            // Once more with a change: the certificates of this system.
            Err(_) if !trusted && self.client.trusts_system() => begin(),
            begun => begun,
        };
        let (mut response, head, fields) = begun.map_err(|error| (error, None))?;
        let mut reply = ReplyBuilder::new(request.tools, sink);
        let refusal = if head.is_success() {
            match response.reply(&head, api.read, &mut reply) {
                Ok(mut reply) => {
                    reply.limit = draft.max_tokens();
                    return Ok(reply);
                }
                Err(ReadError::Provider(error)) => return Err((error, None)),
                Err(ReadError::Refusal(body)) => body.into_bytes(),
            }
        } else {
            response.error_body()
        };
        let refusal = self.read_refusal(&head, &refusal);
        let tools = draft.tools().into_iter();
        let sent = Sent {
            fields,
            parts: draft.parts.take(),
            tools: tools.map(|tool| tool.name.to_string()).collect(),
            max_tokens: draft.max_tokens(),
            messages: request.messages.len(),
            has_key: self.has_key(),
        };
        let (error, change) = classify(&refusal, &sent);
        // Nothing is repeated after a part of the reply was shown.
        if reply.has_shown {
            return Err((error, None));
        }
        let Some(reply) = reply::read_sample(&refusal.sample, request.tools) else {
            return Err((error, change));
        };
        if !reply.text.is_empty() {
            sink.event(Event::Delta(reply.text.clone()));
        }
        Ok(reply)
    }

    /// Returns the facts with a change; `None` if the request would not differ by it enough to be sent again.
    fn adapt(&self, draft: &Draft, change: &Change) -> Option<HostFacts> {
        let mut changed = draft.facts.clone();
        changed.apply(change);
        let left = Draft::new(self.model(), draft.request, &changed).max_tokens();
        let is_shorter = left < draft.max_tokens();
        let differs = match change {
            Change::MaxTokens(_) | Change::Credit(_) => is_shorter,
            // A window that becomes known shortens the reply. If little of it is left, the conversation is too long.
            Change::Window(window, _) => is_shorter && left >= ENOUGH_REPLY.min(window / 4),
            _ => changed != *draft.facts,
        };
        differs.then_some(changed)
    }

    /// Stores changes that made the difference, and reports withheld tools to the user.
    fn learn(&self, changes: &[Change], sink: &dyn Sink) {
        let lasting = changes.iter().filter_map(Change::lasting);
        let apply = |facts: &mut HostFacts| lasting.clone().for_each(|change| facts.apply(&change));
        let [before, after] = {
            let mut facts = self.facts();
            let before = facts.words();
            apply(&mut facts);
            [before, facts.words()]
        };
        if after == before {
            return;
        }
        for words in after.iter().filter(|words| !before.contains(words)) {
            let line = format!("{} {words} (learned from its refusal)", self.model().name);
            let is_loss = words.ends_with(" tools") || words.contains("the tool ");
            sink.event(if is_loss {
                Event::Warning(line)
            } else {
                Event::Trace(line)
            });
        }
        if let Some(home) = &self.home {
            facts::keep(home, self.model(), apply);
        }
    }

    /// Reports the user's new files that were left out.
    fn tell_left_out(&self, draft: &Draft, sink: &dyn Sink) {
        let is_reply = |message: &Message| matches!(message, Message::Assistant(_));
        let new = draft.request.messages.rsplit(is_reply).next();
        let new = new.into_iter().flatten().flat_map(Message::media);
        // The extracted text of a PDF replaces it.
        let mut left_out = new.filter(|media| !draft.takes(media.kind()) && media.text.is_empty());
        if let Some(media) = left_out.next() {
            let name = &self.model().name;
            let lack = facts::lack(facts::part_of(media.kind()));
            sink.event(Event::Warning(format!("{name} {lack}; sent without")));
        }
    }
}

/// Address of an endpoint for a base with or without a version and the endpoint for chats. A query in the base is preserved.
fn url(model: &Model, endpoint: &str) -> String {
    let base = model.base.trim();
    let (base, query) = base.split_once('?').unwrap_or((base, ""));
    let chats = [anthropic::API, openai::API, responses::API].map(|api| api.chat);
    let mut base = chats.iter().fold(base.trim_end_matches('/'), |base, chat| {
        base.trim_end_matches(chat)
    });
    let is_versioned = base.ends_with("/v1");
    let (mut path, mut version) = (String::new(), String::new());
    match model.protocol {
        Protocol::Anthropic => (base, path) = (base.trim_end_matches("/v1"), "/v1".to_owned()),
        // The base may be the resource, a deployment, or the newer API, whose body has the model's name.
        Protocol::Azure if !is_versioned => {
            version = format!("?api-version={AZURE_VERSION}");
            if !base.contains("/deployments/") {
                base = base.trim_end_matches("/openai");
                path = format!("/openai/deployments/{}", model.id);
            }
        }
        _ if base.matches('/').count() == 2 => "/v1".clone_into(&mut path),
        _ => {}
    }
    if !query.is_empty() {
        version = format!("?{query}");
    }
    format!("{base}{path}{endpoint}{version}")
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
        let key = self.key.iter().flatten().filter_map(ApiKey::known);
        let secrets = key.chain(self.model.entry.headers.values());
        secrets.map(|secret| secret.reveal().to_owned()).collect()
    }

    fn preview(&self, request: &Request) -> Value {
        let facts = self.facts().clone();
        let draft = Draft::new(self.model(), request, &facts);
        parse_json((draft.api().write)(&draft).text).unwrap_or_default()
    }

    /// Sends the request again with each change that a refusal asks for. Discards changes that did not help, except limits that
    /// the host states.
    fn chat(&self, request: &Request, sink: &dyn Sink) -> Result<Reply, ProviderError> {
        if self.model().id.is_empty() {
            self.find_default(&self.found, request.cancel)?;
        }
        // Only changes that help are shared with other turns.
        let (mut facts, mut changes) = (self.facts().clone(), Vec::new());
        let mut tries = Tries::with_changes(MAX_CHANGES);
        loop {
            let draft = Draft::new(self.model(), request, &facts);
            let (error, change) = match self.send(&draft, sink) {
                Ok(mut reply) => {
                    // The host lets the model call withheld tools, so later requests omit the tools instead.
                    if request.withheld && !reply.calls.is_empty() {
                        changes.push(Change::Without("tool_choice".to_owned()));
                    }
                    self.learn(&changes, sink);
                    self.tell_left_out(&draft, sink);
                    body::sign(&mut reply, &self.model().name);
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            if let Some(change) = change.filter(|change| !changes.contains(change)) {
                let adapted = self.adapt(&draft, &change);
                changes.push(change);
                if let (Some(adapted), true) = (adapted, tries.change()) {
                    facts = adapted;
                    continue;
                }
            }
            if matches!(error, ProviderError::TooLong { .. }) {
                changes.retain(|change| matches!(change, Change::Window(..)));
                self.learn(&changes, sink);
            }
            let is_gone = matches!(error, ProviderError::NotFound(_)) && self.model.is_default;
            if !is_gone || self.replacement.get().is_some() || !tries.change() {
                return Err(error);
            }
            let retired = &self.model().name;
            let Ok(model) = self.find_default(&self.replacement, request.cancel) else {
                return Err(error);
            };
            sink.event(Event::Warning(format!(
                "{retired} is no longer available; using {} instead",
                model.name
            )));
            (facts, changes) = (HostFacts::default(), Vec::new());
        }
    }
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
            Host::new(model, None, &Env::new()).patience()
        };
        let bases = "http://127.0.0.1:8080/v1 http://[::1]:1 http://pi.local/v1 https://10.0.0.7 \
            http://nas:1";
        for base in bases.split_whitespace() {
            assert_eq!(patience(base, 0), (Duration::MAX, SILENCE), "{base}");
            assert_eq!(patience(base, 5).0, Duration::from_secs(5), "{base}");
        }
        assert_eq!(
            patience("https://api.example.com/v1", 0),
            (SILENCE, SILENCE)
        );
    }
}
