//! Asking a model: the seam, the kinds of failure, and the one place that tries again.

pub mod demo;
mod errors;
pub mod openai;
mod quirks;
mod replies;
mod stream;

use std::time::Duration;

use serde_json::{Value, json};

use crate::cancel::{Cancel, Why};
use crate::error::{Error, Kind};
use crate::message::{Message, Reply};

/// A tool as the model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOffer {
    pub name: String,
    pub description: String,
    /// JSON Schema of its arguments.
    pub schema: Value,
}

/// What is asked.
pub struct Request<'a> {
    pub system: &'a str,
    pub messages: &'a [Message],
    /// Empty: the model must answer in text.
    pub tools: &'a [ToolOffer],
    pub stream: bool,
    pub cancel: &'a Cancel,
}

/// Something that answers.
pub trait Provider: Send + Sync {
    /// `vendor/model`, as it is shown.
    fn model(&self) -> &str;

    /// Asks once. `on_delta` gets the answer's text as it arrives; together the pieces are the reply's text.
    ///
    /// # Errors
    /// See [`ProviderError`]. Text that arrived before a fault has been given to `on_delta`.
    fn chat(&self, request: &Request, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError>;

    /// The body that [`Provider::chat`] would send. There is no key in it: keys travel in headers.
    fn preview(&self, request: &Request) -> Value {
        let messages = request.messages.iter().map(|message| Value::Object(message.to_json()));
        let tools = request.tools.iter().map(|tool| tool.name.as_str());
        json!({
            "model": self.model(),
            "system": request.system,
            "messages": messages.collect::<Value>(),
            "tools": tools.collect::<Value>(),
        })
    }
}

/// Why there is no answer. The texts are for a person and hold no key.
#[derive(Clone, Debug, PartialEq)]
pub enum ProviderError {
    /// The key was refused.
    Auth(String),
    /// Too many requests; ask again after this long, if it said.
    RateLimited {
        message: String,
        retry_after: Option<Duration>,
    },
    /// The account's means are used up: asking again does not help.
    Quota(String),
    /// The conversation is longer than the model can read.
    ContextTooLong(String),
    /// A fault that may pass: no connection, silence, a cut answer, a server's error.
    Transient {
        message: String,
        retry_after: Option<Duration>,
    },
    /// It will never accept this request.
    Rejected(String),
    Cancelled(Why),
}

impl ProviderError {
    /// What the user is told.
    #[must_use]
    pub fn into_error(self, model: &str) -> Error {
        let doing = format!("asking {model}");
        match self {
            Self::Auth(m) => Error::new(Kind::Auth, m)
                .doing(doing)
                .hint("check the key: `bantam doctor --provider` tells where it comes from"),
            Self::RateLimited { message, retry_after } => {
                let wait = retry_after.map_or(String::new(), |t| format!(" in {} s", t.as_secs().max(1)));
                Error::new(Kind::Unavailable, message)
                    .doing(doing)
                    .hint(format!("try again later{wait}, or use another --model"))
            }
            Self::Quota(m) => {
                Error::new(Kind::Unavailable, m).doing(doing).hint("add credit to the account, or use another --model")
            }
            Self::ContextTooLong(m) => {
                Error::failed(m).doing(doing).hint("start a new conversation with --new, or /new at the terminal")
            }
            Self::Transient { message, .. } => Error::new(Kind::Unavailable, message)
                .doing(doing)
                .hint("check the network and the model's api_base, or try again later"),
            Self::Rejected(m) => {
                Error::failed(m).doing(doing).hint("check the model's name and its entry in model_list")
            }
            Self::Cancelled(Why::Stopped) => Error::new(Kind::Interrupted, "stopped by the user"),
            Self::Cancelled(Why::Deadline) => {
                Error::new(Kind::Limit, "the turn's time was up").hint("give it more with --timeout")
            }
        }
    }

    /// Whether asking again may help.
    fn passes(&self) -> bool {
        matches!(self, Self::RateLimited { .. } | Self::Transient { .. })
    }

    /// How long the server asks to be left alone first.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Transient { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// How often and how soon to ask again.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Tries after the first.
    pub max: u32,
    /// The most to wait before the first of them; doubled each time.
    pub first_wait: Duration,
}

/// No server is waited for longer than this, however long it asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Asks, and asks again while the fault is one that passes and nothing of an answer has arrived.
///
/// What has arrived counts, not what was shown: whether anybody looks must not decide what happens. `notice` hears of
/// each try that failed.
///
/// # Errors
/// The last try's.
pub fn ask(
    provider: &dyn Provider,
    request: &Request,
    retry: Retry,
    on_delta: &mut dyn FnMut(&str),
    notice: &mut dyn FnMut(String),
) -> Result<Reply, ProviderError> {
    let mut tries = 0;
    loop {
        let mut begun = false;
        let result = provider.chat(request, &mut |text| {
            begun = true;
            on_delta(text);
        });
        let error = match result {
            Ok(reply) => return Ok(reply),
            Err(e) => e,
        };
        if !error.passes() || begun || tries >= retry.max {
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
        notice(format!("try {tries} of {}: {}; next in {:.1} s", retry.max + 1, describe(&error), wait.as_secs_f64()));
        request.cancel.sleep(wait).map_err(ProviderError::Cancelled)?;
    }
}

fn describe(error: &ProviderError) -> &str {
    match error {
        ProviderError::Auth(m)
        | ProviderError::Quota(m)
        | ProviderError::ContextTooLong(m)
        | ProviderError::Rejected(m)
        | ProviderError::RateLimited { message: m, .. }
        | ProviderError::Transient { message: m, .. } => m,
        ProviderError::Cancelled(_) => "stopped",
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
    use std::sync::Mutex;

    type Turn = (&'static str, Result<Reply, ProviderError>);

    struct Script(Mutex<Vec<Turn>>);

    impl Provider for Script {
        fn model(&self) -> &'static str {
            "script/x"
        }
        fn chat(&self, _: &Request, on_delta: &mut dyn FnMut(&str)) -> Result<Reply, ProviderError> {
            let (delta, result) = self.0.lock().unwrap().remove(0);
            if !delta.is_empty() {
                on_delta(delta);
            }
            result
        }
    }

    fn transient(retry_after: Option<u64>) -> Result<Reply, ProviderError> {
        let retry_after = retry_after.map(Duration::from_millis);
        Err(ProviderError::Transient { message: "down".into(), retry_after })
    }

    /// The result, and how many turns of the script are left.
    fn run(turns: Vec<Turn>, max: u32) -> (Result<Reply, ProviderError>, usize) {
        let script = Script(Mutex::new(turns));
        let cancel = Cancel::new(Some(Duration::from_secs(5)));
        let request = Request { system: "", messages: &[], tools: &[], stream: false, cancel: &cancel };
        let retry = Retry { max, first_wait: Duration::from_millis(1) };
        let result = ask(&script, &request, retry, &mut |_| (), &mut |_| ());
        let left = script.0.lock().unwrap().len();
        (result, left)
    }

    #[test]
    fn faults_that_pass_are_tried_again_and_others_are_not() {
        let good = || ("", Ok(Reply::default()));
        assert_eq!(run(vec![("", transient(None)), ("", transient(Some(2))), good()], 3), (Ok(Reply::default()), 0));
        assert_eq!(run(vec![("", transient(None)), ("", transient(None)), good()], 1).1, 1);
        let refused = || ("", Err(ProviderError::Auth("no".into())));
        assert_eq!(run(vec![refused(), good()], 3).1, 1);
    }

    #[test]
    fn an_answer_that_has_begun_is_not_asked_for_again() {
        assert_eq!(run(vec![("half an ", transient(None)), ("", Ok(Reply::default()))], 3), (transient(None), 1));
    }

    #[test]
    fn a_server_that_asks_for_more_time_than_there_is_ends_it() {
        for asked in [6_000, 61_000] {
            assert_eq!(run(vec![("", transient(Some(asked))), ("", Ok(Reply::default()))], 3).1, 1);
        }
    }
}
