//! Decides which model and key to ask, and when to ask again: the only place that retries.
//!
//! A failure leads, in this order, to another key of the same model if the key was refused, to the same request after a wait if
//! the failure may be temporary, and to the next model. Once part of a reply was shown, the failure is final.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::demo::Demo;
use super::{Provider, ProviderError, Request, rejected};
use crate::error::contained;
use crate::message::{Price, Reply};
use crate::redact::Redactor;
use crate::secret::Secret;

/// How often and how soon to retry.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Tries after the first.
    pub max: u32,
    /// The longest wait before the first retry; it doubles with each further one.
    pub first_wait: Duration,
    /// Retry even after part of the reply has arrived, because it was shown to nobody.
    pub partial: bool,
}

/// What happens before there is a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A temporary failure: a retry, or a key that is rested.
    Notice(String),
    /// What the user should know or fix: a refused key, a failing model.
    Warning(String),
    /// Discard what has arrived of the reply: it is requested again.
    Void,
}

/// The longest wait that a host can demand.
const LONGEST_WAIT: Duration = Duration::from_secs(65);
/// How long to wait between requests to a server that loads its model.
const LOADING_WAIT: Duration = Duration::from_secs(2);
/// How long a rate-limited key rests, unless the host says.
const RATE_LIMIT_REST: Duration = Duration::from_secs(60);
/// How long a key rests that was refused or could not be read.
const REFUSED_REST: Duration = Duration::from_secs(300);
/// How long a key rests whose account is used up.
const QUOTA_REST: Duration = Duration::from_secs(3600);
/// How long a model that failed is asked after the others.
const MODEL_REST: Duration = Duration::from_secs(60);

/// The models that may answer, in order of preference. Each is asked when those before it have failed.
///
/// A model that has just failed is asked after the others for a minute, and a key that is refused or used up rests longer.
#[derive(Default)]
pub struct Chain {
    models: Vec<Model>,
    /// The first so many models are equivalent and share the turns.
    alike: usize,
    /// What the first one reads at once, in tokens, if it is known; 0 for the demo, which has no limit.
    window: Option<u64>,
}

/// A model and its credentials.
struct Model {
    /// The same model once for each key.
    keys: Vec<Box<dyn Provider>>,
    health: Mutex<Health>,
}

struct Health {
    /// When each key can be used again.
    keys: Vec<Instant>,
    /// Ask the other models first until then.
    down_until: Option<Instant>,
}

/// A request on its way along the chain.
struct Attempt<'a> {
    request: &'a Request<'a>,
    retry: Retry,
    on_delta: &'a mut dyn FnMut(&str),
    note: &'a mut dyn FnMut(Note),
    /// Part of a reply has arrived.
    begun: bool,
}

impl Chain {
    /// Adds a model that is asked when those before it fail.
    pub fn then(mut self, model: impl Provider + 'static) -> Self {
        self.push(vec![Box::new(model)]);
        self
    }

    /// Adds a model with several keys: the same model once for each. A key that is refused, rate-limited or used up is
    /// replaced by the next.
    pub fn then_keys<P: Provider + 'static>(mut self, keys: impl IntoIterator<Item = P>) -> Self {
        let boxed = keys
            .into_iter()
            .map(|key| Box::new(key) as Box<dyn Provider>);
        self.push(boxed.collect());
        self
    }

    /// The same, once `redactor` removes the secrets of its models.
    pub(crate) fn known_to(self, redactor: &Redactor) -> Self {
        let keys = self.models.iter().flat_map(|model| &model.keys);
        keys.flat_map(|key| key.secrets())
            .for_each(|secret| redactor.learn(Secret::new(secret)));
        self
    }

    /// Whether one of the models has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut models = self.models.iter().map(Model::provider);
        models.any(|model| model.model() == name)
    }

    /// Adds a model that is asked when those before it fail. `keys` holds the same model once for each key.
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

    /// With what its first model reads at once, in tokens.
    pub(crate) fn with_window(self, window: u64) -> Self {
        Self {
            window: Some(window),
            ..self
        }
    }

    pub(crate) fn window(&self) -> Option<u64> {
        self.window
    }

    /// The first choice.
    pub(crate) fn first(&self) -> Option<&dyn Provider> {
        self.models.first().map(Model::provider)
    }

    /// The name of the first choice; empty if there is none.
    pub(crate) fn first_name(&self) -> &str {
        self.first().map_or("", Provider::model)
    }

    /// The names of the models without a price.
    pub(crate) fn unpriced(&self) -> impl Iterator<Item = &str> {
        let models = self.models.iter().map(Model::provider);
        models
            .filter(|model| model.price() == Price::default())
            .map(Provider::model)
    }

    /// Asks one model after the other until one answers, `wanted` first if there is one of that name. The result comes with the
    /// model that it is from: if none answers, it is the first one's error.
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

    /// The models in the order in which to ask them: those that have just failed come last. Those that share the load take
    /// turns, each of them whole turns, for the sake of prompt caches.
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

/// A number for the turn of a request: the same for each of its steps.
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
    /// Whether it has just failed.
    fn is_down(&self, now: Instant) -> bool {
        self.health().down_until.is_some_and(|until| until > now)
    }

    fn provider(&self) -> &dyn Provider {
        self.keys[0].as_ref()
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first key that is ready, else the one that will be ready first.
    fn pick_key(&self, now: Instant) -> usize {
        let keys = &self.health().keys;
        (0..keys.len())
            .min_by_key(|key| keys[*key].max(now))
            .unwrap_or_default()
    }

    /// Lets a key rest after an error that concerns it; true if another key is ready.
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

    /// Asks with one key after the other, and again after a wait if the fault may pass.
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
            // Waiting for a rate-limited key helps more than asking a refused one again.
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
    /// Whether part of a reply was shown, so that it cannot be requested again.
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

    /// Whether the turn has less time left.
    fn is_too_late(&self, wait: Duration) -> bool {
        self.request.cancel.remaining(wait) < wait
    }

    fn sleep(&self, wait: Duration) -> Result<(), ProviderError> {
        let slept = self.request.cancel.sleep(wait);
        slept.map_err(ProviderError::Cancelled)
    }

    /// How long to wait before the next try; `None` if there is none.
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

/// Full jitter, from zero to `most`, so that clients that failed together do not retry together.
fn jitter(most: Duration) -> Duration {
    let thousandths = u32::try_from(random() % 1001).unwrap_or(1000);
    most * thousandths / 1000
}

#[cfg(test)]
mod tests;
