//! One model at one host: sends requests in the host's dialect and learns what it refuses.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::NO_KEY;
use super::dialect::{self, Dialect};
use super::errors::{classify, window_in};
use super::learned::Learned;
use super::quirks::{self, NO_AUDIO, NO_FILES, NO_IMAGES, NO_TOOL_CHOICE, NO_TOOLS};
use super::reply::ReplyBuilder;
use super::response::Response;
use super::{Provider, ProviderError, Request};
use crate::cancel::Cancel;
use crate::config::keys::ApiKey;
use crate::config::proxy::{self, http_settings};
use crate::config::{Env, Model};
use crate::error::Result;
use crate::http::{Body, Client, Head, Outgoing, authority};
use crate::message::{MediaKind, Message, Price, Reply};
use crate::secret::Secret;
use crate::ssrf;
use crate::text::parse_json;

/// How long a host may be silent unless its entry says otherwise.
const SILENCE: Duration = Duration::from_secs(90);
/// How long an answer from another endpoint than the chat may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A kind of media, the quirk of a model that does not take it, and its name for the user.
const MEDIA: [(MediaKind, &str, &str); 3] = [
    (MediaKind::Image, NO_IMAGES, "images"),
    (MediaKind::Pdf, NO_FILES, "PDF files"),
    (MediaKind::Audio, NO_AUDIO, "recordings"),
];

/// A model, with one of its keys.
pub(crate) struct Host {
    dialect: &'static Dialect,
    pub model: Model,
    key: Option<ApiKey>,
    client: Client,
    url: String,
    learned: Mutex<Learned>,
}

impl Host {
    /// `env` names the proxy, if the model's entry does not.
    pub(crate) fn new(
        dialect: &'static Dialect,
        model: Model,
        key: Option<ApiKey>,
        learned: Learned,
        env: &Env,
    ) -> Self {
        let url = (dialect.url)(&model, dialect.chat);
        let settings = http_settings(&model.base, &model.entry.proxy, env);
        Self {
            dialect,
            model,
            key,
            client: Client::new(settings),
            url,
            learned: Mutex::new(learned),
        }
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of a request, as it is sent.
    fn body(&self, request: &Request) -> String {
        let learned = self.learned();
        let outgoing = dialect::Outgoing {
            model: &self.model,
            request,
            quirks: learned.quirks(),
        };
        outgoing.body(self.dialect)
    }

    /// Gets another page of the server: its list of models, or what is at `path`.
    pub(crate) fn get(&self, path: Option<&str>, cancel: &Cancel) -> Result<Value, ProviderError> {
        let root = self
            .url
            .match_indices('/')
            .nth(2)
            .map_or(&*self.url, |(at, _)| &self.url[..at]);
        let models = || (self.dialect.url)(&self.model, "/models");
        self.fetch(
            path.map_or_else(models, |path| format!("{root}{path}")),
            None,
            cancel,
        )
    }

    /// Asks another endpoint of the API than the chat.
    pub(super) fn post(
        &self,
        endpoint: &str,
        body: Body,
        cancel: &Cancel,
    ) -> Result<Value, ProviderError> {
        self.fetch(
            (self.dialect.url)(&self.model, endpoint),
            Some(body),
            cancel,
        )
    }

    fn fetch(
        &self,
        url: String,
        body: Option<Body>,
        cancel: &Cancel,
    ) -> Result<Value, ProviderError> {
        let (mut response, head) = self.begin(url, body, (PATIENCE, PATIENCE), cancel)?;
        let body = response.body()?;
        let refused = || self.refused(&head, &body);
        if head.is_success() {
            parse_json(&body).map_err(|_| refused())
        } else {
            Err(refused())
        }
    }

    /// What a refusal means. A host that got no key has none to refuse.
    fn refused(&self, head: &Head, body: &[u8]) -> ProviderError {
        let error = classify(head.status, Some(head), body, SystemTime::now());
        let is_auth = |name: &String| {
            let (auth, _) = (self.dialect.auth)("");
            name.eq_ignore_ascii_case(auth) || name.eq_ignore_ascii_case("authorization")
        };
        let has_own = self.model.entry.headers.keys().any(is_auth);
        match error {
            ProviderError::Auth(said) if self.key.is_none() && !has_own => {
                ProviderError::Auth(format!("{said}{NO_KEY}"))
            }
            error => error,
        }
    }

    /// The user's headers override ours.
    fn headers(&self) -> Result<Vec<(String, Secret)>> {
        let mut headers = BTreeMap::from([("accept".to_owned(), Secret::new("application/json"))]);
        headers.extend(
            self.dialect
                .headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), Secret::new(*value))),
        );
        if let Some(key) = &self.key {
            let (name, value) = (self.dialect.auth)(key.get()?.reveal());
            headers.insert(name.to_owned(), Secret::new(value));
        }
        let own = &self.model.entry.headers;
        headers.extend(
            own.iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), value.clone())),
        );
        Ok(headers.into_iter().collect())
    }

    /// How long the first content may take, and the next. A model on this machine or a private network may read its prompt
    /// for minutes, and asking again would make it start over; so there the turn's time is the limit, unless one is set.
    fn patience(&self) -> (Duration, Duration) {
        match self.model.entry.request_timeout {
            0 if ssrf::is_private(&proxy::host(&self.url)) => (Duration::MAX, SILENCE),
            0 => (SILENCE, SILENCE),
            seconds => (Duration::from_secs(seconds), Duration::from_secs(seconds)),
        }
    }

    /// Sends a request, and waits until the response begins.
    fn begin(
        &self,
        url: String,
        body: Option<Body>,
        patience: (Duration, Duration),
        cancel: &Cancel,
    ) -> Result<(Response<'_>, Head), ProviderError> {
        let headers = self.headers().map_err(ProviderError::Unasked)?;
        let exchange = self
            .client
            .send(Outgoing { url, headers, body }, cancel)
            .map_err(ProviderError::Unasked)?;
        let mut response = Response::new(authority(&self.url), exchange, patience);
        let head = response.head()?;
        Ok((response, head))
    }

    /// Makes one HTTP request.
    fn send(
        &self,
        request: &Request,
        on_delta: &mut dyn FnMut(&str),
    ) -> Result<Reply, ProviderError> {
        let trusted = self.client.trusts_system();
        let begin = || {
            self.begin(
                self.url.clone(),
                Some(Body::json_text(self.body(request))),
                self.patience(),
                request.cancel,
            )
        };
        let (mut response, head) = match begin() {
            // Once more with the certificates of this system.
            Err(_) if !trusted && self.client.trusts_system() => begin()?,
            begun => begun?,
        };
        if !head.is_success() {
            let body = response.error_body();
            return Err(self.refused(&head, &body));
        }
        response.reply(
            ReplyBuilder::new(self.dialect.reading, request.tools),
            &head,
            &mut |shown| {
                if !shown.thought.is_empty() {
                    (request.on_thought)(&shown.thought);
                }
                if !shown.text.is_empty() {
                    on_delta(&shown.text);
                }
            },
            request.on_trace,
        )
    }

    /// Learns a quirk from the refusal of a request; true if it is not among those `tried` for this request.
    fn learns(&self, refusal: &str, request: &Request, tried: &mut Vec<String>) -> bool {
        let sent = self.body(request);
        let fields = parse_json(&sent).unwrap_or_default();
        for quirk in quirks::taught(refusal, &fields) {
            let before = self.learned().clone();
            self.learned().add(quirk.clone());
            if self.body(request) != sent {
                let is_new = !tried.contains(&quirk);
                tried.push(quirk);
                return is_new;
            }
            *self.learned() = before;
        }
        false
    }

    /// Learns from a reply that its host lets the model call withheld tools.
    fn notice(&self, reply: &Reply, request: &Request) {
        if request.withheld && !reply.calls.is_empty() {
            self.learned().add_new(NO_TOOL_CHOICE);
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

    fn secrets(&self) -> Vec<String> {
        let key = self.key.iter().filter_map(ApiKey::known);
        let secrets = key.chain(self.model.entry.headers.values());
        secrets.map(|secret| secret.reveal().to_owned()).collect()
    }

    fn preview(&self, request: &Request) -> Value {
        parse_json(self.body(request)).unwrap_or_default()
    }

    fn left_out(&self, request: &Request) -> Option<String> {
        let learned = self.learned();
        let media = MEDIA
            .iter()
            .find(|(kind, quirk, _)| learned.knows(quirk) && has_new(request, *kind));
        let is_first = matches!(request.messages.last(), Some(Message::User(_)));
        let tools = learned.knows(NO_TOOLS) && is_first && !request.tools.is_empty();
        let what = media.map(|(.., what)| *what).or(tools.then_some("tools"))?;
        Some(format!(
            "{} takes no {what}: it was asked without them",
            self.model.name
        ))
    }

    /// Asks once more for each quirk that a refusal teaches. A quirk that does not help is forgotten.
    fn chat(
        &self,
        request: &Request,
        on_delta: &mut dyn FnMut(&str),
    ) -> Result<Reply, ProviderError> {
        let (before, mut tried) = (self.learned().clone(), Vec::new());
        // Each new image tests whether the model still takes none.
        if has_new(request, MediaKind::Image) {
            self.learned().forget(NO_IMAGES);
        }
        loop {
            let mut begun = false;
            let mut result = self.send(request, &mut |text| {
                begun = true;
                on_delta(text);
            });
            match &mut result {
                Err(
                    ProviderError::Rejected(refusal)
                    | ProviderError::BadRequest(refusal)
                    | ProviderError::NotFound(refusal),
                ) => {
                    if !begun && self.learns(refusal, request, &mut tried) {
                        continue;
                    }
                    *self.learned() = before;
                    return result;
                }
                Err(ProviderError::ContextTooLong(refusal)) => {
                    if let Some(tokens) = window_in(refusal) {
                        self.learned().add(quirks::window(tokens));
                    }
                }
                Ok(reply) => {
                    dialect::sign(reply, &self.model.name);
                    self.notice(reply, request);
                }
                Err(_) => {}
            }
            let learned = self.learned();
            if learned.known() != before.known() {
                learned.save();
            }
            return result;
        }
    }
}

/// Whether there are media of this kind in what came after the model's last reply.
fn has_new(request: &Request, kind: MediaKind) -> bool {
    let new = request
        .messages
        .rsplit(|message| matches!(message, Message::Assistant(_)))
        .next()
        .unwrap_or_default();
    new.iter()
        .flat_map(Message::media)
        .any(|media| media.kind() == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::provider::openai::OPENAI;

    #[test]
    fn a_host_on_this_machine_or_network_may_take_the_turns_time_before_its_first_word() {
        let patience = |base: &str, seconds: u64| {
            let list = format!(
                r#"{{"model_list":[{{"model":"x/y","api_base":"{base}","request_timeout":{seconds}}}]}}"#
            );
            let config = Config::load(Some(("c", &list)), &Env::new(), Vec::new())
                .unwrap()
                .config;
            let model = config.choose_model(&Env::new()).unwrap().unwrap();
            Host::new(&OPENAI, model, None, Learned::default(), &Env::new()).patience()
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
