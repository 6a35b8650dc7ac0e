//! A table in the tests that was made with another program is still what that says.

use std::path::Path;
use std::process::Command;

/// `tests/run` installs it below the target folder.
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
