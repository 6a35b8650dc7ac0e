//! Open items survive compactions, crashes and changes by other processes.

use super::*;
use crate::storage::tests::{read_dir, replace_steps, restore_dir};
use crate::test_dir::TestDir;

/// Maximum size of a test queue, smaller than a home's.
const MAX: u64 = 1 << 20;
/// Size of an item of which a queue has space for about twelve.
const LARGE_ITEM: usize = 64 << 10;

/// Opens the queue like another process.
fn queue_in(dir: &TestDir) -> Queue {
    let (path, lock) = (dir.join("state/q.jsonl"), dir.join("q.lock"));
    Queue {
        max: MAX,
        ..Queue::new(path, lock, 100)
    }
}

fn entry(id: &str, text: &str) -> Entry {
    Entry::new(id, "k", &text)
}

fn texts(queue: &Queue) -> Vec<String> {
    let entries = queue.select("k", &mut |_| true).unwrap();
    entries.iter().map(Entry::read).collect()
}

fn is_done(queue: &Queue, id: &str) -> bool {
    queue.current().unwrap().content.done(id).is_some()
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[test]
fn item_start_count_persists_across_processes() {
    let dir = TestDir::new();
    let (one, other) = (queue_in(&dir), queue_in(&dir));
    assert!(
        one.select("k", &mut |_| true).unwrap().is_empty()
            && dir.read_dir().unwrap().next().is_none()
    );
    one.add(&[entry("a", "1"), entry("b", "2")], &[]).unwrap();
    other.add(&[entry("c", "3")], &[]).unwrap();
    one.start(&ids(&["a", "b"]), Durability::Now).unwrap();
    other.start(&ids(&["a"]), Durability::Now).unwrap();
    one.halt(&ids(&["b"])).unwrap();
    other.part("c", 2).unwrap();
    // An edit changes only the item itself.
    one.add(&[entry("c", "three")], &[]).unwrap();
    for queue in [&one, &other, &queue_in(&dir)] {
        let found: Vec<_> = queue
            .select("k", &mut |_| true)
            .unwrap()
            .into_iter()
            .map(|entry| (entry.id, entry.starts, entry.begun, entry.part))
            .collect();
        let expected = [("a", 2, true, 0), ("b", 0, true, 0), ("c", 0, false, 2)];
        let expected =
            expected.map(|(id, starts, begun, part)| (id.to_owned(), starts, begun, part));
        assert_eq!(found, expected);
        assert_eq!(texts(queue), ["1", "2", "three"]);
    }
    one.add(&[Entry::new("d", "answer", &"4")], &ids(&["a", "b"]))
        .unwrap();
    other.give_up("c", "no such chat").unwrap();
    for queue in [&one, &other, &queue_in(&dir)] {
        assert!(
            texts(queue).is_empty() && queue.select("answer", &mut |_| true).unwrap().len() == 1
        );
        assert!(["a", "b", "c"].iter().all(|id| is_done(queue, id)));
        assert!(!is_done(queue, "d"));
        assert_eq!(queue.given_up("c").unwrap().unwrap(), "no such chat");
        assert_eq!(queue.given_up("a").unwrap(), None);
    }
}

#[test]
fn an_id_that_is_done_again_takes_one_place() {
    let dir = TestDir::new();
    let queue = queue_in(&dir);
    queue.give_up("a", "why").unwrap();
    queue.done(&ids(&["b"; 100])).unwrap();
    for queue in [&queue, &queue_in(&dir)] {
        assert!(is_done(queue, "a") && is_done(queue, "b"));
        assert_eq!(queue.given_up("a").unwrap().unwrap(), "why");
    }
}

#[test]
fn a_cut_at_any_byte_or_step_keeps_what_was_acknowledged() {
    let dir = TestDir::new();
    let queue = queue_in(&dir);
    let state = dir.join("state");
    queue.add(&[entry("a", "一")], &[]).unwrap();
    queue.add(&[entry("b", "二")], &[]).unwrap();
    queue.start(&ids(&["a"]), Durability::Now).unwrap();
    queue
        .add(&[entry("c", "三"), entry("d", "四")], &ids(&["a"]))
        .unwrap();
    let whole = read_dir(&state);
    let bytes = &whole["q.jsonl"];
    for cut in 0..=bytes.len() {
        restore_dir(
            &state,
            &[("q.jsonl".to_owned(), bytes[..cut].to_vec())].into(),
        );
        let lines = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        let left: &[&str] = match lines {
            0 | 1 => &[],
            2 => &["一"],
            3 | 4 => &["一", "二"],
            5 => &["一", "二", "三"],
            _ => &["二", "三", "四"],
        };
        assert_eq!(texts(&queue), left, "looking, cut at {cut}");
        queue.add(&[entry("z", "next")], &[]).unwrap();
        let left = [left, &["next"]].concat();
        for queue in [&queue, &queue_in(&dir)] {
            assert_eq!(texts(queue), left, "cut at {cut}");
        }
    }

    // Crashes during a compaction, which leaves out done items.
    restore_dir(&state, &whole);
    queue
        .add(&[entry("long", &"x".repeat(300 << 10))], &[])
        .unwrap();
    let before = read_dir(&state);
    queue.done(&ids(&["long"])).unwrap();
    let after = read_dir(&state);
    assert!(after.len() == 1 && after["q.jsonl"].len() < 2000);
    for image in replace_steps("q.jsonl", &before, &after) {
        restore_dir(&state, &image);
        assert_eq!(texts(&queue)[..3], ["二", "三", "四"]);
        queue.done(&ids(&["long"])).unwrap();
        assert_eq!(texts(&queue_in(&dir)), ["二", "三", "四"]);
        assert!(is_done(&queue, "a"));
        assert_eq!(read_dir(&state).len(), 1, "what a crash left is removed");
    }
}

#[test]
fn a_file_stays_short_and_is_not_written_again_each_time() {
    let dir = TestDir::new();
    let queue = queue_in(&dir);
    let long = "x".repeat(100 << 10);
    queue
        .add(&[entry("a", &long), entry("b", &long)], &[])
        .unwrap();
    queue.start(&ids(&["a"]), Durability::Now).unwrap();
    let inode = || stamp(&queue.path).unwrap().1;
    let (mut rewritten, mut last) = (0, inode());
    for n in 0..2000 {
        let id = n.to_string();
        queue.add(&[entry(&id, "short")], &[]).unwrap();
        queue.done(&[id]).unwrap();
        rewritten += usize::from(std::mem::replace(&mut last, inode()) != last);
    }
    assert!(rewritten < 3, "{rewritten}");
    assert!(fs_err::metadata(&queue.path).unwrap().len() < 600 << 10);
    let again = queue_in(&dir);
    assert_eq!(texts(&again).len(), 2);
    assert_eq!(again.select("k", &mut |_| true).unwrap()[0].starts, 1);
    assert!(is_done(&again, "1999") && !is_done(&again, "1"));
}

#[test]
fn full_queue_refuses_items_until_freed() {
    let dir = TestDir::new();
    let queue = queue_in(&dir);
    let large = "x".repeat(LARGE_ITEM);
    let mut taken = Vec::new();
    let refusal = loop {
        let id = format!("{}", taken.len());
        assert!(taken.len() < 40, "it takes whatever comes");
        match queue.add(&[entry(&id, &large)], &[]) {
            Ok(()) => taken.push(id),
            Err(e) => break e,
        }
    };
    assert!(refusal.message.contains("is full: 7"), "{refusal}");
    assert!(
        queue
            .add(&[entry("huge", &"x".repeat(14 * LARGE_ITEM))], &[])
            .is_err()
    );
    // Another process reads all items, and can begin and end them.
    let other = queue_in(&dir);
    assert_eq!(texts(&other).len(), taken.len());
    other.start(&taken[..1], Durability::Now).unwrap();
    other.done(&taken).unwrap();
    queue.add(&[entry("new", "1")], &[]).unwrap();
    assert_eq!(texts(&queue), ["1"]);
}
