//! Decides which model and key to ask, and when to retry. No other module retries.
//!
//! A failure leads, in this order, to another key of the same model if the key was rejected, to a retry after a wait if the
//! failure may be temporary, and to the next model. After part of a reply was shown, a failure is final.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::demo::Demo;
use super::{Provider, ProviderError, Request, Sink, rejected};
use crate::bus::Event;
use crate::config::find_bare;
use crate::error::{Result, contained};
use crate::message::{Price, Reply};
use crate::redact::Redactor;
use crate::secret::Secret;
use crate::sync;
use crate::tries::{MIN_DEMAND, Tries, jitter};

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

/// Maximum wait that a host can demand.
const LONGEST_WAIT: Duration = Duration::from_secs(65);
/// Wait between requests to a server that loads its model, and their number in five minutes.
const LOADING_WAIT: Duration = Duration::from_secs(2);
const MAX_LOADING: u32 = 150;
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
    models: Vec<ChainModel>,
    /// Context window of the first model in tokens, if known; 0 for the demo, which has no limit.
    window: Option<u64>,
}

/// The entry that a turn asks first. A turn keeps it, because another one has not cached its prompt.
pub(crate) struct Choice(AtomicUsize);

/// A model and its credentials.
struct ChainModel {
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

/// A request to a chain, with the texts that arrive.
struct Attempt<'a> {
    request: &'a Request<'a>,
    retry: Retry,
    sink: &'a dyn Sink,
    /// The text of each try, as far as it has arrived.
    texts: RefCell<Vec<String>>,
}

impl Sink for Attempt<'_> {
    fn event(&self, event: Event) {
        if let (Event::Delta(text), Some(arrived)) = (&event, self.texts.borrow_mut().last_mut()) {
            arrived.push_str(text);
        }
        self.sink.event(event);
    }
}

impl Chain {
    /// Adds a model that is asked after the previous ones fail.
    pub fn then(self, model: impl Provider + 'static) -> Self {
        self.then_keys([model])
    }

    /// Adds a model with several keys, as one provider per key. A key that is rejected, rate-limited or out of credit is
    /// replaced by the next.
    pub fn then_keys<P: Provider + 'static>(mut self, keys: impl IntoIterator<Item = P>) -> Self {
        let keys = keys.into_iter();
        let keys: Vec<_> = keys.map(|key| Box::new(key) as Box<dyn Provider>).collect();
        if !keys.is_empty() {
            let health = Mutex::new(Health {
                keys: vec![Instant::now(); keys.len()],
                down_until: None,
            });
            self.models.push(ChainModel { keys, health });
        }
        self
    }

    /// Registers the secrets of all models with `redactor`.
    pub(crate) fn known_to(self, redactor: &Redactor) -> Self {
        let keys = self.models.iter().flat_map(|model| &model.keys);
        keys.flat_map(|key| key.secrets())
            .for_each(|secret| redactor.learn(Secret::new(secret)));
        self
    }

    /// Returns an error unless the chain has a model of this name, or one that is called so after its provider.
    pub(crate) fn check(&self, wanted: &str) -> Result<()> {
        let names = self.models.iter().map(|model| model.provider().model());
        let names: Vec<&str> = names.collect();
        if names.contains(&wanted) {
            return Ok(());
        }
        let found = find_bare(wanted, &names).map(drop);
        found.map_err(|e| e.hint(format!("choose one of its models: {}", names.join(", "))))
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
        self.models.first().map(ChainModel::provider)
    }

    /// Name of the first choice; empty if the chain is empty.
    pub(crate) fn first_name(&self) -> &str {
        self.first().map_or("", Provider::model)
    }

    /// Names of the models without a price.
    pub(crate) fn unpriced(&self) -> impl Iterator<Item = &str> {
        let models = self.models.iter().map(ChainModel::provider);
        models
            .filter(|model| model.price() == Price::default())
            .map(Provider::model)
    }

    /// Chooses the entry for a turn: the model named `wanted`, or else the first. A model that has just failed is chosen last.
    pub(crate) fn choose(&self, wanted: &str) -> Choice {
        let now = Instant::now();
        let is_other = |entry: &usize| {
            let name = self.models[*entry].provider().model();
            name != wanted && name.split_once('/').is_none_or(|(_, bare)| bare != wanted)
        };
        let best = (0..self.models.len()).min_by_key(|entry| {
            let is_down = self.models[*entry].is_down(now);
            (is_down, is_other(entry))
        });
        Choice(AtomicUsize::new(best.unwrap_or_default()))
    }

    /// Asks one entry after another until one answers, starting with the chosen one; the choice becomes the entry that answers.
    /// Also returns the answering model, and the text of each try as far as it arrived. If all fail, returns the first model and
    /// its error.
    pub(crate) fn ask_chain(
        &self,
        request: &Request,
        choice: &Choice,
        retry: Retry,
        sink: &dyn Sink,
    ) -> (Result<Reply, ProviderError>, &dyn Provider, Vec<String>) {
        let attempt = Attempt {
            request,
            retry,
            sink,
            texts: RefCell::default(),
        };
        let (result, model) = self.ask_entries(&attempt, choice);
        (result, model, attempt.texts.into_inner())
    }

    fn ask_entries(
        &self,
        attempt: &Attempt,
        choice: &Choice,
    ) -> (Result<Reply, ProviderError>, &dyn Provider) {
        use ProviderError::{Cancelled, TooLong};
        let mut first_error = None;
        let entries = self.in_order(choice, Instant::now());
        let mut entries = entries.into_iter().peekable();
        while let Some(entry) = entries.next() {
            let model = &self.models[entry];
            let provider = model.provider();
            let error = match model.ask_model(attempt) {
                Ok(reply) => {
                    model.health().down_until = None;
                    choice.0.store(entry, Ordering::Relaxed);
                    return (Ok(reply), provider);
                }
                Err(error) => error,
            };
            let is_final = matches!(error, Cancelled(_) | TooLong { .. });
            if is_final || attempt.is_shown() {
                return (Err(error), provider);
            }
            if let Some(why) = attempt.request.cancel.reason() {
                return (Err(Cancelled(why)), provider);
            }
            model.health().down_until = Some(Instant::now() + MODEL_REST);
            if let Some(next) = entries.peek() {
                let (this, next) = (provider.model(), self.models[*next].provider().model());
                let text = format!("{this}: {}; asking {next}", error.text());
                attempt.event(Event::Warning(text));
            }
            first_error.get_or_insert((Err(error), provider));
        }
        first_error.unwrap_or((Err(rejected("no model is configured")), &Demo))
    }

    /// Returns the entries in the order to ask them: the chosen one first, and those that have just failed last.
    fn in_order(&self, choice: &Choice, now: Instant) -> Vec<usize> {
        let first = choice.0.load(Ordering::Relaxed);
        let mut entries: Vec<usize> = (0..self.models.len()).collect();
        entries.sort_by_key(|entry| (self.models[*entry].is_down(now), *entry != first));
        entries
    }
}

impl ChainModel {
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

    /// Returns the keys that are ready, else the one that will be ready first.
    fn keys_to_ask(&self, now: Instant) -> Vec<usize> {
        let ready_at = &self.health().keys;
        let mut keys: Vec<usize> = (0..ready_at.len()).collect();
        keys.sort_by_key(|key| ready_at[*key].max(now));
        let ready = keys.iter().filter(|key| ready_at[**key] <= now).count();
        keys.truncate(ready.max(1));
        keys
    }

    /// Asks with each key that is ready, and again after a wait if the failure may be temporary.
    fn ask_model(&self, attempt: &Attempt) -> Result<Reply, ProviderError> {
        let retry = attempt.retry;
        let mut tries = Tries::new(retry.max, jitter(retry.first_wait), LONGEST_WAIT);
        let mut loading = Tries::new(MAX_LOADING, LOADING_WAIT, LOADING_WAIT);
        loop {
            let error = match self.ask_keys(attempt) {
                Err(error) if error.may_pass() && !attempt.is_shown() => error,
                result => return result,
            };
            let is_loading = error.text().contains("answered 503: Loading model");
            let wait = if is_loading {
                loading.wait(error.retry_after())
            } else {
                tries.wait(error.retry_after())
            };
            let left = attempt.request.cancel.remaining(LONGEST_WAIT);
            let Some(wait) = wait.filter(|wait| *wait <= left) else {
                return Err(error);
            };
            let (made, of, seconds) = (tries.made(), retry.max + 1, wait.as_secs_f64());
            let text = error.text();
            if !is_loading {
                let text = format!("try {made} of {of}: {text}; next in {seconds:.1} s");
                attempt.event(Event::Notice(text));
            } else if loading.made() == 1 {
                attempt.event(Event::Notice(format!("waiting: {text}")));
            }
            let slept = attempt.request.cancel.sleep(wait);
            slept.map_err(ProviderError::Cancelled)?;
        }
    }

    /// Asks once with each key that is ready, until one is not at fault. Each key that is at fault rests. Returns the error of
    /// the key that will be ready first.
    fn ask_keys(&self, attempt: &Attempt) -> Result<Reply, ProviderError> {
        let mut failed: Option<(Duration, ProviderError)> = None;
        let mut keys = self.keys_to_ask(Instant::now()).into_iter().peekable();
        while let Some(key) = keys.next() {
            let error = match attempt.send(self.keys[key].as_ref()) {
                Err(error) if !attempt.is_shown() => error,
                result => return result,
            };
            let Some(rest) = rest_after(&error) else {
                return Err(error);
            };
            self.health().keys[key] = Instant::now() + rest;
            if keys.peek().is_some() {
                let (name, of) = (self.provider().model(), self.keys.len());
                let (n, why) = (key + 1, error.text());
                let text = format!("{name}: key {n} of {of}: {why}; using another");
                attempt.event(if error.may_pass() {
                    Event::Notice(text)
                } else {
                    Event::Warning(text)
                });
            }
            if failed.as_ref().is_none_or(|(least, _)| rest < *least) {
                failed = Some((rest, error));
            }
        }
        Err(failed.map_or_else(|| rejected("no key is configured"), |(_, error)| error))
    }
}

/// Returns the pause of a key after an error; `None` if the error does not concern the key.
fn rest_after(error: &ProviderError) -> Option<Duration> {
    Some(match error {
        ProviderError::AuthFailed { .. } | ProviderError::NotSent(_) => REFUSED_REST,
        ProviderError::Quota(_) => QUOTA_REST,
        ProviderError::RateLimited { retry_after, .. } => {
            let rest = retry_after.unwrap_or(RATE_LIMIT_REST);
            rest.clamp(MIN_DEMAND, QUOTA_REST)
        }
        _ => return None,
    })
}

impl Attempt<'_> {
    /// Whether part of a reply was shown, which rules out a retry.
    fn is_shown(&self) -> bool {
        let has_begun = |text: &String| !text.is_empty();
        self.texts.borrow().last().is_some_and(has_begun) && !self.retry.partial
    }

    fn send(&self, provider: &dyn Provider) -> Result<Reply, ProviderError> {
        self.texts.borrow_mut().push(String::new());
        let result = contained("the provider", || Ok(provider.chat(self.request, self)));
        result.unwrap_or_else(|e| Err(rejected(e.message)))
    }
}

#[cfg(test)]
mod tests;
