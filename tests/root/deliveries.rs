//! Failures of the disk while a bot delivers answers.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::bot::{ends, start};
use crate::botapi::Fault;
use crate::harness::until;
use crate::model::{Model, Reply};
use crate::seccomp_trace::{Verdict, trace};
use crate::stored::journal;

const OWNER: i64 = 42;

#[test]
fn failed_fsync_does_not_resend() {
    let model = Model::answering(|_, n| Reply::text(&format!("Answer {n}.")));
    let (api, home) = crate::bot::home(&model);
    let queue = home.path("state/queue.jsonl");
    let fails = AtomicBool::new(false);
    let converse = || {
        let gateway = start(&home);
        api.text(OWNER, "hello");
        api.wait_for_texts(OWNER, 1);
        until("the delivery is recorded", || {
            let lines = fs::read_to_string(&queue).unwrap();
            lines
                .lines()
                .any(|line| line.contains("\"done\":") && !line.contains("\"add\":"))
        });
        // The next sync is for the next message.
        fails.store(true, Ordering::SeqCst);
        api.text(OWNER, "and now?");
        api.wait_for_texts(OWNER, 2);
        ends(gateway);
        assert!(!fails.load(Ordering::SeqCst), "no sync failed");
    };
    trace(&[libc::SYS_fdatasync], converse, |stop| {
        let is_meant = stop.target(0) == queue && fails.swap(false, Ordering::SeqCst);
        if is_meant {
            Verdict::Fail(libc::EIO)
        } else {
            Verdict::GoOn
        }
    });
    assert_eq!(api.texts(OWNER), ["Answer 0.", "Answer 1."]);
    // The next program does not send it either, because the record still exists.
    let gateway = start(&home);
    api.text(OWNER, "still?");
    api.wait_for_texts(OWNER, 3);
    ends(gateway);
    assert_eq!(api.texts(OWNER), ["Answer 0.", "Answer 1.", "Answer 2."]);
}

/// An answer that meets a full disk and a failing Telegram is sent once, as soon as Telegram accepts it.
#[test]
fn answer_is_retried_after_full_disk() {
    // Fault of the first try, and the messages in the chat afterwards.
    for (fault, sent) in [
        (Fault::Page(502), "Answer 0."),
        (Fault::Reset, "may not have arrived"),
    ] {
        let model = Model::answering(|_, n| Reply::text(&format!("Answer {n}.")).held());
        let (api, home) = crate::bot::home(&model);
        let queue = home.path("state/queue.jsonl");
        let is_full = AtomicBool::new(false);
        let converse = || {
            let gateway = start(&home);
            api.text(OWNER, "hello");
            model.wait_for_requests(1);
            is_full.store(true, Ordering::SeqCst);
            api.fault("sendMessage", fault.clone());
            model.release();
            let texts = api.wait_for_texts(OWNER, 1);
            assert!(texts[0].contains(sent), "{texts:?}");
            // Space is available again, and the delivery is recorded.
            is_full.store(false, Ordering::SeqCst);
            until("the message is recorded as answered", || {
                let lines = fs::read_to_string(&queue).unwrap();
                let mut done = lines.lines().filter(|line| line.contains("\"done\":"));
                done.any(|line| line.contains("\"telegram:123456:7001\""))
            });
            ends(gateway);
        };
        trace(&[libc::SYS_write], converse, |stop| {
            if is_full.load(Ordering::SeqCst) && stop.target(0) == queue {
                Verdict::Fail(libc::ENOSPC)
            } else {
                Verdict::GoOn
            }
        });
        // The next program does not send it again either.
        let gateway = start(&home);
        api.text(OWNER, "/help");
        api.wait_for_texts(OWNER, 2);
        ends(gateway);
        assert_eq!(api.texts(OWNER).len(), 2, "{:?}", api.texts(OWNER));
    }
}

#[test]
fn queue_that_cannot_shrink_is_used() {
    let model = Model::answering(|_, n| Reply::text(&format!("Answer {n}.")));
    let (api, home) = crate::bot::home(&model);
    let long = json!({ "to": "telegram:42", "text": "x".repeat(100 << 10) });
    let lines = journal([
        json!({ "v": 1 }),
        json!({ "add": "long", "kind": "out", "item": long }),
        json!({ "done": ["long"] }),
    ]);
    let queue = home.write("state/queue.jsonl", lines);
    let successor = home.path("state/queue.jsonl.new");
    let converse = || {
        let gateway = start(&home);
        api.text(OWNER, "hello");
        api.wait_for_texts(OWNER, 1);
        ends(gateway);
    };
    let calls = [
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open,
        libc::SYS_openat,
    ];
    trace(&calls, converse, |stop| {
        let (path, flags) = if stop.call == libc::SYS_openat {
            (stop.path(1), stop.args[2])
        } else {
            (stop.path(0), stop.args[1])
        };
        let creates = flags & u64::try_from(libc::O_CREAT).unwrap() != 0;
        if creates && path == successor {
            Verdict::Fail(libc::ENOSPC)
        } else {
            Verdict::GoOn
        }
    });
    assert!(fs::metadata(&queue).unwrap().len() > 100 << 10);
    // It is recorded once there is space.
    let gateway = start(&home);
    api.text(OWNER, "and now?");
    assert_eq!(api.wait_for_texts(OWNER, 2), ["Answer 0.", "Answer 1."]);
    ends(gateway);
    assert!(fs::metadata(&queue).unwrap().len() < 10 << 10);
}
