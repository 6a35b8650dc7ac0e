//! The inbox keeps messages until they are answered.

use super::*;
use crate::outbox::Outbox;
use crate::paths::Home;

struct Scratch(Home);

impl Scratch {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("bantam-inbox-{name}-{}", std::process::id()));
        drop(fs_err::remove_dir_all(&root));
        Self(Home::new(root))
    }

    /// As the next program opens it.
    fn inbox(&self) -> Inbox {
        Inbox::new(Outbox::new(self.0.clone()).queue().clone(), 7)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs_err::remove_dir_all(self.0.root()).unwrap();
    }
}

fn hello(chat: &str, message: i64) -> IncomingMessage {
    IncomingMessage {
        chat: chat.into(),
        id: message,
        text: "hello".into(),
        ..IncomingMessage::default()
    }
}

fn edit(update: u64, text: &str, of: IncomingMessage) -> (u64, IncomingMessage) {
    let edited = IncomingMessage {
        text: text.into(),
        is_edit: true,
        ..of
    };
    (update, edited)
}

#[test]
fn what_is_kept_is_there_after_a_crash_until_it_is_closed() {
    let scratch = Scratch::new("kept");
    let inbox = scratch.inbox();
    inbox
        .keep(&[(10, hello("1", 5)), (11, hello("2", 6))])
        .unwrap();
    inbox.queue.start(&[id(10)]).unwrap();
    inbox
        .keep(&[
            edit(13, "late", hello("1", 5)),
            edit(14, "better", hello("2", 6)),
        ])
        .unwrap();
    // Of what comes with it.
    inbox
        .keep(&[(15, hello("3", 7)), edit(16, "at once", hello("3", 7))])
        .unwrap();
    let told = [(), ()].map(|()| inbox.keep_unknown_users(vec![99]).unwrap());
    assert_eq!(told, [vec![99], vec![]]);
    let inbox = scratch.inbox();
    let all = inbox.all().unwrap();
    let groups: Vec<_> = all
        .iter()
        .map(|open| (open.id.as_str(), open.group.len(), open.starts))
        .collect();
    assert_eq!(
        groups,
        [
            ("telegram:10", 1, 1),
            ("telegram:11", 0, 0),
            ("telegram:15", 0, 0)
        ]
    );
    assert_eq!(texts(&all), "hello\n\nbetter\n\nat once");
    assert!(
        [10, 11, 15]
            .iter()
            .all(|update| inbox.has_seen(*update).unwrap())
    );
    assert!(!inbox.has_seen(9).unwrap());
    assert!(inbox.keep_unknown_users(vec![99]).unwrap().is_empty());
    inbox.close(&[id(10), id(11), id(15)]).unwrap();
    let inbox = scratch.inbox();
    assert!(inbox.all().unwrap().is_empty() && inbox.has_seen(11).unwrap());
}

#[test]
fn a_bot_reads_what_was_written_to_it_and_not_to_another() {
    let scratch = Scratch::new("bots");
    let inbox = scratch.inbox();
    inbox.keep(&[(10, hello("1", 5))]).unwrap();
    inbox.keep_unknown_users(vec![99]).unwrap();
    let other = Inbox {
        bot: 8,
        ..inbox.clone()
    };
    assert!(other.all().unwrap().is_empty() && !other.has_seen(10).unwrap());
    assert_eq!(other.keep_unknown_users(vec![99]).unwrap(), [99]);
    let status = status(&inbox.queue).unwrap();
    assert_eq!((status.waiting, status.unknown_users), (1, vec![99, 99]));
}

#[test]
fn the_owner_is_not_told_of_strangers_without_number() {
    let scratch = Scratch::new("strangers");
    let inbox = scratch.inbox();
    let told: Vec<usize> = (0..50)
        .map(|poll| {
            inbox
                .keep_unknown_users((poll * 7..poll * 7 + 7).collect())
                .unwrap()
                .len()
        })
        .collect();
    let all = told.iter().sum::<usize>();
    assert_eq!((told[0], all), (7, MAX_UNKNOWN_USERS));
    let again = scratch.inbox().keep_unknown_users(vec![-1]).unwrap();
    assert!(again.is_empty(), "a restart begins no new count");
}
