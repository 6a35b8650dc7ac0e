//! Posted messages survive compactions and crashes.

use super::*;
use crate::storage::tests::{read_dir, replace_steps, restore_dir};
use crate::test_dir::TestDir;

fn tried(outbox: &Outbox, id: &str, result: &Tried) {
    outbox.tried(id, result).unwrap();
}

#[test]
fn outbox_item_survives_renewals_until_done() {
    let root = TestDir::new();
    let outbox = Outbox::new(root.home());
    assert!(outbox.pending().unwrap().is_empty());
    let item = |n: usize| Item {
        to: "telegram:1".into(),
        text: format!("{n} 日本 {}", "x".repeat(4000)),
        ..Item::default()
    };
    let answers = |n: usize| vec![format!("telegram:{n}")];
    let kept = outbox.post(&item(0), &answers(0), None).unwrap();
    tried(&outbox, &kept, &Tried::Pieces(2));
    for n in 1..150 {
        let id = outbox.post(&item(n), &answers(n), None).unwrap();
        assert_eq!(outbox.pending().unwrap().len(), 2);
        tried(&outbox, &id, &Tried::Sent);
    }
    let left = outbox.pending().unwrap();
    assert_eq!(
        left,
        [Pending {
            id: kept,
            item: item(0),
            pieces: 2,
            ..Pending::default()
        }]
    );
    let is_answered = |n: usize| outbox.queue().is_done(&answers(n)[0]).unwrap();
    assert!((0..150).all(is_answered));
    let files = fs_err::read_dir(root.join("state"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().is_file());
    assert_eq!(files.count(), 1);
    assert!(
        fs_err::metadata(root.join("state/queue.jsonl"))
            .unwrap()
            .len()
            < 200 << 10
    );
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
    let pending = outbox.pending().unwrap().remove(0);
    let mut item = pending.item;
    item.to = "telegram:-2".into();
    tried(&outbox, &second, &Tried::Replaced(item));
    assert!(outbox.file(&two.file).exists());
    let pending = outbox.pending().unwrap().remove(0);
    assert_eq!(
        pending.item,
        Item {
            to: "telegram:-2".into(),
            ..two.clone()
        }
    );
    tried(&outbox, &second, &Tried::Refused("no such chat".into()));
    let given_up = |id: &str| outbox.queue().given_up(id).unwrap();
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
fn a_cut_at_any_byte_or_step_keeps_what_was_posted() {
    let root = TestDir::new();
    let outbox = Outbox::new(root.home());
    let item = |text: String| Item {
        to: "telegram:1".into(),
        text,
        ..Item::default()
    };
    let ids: Vec<String> = (0..3)
        .map(|n| outbox.post(&item(format!("{n} 日本")), &[], None).unwrap())
        .collect();
    tried(&outbox, &ids[0], &Tried::Pieces(1));
    tried(&outbox, &ids[1], &Tried::Sent);
    let state = root.join("state");
    let whole = read_dir(&state);
    let bytes = &whole["queue.jsonl"];
    let texts = || -> Vec<String> {
        outbox
            .pending()
            .unwrap()
            .into_iter()
            .map(|pending| pending.item.text)
            .collect()
    };
    for cut in 0..=bytes.len() {
        restore_dir(
            &state,
            &[("queue.jsonl".to_owned(), bytes[..cut].to_vec())].into(),
        );
        let lines = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        // A header, three posts, one progress, one end.
        let mut left: Vec<String> = (0..lines.saturating_sub(1).min(3))
            .map(|n| format!("{n} 日本"))
            .collect();
        if lines == 6 {
            left.remove(1);
        }
        assert_eq!(texts(), left, "cut at {cut}");
        outbox.post(&item("next".to_owned()), &[], None).unwrap();
        left.push("next".to_owned());
        assert_eq!(texts(), left, "cut at {cut}");
    }

    // A compaction, which drops finished items.
    restore_dir(&state, &whole);
    let long = outbox
        .post(&item("x".repeat(300 << 10)), &[], None)
        .unwrap();
    let before = read_dir(&state);
    tried(&outbox, &long, &Tried::Sent);
    let after = read_dir(&state);
    assert_eq!(after.len(), before.len());
    assert!(after["queue.jsonl"].len() < 2000);
    let kept = texts();
    assert_eq!(kept, ["0 日本", "2 日本"]);
    for image in replace_steps("queue.jsonl", &before, &after) {
        restore_dir(&state, &image);
        let (now, names) = (texts(), image.keys().cloned().collect::<Vec<_>>());
        assert!(kept.iter().all(|text| now.contains(text)), "{names:?}");
        let long = outbox
            .post(&item("y".repeat(300 << 10)), &[], None)
            .unwrap();
        tried(&outbox, &long, &Tried::Sent);
        let now = texts();
        assert!(kept.iter().all(|text| now.contains(text)), "{names:?}");
        assert_eq!(
            read_dir(&state).len(),
            1,
            "the next compaction removes what a crash left: {names:?}"
        );
    }
}

#[test]
fn chats_are_served_in_turn_and_each_in_order() {
    let root = TestDir::new();
    let outbox = Outbox::new(root.home());
    for to in [
        "telegram:1",
        "telegram:1",
        "telegram:2",
        "telegram:3",
        "pipe:4",
    ] {
        outbox.post(&Item::text(to, "text"), &[], None).unwrap();
    }
    let next = || outbox.next("telegram", Duration::ZERO).unwrap();
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
        outbox.tried(&pending.id, &result).unwrap();
    }
    let expected = [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 0)];
    let expected = expected.map(|(chat, pieces)| (format!("telegram:{chat}"), pieces, 0));
    assert_eq!(served, expected);
    assert!(next().is_none());
    // No start is left of what this process survived.
    let starts = outbox
        .pending()
        .unwrap()
        .into_iter()
        .map(|left| left.starts);
    assert_eq!(starts.collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn what_crashes_the_program_is_tried_three_times_and_a_stop_is_no_crash() {
    let root = TestDir::new();
    let item = Item::text("telegram:1", "text");
    let id = Outbox::new(root.home()).post(&item, &[], None).unwrap();
    for (starts, stops) in [(0, true), (0, false), (1, false)] {
        let outbox = Outbox::new(root.home());
        let next = outbox.next("telegram", Duration::ZERO).unwrap().unwrap();
        assert_eq!((next.id, next.starts), (id.clone(), starts));
        if stops {
            outbox.stop().unwrap();
        }
    }
    // The third waits until the program has been up for a while.
    let outbox = Outbox::new(root.home());
    assert!(outbox.next("telegram", Duration::ZERO).unwrap().is_none());
    assert_eq!(outbox.pending().unwrap()[0].starts, 2);
}
