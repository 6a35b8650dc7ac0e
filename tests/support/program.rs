//! Which program the tests drive.

use std::sync::OnceLock;

/// The program under test: the one that `BANTAM_TEST_BINARY` names, else the one that Cargo built for the tests.
pub fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM
        .get_or_init(|| std::env::var("BANTAM_TEST_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_bantam").to_owned()))
}
