//! The inbox keeps messages until they are answered, through compactions and crashes.

use super::*;
use crate::disk::tests::{read_dir, restart_steps, restore_dir};

fn hello(chat: &str, message: i64) -> IncomingMessage {
    IncomingMessage {
        chat: chat.into(),
        id: message,
        text: "hello".into(),
        ..IncomingMessage::default()
    }
}

#[test]
fn what_is_kept_is_there_after_a_crash_until_it_is_closed() {
    let dir = std::env::temp_dir().join(format!("bantam-inbox-{}", std::process::id()));
    let open = || Inbox::open(&dir, 7).unwrap().0;
    let mut inbox = open();
    inbox
        .keep(&[(10, hello("1", 5)), (11, hello("2", 6))])
        .unwrap();
    inbox.start(&[id(10)]).unwrap();
    let edit = |update, text: &str, of: IncomingMessage| {
        (
            update,
            IncomingMessage {
                text: text.into(),
                is_edit: true,
                ..of
            },
        )
    };
    let edits = [
        edit(13, "late", hello("1", 5)),
        edit(14, "better", hello("2", 6)),
    ];
    inbox.keep(&edits).unwrap();
    // Of what comes with it.
    inbox
        .keep(&[(15, hello("3", 7)), edit(16, "at once", hello("3", 7))])
        .unwrap();
    assert_eq!(
        [(), ()].map(|()| inbox.keep_unknown_users(vec![99]).unwrap()),
        [vec![99], vec![]]
    );
    drop(inbox);
    let mut inbox = open();
    let all = inbox.all();
    assert_eq!(
        all.iter()
            .map(|o| (o.update, o.group.len()))
            .collect::<Vec<_>>(),
        [(10, 1), (11, 0), (15, 0)]
    );
    assert_eq!(
        [0, 1, 2].map(|n| all[n].message.text.as_str()),
        ["hello", "better", "at once"]
    );
    assert!([10, 11, 15].iter().all(|update| inbox.has_seen(*update)) && !inbox.has_seen(9));
    assert!(inbox.keep_unknown_users(vec![99]).unwrap().is_empty());
    inbox.close(&[id(10), id(11), id(15)]).unwrap();
    assert!(open().all().is_empty());
    fs_err::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_owner_is_not_told_of_strangers_without_number() {
    let dir = std::env::temp_dir().join(format!("bantam-inbox-strangers-{}", std::process::id()));
    let mut inbox = Inbox::open(&dir, 7).unwrap().0;
    let told: Vec<usize> = (0..50)
        .map(|poll| {
            inbox
                .keep_unknown_users((poll * 7..poll * 7 + 7).collect())
                .unwrap()
                .len()
        })
        .collect();
    assert_eq!(
        (told[0], told.iter().sum::<usize>()),
        (7, MAX_UNKNOWN_USERS)
    );
    let mut inbox = Inbox::open(&dir, 7).unwrap().0;
    assert!(
        inbox.keep_unknown_users(vec![-1]).unwrap().is_empty(),
        "a restart begins no new count"
    );
    fs_err::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_death_counts_against_a_turn_that_was_alone() {
    let dir = std::env::temp_dir().join(format!("bantam-inbox-deaths-{}", std::process::id()));
    let open = || Inbox::open(&dir, 7).unwrap().0;
    let deaths = |inbox: &Inbox| {
        inbox
            .all()
            .iter()
            .map(|open| open.crashes)
            .collect::<Vec<_>>()
    };
    let mut inbox = open();
    inbox
        .keep(&[(1, hello("1", 1)), (2, hello("2", 2)), (3, hello("1", 3))])
        .unwrap();
    let (one, other) = ([id(1), id(3)], [id(2)]);
    // (what was begun, whether the program died, what it comes to)
    for (begun, has_died, comes_to) in [
        (&[&one[..], &other][..], true, [0, 0, 0]),
        (&[&one], true, [1, 0, 1]),
        (&[], true, [1, 0, 1]),
        (&[&other], false, [1, 0, 1]),
        (&[&other], true, [1, 1, 1]),
    ] {
        for ids in begun {
            inbox.start(ids).unwrap();
        }
        drop(inbox);
        inbox = open();
        inbox.interrupt(has_died).unwrap();
        assert_eq!(deaths(&inbox), comes_to);
        drop(inbox);
        inbox = open();
    }
    // What has begun once is too late for an edit.
    inbox
        .keep(&[(
            4,
            IncomingMessage {
                text: "late".into(),
                is_edit: true,
                ..hello("1", 1)
            },
        )])
        .unwrap();
    assert_eq!(inbox.all()[0].message.text, "hello");
    fs_err::remove_dir_all(&dir).unwrap();
}

#[test]
fn an_inbox_with_much_that_is_open_is_not_written_anew_each_time() {
    let dir = std::env::temp_dir().join(format!("bantam-inbox-much-{}", std::process::id()));
    let mut inbox = Inbox::open(&dir, 7).unwrap().0;
    let long = IncomingMessage {
        text: "x".repeat(600_000),
        ..hello("1", 2)
    };
    inbox
        .keep(&[(1, long.clone()), (2, long.clone()), (3, long)])
        .unwrap();
    inbox.close(&[id(1)]).unwrap();
    for update in 10..30 {
        inbox.keep(&[(update, hello("1", 9))]).unwrap();
        inbox.close(&[id(update)]).unwrap();
    }
    // The journal has grown and was not compacted.
    assert!(fs_err::metadata(&inbox.path).unwrap().len() > 1_800_000);
    fs_err::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_long_inbox_is_renewed_and_forgets_nothing_that_is_open() {
    let dir = std::env::temp_dir().join(format!("bantam-inbox-long-{}", std::process::id()));
    let mut inbox = Inbox::open(&dir, 7).unwrap().0;
    inbox
        .keep(&[
            (1, hello("1", 1)),
            (1000, hello("1", 3)),
            (1001, hello("1", 4)),
        ])
        .unwrap();
    inbox.start(&[id(1), id(1000)]).unwrap();
    inbox.interrupt(true).unwrap();
    inbox.start(&[id(1), id(1000)]).unwrap();
    let long = IncomingMessage {
        text: "x".repeat(10_000),
        ..hello("1", 2)
    };
    for update in 2..300 {
        inbox.keep(&[(update, long.clone())]).unwrap();
        inbox.close(&[id(update)]).unwrap();
    }
    let files: Vec<_> = fs_err::read_dir(&dir).unwrap().collect();
    assert_eq!(files.len(), 1);
    assert!(fs_err::metadata(&inbox.path).unwrap().len() < 2 * COMPACT_AT);
    let again = Inbox::open(&dir, 7).unwrap().0;
    let stands = |open: &OpenMessage| {
        (
            open.update,
            open.crashes,
            open.group.clone(),
            open.is_running,
        )
    };
    let all: Vec<_> = again.all().iter().map(stands).collect();
    assert_eq!(
        all,
        [
            (1, 1, vec![1, 1000], true),
            (1000, 1, vec![1, 1000], true),
            (1001, 0, vec![], false)
        ]
    );
    assert!((1..300).all(|update| again.has_seen(update)));
    fs_err::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_cut_at_any_byte_or_step_keeps_what_was_confirmed() {
    let state = std::env::temp_dir().join(format!("bantam-inbox-cut-{}", std::process::id()));
    let open = || Inbox::open(&state, 7).unwrap();
    let said = |message: i64, text: &str| IncomingMessage {
        chat: "1".into(),
        id: message,
        text: text.into(),
        ..IncomingMessage::default()
    };
    let texts = |inbox: &Inbox| -> Vec<String> {
        inbox
            .all()
            .into_iter()
            .map(|open| open.message.text)
            .collect()
    };
    let (mut inbox, _) = open();
    let keep = |inbox: &mut Inbox, update: u64, text: &str| {
        inbox.keep(&[(update, said(1, text))]).unwrap();
    };
    keep(&mut inbox, 10, "一");
    keep(&mut inbox, 11, "二");
    inbox
        .keep(&[(
            12,
            IncomingMessage {
                is_edit: true,
                ..said(1, "一つ")
            },
        )])
        .unwrap();
    assert_eq!(texts(&inbox)[0], "一つ");
    inbox.start(&[id(10)]).unwrap();
    inbox.close(&[id(11)]).unwrap();
    drop(inbox);
    let whole = read_dir(&state);
    let bytes = &whole["telegram-7.jsonl"];
    for cut in 0..=bytes.len() {
        restore_dir(
            &state,
            &[("telegram-7.jsonl".to_owned(), bytes[..cut].to_vec())].into(),
        );
        let lines = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        let mut left: Vec<&str> = match lines {
            0 | 1 => vec![],
            2 => vec!["一"],
            3 => vec!["一", "二"],
            4..=5 => vec!["一つ", "二"],
            _ => vec!["一つ"],
        };
        let (mut inbox, damage) = open();
        assert_eq!(texts(&inbox), left, "cut at {cut}");
        assert_eq!(
            damage.len(),
            usize::from(lines > 0 && bytes[cut - 1] != b'\n'),
            "cut at {cut}"
        );
        keep(&mut inbox, 20, "next");
        left.push("next");
        assert_eq!(texts(&open().0), left, "cut at {cut}");
    }

    // A compaction, which leaves out what is closed.
    restore_dir(&state, &whole);
    let (mut inbox, _) = open();
    keep(&mut inbox, 30, &"x".repeat(11 << 17));
    let before = read_dir(&state);
    inbox.close(&[id(30)]).unwrap();
    let after = read_dir(&state);
    assert!(after.len() == 1 && after["telegram-7.jsonl"].len() < 2000);
    for image in restart_steps("telegram-7.jsonl", &before, &after) {
        restore_dir(&state, &image);
        let names: Vec<&String> = image.keys().collect();
        let (mut inbox, _) = open();
        assert!(texts(&inbox).contains(&"一つ".to_owned()), "{names:?}");
        assert!(
            [10, 11, 30].iter().all(|update| inbox.has_seen(*update)),
            "{names:?}"
        );
        keep(&mut inbox, 40, &"y".repeat(11 << 17));
        inbox.close(&[id(40)]).unwrap();
        assert!(texts(&open().0).contains(&"一つ".to_owned()), "{names:?}");
        assert_eq!(
            read_dir(&state).len(),
            1,
            "the next compaction removes what a crash left: {names:?}"
        );
    }
    fs_err::remove_dir_all(state).unwrap();
}
