//! The race that has broken many file tools, against the real program.

use serde_json::json;

use crate::harness::Home;
use crate::model::{Model, Reply, call};
use crate::support::race::{INSIDE, OUTSIDE, RacyWorkspace};

#[test]
fn swapped_links_lead_no_call_outside() {
    let calls = |n: usize| {
        let calls = (0..50).map(|at| {
            // Uses another spelling of the path each time, because repeated calls are refused.
            let detour = "./".repeat(n * 50 + at);
            let path = format!("{detour}{}", ["dir/file", "file"][at / 5 % 2]);
            let (tool, arguments) = match at % 5 {
                0 => ("write_file", json!({ "path": path, "content": INSIDE })),
                1 => (
                    "edit_file",
                    json!({ "path": path, "old_text": "side", "new_text": "SIDE" }),
                ),
                2 => ("append_file", json!({ "path": path, "content": INSIDE })),
                3 => (
                    "grep",
                    json!({ "pattern": ".", "path": format!("{detour}.") }),
                ),
                _ => ("read_file", json!({ "path": path })),
            };
            call(&format!("call_{n}_{at}"), tool, &arguments)
        });
        Reply::calls(calls)
    };
    let model = Model::scripted((0..2).map(calls).chain([Reply::text("Done.")]));
    let home = Home::with(&model.config());
    let racy = RacyWorkspace::new(&home.path(""));
    racy.while_swapping(|| {
        home.agent(["-m", "do it"]).exits(0);
    });
    racy.is_unchanged();
    let results = model.request(2).texts("tool");
    assert_eq!(results.len(), 100);
    assert!(
        results
            .iter()
            .all(|text| !text.contains(OUTSIDE.trim_end())),
        "{results:?}"
    );
}
