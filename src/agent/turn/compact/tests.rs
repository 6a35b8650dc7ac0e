//! Growing conversations, with a function as the model and a store in memory.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::agent::{Agent, History, Limits, Request};
use crate::bus::Event;
use crate::bus::{Response, TurnStop};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::message::{Reply, ToolCall, Usage};
use crate::provider::{self, Provider, Retry};
use crate::session::Session;
use crate::session::{MemoryStore, Record, Store};
use crate::storage::Durability;
use crate::tool::{CallContext, Risk, Tool, ToolOutput, ToolSpec};

/// A request as seen by the model.
#[derive(Clone)]
struct SeenRequest {
    stable: String,
    changing: String,
    messages: Vec<Message>,
    tools: usize,
}

impl SeenRequest {
    /// Whether the request is for a summary.
    fn is_for_a_summary(&self) -> bool {
        self.stable == SUMMARIZE
    }

    /// Returns the whole text.
    fn text(&self) -> String {
        let mut text = format!("{}{}", self.stable, self.changing);
        for message in &self.messages {
            writeln!(text, "{}", serde_json::Value::Object(message.to_json())).unwrap();
        }
        text
    }

    fn texts(&self, text: fn(&Message) -> Option<&str>) -> Vec<&str> {
        self.messages.iter().filter_map(text).collect()
    }

    /// Returns the texts of the user's messages.
    fn user(&self) -> Vec<&str> {
        self.texts(|message| {
            if let Message::User(user) = message {
                Some(user.content.as_str())
            } else {
                None
            }
        })
    }

    /// Returns the contents of the results.
    fn results(&self) -> Vec<&str> {
        self.texts(|message| {
            if let Message::ToolResult(result) = message {
                Some(result.content.as_str())
            } else {
                None
            }
        })
    }
}

type Answer = Result<Reply, ProviderError>;
type Answers = Box<dyn Fn(&SeenRequest, usize) -> Answer + Send + Sync>;

struct Function {
    answer: Answers,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
}

impl Provider for Function {
    fn model(&self) -> &'static str {
        "function/x"
    }

    fn chat(&self, request: &provider::Request, _: &dyn provider::Sink) -> Answer {
        let seen = SeenRequest {
            stable: request.system.stable.to_owned(),
            changing: request.system.changing.to_owned(),
            messages: request.messages.to_vec(),
            tools: request.tools.len(),
        };
        let mut all = self.seen.lock().unwrap();
        all.push(seen.clone());
        let number = all.len() - 1;
        drop(all);
        (self.answer)(&seen, number)
    }
}

/// Returns a result of this size, in bytes.
struct LongResult(ToolSpec, usize);

impl Tool for LongResult {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn call(&self, _: &serde_json::Value, _: &CallContext) -> Result<ToolOutput> {
        Ok(ToolOutput::text("r".repeat(self.1)))
    }
}

fn long(bytes: usize) -> LongResult {
    let schema = r#"{"type":"object","properties":{"n":{"type":"integer"}}}"#.into();
    let (name, risk) = ("long".into(), Risk::Safe);
    LongResult(
        ToolSpec {
            name,
            description: "".into(),
            schema,
            risk,
            source: "".into(),
        },
        bytes,
    )
}

fn says(text: impl Into<String>) -> Reply {
    Reply {
        text: text.into(),
        ..Reply::default()
    }
}

fn calls(n: usize) -> Reply {
    let (id, arguments) = (format!("c{n}"), json!({"n": n}).to_string());
    let call = ToolCall {
        id,
        name: "long".into(),
        arguments,
        ..ToolCall::default()
    };
    Reply {
        calls: vec![call],
        ..Reply::default()
    }
}

fn too_long() -> Answer {
    let (message, limit) = ("maximum context length".into(), None);
    Err(ProviderError::TooLong { message, limit })
}

/// An agent with a model, and the requests that the model has seen.
struct Fixture {
    agent: Agent,
    store: MemoryStore,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
}

impl Fixture {
    fn new(
        window: u64,
        answer: impl Fn(&SeenRequest, usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let (seen, store) = (
            Arc::<Mutex<Vec<SeenRequest>>>::default(),
            MemoryStore::default(),
        );
        let model = Function {
            answer: Box::new(answer),
            seen: seen.clone(),
        };
        let retry = Retry {
            max: 0,
            first_wait: Duration::ZERO,
            partial: false,
        };
        let agent = Agent::builder()
            .provider(model)
            .tool(long(3000))
            .store(store.clone())
            .context("HOUSE", |_, _| "Answer briefly.".into())
            .history(History {
                window,
                ..History::default()
            })
            .limits(Limits {
                retry,
                ..Limits::default()
            });
        Self {
            agent: agent.build().unwrap(),
            store,
            seen,
        }
    }

    /// Sends a message. Returns the response, and the notices.
    fn say(&self, text: impl Into<String>) -> (Response, Vec<String>) {
        let notices = Mutex::new(Vec::new());
        let response = self.agent.run(&Request::new(text, "s"), &|event| {
            if let Event::Notice(notice) = event {
                notices.lock().unwrap().push(notice);
            }
        });
        (response, notices.into_inner().unwrap())
    }

    #[track_caller]
    fn answers(&self, text: impl Into<String>) -> Vec<String> {
        let (response, notices) = self.say(text);
        assert_eq!(response.error, None);
        notices
    }

    fn open(&self) -> OpenSession {
        let store: Arc<dyn Store> = Arc::new(self.store.clone());
        OpenSession::open(&store, "s", &Cancel::new(None), &|| ()).unwrap()
    }

    fn stored(&self) -> Session {
        Session::peek(&self.store, "s").unwrap()
    }

    fn seen(&self) -> Vec<SeenRequest> {
        self.seen.lock().unwrap().clone()
    }
}

#[track_caller]
fn each_call_has_its_result(messages: &[Message]) {
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        match message {
            Message::ToolResult(result) => {
                let at = open
                    .iter()
                    .position(|id| *id == result.call_id)
                    .expect("a result without a call");
                open.remove(at);
            }
            other => {
                assert!(open.is_empty(), "no result for {open:?}");
                if let Message::Assistant(reply) = other {
                    open = reply.calls.iter().map(|call| call.id.as_str()).collect();
                }
            }
        }
    }
    assert!(open.is_empty(), "no result for {open:?}");
}

#[test]
fn old_results_that_are_room_enough_go_without_asking_anybody() {
    let fixture = Fixture::new(4500, |seen, n| {
        assert!(!seen.is_for_a_summary());
        let asked = matches!(seen.messages.last(), Some(Message::User(_)));
        Ok(if asked { calls(n) } else { says("Done.") })
    });
    for n in 0..3 {
        assert!(fixture.answers(format!("turn {n}")).is_empty());
    }
    let notices = fixture.answers("turn 3");
    assert_eq!(
        notices,
        ["the conversation was getting long: 2 old tool results were dropped"]
    );
    let last = fixture.seen().pop().unwrap();
    let stub = "[result of long, 3000 bytes, dropped to save room]";
    let whole = "r".repeat(3000);
    assert_eq!(last.results(), [stub, stub, &whole, &whole]);
    assert_eq!(last.user(), ["turn 0", "turn 1", "turn 2", "turn 3"]);
    each_call_has_its_result(&last.messages);
    assert_eq!(fixture.stored().summary, None);
    // The shorter form is stored, so the next turn does not start over.
    assert!(
        fixture
            .answers("turn 4")
            .iter()
            .all(|notice| !notice.contains("3 old"))
    );
}

/// A model that counts its summaries, and gives long answers.
fn talkative(seen: &SeenRequest) -> Reply {
    if !seen.is_for_a_summary() {
        return says("a".repeat(400));
    }
    let asked = seen.user()[0];
    let so_far: usize = asked.split_once("SUMMARY ").map_or(0, |(_, rest)| {
        rest.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse()
            .unwrap()
    });
    let usage = Usage {
        prompt_tokens: 100,
        completion_tokens: 10,
        ..Usage::default()
    };
    Reply {
        usage,
        ..says(format!("SUMMARY {}", so_far + 1))
    }
}

#[test]
fn older_turns_are_summarized() {
    let fixture = Fixture::new(1200, |seen, _| Ok(talkative(seen)));
    let mut n = 0;
    let told = loop {
        let (response, notices) = fixture.say(format!("turn {n}, {}", "q".repeat(100)));
        n += 1;
        if let Some(notice) = notices.first() {
            let summaries = fixture
                .seen()
                .into_iter()
                .filter(SeenRequest::is_for_a_summary)
                .count();
            assert_eq!(
                response.usage.total(),
                110 * summaries as u64,
                "what the summaries took is told"
            );
            break notice.clone();
        }
        assert_eq!(response.usage.total(), 0);
    };
    assert!(told.ends_with("messages are now a summary"), "{told}");
    let seen = fixture.seen();
    let last = seen.last().unwrap();
    let summary = seen.iter().find(|seen| seen.is_for_a_summary()).unwrap();
    assert_eq!(summary.tools, 0);
    assert!(
        summary.user()[0].contains("User (") && summary.user()[0].contains("): turn "),
        "{}",
        summary.user()[0]
    );
    assert!(
        summary.user()[0].contains("in at most 60 words"),
        "{}",
        summary.user()[0]
    );
    // The request contains the fenced summary after the mark, a user's message first, and whole last turns.
    let first = fixture.stored().summary.unwrap();
    let section = format!("\n\n[EARLIER IN THIS CONVERSATION]\n```\n{first}\n```");
    assert_eq!(last.changing, section);
    assert_eq!(last.stable, seen[0].stable, "what is cached stays as it is");
    let user = last.user();
    assert!(
        user.last()
            .unwrap()
            .starts_with(&format!("turn {}, ", n - 1))
    );
    assert!(user[user.len() - 2].starts_with(&format!("turn {}, ", n - 2)));
    assert!(
        matches!(&last.messages[..2], [Message::User(_), Message::Assistant(reply)] if reply.text.len() == 400)
    );
    // The next summary includes the earlier one, because this model continues to count.
    while fixture.stored().summary.as_ref() == Some(&first) {
        fixture.answers("q".repeat(100));
    }
    let summaries = fixture
        .seen()
        .into_iter()
        .filter(SeenRequest::is_for_a_summary)
        .count();
    assert_eq!(
        fixture.stored().summary,
        Some(format!("SUMMARY {summaries}"))
    );
}

#[test]
fn conversation_of_many_windows_is_summed_up_by_its_newest_part() {
    let fixture = Fixture::new(1000, |seen, _| Ok(talkative(seen)));
    let mut session = fixture.open();
    let said = |n| Message::user(format!("number {n} {}", "q".repeat(200)));
    let messages: Vec<Message> = (0..1000).map(said).collect();
    let entries: Vec<Record> = messages.iter().map(Record::Message).collect();
    let kept = session.append(&entries, Durability::Now, SystemTime::now());
    assert_eq!(kept, Ok(()));
    drop(session);
    fixture.answers("short");
    let mut seen = fixture.seen();
    seen.retain(SeenRequest::is_for_a_summary);
    assert_eq!(seen.len(), 1);
    assert!(!seen[0].text().contains("number 1 "));
    assert!(seen[seen.len() - 1].text().contains("number 99"));
    let summary = fixture.stored().summary.unwrap();
    assert!(summary.starts_with('['), "{summary}");
}

#[test]
fn failed_summary_leaves_the_session_unchanged() {
    let fixture = Fixture::new(1000, |seen, _| {
        if seen.is_for_a_summary() {
            Ok(says(" \n"))
        } else {
            Ok(talkative(seen))
        }
    });
    let mut before = Vec::new();
    let notice = loop {
        let notices = fixture.answers("q".repeat(200));
        if let Some(notice) = notices.first() {
            break notice.clone();
        }
        before = fixture.stored().messages;
    };
    assert!(
        notice.contains("could not be summarised (the summary was empty)"),
        "{notice}"
    );
    let after = fixture.stored();
    assert_eq!(
        (&after.messages[..before.len()], after.summary),
        (&before[..], None)
    );
    assert_eq!(after.messages.len(), before.len() + 2);
    let last = fixture.seen().pop().unwrap();
    assert!(last.messages.len() < before.len() && matches!(last.messages[0], Message::User(_)));
    for _ in 0..5 {
        fixture.answers("and again");
    }
}

#[test]
fn length_error_is_retried_with_less() {
    // The size of the window is unknown.
    let fixture = Fixture::new(0, |seen, _| {
        if seen.text().len() > 6000 {
            too_long()
        } else {
            Ok(talkative(seen))
        }
    });
    for n in 0..40 {
        fixture.answers(format!("turn {n}, {}", "q".repeat(100)));
    }
    let seen = fixture.seen();
    assert!(seen.iter().any(SeenRequest::is_for_a_summary));
    let refused = seen.iter().filter(|seen| seen.text().len() > 6000).count();
    assert!(
        (1..20).contains(&refused),
        "{refused} of {} were too long",
        seen.len()
    );
}

#[test]
fn a_second_refusal_is_an_error_with_a_hint() {
    let model = |seen: &SeenRequest, _| {
        if seen.user().last() == Some(&"three") {
            too_long()
        } else {
            Ok(talkative(seen))
        }
    };
    let fixture = Fixture::new(100_000, model);
    fixture.answers("one");
    fixture.answers("two");
    let (response, _) = fixture.say("three");
    let asked: Vec<SeenRequest> = fixture
        .seen()
        .into_iter()
        .filter(|seen| !seen.is_for_a_summary())
        .collect();
    assert_eq!(asked.len(), 4, "once more, and no more");
    assert!(asked[3].messages.len() < asked[2].messages.len());
    let error = response.error.unwrap();
    assert!(error.hint.unwrap().contains("--new"));
    assert!(
        matches!(fixture.stored().messages.last(), Some(Message::User(_))),
        "what was said is not lost"
    );
}

#[test]
fn oversized_message_is_refused_and_reported() {
    let fixture = Fixture::new(0, |_, _| too_long());
    let (response, _) = fixture.say("x".repeat(10_000));
    let error: Error = response.error.unwrap();
    assert!(
        error.message.contains("maximum context length") && error.hint.unwrap().contains("shorten")
    );
    assert_eq!(
        (fixture.seen().len(), response.stop),
        (1, TurnStop::Error),
        "there is nothing to leave out"
    );
}

#[test]
fn oversized_turn_drops_its_older_results() {
    let fixture = Fixture::new(5000, |seen, n| {
        assert!(!seen.is_for_a_summary());
        assert!(seen.text().len() < 5000 * 3, "{}", seen.text().len());
        Ok(if n < 12 { calls(n) } else { says("Done.") })
    });
    let notices = fixture.answers("look at everything");
    assert!(
        notices
            .iter()
            .all(|notice| notice.starts_with("the turn was getting long: "))
            && !notices.is_empty()
    );
    let last = fixture.seen().pop().unwrap();
    each_call_has_its_result(&last.messages);
    let results = last.results();
    assert!(results[0].contains("dropped to save room") && results.last().unwrap().len() == 3000);
    let stored = fixture.stored();
    let whole = |message: &&Message| matches!(message, Message::ToolResult(result) if result.content.len() == 3000);
    assert_eq!(
        stored.messages.iter().filter(whole).count(),
        12,
        "they are stored whole"
    );
}

#[test]
fn a_conversation_of_many_times_the_window_goes_on() {
    const WINDOW: u64 = 3000;
    let fixture = Fixture::new(WINDOW, |seen, n| {
        if seen.text().len() > 3000 * 4 {
            return too_long();
        }
        each_call_has_its_result(&seen.messages);
        let tokens = seen.text().len() as u64 / 4;
        let usage = Usage {
            prompt_tokens: tokens,
            completion_tokens: 50,
            ..Usage::default()
        };
        if seen.is_for_a_summary() {
            return Ok(Reply {
                usage,
                ..says(format!("SUMMARY {}", "s".repeat(2000)))
            });
        }
        let asked = matches!(seen.messages.last(), Some(Message::User(_)));
        Ok(Reply {
            usage,
            ..if asked && n % 3 == 0 {
                calls(n)
            } else {
                says("a".repeat(500))
            }
        })
    });
    let mut said = 0;
    for n in 0..200 {
        let text = format!("turn {n} {}", "q".repeat(n % 7 * 300));
        said += text.len() + 500;
        fixture.answers(text);
        assert!(history::weight(&fixture.stored().messages) < WINDOW * 2);
    }
    assert!(said as u64 > WINDOW * 3 * 10);
    let seen = fixture.seen();
    let refused = seen
        .iter()
        .filter(|seen| seen.text().len() > 3000 * 4)
        .count();
    assert!(
        refused * 20 < seen.len(),
        "{refused} of {} were too long",
        seen.len()
    );
    let stable = &seen[0].stable;
    assert!(
        seen.iter()
            .filter(|seen| !seen.is_for_a_summary())
            .all(|seen| &seen.stable == stable)
    );
}

#[test]
fn refused_key_after_summary_stores_nothing() {
    let fixture = Fixture::new(1000, |seen, _| {
        let summed_up = seen.changing.contains("SUMMARY") && seen.user().last() == Some(&"refused");
        if summed_up {
            Err(ProviderError::NotSent(crate::error::Error::failed(
                "no key",
            )))
        } else {
            Ok(talkative(seen))
        }
    });
    while history::estimate(100, &fixture.stored().messages) < 700 {
        fixture.answers("q".repeat(100));
    }
    let (response, _) = fixture.say("refused");
    assert!(response.error.is_some() && fixture.stored().summary.is_some());
    assert!(
        matches!(
            fixture.stored().messages.last(),
            Some(Message::Assistant(_))
        ),
        "{:?}",
        fixture.stored().messages
    );
    fixture.answers("and on");
    assert!(!fixture.seen().pop().unwrap().user().contains(&"refused"));
}

#[test]
fn a_stop_during_a_summary_ends_the_turn_and_changes_nothing() {
    let cancel = Cancel::new(None);
    let stop = cancel.clone();
    let fixture = Fixture::new(1000, move |seen, _| {
        if seen.is_for_a_summary() {
            stop.stop();
            return Err(ProviderError::Cancelled(
                crate::cancel::CancelReason::Stopped,
            ));
        }
        Ok(talkative(seen))
    });
    let mut response = fixture.say("q".repeat(100)).0;
    let mut before = Vec::new();
    for _ in 0..20 {
        before = fixture.stored().messages;
        let request = Request {
            cancel: cancel.clone(),
            ..Request::new("q".repeat(100), "s")
        };
        response = fixture.agent.run(&request, &|event| {
            assert!(!matches!(event, Event::Notice(_)));
        });
        if response.error.is_some() {
            break;
        }
    }
    assert_eq!(response.stop, TurnStop::Cancelled);
    assert_eq!(fixture.stored().messages[..before.len()], before);
}

#[test]
fn a_limit_on_messages_holds_and_keeps_what_is_stored_short() {
    let mut fixture = Fixture::new(100_000, |seen, _| {
        assert!(seen.messages.len() <= 9 && matches!(seen.messages[0], Message::User(_)));
        Ok(says("Yes."))
    });
    fixture.agent.history.limit = 9;
    for n in 0..200 {
        fixture.answers(format!("turn {n}"));
        assert!(fixture.stored().messages.len() < 130);
    }
    assert_eq!(
        fixture.seen().pop().unwrap().user().last(),
        Some(&"turn 199")
    );
}

#[test]
fn idle_conversation_restarts_with_its_state() {
    use crate::session::Record;
    use crate::storage::Durability;
    let mut fixture = Fixture::new(100_000, |_, _| Ok(says("Yes.")));
    fixture.agent.history.ttl = Some(Duration::from_secs(3600));
    let hours_ago = |hours: u64| SystemTime::now() - Duration::from_secs(hours * 3600);
    let mut session = fixture.open();
    let said = Message::user("long ago");
    let entries = [Record::Model("x/y"), Record::Message(&said)];
    session
        .append(&entries, Durability::Now, hours_ago(2))
        .unwrap();
    drop(session);
    let notices = fixture.answers("hello");
    assert!(
        notices[0].contains("a new conversation begins"),
        "{notices:?}"
    );
    assert_eq!(fixture.seen().pop().unwrap().user(), ["hello"]);
    assert_eq!(fixture.stored().model.as_deref(), Some("x/y"));
    assert!(fixture.answers("and on").is_empty());
    assert_eq!(fixture.seen().pop().unwrap().user(), ["hello", "and on"]);
}

#[test]
fn filtered_messages_are_still_stored() {
    let mut fixture = Fixture::new(1000, |seen, _| Ok(talkative(seen)));
    fixture.agent.filter = Some(Arc::new(|mut messages: Vec<Message>| {
        messages.split_off(messages.len().min(2) - 1)
    }));
    for _ in 0..10 {
        fixture.answers("q".repeat(100));
    }
    assert!(fixture.stored().summary.is_some());
    let asked = fixture
        .seen()
        .into_iter()
        .filter(SeenRequest::is_for_a_summary)
        .count();
    assert!(asked > 0 && fixture.stored().messages.len() > 2);
}
