//! [`OpenAi`] and [`Anthropic`] make the models of programs, whose [`Options`] are in place of an entry in `model_list`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use super::body::DEFAULT_REPLY;
use super::host::Host;
use crate::config::vendors::Protocol;
use crate::config::{Model, ModelEntry};
use crate::message::Price;
use crate::secret::Secret;

/// Options for requests to a model. The defaults match `bantam` without a configuration.
#[derive(Clone, Default)]
pub struct Options {
    /// Name for users, as `vendor/model`; if empty, the model's name at its host.
    pub name: String,
    /// Headers of every request. They override the API's headers.
    pub headers: BTreeMap<String, String>,
    /// Additional fields of every request. They override the API's fields.
    pub extra_body: Map<String, Value>,
    /// Maximum length of a reply in tokens, sent with every request; 0 is 8192.
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

impl Options {
    fn model(self, protocol: Protocol, base: &str, id: &str) -> Model {
        let headers = self.headers.into_iter();
        let headers = headers.map(|(name, value)| (name, Secret::new(value)));
        // Rounded up, because zero means the default.
        let seconds = u64::from(self.silence.subsec_nanos() > 0);
        Model {
            name: if self.name.is_empty() {
                id.to_owned()
            } else {
                self.name
            },
            protocol,
            id: id.to_owned(),
            is_default: false,
            base: base.to_owned(),
            keys: Vec::new(),
            entry: ModelEntry {
                headers: headers.collect(),
                extra_body: self.extra_body,
                proxy: self.proxy,
                request_timeout: self.silence.as_secs().saturating_add(seconds),
                max_tokens: match self.max_tokens {
                    0 => DEFAULT_REPLY,
                    most => most,
                },
                temperature: self.temperature,
                reasoning_effort: self.reasoning_effort,
                price: self.price,
                ..ModelEntry::default()
            },
        }
    }
}

/// Makes models with OpenAI's chat completions API, which nearly all hosts and local servers support.
///
/// ```no_run
/// use bantam::{Agent, OpenAi};
///
/// let model = OpenAi::new("http://localhost:11434/v1", "", "qwen3:4b");
/// let agent = Agent::builder().provider(model).build()?;
/// println!("{}", agent.ask("Why is the sky blue?")?);
/// # Ok::<(), bantam::Error>(())
/// ```
pub enum OpenAi {}

#[allow(clippy::new_ret_no_self)] // configured models have this type, too
impl OpenAi {
    /// Creates a model. `api_base` is the address up to `/chat/completions`, `key` is empty if the host requires none, and
    /// `model` is the name at the host. Unusable values, such as `http://` to a public host, fail at the first request.
    pub fn new(api_base: &str, key: &str, model: &str) -> Host {
        Self::with(api_base, key, model, Options::default())
    }

    /// Creates a model with custom options. See [`OpenAi::new`].
    pub fn with(api_base: &str, key: &str, model: &str, options: Options) -> Host {
        Host::in_code(options.model(Protocol::OpenAi, api_base, model), key)
    }
}

/// Makes models with Anthropic's Messages API.
pub enum Anthropic {}

#[allow(clippy::new_ret_no_self)] // configured models have this type, too
impl Anthropic {
    /// Creates a model. `api_base` is `https://api.anthropic.com`, or another server with this API. See [`OpenAi::new`].
    pub fn new(api_base: &str, key: &str, model: &str) -> Host {
        Self::with(api_base, key, model, Options::default())
    }

    /// Creates a model with custom options. See [`OpenAi::new`].
    pub fn with(api_base: &str, key: &str, model: &str, options: Options) -> Host {
        Host::in_code(options.model(Protocol::Anthropic, api_base, model), key)
    }
}
