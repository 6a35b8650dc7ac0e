//! A turn waits for the disk only as often as needed, because each wait takes long on an SD card.

use std::fs::File;

use serde_json::json;

use crate::harness::Home;
use crate::model::{Model, Reply};
use crate::syncs::counted;

/// One for the question, one for the answer, and two for the names of a new session and of its directory.
const MOST: usize = 4;

#[test]
fn a_plain_turn_waits_for_the_disk_four_times_at_most() {
    let (_model, home) = Home::of(Model::answering(|_, _| Reply::text("Here.")));
    // Checks that the count works.
    let ((), count) = counted(|| {
        File::open(home.path("config.json"))
            .unwrap()
            .sync_all()
            .unwrap();
    });
    assert_eq!(count, 1);
    for (what, least) in [
        ("a home that is as good as new", 2),
        ("a session that goes on", 2),
    ] {
        let (_, count) = counted(|| home.agent(["-m", "hi"]).answers("Here.\n").code);
        assert!((least..=MOST).contains(&count), "{what}: {count}");
    }
    let (_, count) = counted(|| {
        home.agent(["-s", "new", "-m", "hi"])
            .answers("Here.\n")
            .code
    });
    assert!((2..=MOST).contains(&count), "a new session: {count}");
    let (_, count) = counted(|| home.agent(["--no-session", "-m", "hi"]).exits(0).code);
    assert_eq!(count, 0, "what is not kept waits for nothing");
}

#[test]
fn each_step_with_tools_waits_twice_more_at_most() {
    let (_model, home) = Home::of(Model::answering(|request, _| {
        match request.texts("tool").len() {
            0 => Reply::call("list_dir", &json!({ "path": "." })),
            1 => Reply::call("write_file", &json!({ "path": "a.txt", "content": "x" })),
            _ => Reply::text("Here."),
        }
    }));
    let (_, count) = counted(|| home.agent(["-m", "hi"]).exits(0).code);
    // The tool waits once more, for a file that it writes.
    assert!(count <= MOST + 2 * 2 + 1, "{count}");
}
