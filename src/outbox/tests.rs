//! Posted messages survive compactions and crashes.

use super::*;
use crate::storage::tests::{read_dir, replace_steps, restore_dir};
use crate::test_dir::TestDir;

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
    outbox.progress(&kept, 2).unwrap();
    for n in 1..150 {
        let id = outbox.post(&item(n), &answers(n), None).unwrap();
        assert_eq!(outbox.pending().unwrap().len(), 2);
        outbox.done(&id).unwrap();
    }
    let left = outbox.pending().unwrap();
    assert_eq!(
        left,
        [Pending {
            id: kept,
            item: item(0),
            pieces: 2,
            starts: 0
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
    outbox.done(&first).unwrap();
    assert!(!outbox.file("orphan").exists() && outbox.file(&name).exists());
    drop(filling);
    assert!(!outbox.file(&name).exists());
    assert!(!outbox.file(&one.file).exists() && outbox.file(&two.file).exists());
    // A redirected message retains its file.
    let pending = outbox.pending().unwrap().remove(0);
    let mut item = pending.item;
    item.to = "telegram:-2".into();
    outbox.replace(&pending.id, &item).unwrap();
    assert!(outbox.file(&two.file).exists());
    assert_eq!(outbox.outcome(&second).unwrap(), DeliveryState::Pending);
    let pending = outbox.pending().unwrap().remove(0);
    assert_eq!(
        pending.item,
        Item {
            to: "telegram:-2".into(),
            ..two.clone()
        }
    );
    outbox.give_up(&pending.id, "no such chat").unwrap();
    assert_eq!(
        outbox.outcome(&second).unwrap(),
        DeliveryState::GivenUp("no such chat".into())
    );
    assert_eq!(outbox.outcome(&first).unwrap(), DeliveryState::Sent);
    assert_eq!(
        fs_err::read_dir(root.join("state/outbox")).unwrap().count(),
        0
    );
}

#[test]
fn outbox_outcome_survives_renewals() {
    let root = TestDir::new();
    let outbox = Outbox::new(root.home());
    let item = |to: &str, text: &str| Item {
        to: to.into(),
        text: text.into(),
        ..Item::default()
    };
    let moved = outbox
        .post(&item("telegram:-1", "mine"), &[], None)
        .unwrap();
    outbox.progress(&moved, 3).unwrap();
    let pending = outbox.pending().unwrap().remove(0);
    let elsewhere = item("telegram:-2", "mine");
    outbox.replace(&pending.id, &elsewhere).unwrap();
    let refused = DeliveryState::GivenUp("chat not found".into());
    let mut ids = Vec::new();
    for n in 0..20 {
        let id = outbox
            .post(
                &item("telegram:1", &format!("{n} {}", "x".repeat(4000))),
                &[],
                None,
            )
            .unwrap();
        outbox.give_up(&id, "chat not found").unwrap();
        ids.push(id);
        assert!(
            ids.iter().all(|id| outbox.outcome(id).unwrap() == refused),
            "item {n}"
        );
        assert_eq!(
            outbox.outcome(&moved).unwrap(),
            DeliveryState::Pending,
            "item {n}"
        );
    }
    let left = outbox.pending().unwrap();
    // The sent pieces are not sent again.
    assert_eq!((left.len(), left[0].pieces), (1, 3));
    outbox.give_up(&left[0].id, "chat not found").unwrap();
    assert_eq!(outbox.outcome(&moved).unwrap(), refused);
    // Only the last failures are stored, which limits the size of the file.
    for n in 0..1000 {
        outbox
            .give_up(&format!("{n}-0-0"), "chat not found")
            .unwrap();
    }
    let path = root.join("state/queue.jsonl");
    assert!(fs_err::metadata(path).unwrap().len() < 200 << 10);
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
    outbox.progress(&ids[0], 1).unwrap();
    outbox.done(&ids[1]).unwrap();
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
    outbox.done(&long).unwrap();
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
        outbox.done(&long).unwrap();
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
fn a_message_is_sent_also_where_its_file_cannot_be_removed() {
    let root = TestDir::new();
    let outbox = Outbox::new(root.home());
    let ids: Vec<String> = (0..2)
        .map(|n| {
            let item = Item::text("telegram:1", &n.to_string());
            outbox.post(&item, &[], None).unwrap()
        })
        .collect();
    // A file in place of the directory has no files to remove.
    fs_err::write(root.join("state/outbox"), "").unwrap();
    outbox.done(&ids[0]).unwrap();
    outbox.give_up(&ids[1], "chat not found").unwrap();
    assert!(outbox.pending().unwrap().is_empty());
}
