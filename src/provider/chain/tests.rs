//! Tests of the chain.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::cancel::Cancel;
use crate::provider::{Sampling, System};

/// Number of retries for a turn whose text is not shown as it arrives.
const NOT_SHOWN: u32 = 7;

type Answer = (&'static str, Result<Reply, ProviderError>);

struct ScriptedProvider(&'static str, Mutex<Vec<Answer>>);

impl Provider for ScriptedProvider {
    fn model(&self) -> &'static str {
        self.0
    }
    fn chat(&self, _: &Request, sink: &dyn Sink) -> Result<Reply, ProviderError> {
        let (delta, result) = self.1.lock().unwrap().remove(0);
        if !delta.is_empty() {
            sink.event(Event::Delta(delta.to_owned()));
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

fn refused() -> Answer {
    (
        "",
        Err(ProviderError::AuthFailed {
            message: "no".into(),
            no_key: false,
        }),
    )
}

/// The answer and its model, or the error and its model.
type ChainResult = Result<(String, String), (ProviderError, String)>;

/// Returns the result and the notices of a turn with one request; a warning starts with `!`.
fn run(chain: &Chain, max: u32) -> (ChainResult, Vec<String>) {
    ask(chain, &chain.choose(""), max)
}

fn ask(chain: &Chain, choice: &Choice, max: u32) -> (ChainResult, Vec<String>) {
    let cancel = Cancel::new(Some(Duration::from_secs(5)));
    let request = Request {
        system: System::default(),
        messages: &[],
        tools: &[],
        withheld: false,
        stream: false,
        sampling: &Sampling::default(),
        input_tokens: 0,
        cancel: &cancel,
    };
    let retry = Retry {
        max,
        first_wait: Duration::from_millis(1),
        partial: max == NOT_SHOWN,
    };
    let notes = RefCell::new(Vec::new());
    let sink = |event| match event {
        Event::Notice(text) => notes.borrow_mut().push(text),
        Event::Warning(text) => notes.borrow_mut().push(format!("!{text}")),
        _ => {}
    };
    let (result, model, _) = chain.ask_chain(&request, choice, retry, &sink);
    let model = model.model().to_owned();
    (
        result
            .map(|reply| (reply.text, model.clone()))
            .map_err(|error| (error, model)),
        notes.into_inner(),
    )
}

fn chain(models: Vec<Vec<Box<dyn Provider>>>) -> Chain {
    let mut chain = Chain::default();
    for keys in models {
        chain.push(keys);
    }
    chain
}

#[test]
fn refused_key_is_retried_later() {
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
        (
            model.keys_to_ask(now),
            model.keys_to_ask(now + REFUSED_REST)
        ),
        (vec![1], vec![0, 1])
    );
    assert!(matches!(
        run(&chain, 0).0,
        Err((ProviderError::Quota(_), _))
    ));
    assert_eq!(run(&chain, 0).0, Ok(("b".into(), "m/x".into())));
}

#[test]
fn same_name_models_rotate_and_fall_back() {
    let entries = ["m/a", "m/a", "m/c"].map(|name| vec![script(name, Vec::new())]);
    let chain = chain(entries.into());
    let order = |choice: &Choice| chain.in_order(choice, Instant::now());
    assert_eq!(order(&chain.choose("")), [0, 1, 2]);
    assert_eq!(order(&chain.choose("m/c")), [2, 0, 1]);
    let chain = chain.sharing_load(2);
    let order = |choice: &Choice| chain.in_order(choice, Instant::now());
    let starting = |first: usize| {
        let mut choices = (0..100).map(|_| chain.choose(""));
        choices.find(|choice| order(choice)[0] == first).unwrap()
    };
    let (one, other) = (starting(0), starting(1));
    assert_eq!(order(&one)[0], 0, "a turn keeps its entry");
    assert_eq!(order(&one)[2], 2, "a fallback stays one");
    chain.models[1].health().down_until = Some(Instant::now() + MODEL_REST);
    assert_eq!((order(&one)[0], order(&other)[0]), (0, 0));
    assert_eq!(order(&chain.choose(""))[0], 0);
    // Once the other one is up again, the turn stays with the one that has answered.
    let answering = crate::provider::chain::tests::chain(vec![
        vec![script(
            "m/a",
            vec![("", Err(rejected("down"))), good("never")],
        )],
        vec![script("m/a", vec![good("one"), good("two")])],
    ]);
    let choice = answering.choose("");
    for text in ["one", "two"] {
        assert_eq!(
            ask(&answering, &choice, 0).0,
            Ok((text.into(), "m/a".into()))
        );
        answering.models[0].health().down_until = None;
    }
}

/// Fails each request with the same error, and counts them.
struct Failing(&'static str, ProviderError, Arc<AtomicU32>);

impl Provider for Failing {
    fn model(&self) -> &'static str {
        self.0
    }
    fn chat(&self, _: &Request, _: &dyn Sink) -> Result<Reply, ProviderError> {
        // A chain that never gives up must not fill the memory of the machine.
        match self.2.fetch_add(1, Ordering::SeqCst) {
            0..50 => Err(self.1.clone()),
            _ => panic!("asked without end"),
        }
    }
}

#[test]
fn each_key_is_asked_once_more_than_there_are_retries() {
    let limited = |ms: Option<u64>| ProviderError::RateLimited {
        message: "slow down".into(),
        retry_after: ms.map(Duration::from_millis),
    };
    for error in [
        limited(Some(0)),
        limited(Some(1)),
        transient(Some(0)),
        transient(None),
    ] {
        for keys in 1..4 {
            let counts: Vec<Arc<AtomicU32>> = (0..keys).map(|_| Arc::default()).collect();
            let keys = counts.iter().map(|count| {
                let key = Failing("m/x", error.clone(), count.clone());
                Box::new(key) as Box<dyn Provider>
            });
            let chain = chain(vec![keys.collect(), vec![script("m/y", vec![good("a")])]]);
            let (result, notes) = run(&chain, 2);
            assert_eq!(result, Ok(("a".into(), "m/y".into())), "{error:?}");
            let asked: Vec<u32> = counts.iter().map(|n| n.load(Ordering::SeqCst)).collect();
            assert!(
                asked.iter().all(|asked| *asked <= 3),
                "{error:?}: {asked:?}"
            );
            assert_eq!(asked.iter().sum::<u32>() as usize, notes.len(), "{notes:?}");
        }
    }
}
