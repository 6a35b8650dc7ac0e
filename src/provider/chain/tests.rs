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
        Err(ProviderError::AuthFailed {
            message: "no".into(),
            no_key: false
        })
    );
}

#[test]
fn an_answer_that_has_begun_is_asked_for_nowhere_else() {
    let half = || ("half an ", Err(transient(None)));
    let refused = rejected("gone");
    assert_eq!(one(vec![half(), good("a")], 3), Err(transient(None)));
    let two = chain(vec![
        vec![script("m/x", vec![half()])],
        vec![script("m/y", vec![good("a")])],
    ]);
    assert_eq!(run(&two, 3).0, Err((transient(None), "m/x".into())));
    // A partial reply that was not shown is requested again.
    let two = chain(vec![
        vec![script("m/x", vec![half(), ("", Err(refused))])],
        vec![script("m/y", vec![good("a")])],
    ]);
    assert_eq!(run(&two, NOT_SHOWN).0, Ok(("a".into(), "m/y".into())));
}

#[test]
fn retry_after_beyond_deadline_ends_the_turn() {
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
    let mended: Vec<bool> = notes.iter().map(|note| note.starts_with('!')).collect();
    assert_eq!(mended, [true, false, true], "{notes:?}");
    // The chain remembers which key works.
    assert_eq!(run(&chain, 0), (Ok(("b".into(), "m/x".into())), Vec::new()));
}

#[test]
fn exhausted_keys_retry_the_earliest_recovered() {
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
fn failed_model_moves_to_the_end() {
    let chain = chain(vec![
        vec![script(
            "m/x",
            vec![("", Err(transient(None))), ("", Err(transient(None)))],
        )],
        vec![script("m/y", vec![("", Err(rejected("gone")))])],
        vec![script("m/z", vec![good("a"), good("b")])],
    ]);
    let (result, notes) = run(&chain, 1);
    assert_eq!(result, Ok(("a".into(), "m/z".into())));
    assert_eq!(
        notes.last(),
        Some(&"!m/y: gone; asking m/z".to_owned()),
        "{notes:?}"
    );
    assert_eq!(run(&chain, 1), (Ok(("b".into(), "m/z".into())), Vec::new()));
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
    let (one, other) = (chain.choose(""), chain.choose(""));
    let mut firsts = [order(&one)[0], order(&other)[0]];
    assert_eq!(order(&one)[0], firsts[0], "a turn keeps its entry");
    firsts.sort_unstable();
    assert_eq!(firsts, [0, 1]);
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

#[test]
fn failed_chain_reports_the_first_error() {
    let chain = chain(vec![
        vec![script("m/x", vec![refused()])],
        vec![script("m/y", vec![("", Err(transient(None)))])],
    ]);
    assert_eq!(
        run(&chain, 0).0,
        Err((
            ProviderError::AuthFailed {
                message: "no".into(),
                no_key: false
            },
            "m/x".into()
        ))
    );
}

#[test]
fn a_conversation_that_is_too_long_is_nobody_elses_business() {
    let long = ProviderError::TooLong {
        message: "x".into(),
        limit: None,
    };
    let chain = chain(vec![
        vec![script("m/x", vec![("", Err(long.clone()))])],
        vec![script("m/y", vec![good("a")])],
    ]);
    assert_eq!(run(&chain, 0).0, Err((long, "m/x".into())));
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
fn a_server_that_loads_for_ever_ends_with_the_turn() {
    let count = Arc::new(AtomicU32::new(0));
    let loading = ProviderError::Loading("loading".into());
    let server = Failing("m/x", loading.clone(), count.clone());
    let result = run(&chain(vec![vec![Box::new(server)]]), 2).0;
    assert_eq!(result, Err((loading, "m/x".into())));
    assert_eq!(count.load(Ordering::SeqCst), 3, "every 2 of 5 seconds");
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
