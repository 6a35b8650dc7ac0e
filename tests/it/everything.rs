//! One turn with every kind of file operation, in the sandbox that the program chooses.

use std::fs;

use serde_json::{Value, json};

use crate::harness::Home;
use crate::model::{Model, Reply, call};

#[test]
fn turn_uses_every_file_tool() {
    // One step, and one step with two calls, as models make them.
    let steps = [
        vec![(
            "write_file",
            json!({ "path": "tools/count.sh", "content": "#!/bin/sh\nwc -l < plants.txt\n" }),
        )],
        vec![(
            "write_file",
            json!({ "path": "plants.txt", "content": "basil\nthyme\n" }),
        )],
        vec![("read_file", json!({ "path": "plants.txt" }))],
        vec![(
            "edit_file",
            json!({ "path": "plants.txt", "old_text": "thyme", "new_text": "lemon thyme" }),
        )],
        vec![(
            "append_file",
            json!({ "path": "plants.txt", "content": "mint\n" }),
        )],
        vec![
            ("list_dir", json!({ "path": ".", "depth": 2 })),
            ("grep", json!({ "pattern": "lemon", "path": "." })),
        ],
        vec![(
            "exec",
            json!({ "command": "sh tools/count.sh && id -u && cat plants.txt" }),
        )],
    ];
    let mut told = 0;
    let replies: Vec<Reply> = steps
        .iter()
        .map(|step| {
            let calls = step.iter().map(|(name, arguments)| {
                told += 1;
                call(&format!("call_{told}"), name, arguments)
            });
            Reply::calls(calls.collect::<Vec<_>>())
        })
        .chain([Reply::text("Three plants.")])
        .collect();
    let model = Model::scripted(replies);
    let home = Home::with(&model.config());
    home.agent(["-m", "Keep my plants."])
        .exits(0)
        .prints("Three plants.\n")
        .is_quiet();

    assert_eq!(
        fs::read_to_string(home.path("workspace/plants.txt")).unwrap(),
        "basil\nlemon thyme\nmint\n"
    );

    // Each call was answered, alone and in order, before the next request.
    let session = home.session("cli_default");
    session.has_one_result_per_call();
    let history = session.history();
    let results: Vec<&&Value> = history
        .iter()
        .filter(|message| message["role"] == "tool")
        .collect();
    let ids: Vec<&str> = results
        .iter()
        .map(|result| result["tool_call_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids,
        (1..=8).map(|n| format!("call_{n}")).collect::<Vec<_>>()
    );
    assert!(
        results.iter().all(|result| result["is_error"] != true),
        "{results:?}"
    );
    assert_eq!(session.turns(), ["done"]);
    for (n, part) in [(2, "thyme"), (5, "tools/"), (6, "lemon thyme"), (7, "3\n")] {
        assert!(
            results[n]["content"].as_str().unwrap().contains(part),
            "no {part:?} in {}",
            results[n]
        );
    }
    // Commands in the sandbox do not run as root, even if root started it.
    let ran = results[7]["content"].as_str().unwrap();
    assert!(!ran.lines().any(|line| line == "0"), "{ran}");
    assert!(ran.contains("basil\nlemon thyme\nmint"), "{ran}");
    let last = model.request(steps.len());
    assert_eq!(
        last.texts("tool").len(),
        8,
        "the model is told what is kept"
    );
}
