//! Decides which model and key to ask, and when to ask again: the only place that retries.
//!
//! A failure leads, in this order, to another key of the same model if the key is the trouble, to the same request after a
//! wait if the fault may pass, and to the next model. Once part of a reply was shown, the failure is final.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::demo::Demo;
use super::{Provider, ProviderError, Request};
use crate::message::{Price, Reply};

/// How often and how soon to retry.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Tries after the first.
    pub max: u32,
    /// The longest wait before the first retry; it doubles with each further one.
    pub first_wait: Duration,
    /// Also after a part of the reply has arrived: nobody was shown it.
    pub partial: bool,
}

/// What happens before there is a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A fault that may pass: a retry, a key that rests.
    Notice(String),
    /// What the user should know of the reply or mend: what it was made without, a refused key, a model that fails.
    Warning(String),
    /// What has arrived of the reply is void: it is asked for again.
    Void,
}

/// The longest wait that a host can demand.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long a rate-limited key rests, unless the host says.
const RATE_LIMIT_REST: Duration = Duration::from_secs(60);
/// How long a key rests that was refused or could not be read.
const REFUSED_REST: Duration = Duration::from_secs(300);
/// How long a key rests whose account is used up.
const QUOTA_REST: Duration = Duration::from_secs(3600);
/// How long a model that failed is asked after the others.
const MODEL_REST: Duration = Duration::from_secs(60);

/// The models that may answer, the first choice first.
#[derive(Default)]
pub(crate) struct ModelChain {
    models: Vec<Model>,
    /// So many of the first models stand for each other and share the turns.
    alike: usize,
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

impl ModelChain {
    /// Adds a model that is asked when those before it fail. `keys` holds the same model once for each key.
    pub(crate) fn push(&mut self, keys: Vec<Box<dyn Provider>>) {
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
    pub(crate) fn share_load(&mut self, alike: usize) {
        self.alike = alike;
    }

    /// The first choice.
    pub(crate) fn first(&self) -> Option<&dyn Provider> {
        self.models.first().map(Model::provider)
    }

    /// The names of the models without a price.
    pub(crate) fn unpriced(&self) -> impl Iterator<Item = &str> {
        let models = self.models.iter().map(Model::provider);
        models
            .filter(|model| model.price() == Price::default())
            .map(Provider::model)
    }

    /// Asks one model after the other until one answers. The result comes with the model that it is from: if none
    /// answers, it is the first one's error.
    pub(crate) fn ask_chain(
        &self,
        request: &Request,
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
        let mut models = self
            .by_health(Instant::now(), turn(request))
            .into_iter()
            .peekable();
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
                    ProviderError::Cancelled(_) | ProviderError::ContextTooLong(_)
                )
            {
                return (Err(error), provider);
            }
            if let Some(why) = request.cancel.why() {
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
        first_error.unwrap_or((
            Err(ProviderError::Rejected("no model is configured".to_owned())),
            &Demo,
        ))
    }

    /// The models in the order in which to ask them: those that have just failed come last. Those that share the load take
    /// turns, each of them whole turns, for the sake of prompt caches.
    fn by_health(&self, now: Instant, turn: usize) -> Vec<&Model> {
        let mut models: Vec<&Model> = self.models.iter().collect();
        let alike = self.alike.clamp(1, models.len().max(1));
        models
            .get_mut(..alike)
            .into_iter()
            .for_each(|alike| alike.rotate_left(turn % alike.len()));
        let is_down = |model: &Model| model.health().down_until.is_some_and(|until| until > now);
        models.sort_by_key(|model| is_down(model));
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
    fn provider(&self) -> &dyn Provider {
        self.keys[0].as_ref()
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first key that is ready, else the one that will be.
    fn pick_key(&self, now: Instant) -> usize {
        let keys = &self.health().keys;
        (0..keys.len())
            .min_by_key(|key| keys[*key].max(now))
            .unwrap_or_default()
    }

    /// Lets a key rest after an error that concerns it; true if another key is ready.
    fn rest_key(&self, key: usize, error: &ProviderError, now: Instant) -> bool {
        let rest = match error {
            ProviderError::Auth(_) | ProviderError::Unasked(_) => REFUSED_REST,
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
        let mut rate_limit = None;
        loop {
            let key = self.pick_key(Instant::now());
            let provider = self.keys[key].as_ref();
            let error = match attempt.send(provider) {
                Ok(reply) => {
                    provider
                        .left_out(attempt.request)
                        .into_iter()
                        .for_each(|text| (attempt.note)(Note::Warning(text)));
                    return Ok(reply);
                }
                Err(error) if attempt.is_shown() => return Err(error),
                Err(error) => error,
            };
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
            attempt
                .request
                .cancel
                .sleep(wait)
                .map_err(ProviderError::Cancelled)?;
        }
    }
}

impl Attempt<'_> {
    /// Whether part of a reply was shown, so that it cannot be asked for again.
    fn is_shown(&self) -> bool {
        self.begun && !self.retry.partial
    }

    fn send(&mut self, provider: &dyn Provider) -> Result<Reply, ProviderError> {
        if std::mem::take(&mut self.begun) {
            (self.note)(Note::Void);
        }
        provider.chat(self.request, &mut |text| {
            self.begun = true;
            (self.on_delta)(text);
        })
    }

    /// How long to wait before the next try; `None` if there is to be none.
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
        (wait <= LONGEST_WAIT && self.request.cancel.remaining(wait) >= wait).then_some(wait)
    }
}

/// Full jitter, from nothing to `most`, so that clients that failed together do not come back together.
fn jitter(most: Duration) -> Duration {
    let thousandths = u32::try_from(random() % 1001).unwrap_or(1000);
    most * thousandths / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::provider::System;

    /// Retries of a turn whose text is not shown as it arrives.
    const NOT_SHOWN: u32 = 7;

    type Answer = (&'static str, Result<Reply, ProviderError>);

    struct ScriptedProvider(&'static str, Mutex<Vec<Answer>>);

    impl Provider for ScriptedProvider {
        fn model(&self) -> &'static str {
            self.0
        }
        fn chat(
            &self,
            _: &Request,
            on_delta: &mut dyn FnMut(&str),
        ) -> Result<Reply, ProviderError> {
            let (delta, result) = self.1.lock().unwrap().remove(0);
            if !delta.is_empty() {
                on_delta(delta);
            }
            result
        }
    }

    fn script(name: &'static str, turns: Vec<Answer>) -> Box<dyn Provider> {
        Box::new(ScriptedProvider(name, Mutex::new(turns)))
    }

    fn good(text: &str) -> Answer {
        (
            "",
            Ok(Reply {
                text: text.to_owned(),
                ..Reply::default()
            }),
        )
    }

    fn transient(retry_after: Option<u64>) -> ProviderError {
        let retry_after = retry_after.map(Duration::from_millis);
        ProviderError::Transient {
            message: "down".into(),
            retry_after,
        }
    }

    fn limited() -> Answer {
        (
            "",
            Err(ProviderError::RateLimited {
                message: "slow down".into(),
                retry_after: None,
            }),
        )
    }

    fn refused() -> Answer {
        ("", Err(ProviderError::Auth("no".into())))
    }

    /// The answer and who gave it, or the error and whose it is.
    type ChainResult = Result<(String, String), (ProviderError, String)>;

    /// What came of it, and what was noted on the way.
    fn run(chain: &ModelChain, max: u32) -> (ChainResult, Vec<Note>) {
        let cancel = Cancel::new(Some(Duration::from_secs(5)));
        let request = Request {
            system: System::default(),
            messages: &[],
            tools: &[],
            stream: false,
            on_thought: &|_| (),
            cancel: &cancel,
        };
        let retry = Retry {
            max,
            first_wait: Duration::from_millis(1),
            partial: max == NOT_SHOWN,
        };
        let mut notes = Vec::new();
        let (result, model) =
            chain.ask_chain(&request, retry, &mut |_| (), &mut |note| notes.push(note));
        let model = model.model().to_owned();
        (
            result
                .map(|reply| (reply.text, model.clone()))
                .map_err(|error| (error, model)),
            notes,
        )
    }

    fn chain(models: Vec<Vec<Box<dyn Provider>>>) -> ModelChain {
        let mut chain = ModelChain::default();
        for keys in models {
            chain.push(keys);
        }
        chain
    }

    fn one(turns: Vec<Answer>, max: u32) -> Result<String, ProviderError> {
        run(&chain(vec![vec![script("m/x", turns)]]), max)
            .0
            .map(|(text, _)| text)
            .map_err(|(error, _)| error)
    }

    #[test]
    fn faults_that_pass_are_tried_again_and_others_are_not() {
        let down = || ("", Err(transient(None)));
        assert_eq!(
            one(vec![down(), ("", Err(transient(Some(2)))), good("a")], 3),
            Ok("a".into())
        );
        assert_eq!(
            one(vec![down(), down(), good("a")], 1),
            Err(transient(None))
        );
        assert_eq!(
            one(vec![refused(), good("a")], 3),
            Err(ProviderError::Auth("no".into()))
        );
    }

    #[test]
    fn an_answer_that_has_begun_is_asked_for_nowhere_else() {
        let half = || ("half an ", Err(transient(None)));
        let refused = ProviderError::Rejected("gone".into());
        assert_eq!(one(vec![half(), good("a")], 3), Err(transient(None)));
        let two = chain(vec![
            vec![script("m/x", vec![half()])],
            vec![script("m/y", vec![good("a")])],
        ]);
        assert_eq!(run(&two, 3).0, Err((transient(None), "m/x".into())));
        // But if nobody saw it, it is.
        let two = chain(vec![
            vec![script("m/x", vec![half(), ("", Err(refused))])],
            vec![script("m/y", vec![good("a")])],
        ]);
        let (result, notes) = run(&two, NOT_SHOWN);
        assert_eq!(result, Ok(("a".into(), "m/y".into())));
        assert_eq!(
            notes.iter().filter(|note| **note == Note::Void).count(),
            1,
            "{notes:?}"
        );
    }

    #[test]
    fn a_server_that_asks_for_more_time_than_there_is_ends_it() {
        for asked in [6_000, 61_000] {
            let error = transient(Some(asked));
            assert_eq!(
                one(vec![("", Err(error.clone())), good("a")], 3),
                Err(error)
            );
        }
    }

    #[test]
    fn a_key_in_trouble_makes_room_for_the_next_at_once() {
        let keys = vec![
            script("m/x", vec![refused()]),
            script("m/x", vec![limited()]),
            script("m/x", vec![("", Err(ProviderError::Quota("empty".into())))]),
            script("m/x", vec![good("a"), good("b")]),
        ];
        let chain = chain(vec![keys]);
        let (result, notes) = run(&chain, 0);
        assert_eq!(result, Ok(("a".into(), "m/x".into())));
        let mended: Vec<bool> = notes
            .iter()
            .map(|note| matches!(note, Note::Warning(_)))
            .collect();
        assert_eq!(mended, [true, false, true], "{notes:?}");
        // And is remembered.
        assert_eq!(run(&chain, 0), (Ok(("b".into(), "m/x".into())), Vec::new()));
    }

    #[test]
    fn when_every_key_is_in_trouble_the_one_that_recovers_first_is_asked_again() {
        let busy = |ms| {
            (
                "",
                Err(ProviderError::RateLimited {
                    message: "x".into(),
                    retry_after: Some(Duration::from_millis(ms)),
                }),
            )
        };
        let keys = || {
            vec![
                script("m/x", vec![busy(900), busy(900)]),
                script("m/x", vec![busy(20), good("a")]),
                script("m/x", vec![refused()]),
            ]
        };
        assert_eq!(
            run(&chain(vec![keys()]), 1).0,
            Ok(("a".into(), "m/x".into()))
        );
        assert!(matches!(
            run(&chain(vec![keys()]), 0).0,
            Err((ProviderError::RateLimited { .. }, _))
        ));
    }

    #[test]
    fn a_refused_key_is_asked_again_after_some_minutes_and_when_the_others_rest_for_longer() {
        let keys = vec![
            script("m/x", vec![refused(), good("b")]),
            script(
                "m/x",
                vec![good("a"), ("", Err(ProviderError::Quota("empty".into())))],
            ),
        ];
        let chain = chain(vec![keys]);
        assert_eq!(run(&chain, 0).0, Ok(("a".into(), "m/x".into())));
        let (model, now) = (&chain.models[0], Instant::now());
        assert_eq!(
            (model.pick_key(now), model.pick_key(now + REFUSED_REST)),
            (1, 0)
        );
        assert!(matches!(
            run(&chain, 0).0,
            Err((ProviderError::Quota(_), _))
        ));
        assert_eq!(run(&chain, 0).0, Ok(("b".into(), "m/x".into())));
    }

    #[test]
    fn a_model_that_fails_makes_room_for_the_next_and_comes_last_for_a_while() {
        let chain = chain(vec![
            vec![script(
                "m/x",
                vec![("", Err(transient(None))), ("", Err(transient(None)))],
            )],
            vec![script(
                "m/y",
                vec![("", Err(ProviderError::Rejected("gone".into())))],
            )],
            vec![script("m/z", vec![good("a"), good("b")])],
        ]);
        let (result, notes) = run(&chain, 1);
        assert_eq!(result, Ok(("a".into(), "m/z".into())));
        assert_eq!(
            notes.last(),
            Some(&Note::Warning("m/y: gone; asking m/z".into())),
            "{notes:?}"
        );
        assert_eq!(run(&chain, 1), (Ok(("b".into(), "m/z".into())), Vec::new()));
    }

    #[test]
    fn models_of_one_name_take_turns_and_stand_in_for_each_other() {
        let mut chain = chain(
            ["m/a", "m/b", "m/c"]
                .map(|name| vec![script(name, Vec::new())])
                .into(),
        );
        let order = |chain: &ModelChain, turn| {
            chain
                .by_health(Instant::now(), turn)
                .iter()
                .map(|model| model.provider().model().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(order(&chain, 1), ["m/a", "m/b", "m/c"]);
        chain.share_load(2);
        assert_eq!(
            [order(&chain, 4)[0].as_str(), order(&chain, 5)[0].as_str()],
            ["m/a", "m/b"]
        );
        assert_eq!(order(&chain, 5)[2], "m/c", "a fallback stays one");
        chain.models[1].health().down_until = Some(Instant::now() + MODEL_REST);
        assert_eq!(order(&chain, 5)[0], "m/a");
    }

    #[test]
    fn when_nobody_answers_it_is_the_first_ones_error() {
        let chain = chain(vec![
            vec![script("m/x", vec![refused()])],
            vec![script("m/y", vec![("", Err(transient(None)))])],
        ]);
        assert_eq!(
            run(&chain, 0).0,
            Err((ProviderError::Auth("no".into()), "m/x".into()))
        );
    }

    #[test]
    fn a_conversation_that_is_too_long_is_nobody_elses_business() {
        let long = ProviderError::ContextTooLong("x".into());
        let chain = chain(vec![
            vec![script("m/x", vec![("", Err(long.clone()))])],
            vec![script("m/y", vec![good("a")])],
        ]);
        assert_eq!(run(&chain, 0).0, Err((long, "m/x".into())));
    }
}
