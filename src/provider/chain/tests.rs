//! Tests of the chain.

use super::*;
use crate::cancel::Cancel;
use crate::provider::{Sampling, System};

type Answer = Result<Reply, ProviderError>;

struct ScriptedProvider(&'static str, Mutex<Vec<Answer>>);

impl Provider for ScriptedProvider {
    fn model(&self) -> &'static str {
        self.0
    }
    fn chat(&self, _: &Request, _: &dyn Sink) -> Result<Reply, ProviderError> {
        self.1.lock().unwrap().remove(0)
    }
}

fn script(name: &'static str, turns: Vec<Answer>) -> ScriptedProvider {
    ScriptedProvider(name, Mutex::new(turns))
}

fn good(text: &str) -> Reply {
    Reply {
        text: text.to_owned(),
        ..Reply::default()
    }
}

fn refused() -> ProviderError {
    ProviderError::AuthFailed {
        message: "no".into(),
        no_key: false,
    }
}

/// Returns the text of the answer, or the error.
fn ask(chain: &Chain, choice: &Choice) -> Result<String, ProviderError> {
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
        max: 0,
        first_wait: Duration::from_millis(1),
        partial: false,
    };
    let (result, _, _) = chain.ask_chain(&request, choice, retry, &|_| ());
    result.map(|reply| reply.text)
}

fn chain(models: Vec<Vec<ScriptedProvider>>) -> Chain {
    models.into_iter().fold(Chain::default(), Chain::then_keys)
}

#[test]
fn refused_key_is_retried_later() {
    let keys = vec![
        script("m/x", vec![Err(refused()), Ok(good("b"))]),
        script(
            "m/x",
            vec![Ok(good("a")), Err(ProviderError::Quota("empty".into()))],
        ),
    ];
    let chain = chain(vec![keys]);
    assert_eq!(ask(&chain, &chain.choose("")), Ok("a".into()));
    let (model, now) = (&chain.models[0], Instant::now());
    assert_eq!(
        (
            model.keys_to_ask(now),
            model.keys_to_ask(now + REFUSED_REST)
        ),
        (vec![1], vec![0, 1])
    );
    assert!(matches!(
        ask(&chain, &chain.choose("")),
        Err(ProviderError::Quota(_))
    ));
    assert_eq!(ask(&chain, &chain.choose("")), Ok("b".into()));
}

#[test]
fn a_turn_keeps_the_model_that_answers() {
    let entries = ["m/a", "m/a", "m/c"].map(|name| vec![script(name, Vec::new())]);
    let chain = chain(entries.into());
    let order = |choice: &Choice| chain.in_order(choice, Instant::now());
    assert_eq!(order(&chain.choose("")), [0, 1, 2]);
    assert_eq!(order(&chain.choose("m/c")), [2, 0, 1]);
    chain.models[0].health().down_until = Some(Instant::now() + MODEL_REST);
    assert_eq!(order(&chain.choose("")), [1, 2, 0]);
    // Once the other one is up again, the turn stays with the one that has answered.
    let answering = crate::provider::chain::tests::chain(vec![
        vec![script(
            "m/a",
            vec![Err(rejected("down")), Ok(good("never"))],
        )],
        vec![script("m/a", vec![Ok(good("one")), Ok(good("two"))])],
    ]);
    let choice = answering.choose("");
    for text in ["one", "two"] {
        assert_eq!(ask(&answering, &choice), Ok(text.into()));
        answering.models[0].health().down_until = None;
    }
}
