//! Models that a program defines in code: the address of an API, a key, and the model's name.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use super::facts::HostFacts;
use super::host::Host;
use super::{Provider, ProviderError, Request, Sink};
use crate::config::keys::ApiKey;
use crate::config::vendors::Protocol;
use crate::config::{self, Model, ModelEntry};
use crate::error::{Error, Result};
use crate::message::{Price, Reply};
use crate::secret::Secret;

/// Options for requests to a model. The defaults match `bantam` without a configuration.
#[derive(Clone)]
pub struct Options {
    /// Name for users, as `vendor/model`; if empty, the model's name at its host.
    pub name: String,
    /// Headers of every request. They override the API's headers.
    pub headers: BTreeMap<String, String>,
    /// Additional fields of every request. They override the API's fields.
    pub extra_body: Map<String, Value>,
    /// Maximum length of a reply in tokens, sent with every request. Default: 8192.
    pub max_tokens: u64,
    /// Randomness of the answer; `None` is the host's default.
    pub temperature: Option<f64>,
    /// Thinking effort: `none`, `minimal`, `low`, `medium`, `high` or `xhigh`; if empty, the host decides.
    pub reasoning_effort: String,
    /// Timeout without content, rounded up to whole seconds. Zero is 90 seconds, except that on this machine or a private
    /// network the first content may take the turn's whole time.
    pub silence: Duration,
    /// `http://HOST:PORT`; if empty, `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` apply.
    pub proxy: String,
    /// Price per million tokens.
    pub price: Price,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: String::new(),
            headers: BTreeMap::new(),
            extra_body: Map::new(),
            max_tokens: 8192,
            temperature: None,
            reasoning_effort: String::new(),
            silence: Duration::ZERO,
            proxy: String::new(),
            price: Price::default(),
        }
    }
}

/// Rounds up, because zero means the default.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs()
        .saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// A model with OpenAI's chat completions API, which nearly all hosts and local servers support.
///
/// ```no_run
/// use bantam::{Agent, OpenAi};
///
/// let model = OpenAi::new("http://localhost:11434/v1", "", "qwen3:4b");
/// let agent = Agent::builder().provider(model).build()?;
/// println!("{}", agent.ask("Why is the sky blue?")?);
/// # Ok::<(), bantam::Error>(())
/// ```
pub struct OpenAi(Named);

impl OpenAi {
    /// Creates a model. `api_base` is the address up to `/chat/completions`, `key` is empty if the host requires none, and
    /// `model` is the name at the host. Unusable values, such as `http://` to a public host, fail at the first request.
    pub fn new(api_base: &str, key: &str, model: &str) -> Self {
        Self::with(api_base, key, model, Options::default())
    }

    /// Creates a model with custom options. See [`OpenAi::new`].
    pub fn with(api_base: &str, key: &str, model: &str, options: Options) -> Self {
        let protocol = Protocol::OpenAi;
        Self(Named::new(protocol, api_base, key, model, options))
    }
}

/// A model with Anthropic's Messages API.
pub struct Anthropic(Named);

impl Anthropic {
    /// Creates a model. `api_base` is `https://api.anthropic.com`, or another server with this API. See [`OpenAi::new`].
    pub fn new(api_base: &str, key: &str, model: &str) -> Self {
        Self::with(api_base, key, model, Options::default())
    }

    /// Creates a model with custom options. See [`OpenAi::new`].
    pub fn with(api_base: &str, key: &str, model: &str, options: Options) -> Self {
        let protocol = Protocol::Anthropic;
        Self(Named::new(protocol, api_base, key, model, options))
    }
}

/// A model defined in code, and the error for its unusable values.
struct Named {
    host: Host,
    refused: Option<Error>,
}

impl Named {
    fn new(protocol: Protocol, base: &str, key: &str, id: &str, options: Options) -> Self {
        let checked = config::check_base("the address", base);
        let key = match key.trim() {
            "" => Ok(None),
            key => ApiKey::from_text(key).map(Some),
        };
        let (key, refused) = match (checked, key) {
            (Ok(()), Ok(key)) => (key, None),
            (Err(e), _) | (_, Err(e)) => (None, Some(e)),
        };
        let model = Model {
            name: if options.name.is_empty() {
                id.to_owned()
            } else {
                options.name
            },
            protocol,
            id: id.to_owned(),
            is_default: false,
            base: base.to_owned(),
            keys: Vec::new(),
            entry: ModelEntry {
                headers: options
                    .headers
                    .into_iter()
                    .map(|(name, value)| (name, Secret::new(value)))
                    .collect(),
                extra_body: options.extra_body,
                proxy: options.proxy,
                request_timeout: whole_seconds(options.silence),
                max_tokens: options.max_tokens,
                temperature: options.temperature,
                reasoning_effort: options.reasoning_effort,
                price: options.price,
                ..ModelEntry::default()
            },
        };
        let env = config::environment();
        let host = Host::new(model, key, HostFacts::default(), &env);
        Self { host, refused }
    }

    fn chat(&self, request: &Request, sink: &dyn Sink) -> Result<Reply, ProviderError> {
        match &self.refused {
            Some(e) => Err(ProviderError::NotSent(e.clone())),
            None => self.host.chat(request, sink),
        }
    }
}

/// Both types delegate to their host.
macro_rules! provider {
    ($name:ident) => {
        impl Provider for $name {
            fn model(&self) -> &str {
                self.0.host.model()
            }

            fn price(&self) -> Price {
                self.0.host.price()
            }

            fn secrets(&self) -> Vec<String> {
                self.0.host.secrets()
            }

            fn chat(&self, request: &Request, sink: &dyn Sink) -> Result<Reply, ProviderError> {
                self.0.chat(request, sink)
            }

            fn preview(&self, request: &Request) -> Value {
                self.0.host.preview(request)
            }
        }
    };
}

provider!(OpenAi);
provider!(Anthropic);
