//! What people get wrong, and what they are told: what was being done, what went wrong, and what to type.

use serde_json::json;

use crate::harness::Home;

const DEMO: &str = r#"{"agents":{"defaults":{"model_name":"demo/demo"}}}"#;

/// A mistake: `config.json` or a damaged file, the arguments, the exit code, and what is said.
struct Mistake {
    /// A file of the home and its content; `config.json` is the demo's otherwise.
    file: (&'static str, &'static str),
    args: &'static [&'static str],
    code: i32,
    error: &'static str,
    hint: &'static str,
}

const fn typed(args: &'static [&'static str], error: &'static str, hint: &'static str) -> Mistake {
    Mistake {
        file: ("", ""),
        args,
        code: 2,
        error,
        hint,
    }
}

const fn config(text: &'static str, error: &'static str, hint: &'static str) -> Mistake {
    Mistake {
        file: ("config.json", text),
        args: &["agent", "-m", "hi"],
        code: 3,
        error,
        hint,
    }
}

const MISTAKES: &[Mistake] = &[
    typed(
        &["agnet"],
        "unknown command \"agnet\"",
        "did you mean `bantam agent`?",
    ),
    typed(
        &["help", "nothing"],
        "no help for \"nothing\"",
        "bantam help lists the commands and topics",
    ),
    typed(
        &["help", "sanbox"],
        "no help for \"sanbox\"",
        "did you mean `bantam help sandbox`?",
    ),
    typed(
        &["agent", "--mesage", "hi"],
        "unknown flag --mesage",
        "did you mean --message?",
    ),
    typed(
        &["agent", "-d"],
        "unknown flag -d",
        "put -- before text that starts with -",
    ),
    typed(&["agent", "-m"], "-m needs a value", "-m TEXT"),
    typed(
        &["agent", "-m", ""],
        "no question",
        "bantam agent -m \"a question\"",
    ),
    typed(
        &["agent", "--json=1", "hi"],
        "--json takes no value",
        "--json alone",
    ),
    typed(
        &["agent", "--timeout", "soon", "hi"],
        "--timeout soon: must be a whole number of at least 1",
        "--timeout 120",
    ),
    typed(
        &["agent", "--timeout", "0", "hi"],
        "--timeout 0: must be a whole number of at least 1",
        "--timeout 120",
    ),
    typed(
        &["agent", "--budget-tokens", "-5", "hi"],
        "--budget-tokens -5: must be a whole number of at least 1",
        "for example --budget-tokens 50000",
    ),
    typed(
        &["agent", "--temperature", "hot", "hi"],
        "--temperature hot: must be a number",
        "--temperature 0.2",
    ),
    typed(
        &["agent", "--new", "-s", "x", "hi"],
        "--new and --session cannot be used together",
        "leave out one of them",
    ),
    typed(
        &["agent", "-c", "hi"],
        "no conversation to continue",
        "leave out -c",
    ),
    typed(
        &["agent", "-a", "nope.txt", "hi"],
        "attaching nope.txt: there is no such file",
        "check the path",
    ),
    typed(
        &["agent", "-t", "nope", "hi"],
        "no template named \"nope\"",
        "templates: explain-log, summarize",
    ),
    typed(
        &["agent", "-p", "a=1", "hi"],
        "--param without --template",
        "name the template with -t",
    ),
    typed(
        &["agent", "--to", "pigeon:1", "hi"],
        "invalid destination \"pigeon:1\"",
        "telegram:123456789",
    ),
    typed(
        &["agent", "--tools", "nope", "hi"],
        "no tool named \"nope\"",
        "bantam tools",
    ),
    typed(
        &["agent", "--workspace", "nowhere", "hi"],
        "there is no directory",
        "mkdir -p ",
    ),
    typed(
        &["sessions", "frobnicate"],
        "unknown command",
        "bantam sessions has list",
    ),
    typed(
        &["cron", "add", "hi"],
        "a job needs exactly one time",
        "-e 5m",
    ),
    typed(
        &["cron", "add", "-e", "soon", "hi"],
        "cannot read \"soon\" as an interval",
        "-e 5m",
    ),
    typed(
        &["cron", "add", "--at", "25:00", "hi"],
        "cannot read \"25:00\" as a time",
        "for example 18:00",
    ),
    typed(
        &["cron", "add", "-c", "61 * * * *", "hi"],
        "minute \"61\" is not valid (0-59)",
        "30 7 * * mon-fri",
    ),
    typed(
        &["cron", "add", "-e", "5m"],
        "the job has no message",
        "bantam cron add -e 1h",
    ),
    typed(
        &["mcp", "test", "nope"],
        "no MCP server is called nope",
        "bantam mcp list",
    ),
    typed(
        &["usage", "--days", "x"],
        "--days x: must be a whole number of at least 1",
        "--days 7",
    ),
    typed(
        &["doctor", "foo"],
        "bantam doctor takes \"foo\" only with --provider",
        "bantam doctor --provider foo",
    ),
    typed(
        &["config", "set", "timeout", "5"],
        "no setting named \"timeout\"",
        "agents.defaults.timeout",
    ),
    Mistake {
        file: ("", ""),
        args: &["config", "set", "log.json", "maybe"],
        code: 3,
        error: "log.json is a string",
        hint: "true or false",
    },
    typed(
        &["completions", "ksh"],
        "no completions for \"ksh\"",
        "bantam completions bash",
    ),
    typed(
        &["status", "now"],
        "bantam status does not take \"now\"",
        "bantam help status",
    ),
    config("", "config.json is empty", "bantam onboard"),
    config("{", "line 1, column 1: the file ends", "correct that line"),
    config(
        "{'a':1}",
        "line 1, column 2: key must be a string",
        "correct that line",
    ),
    config(
        r#"{"log":{"json":true,}}"#,
        "a comma after the last entry",
        "correct that line",
    ),
    config("[]", "is not a JSON object", "begin it with {"),
    config(
        r#"{"agents":{"defaults":{"max_tokens":"4096"}}}"#,
        "max_tokens is a string",
        "without quotes",
    ),
    config(
        r#"{"agents":{"defaults":{"timeout":0}}}"#,
        "agents.defaults.timeout is 0",
        "at least 1",
    ),
    config(
        r#"{"tools":{"exec":{"network":"on"}}}"#,
        "tools.exec.network is not one of its values",
        "none, guarded, full",
    ),
    config(
        r#"{"model_list":{}}"#,
        "model_list is an object",
        "a list in brackets",
    ),
    config(
        r#"{"providers":{}}"#,
        "configuration of another program",
        "bantam help coming-from",
    ),
    config(
        r#"{"model_list":[{"model":"openai/x"}]}"#,
        "no key for openai/x",
        "export OPENAI_API_KEY=",
    ),
    config(
        r#"{"model_list":[{"model":"acme/x"}]}"#,
        "\"acme/x\" has neither a known vendor",
        "vendors: openai",
    ),
    config(
        r#"{"agents":{"defaults":{"model_name":"gpt-5"}}}"#,
        "no model named \"gpt-5\"",
        "openai/gpt-5",
    ),
    config(
        r#"{"model_list":[{"model":"openai/x","api_base":"127.0.0.1:1/v1"}]}"#,
        "api_base \"127.0.0.1:1/v1\" has no scheme",
        "http://127.0.0.1:1/v1",
    ),
    config(
        r#"{"model_list":[{"model":"openai/x","api_base":"ftp://h/v1"}]}"#,
        "api_base must begin with http:// or https://",
        "model_list",
    ),
    config(
        r#"{"model_list":[{"model":"openai/x","api_key":"$NOPE"}]}"#,
        "\"$NOPE\" looks like a variable",
        "write \"${NOPE}\"",
    ),
    config(
        r#"{"model_list":[{"model":"openai/x","api_key":"${NOPE}"}]}"#,
        "the variable NOPE is not set",
        "export NOPE=",
    ),
    config(
        r#"{"model_list":[{"model":"openai/x","api_key":"file:nokey"}]}"#,
        "cannot open ",
        "check \"file:...\" in config.json",
    ),
    Mistake {
        file: ("cron/jobs.json", "broken"),
        args: &["cron", "list"],
        code: 3,
        error: "jobs.json: expected value at line 1",
        hint: "correct the file or move it away",
    },
    Mistake {
        file: ("agent/AGENT.md/file", "in the way"),
        args: &["agent", "-m", "hi"],
        code: 3,
        error: "AGENT.md is a directory",
        hint: "make it a readable file",
    },
    Mistake {
        file: ("workspace", "in the way"),
        args: &["agent", "-m", "hi"],
        code: 3,
        error: "is a file, not a directory",
        hint: "move it away",
    },
    Mistake {
        file: ("sessions", "in the way"),
        args: &["agent", "-m", "hi"],
        code: 1,
        error: "opening the session: cannot open ",
        hint: "is a directory you can write",
    },
];

/// What only our libraries and the system say.
const OF_LIBRARIES: [&str; 8] = [
    "os error",
    "EOF",
    "canonicalize",
    "metadata",
    "failed to ",
    "trailing ",
    "panicked",
    "Error {",
];

#[track_caller]
fn is_told_what_to_do(stderr: &str) {
    assert!(stderr.lines().count() <= 3, "{stderr}");
    for word in OF_LIBRARIES {
        assert!(!stderr.contains(word), "{word:?}: {stderr}");
    }
}

#[test]
fn each_mistake_is_told_with_what_to_type() {
    assert!(MISTAKES.len() >= 40);
    for Mistake {
        file,
        args,
        code,
        error,
        hint,
    } in MISTAKES
    {
        let home = Home::empty();
        home.config(DEMO);
        if !file.0.is_empty() {
            home.write(file.0, file.1);
        }
        let run = home.bantam().args(*args).run();
        run.exits(*code).prints("").fails_with_a_hint();
        let (told, way_out) = run.stderr.split_once("hint: ").unwrap();
        assert!(
            told.contains(error),
            "{args:?}: {error:?} is missing: {}",
            run.stderr
        );
        assert!(
            way_out.contains(hint),
            "{args:?}: {hint:?} is missing: {}",
            run.stderr
        );
        is_told_what_to_do(&run.stderr);
    }
}

#[test]
fn a_host_that_cannot_be_used_is_told_with_what_to_change() {
    for (base, variable, code, hint) in [
        ("http://127.0.0.1:1/v1", ("A", ""), 5, "api_base"),
        (
            "https://127.0.0.1:1/v1",
            ("SSL_CERT_FILE", "/no/such/file"),
            3,
            "SSL_CERT_FILE",
        ),
        (
            "https://example.invalid/v1",
            ("HTTPS_PROXY", "http://127.0.0.1:1"),
            5,
            "HTTPS_PROXY",
        ),
    ] {
        let entry = json!({ "model": "openai/x", "api_base": base, "api_key": "k" });
        let home = Home::with(
            &json!({ "agents": { "defaults": { "max_retries": 0 } }, "model_list": [entry] }),
        );
        let run = home
            .bantam()
            .env(variable.0, variable.1)
            .args(["agent", "-m", "hi"])
            .run();
        run.exits(code).prints("").fails_with_a_hint();
        assert!(
            run.stderr.split_once("hint: ").unwrap().1.contains(hint),
            "{hint:?} is missing: {}",
            run.stderr
        );
        is_told_what_to_do(&run.stderr);
    }
}

#[test]
fn a_mistyped_flag_of_a_question_is_a_flag() {
    let home = Home::empty();
    let run = home.bantam().args(["--modle", "x", "hi"]).run();
    run.exits(2)
        .says("unknown flag --modle")
        .says("--model")
        .fails_with_a_hint();
}

#[test]
fn onboarding_http_keeps_a_token_that_stands_elsewhere() {
    let home = Home::with(&serde_json::json!({"channels": {"http": {"token": "${T}"}}}));
    let run = home.bantam().args(["onboard", "http"]).run();
    run.exits(0).says("Keeping the token");
    assert!(
        run.stdout.lines().all(|line| line.len() <= 80),
        "{}",
        run.stdout
    );
}
