//! Decides which model and key to ask, and when to retry. No other module retries.
//!
//! A failure leads, in this order, to another key of the same model if the key was rejected, to a retry after a wait if the
//! failure may be temporary, and to the next model. After part of a reply was shown, a failure is final.

use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use super::demo::Demo;
use super::{Provider, ProviderError, Request, rejected};
use crate::error::contained;
use crate::message::{Price, Reply};
use crate::redact::Redactor;
use crate::secret::Secret;
use crate::sync;

/// Number and timing of retries.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Number of tries after the first.
    pub max: u32,
    /// Maximum wait before the first retry; it doubles with each further retry.
    pub first_wait: Duration,
    /// Whether to retry after part of the reply has arrived, because it was not shown to the user.
    pub partial: bool,
}

/// An event before the reply is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A temporary failure: a retry, or a key that is paused.
    Notice(String),
    /// A problem that the user may need to fix, such as a rejected key or a failing model.
    Warning(String),
    /// Discard the partial reply, because it is requested again.
    Void,
}

/// Maximum wait that a host can demand.
const LONGEST_WAIT: Duration = Duration::from_secs(65);
/// Wait between requests to a server that loads its model.
const LOADING_WAIT: Duration = Duration::from_secs(2);
/// Pause of a rate-limited key, unless the host demands another.
const RATE_LIMIT_REST: Duration = Duration::from_secs(60);
/// Pause of a key that was rejected or is unreadable.
const REFUSED_REST: Duration = Duration::from_secs(300);
/// Pause of a key whose account has no credit.
const QUOTA_REST: Duration = Duration::from_secs(3600);
/// Time for which a failed model is asked after the others.
const MODEL_REST: Duration = Duration::from_secs(60);

/// Models in order of preference. Each one is asked after the previous ones have failed.
///
/// A model that has just failed is asked after the others for a minute; a key that is rejected or out of credit pauses longer.
#[derive(Default)]
pub struct Chain {
    models: Vec<Model>,
    /// Number of leading models that are equivalent and share the turns.
    alike: usize,
    /// Context window of the first model in tokens, if known; 0 for the demo, which has no limit.
    window: Option<u64>,
}

/// A model and its credentials.
struct Model {
    /// One provider per key.
    keys: Vec<Box<dyn Provider>>,
    health: Mutex<Health>,
}

struct Health {
    /// Time from which each key is usable again.
    keys: Vec<Instant>,
    /// Time until which the other models are asked first.
    down_until: Option<Instant>,
}

/// State of a request while the chain handles it.
struct Attempt<'a> {
    request: &'a Request<'a>,
    retry: Retry,
    on_delta: &'a mut dyn FnMut(&str),
    note: &'a mut dyn FnMut(Note),
    /// Whether part of a reply has arrived.
    begun: bool,
}

impl Chain {
    /// Adds a model that is asked after the previous ones fail.
    pub fn then(mut self, model: impl Provider + 'static) -> Self {
        self.push(vec![Box::new(model)]);
        self
    }

    /// Adds a model with several keys, as one provider per key. A key that is rejected, rate-limited or out of credit is
    /// replaced by the next.
    pub fn then_keys<P: Provider + 'static>(mut self, keys: impl IntoIterator<Item = P>) -> Self {
        let boxed = keys
            .into_iter()
            .map(|key| Box::new(key) as Box<dyn Provider>);
        self.push(boxed.collect());
        self
    }

    /// Registers the secrets of all models with `redactor`.
    pub(crate) fn known_to(self, redactor: &Redactor) -> Self {
        let keys = self.models.iter().flat_map(|model| &model.keys);
        keys.flat_map(|key| key.secrets())
            .for_each(|secret| redactor.learn(Secret::new(secret)));
        self
    }

    /// Whether the chain has a model of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut models = self.models.iter().map(Model::provider);
        models.any(|model| model.model() == name)
    }

    /// Adds a model that is asked after the previous ones fail. `keys` has one provider per key.
    fn push(&mut self, keys: Vec<Box<dyn Provider>>) {
        if !keys.is_empty() {
            let health = Health {
                keys: vec![Instant::now(); keys.len()],
                down_until: None,
            };
            self.models.push(Model {
                keys,
                health: Mutex::new(health),
            });
        }
    }

    /// Lets the first `alike` models share the turns.
    pub(crate) fn sharing_load(self, alike: usize) -> Self {
        Self { alike, ..self }
    }

    /// Sets the context window of the first model, in tokens.
    pub(crate) fn with_window(self, window: u64) -> Self {
        Self {
            window: Some(window),
            ..self
        }
    }

    pub(crate) fn window(&self) -> Option<u64> {
        self.window
    }

    /// Returns the first choice.
    pub(crate) fn first(&self) -> Option<&dyn Provider> {
        self.models.first().map(Model::provider)
    }

    /// Name of the first choice; empty if the chain is empty.
    pub(crate) fn first_name(&self) -> &str {
        self.first().map_or("", Provider::model)
    }

    /// Names of the models without a price.
    pub(crate) fn unpriced(&self) -> impl Iterator<Item = &str> {
        let models = self.models.iter().map(Model::provider);
        models
            .filter(|model| model.price() == Price::default())
            .map(Provider::model)
    }

    /// Asks one model after another until one answers, starting with the model named `wanted` if it exists. Also returns the
    /// answering model; if all fail, returns the first model and its error.
    pub(crate) fn ask_chain(
        &self,
        request: &Request,
        wanted: &str,
        retry: Retry,
        on_delta: &mut dyn FnMut(&str),
        note: &mut dyn FnMut(Note),
    ) -> (Result<Reply, ProviderError>, &dyn Provider) {
        let mut attempt = Attempt {
            request,
            retry,
            on_delta,
            note,
            begun: false,
        };
        let mut first_error = None;
        let models = self.in_order(wanted, turn(request), Instant::now());
        let mut models = models.into_iter().peekable();
        while let Some(model) = models.next() {
            let provider = model.provider();
            let error = match model.ask_model(&mut attempt) {
                Ok(reply) => {
                    model.health().down_until = None;
                    return (Ok(reply), provider);
                }
                Err(error) => error,
            };
            if attempt.is_shown()
                || matches!(
                    error,
                    ProviderError::Cancelled(_) | ProviderError::TooLong { .. }
                )
            {
                return (Err(error), provider);
            }
            if let Some(why) = request.cancel.reason() {
                return (Err(ProviderError::Cancelled(why)), provider);
            }
            model.health().down_until = Some(Instant::now() + MODEL_REST);
            if let Some(next) = models.peek() {
                let (this, next) = (provider.model(), next.provider().model());
                (attempt.note)(Note::Warning(format!(
                    "{this}: {}; asking {next}",
                    error.text()
                )));
            }
            first_error.get_or_insert((Err(error), provider));
        }
        first_error.unwrap_or((Err(rejected("no model is configured")), &Demo))
    }

    /// Returns the models in the order to ask them, with recently failed models last. Models that share the load alternate by
    /// turn instead of by request, so that prompt caches are effective.
    fn in_order(&self, wanted: &str, turn: usize, now: Instant) -> Vec<&Model> {
        let mut models: Vec<&Model> = self.models.iter().collect();
        let alike = self.alike.clamp(1, models.len().max(1));
        models
            .get_mut(..alike)
            .into_iter()
            .for_each(|alike| alike.rotate_left(turn % alike.len()));
        models.sort_by_key(|model| (model.is_down(now), model.provider().model() != wanted));
        models
    }
}

/// Number that identifies the turn of a request; all its steps have the same number.
fn turn(request: &Request) -> usize {
    static START: OnceLock<usize> = OnceLock::new();
    let start = START.get_or_init(|| usize::try_from(random() >> 32).unwrap_or_default());
    start.wrapping_add(
        request
            .messages
            .iter()
            .filter(|message| message.is_question())
            .count(),
    )
}

/// The standard library has no other source of randomness.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

impl Model {
    /// Whether the model has just failed.
    fn is_down(&self, now: Instant) -> bool {
        self.health().down_until.is_some_and(|until| until > now)
    }

    fn provider(&self) -> &dyn Provider {
        self.keys[0].as_ref()
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        sync::lock(&self.health)
    }

    /// Returns the first key that is ready, else the key that will be ready first.
    fn pick_key(&self, now: Instant) -> usize {
        let keys = &self.health().keys;
        (0..keys.len())
            .min_by_key(|key| keys[*key].max(now))
            .unwrap_or_default()
    }

    /// Pauses a key after an error that concerns it; returns whether another key is ready.
    fn rest_key(&self, key: usize, error: &ProviderError, now: Instant) -> bool {
        let rest = match error {
            ProviderError::AuthFailed { .. } | ProviderError::NotSent(_) => REFUSED_REST,
            ProviderError::Quota(_) => QUOTA_REST,
            ProviderError::RateLimited { retry_after, .. } => {
                retry_after.unwrap_or(RATE_LIMIT_REST).min(QUOTA_REST)
            }
            _ => return false,
        };
        let keys = &mut self.health().keys;
        keys[key] = now + rest;
        keys.iter().any(|ready| *ready <= now)
    }

    /// Asks with one key after another, and retries after a wait if the failure may be temporary.
    fn ask_model(&self, attempt: &mut Attempt) -> Result<Reply, ProviderError> {
        let mut tries = 0;
        let (mut rate_limit, mut is_loading) = (None, false);
        loop {
            let key = self.pick_key(Instant::now());
            let provider = self.keys[key].as_ref();
            let error = match attempt.send(provider) {
                Ok(reply) => return Ok(reply),
                Err(error) if attempt.is_shown() => return Err(error),
                Err(error) => error,
            };
            if matches!(error, ProviderError::Loading(_)) && !attempt.is_too_late(LOADING_WAIT) {
                if !is_loading {
                    (attempt.note)(Note::Notice(format!("waiting: {}", error.text())));
                }
                is_loading = true;
                attempt.sleep(LOADING_WAIT)?;
                continue;
            }
            if self.rest_key(key, &error, Instant::now()) {
                let (name, number, of) = (self.provider().model(), key + 1, self.keys.len());
                let text = format!(
                    "{name}: key {number} of {of}: {}; using another",
                    error.text()
                );
                (attempt.note)(if error.may_pass() {
                    Note::Notice(text)
                } else {
                    Note::Warning(text)
                });
                rate_limit = Some(error).filter(ProviderError::may_pass).or(rate_limit);
                continue;
            }
            // Waiting for a rate-limited key helps more than another try with a rejected key.
            let error = if error.may_pass() {
                error
            } else {
                rate_limit.take().unwrap_or(error)
            };
            let Some(wait) = attempt.wait_before_retry(&error, tries) else {
                return Err(error);
            };
            tries += 1;
            let (of, seconds) = (attempt.retry.max + 1, wait.as_secs_f64());
            (attempt.note)(Note::Notice(format!(
                "try {tries} of {of}: {}; next in {seconds:.1} s",
                error.text()
            )));
            attempt.sleep(wait)?;
        }
    }
}

impl Attempt<'_> {
    /// Whether part of a reply was shown, which rules out a retry.
    fn is_shown(&self) -> bool {
        self.begun && !self.retry.partial
    }

    fn send(&mut self, provider: &dyn Provider) -> Result<Reply, ProviderError> {
        if std::mem::take(&mut self.begun) {
            (self.note)(Note::Void);
        }
        let result = contained("the provider", || {
            Ok(provider.chat(self.request, &mut |text| {
                self.begun = true;
                (self.on_delta)(text);
            }))
        });
        result.unwrap_or_else(|e| Err(rejected(e.message)))
    }

    /// Whether the turn has less time left than `wait`.
    fn is_too_late(&self, wait: Duration) -> bool {
        self.request.cancel.remaining(wait) < wait
    }

    fn sleep(&self, wait: Duration) -> Result<(), ProviderError> {
        let slept = self.request.cancel.sleep(wait);
        slept.map_err(ProviderError::Cancelled)
    }

    /// Returns the wait before the next try; `None` if there are no more tries.
    fn wait_before_retry(&self, error: &ProviderError, tries: u32) -> Option<Duration> {
        if !error.may_pass() || tries >= self.retry.max {
            return None;
        }
        let backoff = || {
            jitter(
                self.retry
                    .first_wait
                    .saturating_mul(1 << tries.min(16))
                    .min(LONGEST_WAIT),
            )
        };
        let wait = error.retry_after().unwrap_or_else(backoff);
        (wait <= LONGEST_WAIT && !self.is_too_late(wait)).then_some(wait)
    }
}

/// Full jitter from zero to `most`, so that clients that failed together do not retry together.
fn jitter(most: Duration) -> Duration {
    let thousandths = u32::try_from(random() % 1001).unwrap_or(1000);
    most * thousandths / 1000
}

#[cfg(test)]
mod tests;
