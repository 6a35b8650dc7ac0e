//! Posted messages survive compactions and crashes.

use super::*;
use crate::bus::Inbound;
use crate::test_dir::TestDir;

fn tried(outbox: &Outbox, id: &str, result: &Tried) {
    let mut pending = outbox.pending(&mut |entry| entry.id == id).unwrap();
    outbox.tried(&pending.remove(0), result).unwrap();
}

#[test]
fn outbox_file_is_removed_with_its_item() {
    let root = TestDir::new();
    let outbox = Outbox::new(root.home());
    let post = || {
        let (mut file, name) = outbox.new_file().unwrap();
        file.push(b"bytes").unwrap();
        file.keep().unwrap();
        let item = Item {
            to: "telegram:1".into(),
            file: name,
            name: "a.txt".into(),
            ..Item::default()
        };
        (outbox.post(&item, &[], None).unwrap(), item)
    };
    let ((first, one), (second, two)) = (post(), post());
    let (filling, name) = outbox.new_file().unwrap();
    fs_err::write(outbox.file("orphan"), "left").unwrap();
    tried(&outbox, &first, &Tried::Sent);
    assert!(!outbox.file("orphan").exists() && outbox.file(&name).exists());
    drop(filling);
    assert!(!outbox.file(&name).exists());
    assert!(!outbox.file(&one.file).exists() && outbox.file(&two.file).exists());
    // A redirected message retains its file.
    let pending = outbox.pending(&mut |_| true).unwrap().remove(0);
    let mut item = pending.item;
    item.to = "telegram:-2".into();
    tried(&outbox, &second, &Tried::Replaced(item));
    assert!(outbox.file(&two.file).exists());
    let pending = outbox.pending(&mut |_| true).unwrap().remove(0);
    assert_eq!(
        pending.item,
        Item {
            to: "telegram:-2".into(),
            ..two.clone()
        }
    );
    tried(&outbox, &second, &Tried::Refused("no such chat".into()));
    let given_up = |id: &str| outbox.inbox.queue.given_up(id).unwrap();
    assert_eq!(given_up(&second).as_deref(), Some("no such chat"));
    assert_eq!(given_up(&first), None);
    assert_eq!(
        fs_err::read_dir(root.join("state/outbox")).unwrap().count(),
        0
    );
}

#[test]
fn undeliverable_destination_is_refused() {
    let dir = TestDir::new();
    let root = dir.join("home");
    let outbox = Outbox::new(Home::new(root.clone()));
    for to in ["pigeon", ":1", "telegram:", ""] {
        assert!(
            outbox
                .post(
                    &Item {
                        to: to.into(),
                        ..Item::default()
                    },
                    &[],
                    None
                )
                .is_err(),
            "{to}"
        );
    }
    assert!(!root.exists());
}

#[test]
fn chats_are_served_in_turn_and_each_in_order() {
    let root = TestDir::new();
    let outbox = Outbox::new(root.home());
    for to in "telegram:1 telegram:1 telegram:2 telegram:3 pipe:4".split_whitespace() {
        outbox.post(&Item::text(to, "text"), &[], None).unwrap();
    }
    let next = || outbox.next("telegram", || None).unwrap();
    let mut served = Vec::new();
    for result in [
        Tried::Pieces(1),
        Tried::PutOff {
            time: Duration::from_secs(60),
            failures: 1,
        },
        Tried::Refused("chat not found".into()),
        Tried::Pieces(2),
        Tried::Sent,
        Tried::Sent,
    ] {
        let pending = next().unwrap();
        served.push((pending.item.to.clone(), pending.pieces, pending.starts));
        outbox.tried(&pending, &result).unwrap();
    }
    let expected = [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 0)];
    let expected = expected.map(|(chat, pieces)| (format!("telegram:{chat}"), pieces, 0));
    assert_eq!(served, expected);
    assert!(next().is_none());
    // No start is left of what this process survived.
    let left = outbox.pending(&mut |_| true).unwrap();
    let starts = left.into_iter().map(|left| left.starts);
    assert_eq!(starts.collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn what_crashes_the_program_is_tried_three_times_and_a_stop_is_no_crash() {
    let root = TestDir::new();
    let item = Item::text("telegram:1", "text");
    let id = Outbox::new(root.home()).post(&item, &[], None).unwrap();
    for (starts, stops) in [(0, true), (0, false), (1, false)] {
        let outbox = Outbox::new(root.home());
        let next = outbox.next("telegram", || None).unwrap().unwrap();
        assert_eq!((next.id, next.starts), (id.clone(), starts));
        if stops {
            outbox.stop().unwrap();
        }
    }
    // The third waits until the program has been up for a while.
    let outbox = Outbox::new(root.home());
    assert!(outbox.next("telegram", || None).unwrap().is_none());
    assert_eq!(outbox.pending(&mut |_| true).unwrap()[0].starts, 2);
}

#[test]
fn no_wake_is_missed_between_the_look_and_the_wait() {
    let root = TestDir::new();
    let outbox = Outbox::new(root.home());
    let (waker, (tell, told)) = (outbox.clone(), std::sync::mpsc::channel());
    let most = || {
        let (waker, tell) = (waker.clone(), tell.clone());
        std::thread::spawn(move || {
            waker.wake();
            tell.send(()).unwrap();
        });
        let early = told.recv_timeout(Duration::from_millis(50));
        assert!(early.is_err(), "the wake must wait for the sender");
        Some(Duration::from_secs(60))
    };
    let begun = Instant::now();
    assert!(outbox.next("telegram", most).unwrap().is_none());
    assert!(begun.elapsed() < Duration::from_secs(30));
}

/// Returns the shortest time to add, begin, answer and deliver a message while `each` messages wait in each of these chats, and
/// others are undelivered.
fn time_beside(chats: usize, each: usize, undelivered: usize) -> Duration {
    let root = TestDir::new();
    let outbox = Outbox::new(root.home());
    let (inbox, line) = (&outbox.inbox, |chat: &str| {
        Inbound::line("tcp", chat, "Hello!").unwrap()
    });
    inbox.allow_turns(chats + 1);
    let busy = (0..chats * each).map(|n| Inbound {
        id: n.to_string(),
        ..line(&format!("busy{}", n / each))
    });
    inbox.add_all(busy.collect()).unwrap();
    let _busy: Vec<_> = (0..chats).map(|_| inbox.take()).collect();
    let blocked = Item::text("tcp:blocked", "text");
    let blocked = (0..undelivered).map(|n| Entry::new(&format!("out{n}"), KIND, &blocked));
    inbox.queue.add(&blocked.collect::<Vec<_>>(), &[]).unwrap();
    assert!(outbox.next("tcp", || None).unwrap().is_some());
    let answer = |_| {
        let begun = Instant::now();
        inbox.add(line("quick")).unwrap();
        let work = inbox.take().unwrap();
        let ids = [work.first().id.clone()];
        inbox.start("tcp_quick").unwrap();
        let item = Item::text("tcp:quick", "Hi!");
        outbox.post(&item, &ids, None).unwrap();
        inbox.forget("tcp_quick", &ids);
        drop(work);
        let next = outbox.next("tcp", || None).unwrap().unwrap();
        outbox.tried(&next, &Tried::Sent).unwrap();
        begun.elapsed()
    };
    (0..10).map(answer).min().unwrap()
}

#[test]
fn thousands_of_waiting_messages_delay_no_other() {
    let few = time_beside(1, 10, 1);
    for (chats, each, undelivered) in [(1, 7000, 1), (1000, 2, 1), (1, 10, 7000)] {
        let many = time_beside(chats, each, undelivered);
        assert!(many < few * 20, "{few:?} beside few, {many:?} beside many");
    }
}
