//! Tables in the sources that were made with other programs are still what those say.

use std::path::Path;
use std::process::Command;

#[test]
fn the_table_of_encodings_is_pythons() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/charsets.py");
    assert!(
        Command::new("python3")
            .args([script, "--check"])
            .status()
            .unwrap()
            .success()
    );
}

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
