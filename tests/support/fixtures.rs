//! A home with files in its workspace, and a model that makes tool calls and then gets their results.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::harness::{CANARY, Home, merged};
use super::model::{Model, Reply, call};

/// Reads calls, one on each line: a tool, and its arguments in JSON.
#[track_caller]
pub fn calls(rows: &str) -> Vec<(&'static str, Value)> {
    let read = |row: &str| {
        let (tool, arguments) = row.split_once(' ').unwrap();
        let arguments = serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{row}: {e}"));
        (&*tool.to_owned().leak(), arguments)
    };
    rows.trim().lines().map(|row| read(row.trim())).collect()
}

pub struct Fixture {
    pub model: Model,
    pub home: Home,
}

impl Fixture {
    /// Makes one call.
    pub fn calling(tool: &str, arguments: &Value) -> Self {
        Self::making([(tool, arguments.clone())])
    }

    /// Makes several calls in one step, in this order.
    pub fn making<'a>(calls: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        Self::configured(&json!({}), calls)
    }

    /// Makes calls with `extra` in the configuration.
    pub fn configured<'a>(
        extra: &Value,
        calls: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Self {
        let calls = calls.into_iter().enumerate();
        let calls =
            calls.map(|(n, (tool, arguments))| call(&format!("call_{n}"), tool, &arguments));
        let model = Model::scripted([Reply::calls(calls), Reply::text("Done.")]);
        let home = Home::with(&merged(model.config(), extra));
        home.write("workspace/notes.txt", "first\nsecond\nthird\nfourth\n");
        Self { model, home }
    }

    /// Returns each result sent to the model, and whether it was an error.
    #[track_caller]
    pub fn results(&self) -> Vec<(String, bool)> {
        self.home.agent(["-m", "do it"]).answers("Done.\n");
        let session = self.home.session("cli_default");
        session.has_one_result_per_call();
        let failed = session
            .history()
            .into_iter()
            .filter(|m| m["role"] == "tool")
            .map(|m| m["is_error"] == true);
        self.model
            .request(1)
            .texts("tool")
            .into_iter()
            .zip(failed)
            .collect()
    }

    /// Returns the result of a single call.
    #[track_caller]
    pub fn result(&self) -> (String, bool) {
        let results = self.results();
        assert_eq!(results.len(), 1, "one call, one result: {results:?}");
        results.into_iter().next().unwrap()
    }

    /// Checks that all calls succeeded.
    #[track_caller]
    pub fn succeeds(&self) -> Vec<String> {
        let results = self.results();
        assert!(results.iter().all(|(_, failed)| !failed), "{results:?}");
        results.into_iter().map(|(text, _)| text).collect()
    }

    #[track_caller]
    pub fn is_told(&self, part: &str) {
        let (result, failed) = self.result();
        assert!(!failed && result.contains(part), "no {part:?}: {result}");
    }

    /// Checks that all calls failed, without revealing anything outside.
    #[track_caller]
    pub fn is_refused(&self) {
        for (result, failed) in self.results() {
            assert!(failed, "not refused: {result}");
            for outside in [CANARY, "api_key", "root:x:0"] {
                assert!(
                    !result.contains(outside),
                    "{outside:?} of another file: {result}"
                );
            }
        }
    }

    /// Checks that all calls failed, with this reason for the model.
    #[track_caller]
    pub fn is_refused_saying(&self, part: &str) {
        for (result, failed) in self.results() {
            assert!(failed && result.contains(part), "no {part:?}: {result}");
        }
    }

    /// Returns the path of a file in the workspace.
    pub fn file(&self, path: &str) -> PathBuf {
        self.home.path("workspace").join(path)
    }

    /// Returns the content of a file in the workspace.
    #[track_caller]
    pub fn bytes(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.file(path)).unwrap_or_else(|error| panic!("reading {path}: {error}"))
    }

    /// Checks that changes left no temporary files.
    #[track_caller]
    pub fn has_no_leftovers(&self) {
        let left: Vec<_> = self
            .home
            .files()
            .into_iter()
            .filter(|path| path.contains("/.bantam-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
