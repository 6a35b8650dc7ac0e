//! Who is asked, and when again: the one place that tries a second time.
//!
//! Three things can be done about a failure, in this order: another key of the same model, when this one is the trouble;
//! the same again after a while, when the fault is one that passes; another model. None of them once something of the
//! answer has arrived. What has arrived counts, not what was shown: whether anybody looks must not decide what happens.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Provider, ProviderError, Request};
use crate::message::{Price, Reply};

/// How often and how soon to ask again.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Tries after the first.
    pub max: u32,
    /// The most to wait before the first of them; doubled each time.
    pub first_wait: Duration,
}

/// What the asking has to tell before there is an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// For whoever wants to know how it goes.
    Trace(String),
    /// Something to be mended: a key that is refused, a model that does not answer.
    Notice(String),
}

/// The model that was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asked<'a> {
    /// `vendor/model`.
    pub name: &'a str,
    pub price: Price,
}

/// No server is waited for longer than this, however long it asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long a key rests that was told to slow down, unless it was told how long.
const RATE_REST: Duration = Duration::from_secs(60);
/// How long a key rests whose account is used up.
const QUOTA_REST: Duration = Duration::from_secs(3600);
/// How long a model that failed is asked after the others.
const DOWN: Duration = Duration::from_secs(60);

/// The models that may answer, the first choice first.
#[derive(Default)]
pub struct ModelChain {
    models: Vec<Model>,
}

/// One model, by each of its keys.
struct Model {
    keys: Vec<Box<dyn Provider>>,
    state: Mutex<State>,
}

struct State {
    /// For each key.
    rests: Vec<KeyState>,
    /// It failed, and is the last to be asked until then.
    down: Option<Instant>,
}

/// Whether a key can be used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeyState {
    Ready,
    Until(Instant),
    /// It was refused, and will be again.
    Refused,
}

impl ModelChain {
    /// Adds a model that is asked when those before it fail. `keys` has the same model once for each key.
    pub fn push(&mut self, keys: Vec<Box<dyn Provider>>) {
        if !keys.is_empty() {
            let state = State { rests: vec![KeyState::Ready; keys.len()], down: None };
            self.models.push(Model { keys, state: Mutex::new(state) });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// The first choice.
    pub fn first(&self) -> Option<&dyn Provider> {
        self.models.first().and_then(|model| model.keys.first()).map(AsRef::as_ref)
    }

    /// The names of those whose price is not known.
    pub fn unpriced(&self) -> impl Iterator<Item = &str> {
        let asked = self.models.iter().map(Model::asked);
        asked.filter(|asked| asked.price == Price::default()).map(|asked| asked.name)
    }

    /// Asks until one answers, and names it.
    pub fn ask(
        &self,
        request: &Request,
        retry: Retry,
        on_delta: &mut dyn FnMut(&str),
        note: &mut dyn FnMut(Note),
    ) -> Result<(Reply, Asked<'_>), (ProviderError, Asked<'_>)> {
        let mut first = None;
        let order = self.order(Instant::now());
        for (at, model) in order.iter().enumerate() {
            let mut begun = false;
            let result = model.ask(
                request,
                retry,
                &mut |text| {
                    begun = true;
                    on_delta(text);
                },
                note,
            );
            let error = match result {
                Ok(reply) => {
                    model.lock().down = None;
                    return Ok((reply, model.asked()));
                }
                Err(error) => error,
            };
            if begun || matches!(error, ProviderError::Cancelled(_) | ProviderError::ContextTooLong(_)) {
                return Err((error, model.asked()));
            }
            model.lock().down = Some(Instant::now() + DOWN);
            if let Some(next) = order.get(at + 1) {
                note(Note::Notice(format!("{}: {}; asking {}", model.name(), error.text(), next.name())));
            }
            first.get_or_insert((error, model.asked()));
            if let Some(why) = request.cancel.why() {
                return Err((ProviderError::Cancelled(why), model.asked()));
            }
        }
        Err(first.unwrap_or_else(|| (ProviderError::Rejected("there is no model to ask".to_owned()), Asked::default())))
    }

    /// The models in the order in which they are asked now: those that have just failed come last.
    fn order(&self, now: Instant) -> Vec<&Model> {
        let is_down = |model: &&Model| model.lock().down.is_some_and(|until| until > now);
        let (down, up): (Vec<&Model>, Vec<&Model>) = self.models.iter().partition(is_down);
        [up, down].concat()
    }
}

impl Model {
    fn name(&self) -> &str {
        self.asked().name
    }

    fn asked(&self) -> Asked<'_> {
        self.keys.first().map_or_else(Asked::default, |key| Asked { name: key.model(), price: key.price() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key that is ready, or will be first.
    fn pick(&self, now: Instant) -> usize {
        let mut state = self.lock();
        for rest in &mut state.rests {
            if matches!(rest, KeyState::Until(until) if *until <= now) {
                *rest = KeyState::Ready;
            }
        }
        state.rests.iter().enumerate().min_by_key(|(at, rest)| (**rest, *at)).map_or(0, |(at, _)| at)
    }

    /// Lets a key rest after what it was told. Whether another is ready.
    fn set_aside(&self, key: usize, error: &ProviderError, now: Instant) -> bool {
        let rest = match error {
            ProviderError::Auth(_) | ProviderError::Unasked(_) => KeyState::Refused,
            ProviderError::Quota(_) => KeyState::Until(now + QUOTA_REST),
            ProviderError::RateLimited { retry_after, .. } => {
                KeyState::Until(now + retry_after.unwrap_or(RATE_REST).min(QUOTA_REST))
            }
            _ => return false,
        };
        let mut state = self.lock();
        state.rests[key] = rest;
        state.rests.contains(&KeyState::Ready)
    }

    fn ask(
        &self,
        request: &Request,
        retry: Retry,
        on_delta: &mut dyn FnMut(&str),
        note: &mut dyn FnMut(Note),
    ) -> Result<Reply, ProviderError> {
        let mut tries = 0;
        let mut limited = None;
        loop {
            let key = self.pick(Instant::now());
            let mut begun = false;
            let result = self.keys[key].chat(request, &mut |text| {
                begun = true;
                on_delta(text);
            });
            let error = match result {
                Ok(reply) => return Ok(reply),
                Err(error) if begun => return Err(error),
                Err(error) => error,
            };
            if self.set_aside(key, &error, Instant::now()) {
                let said =
                    format!("{}: key {} of {}: {}; using another", self.name(), key + 1, self.keys.len(), error.text());
                let passes = error.passes();
                note(if passes { Note::Trace(said) } else { Note::Notice(said) });
                limited = Some(error).filter(|_| passes).or(limited);
                continue;
            }
            // A key that was told to slow down is more hope than one that was refused.
            let error = match error {
                error @ ProviderError::RateLimited { .. } => limited.insert(error).clone(),
                error if error.passes() => error,
                error => limited.take().unwrap_or(error),
            };
            if !error.passes() || tries >= retry.max {
                return Err(error);
            }
            let wait = match error.retry_after() {
                Some(asked) if asked > LONGEST_WAIT => return Err(error),
                Some(asked) => asked,
                None => jitter(retry.first_wait.saturating_mul(1 << tries.min(16)).min(LONGEST_WAIT)),
            };
            if request.cancel.remaining(wait) < wait {
                return Err(error);
            }
            tries += 1;
            let (of, wait_s) = (retry.max + 1, wait.as_secs_f64());
            note(Note::Trace(format!("try {tries} of {of}: {}; next in {wait_s:.1} s", error.text())));
            request.cancel.sleep(wait).map_err(ProviderError::Cancelled)?;
        }
    }
}

/// Full jitter: anything from nothing to `most`, so that many clients that failed together do not come back together.
fn jitter(most: Duration) -> Duration {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The standard library's hash keys are its only source of randomness; good enough to spread clients.
    let random = RandomState::new().build_hasher().finish();
    let thousandths = u32::try_from(random % 1001).unwrap_or(1000);
    most * thousandths / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::provider::System;

    type Turn = (&'static str, Result<Reply, ProviderError>);

    struct Script(&'static str, Mutex<Vec<Turn>>);

    impl Provider for Script {
        fn model(&self) -> &'static str {
            self.0
        }
        fn chat(&self, _: &Request, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
            let (delta, result) = self.1.lock().unwrap().remove(0);
            if !delta.is_empty() {
                on_delta(delta);
            }
            result
        }
    }

    fn script(name: &'static str, turns: Vec<Turn>) -> Box<dyn Provider> {
        Box::new(Script(name, Mutex::new(turns)))
    }

    fn good(text: &str) -> Turn {
        ("", Ok(Reply { text: text.to_owned(), ..Reply::default() }))
    }

    fn transient(retry_after: Option<u64>) -> ProviderError {
        let retry_after = retry_after.map(Duration::from_millis);
        ProviderError::Transient { message: "down".into(), retry_after }
    }

    fn limited() -> Turn {
        ("", Err(ProviderError::RateLimited { message: "slow down".into(), retry_after: None }))
    }

    fn refused() -> Turn {
        ("", Err(ProviderError::Auth("no".into())))
    }

    /// The answer and who gave it, or the error and whose it is.
    type Outcome = Result<(String, String), (ProviderError, String)>;

    /// What came of it, and what was noted on the way.
    fn run(chain: &ModelChain, max: u32) -> (Outcome, Vec<Note>) {
        let cancel = Cancel::new(Some(Duration::from_secs(5)));
        let request = Request { system: System::default(), messages: &[], tools: &[], stream: false, cancel: &cancel };
        let retry = Retry { max, first_wait: Duration::from_millis(1) };
        let mut notes = Vec::new();
        let result = chain.ask(&request, retry, &mut |_| (), &mut |note| notes.push(note));
        let result = result.map(|(reply, asked)| (reply.text, asked.name.to_owned()));
        (result.map_err(|(error, asked)| (error, asked.name.to_owned())), notes)
    }

    fn chain(models: Vec<Vec<Box<dyn Provider>>>) -> ModelChain {
        let mut chain = ModelChain::default();
        for keys in models {
            chain.push(keys);
        }
        chain
    }

    fn one(turns: Vec<Turn>, max: u32) -> Result<String, ProviderError> {
        run(&chain(vec![vec![script("m/x", turns)]]), max).0.map(|(text, _)| text).map_err(|(error, _)| error)
    }

    #[test]
    fn faults_that_pass_are_tried_again_and_others_are_not() {
        let down = || ("", Err(transient(None)));
        assert_eq!(one(vec![down(), ("", Err(transient(Some(2)))), good("a")], 3), Ok("a".into()));
        assert_eq!(one(vec![down(), down(), good("a")], 1), Err(transient(None)));
        assert_eq!(one(vec![refused(), good("a")], 3), Err(ProviderError::Auth("no".into())));
    }

    #[test]
    fn an_answer_that_has_begun_is_asked_for_nowhere_else() {
        let half = || ("half an ", Err(transient(None)));
        assert_eq!(one(vec![half(), good("a")], 3), Err(transient(None)));
        let two = chain(vec![vec![script("m/x", vec![half()])], vec![script("m/y", vec![good("a")])]]);
        assert_eq!(run(&two, 3).0, Err((transient(None), "m/x".into())));
    }

    #[test]
    fn a_server_that_asks_for_more_time_than_there_is_ends_it() {
        for asked in [6_000, 61_000] {
            let error = transient(Some(asked));
            assert_eq!(one(vec![("", Err(error.clone())), good("a")], 3), Err(error));
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
        let mended: Vec<bool> = notes.iter().map(|note| matches!(note, Note::Notice(_))).collect();
        assert_eq!(mended, [true, false, true], "{notes:?}");
        // And is remembered.
        assert_eq!(run(&chain, 0), (Ok(("b".into(), "m/x".into())), Vec::new()));
    }

    #[test]
    fn when_every_key_is_in_trouble_the_one_that_recovers_first_is_asked_again() {
        let busy = |ms| {
            ("", Err(ProviderError::RateLimited { message: "x".into(), retry_after: Some(Duration::from_millis(ms)) }))
        };
        let keys = || {
            vec![
                script("m/x", vec![busy(900), busy(900)]),
                script("m/x", vec![busy(20), good("a")]),
                script("m/x", vec![refused()]),
            ]
        };
        assert_eq!(run(&chain(vec![keys()]), 1).0, Ok(("a".into(), "m/x".into())));
        assert!(matches!(run(&chain(vec![keys()]), 0).0, Err((ProviderError::RateLimited { .. }, _))));
    }

    #[test]
    fn a_model_that_fails_makes_room_for_the_next_and_comes_last_for_a_while() {
        let chain = chain(vec![
            vec![script("m/x", vec![("", Err(transient(None))), ("", Err(transient(None)))])],
            vec![script("m/y", vec![("", Err(ProviderError::Rejected("gone".into())))])],
            vec![script("m/z", vec![good("a"), good("b")])],
        ]);
        let (result, notes) = run(&chain, 1);
        assert_eq!(result, Ok(("a".into(), "m/z".into())));
        assert_eq!(notes.last(), Some(&Note::Notice("m/y: gone; asking m/z".into())), "{notes:?}");
        assert_eq!(run(&chain, 1), (Ok(("b".into(), "m/z".into())), Vec::new()));
    }

    #[test]
    fn when_nobody_answers_it_is_the_first_ones_error() {
        let chain =
            chain(vec![vec![script("m/x", vec![refused()])], vec![script("m/y", vec![("", Err(transient(None)))])]]);
        assert_eq!(run(&chain, 0).0, Err((ProviderError::Auth("no".into()), "m/x".into())));
    }

    #[test]
    fn a_conversation_that_is_too_long_is_nobody_elses_business() {
        let long = ProviderError::ContextTooLong("x".into());
        let chain =
            chain(vec![vec![script("m/x", vec![("", Err(long.clone()))])], vec![script("m/y", vec![good("a")])]]);
        assert_eq!(run(&chain, 0).0, Err((long, "m/x".into())));
    }
}
