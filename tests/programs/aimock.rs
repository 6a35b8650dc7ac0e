//! Tests bantam with an independent OpenAI-compatible server, the npm package `@copilotkit/aimock`.
//!
//! `tests/run` installs it in the target directory. The first fixture that matches the last user message is used, so a
//! follow-up needs `hasToolResult`; `truncateAfterChunks` cuts streams only, and needs `latency` so that the pieces before the
//! cut are sent. `--strict` turns a request without a fixture into a 503.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, config_for, merged};
use crate::model::{Model, Reply};

/// Version with the behaviour described above.
const VERSION: &str = "1.43.0";

/// Key of a server that checks keys. It differs from the canary, so the server refuses bantam's key.
const OTHER_KEY: &str = "sk-test-the-server-wants-this-one";

/// Returns the path where `tests/run` installs it, next to `tmp` in the target directory.
fn installed() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let package = target.join("aimock/node_modules/@copilotkit/aimock");
    let manifest = fs::read_to_string(package.join("package.json")).unwrap_or_default();
    let version = serde_json::from_str(&manifest).unwrap_or(Value::Null)["version"].clone();
    assert_eq!(
        version,
        VERSION,
        "no aimock {VERSION} below {0}; `tests/run` installs it, and so does\n    \
         npm install --prefix {0} --no-save --no-package-lock @copilotkit/aimock@{VERSION}",
        target.join("aimock").display()
    );
    package
}

/// Makes it end at the end of its standard input.
const ENDING: &str =
    "--import=data:text/javascript,process.stdin.resume().on('end',()=>process.exit())";

/// A running aimock. Dropping it kills it by its pid; it also ends when this process dies.
struct Aimock {
    child: Child,
    /// Closing this makes it end.
    _life: ChildStdin,
    address: String,
    fixtures: PathBuf,
}

impl Aimock {
    fn serving(fixtures: &Value) -> Self {
        Self::start(fixtures, &[])
    }

    /// Accepts only [`OTHER_KEY`].
    fn checking_keys(fixtures: &Value) -> Self {
        Self::start(fixtures, &[("AIMOCK_API_KEYS", OTHER_KEY)])
    }

    fn start(fixtures: &Value, env: &[(&str, &str)]) -> Self {
        let file = Self::file(&json!({ "fixtures": fixtures }).to_string());
        let mut node = Command::new("node");
        node.arg(ENDING)
            .arg(installed().join("dist/cli.js"))
            .args([
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--strict",
                "--validate-on-load",
                "--fixtures",
            ])
            .arg(&file)
            .envs(env.iter().copied());
        Self::run(node, file)
    }

    /// Answers searches for hens like Tavily. The command line cannot set the results.
    fn searching(results: &Value) -> Self {
        let index = installed().join("dist/index.js");
        let file = Self::file(&format!(
            "import {{ LLMock }} from {};\nconst mock = new LLMock({{ port: 0, strict: true }});\n\
             mock.onSearch(/hens/, {results});\nconsole.log(await mock.start());",
            json!(index.to_str())
        ));
        let mut node = Command::new("node");
        node.arg(ENDING)
            .arg("--input-type=module")
            .arg("--eval")
            .arg(fs::read_to_string(&file).unwrap());
        Self::run(node, file)
    }

    fn file(content: &str) -> PathBuf {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let file = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("aimock-{}-{n}.json", std::process::id()));
        fs::write(&file, content).unwrap();
        file
    }

    fn run(mut node: Command, fixtures: PathBuf) -> Self {
        node.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = node.spawn().unwrap_or_else(|error| {
            panic!("starting node ({error}); on Debian: apt-get install nodejs npm")
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("http://")?.1.trim().to_owned()))
            .expect("aimock ended before it listened");
        thread::spawn(move || lines.for_each(drop)); // or its next line would find the pipe full or closed
        let life = child.stdin.take().unwrap();
        let aimock = Self {
            child,
            _life: life,
            address,
            fixtures,
        };
        let healthy = aimock
            .get("/health")
            .is_ok_and(|answer| answer.contains("\"ok\""));
        assert!(healthy, "aimock does not answer");
        aimock
    }

    /// Returns a configuration that names this server `test`.
    fn config(&self) -> Value {
        config_for(&format!("http://{}/v1", self.address))
    }

    /// Returns a home that uses it, with `extra` in its configuration.
    fn home(&self, extra: &Value) -> Home {
        Home::with(&merged(self.config(), extra))
    }

    /// Returns the answer to a GET, head and body. Uses HTTP/1.0, so that it ends with the connection.
    fn get(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nAuthorization: Bearer {OTHER_KEY}\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Returns its own record of requests and answers.
    fn journal(&self) -> Vec<Value> {
        let answer = self.get("/__aimock/journal").unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let journal: Vec<Value> = serde_json::from_str(body).unwrap();
        journal
            .into_iter()
            .filter(|entry| entry["method"] == "POST")
            .collect()
    }

    /// Returns the status of every answer, in order.
    fn statuses(&self) -> Vec<u64> {
        self.journal()
            .iter()
            .filter_map(|entry| entry["response"]["status"].as_u64())
            .collect()
    }
}

impl Drop for Aimock {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "\n==== aimock's journal ====\n{:?}",
                self.get("/__aimock/journal")
            );
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        fs::remove_file(&self.fixtures).unwrap();
    }
}

#[test]
fn a_question_is_answered() {
    let aimock = Aimock::serving(&json!([
        { "match": { "userMessage": "capital of France" }, "response": { "content": "Paris, since 987 or so." } }
    ]));
    let home = aimock.home(&json!({}));
    let run = home.agent(["-m", "What is the capital of France?"]);
    run.exits(0).prints("Paris, since 987 or so.\n").is_quiet();

    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant"]);
    assert_eq!(session.texts("assistant"), ["Paris, since 987 or so."]);
    assert_eq!(session.turns(), ["done"]);
    assert_eq!(aimock.statuses(), [200]);
}

#[test]
fn a_file_is_read_before_the_answer() {
    let aimock = Aimock::serving(&json!([
        {
            "match": { "userMessage": "shopping list", "hasToolResult": false },
            "response": { "toolCalls": [ { "id": "call_read", "name": "read_file", "arguments": { "path": "list.txt" } } ] }
        },
        {
            "match": { "toolCallId": "call_read", "toolResultContains": "oat milk", "hasToolResult": true },
            "response": { "content": "Oat milk." }
        }
    ]));
    let home = aimock.home(&json!({}));
    home.write("workspace/list.txt", "oat milk\n");
    home.agent(["-m", "What is on my shopping list?"])
        .exits(0)
        .prints("Oat milk.\n")
        .is_quiet();

    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "tool", "assistant"]);
    session.has_one_result_per_call();
    let history = session.history();
    assert_eq!(history[1]["tool_calls"][0]["id"], "call_read");
    assert_eq!(history[1]["tool_calls"][0]["name"], "read_file");
    assert_eq!(history[2]["tool_call_id"], "call_read");
    assert_eq!(session.turns(), ["done"]);
    assert_eq!(aimock.statuses(), [200, 200]);
}

#[test]
fn a_command_is_run_before_the_answer() {
    let aimock = Aimock::serving(&json!([
        {
            "match": { "userMessage": "sum", "hasToolResult": false },
            "response": { "toolCalls": [ { "id": "call_sum", "name": "exec", "arguments": { "command": "echo $((40 + 2))" } } ] }
        },
        { "match": { "toolResultContains": "42", "hasToolResult": true }, "response": { "content": "It is 42." } }
    ]));
    let home = aimock.home(&json!({ "tools": { "exec": { "sandbox": "off" } } }));
    home.agent(["-m", "What is the sum?"])
        .exits(0)
        .prints("It is 42.\n");

    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "tool", "assistant"]);
    session.has_one_result_per_call();
    assert_eq!(aimock.statuses(), [200, 200]);
}

#[test]
fn a_search_is_answered() {
    let aimock = Aimock::searching(&json!([
        { "title": "Keeping hens", "url": "https://hens.example/keep", "content": "They need a <b>dry</b> coop.", "score": 0.9 },
        { "title": "Eggs", "url": "https://eggs.example/", "content": "One a day.", "score": 0.5 },
        { "title": "Third", "url": "https://third.example/", "content": "", "score": 0.1 }
    ]));
    let model = Model::answering(|request, _| match request.texts("tool").pop() {
        None => Reply::call(
            "web_search",
            &json!({ "query": "how to keep hens", "count": 2 }),
        ),
        Some(result) => Reply::text(&result),
    });
    let base = format!("http://{}", aimock.address);
    let search = json!({ "provider": "tavily", "api_key": OTHER_KEY, "base_url": base });
    let home = Home::with(&merged(
        model.config(),
        &json!({ "tools": { "web": { "search": search } } }),
    ));
    home.agent(["-m", "search"]).exits(0).prints(
        "```\n1. Keeping hens\n   https://hens.example/keep\n   They need a **dry** coop.\n\
         2. Eggs\n   https://eggs.example/\n   One a day.\n```\n",
    );
    assert_eq!(aimock.journal()[0]["path"], "/search");
}

#[test]
fn a_rate_limit_is_waited_out() {
    let aimock = Aimock::serving(&json!([
        {
            "match": { "userMessage": "busy", "sequenceIndex": 0 },
            "response": { "error": { "message": "Rate limited", "type": "rate_limit_error" }, "status": 429, "retryAfter": 1 }
        },
        { "match": { "userMessage": "busy", "sequenceIndex": 1 }, "response": { "content": "Not any more." } }
    ]));
    let home = aimock.home(&json!({}));
    let run = home.agent(["-m", "Are you busy?"]);
    run.exits(0).prints("Not any more.\n").is_quiet();

    assert!(
        run.took >= Duration::from_secs(1),
        "Retry-After: 1 was not honoured: {:?}",
        run.took
    );
    assert_eq!(aimock.statuses(), [429, 200]);
    let session = home.session("cli_default");
    assert_eq!(
        session.roles(),
        ["user", "assistant"],
        "a retry leaves no line"
    );
    assert_eq!(session.turns(), ["done"]);
}

#[test]
fn cut_stream_fails_but_keeps_text() {
    let whole = "This sentence is long enough to be cut before its end.";
    let aimock = Aimock::serving(&json!([
        { "match": { "userMessage": "long" }, "response": { "content": whole }, "latency": 20, "truncateAfterChunks": 3 }
    ]));
    let home = aimock.home(&json!({ "agents": { "defaults": { "max_retries": 0 } } }));
    home.agent(["-m", "Say something long."])
        .exits(5)
        .prints("")
        .fails_with_a_hint();

    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant"]);
    let cut = session.history()[1];
    let text = cut["content"].as_str().unwrap();
    assert!(
        !text.is_empty() && whole.starts_with(text) && text != whole,
        "kept {text:?}"
    );
    assert_eq!(cut["partial"], true);
    assert_eq!(session.turns(), ["error"]);
}

#[test]
fn a_refused_key_leaves_no_trace_of_the_turn() {
    let fixtures =
        json!([ { "match": { "userMessage": "anyone" }, "response": { "content": "Yes." } } ]);
    let aimock = Aimock::checking_keys(&fixtures);
    let home = aimock.home(&json!({}));
    home.agent(["-m", "Is anyone there?"])
        .exits(4)
        .prints("")
        .fails_with_a_hint();
    let session = home.session("cli_default");
    assert!(session.history().is_empty(), "{:?}", session.history());
    assert_eq!(
        session
            .lines
            .iter()
            .filter(|line| line["undo"].is_u64())
            .count(),
        1
    );

    // With an accepted key, the conversation starts without the failed try.
    home.config(&aimock.config().to_string().replace(CANARY, OTHER_KEY));
    home.agent(["-m", "Hello, is anyone there?"])
        .exits(0)
        .prints("Yes.\n");
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant"]);
    let asked = aimock.journal().pop().unwrap()["body"]["messages"].to_string();
    assert!(
        !asked.contains("Is anyone there?"),
        "the refused turn was sent: {asked}"
    );
}

/// Returns a configuration that uses Anthropic's API of the same server.
fn claude() -> Value {
    json!({ "model_list": [ { "model": "anthropic/claude-test" } ] })
}

#[test]
fn anthropics_dialect_answers_a_question() {
    let fixtures = json!([ { "match": { "userMessage": "capital of France" }, "response": { "content": "Paris." } } ]);
    let aimock = Aimock::serving(&fixtures);
    let home = aimock.home(&claude());
    home.agent(["-m", "What is the capital of France?"])
        .exits(0)
        .prints("Paris.\n")
        .is_quiet();
    home.agent(["--no-stream", "-m", "Once more: the capital of France?"])
        .exits(0)
        .prints("Paris.\n")
        .is_quiet();
    let journal = aimock.journal();
    assert!(
        journal.iter().all(|entry| entry["path"] == "/v1/messages"),
        "{journal:?}"
    );
    assert_eq!(aimock.statuses(), [200, 200]);
}

#[test]
fn anthropics_dialect_calls_a_tool() {
    let aimock = Aimock::serving(&json!([
        {
            "match": { "userMessage": "shopping list", "hasToolResult": false },
            "response": { "toolCalls": [ { "id": "toolu_read", "name": "read_file", "arguments": { "path": "list.txt" } } ] }
        },
        {
            "match": { "toolCallId": "toolu_read", "toolResultContains": "oat milk", "hasToolResult": true },
            "response": { "content": "Oat milk." }
        }
    ]));
    let home = aimock.home(&claude());
    home.write("workspace/list.txt", "oat milk\n");
    home.agent(["-m", "What is on my shopping list?"])
        .exits(0)
        .prints("Oat milk.\n")
        .is_quiet();
    home.session("cli_default").has_one_result_per_call();
    assert_eq!(aimock.statuses(), [200, 200]);
}

#[test]
fn anthropics_dialect_is_told_about_a_refused_key() {
    let fixtures =
        json!([ { "match": { "userMessage": "anyone" }, "response": { "content": "Yes." } } ]);
    let aimock = Aimock::checking_keys(&fixtures);
    let home = aimock.home(&claude());
    home.agent(["-m", "Is anyone there?"])
        .exits(4)
        .prints("")
        .fails_with_a_hint();
    assert!(home.session("cli_default").history().is_empty());
    home.config(
        &merged(aimock.config(), &claude())
            .to_string()
            .replace(CANARY, OTHER_KEY),
    );
    home.agent(["-m", "Is anyone there?"])
        .exits(0)
        .prints("Yes.\n");
}
