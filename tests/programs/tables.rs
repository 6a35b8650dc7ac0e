//! Checks that a table in the tests still matches the program that generated it.

use std::path::Path;
use std::process::Command;

/// `tests/run` installs it in the target directory.
#[test]
fn the_schema_of_the_bot_api_is_aiograms() {
    let below = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/botschema.py");
    assert!(
        Command::new("python3")
            .args([script, "--check"])
            .env("PYTHONPATH", below.join("aiogram"))
            .status()
            .unwrap()
            .success()
    );
}
