//! Mistakes and their errors: the exit code and a key word are listed here, and the whole sentences in `mistakes.txt`, which
//! `BANTAM_BLESS=1` updates.

use std::fs;

use serde_json::json;

use crate::harness::Home;

const DEMO: &str = r#"{"agents":{"defaults":{"model_name":"demo/demo"}}}"#;

/// Command lines with wrong usage, and a key word of the error.
const TYPED: &[(&str, &str)] = &[
    ("agnet", "no command named"),
    ("what is up", "no command named"),
    ("sessions frobnicate", "no command named"),
    ("help nothing", "no command or topic named"),
    ("help sanbox", "no command or topic named"),
    ("agent --mesage hi", "no flag named"),
    ("agent -d", "no flag named"),
    ("--verison", "no flag named"),
    ("agent -m", "needs a value"),
    ("agent -m ''", "no question"),
    ("agent --json=1 hi", "takes no value"),
    ("agent --timeout soon hi", "--timeout soon"),
    ("agent --timeout 0 hi", "--timeout 0"),
    ("agent --budget-tokens -5 hi", "--budget-tokens -5"),
    ("agent --temperature hot hi", "--temperature hot"),
    ("agent --new -s x hi", "cannot be used together"),
    ("agent -c hi", "no conversation to continue"),
    ("agent -s +nosuch hi", "no session named"),
    ("agent -t nope hi", "no template named"),
    ("agent -t sumarize hi", "no template named"),
    ("agent -p a=1 hi", "--param without --template"),
    ("agent --to pigeon:1 hi", "invalid destination"),
    ("agent --tools nope hi", "no tool named"),
    ("agent --tools read_fil hi", "no tool named"),
    ("agent --model nope hi", "no model named"),
    ("agent --model opnai/gpt-5 hi", "no model named"),
    ("agent --model qwen3:4b hi", "no model named"),
    ("agent --workspace nowhere hi", "no directory named"),
    ("models nope", "no model named"),
    ("sessions show garden", "no session named"),
    ("sessions show", "needs KEY"),
    ("sessions erase garden -y", "no session named"),
    ("sessions search", "needs WORD"),
    ("cron add hi", "exactly one time"),
    ("cron add -e soon hi", "as an interval"),
    ("cron add --at 25:00 hi", "as a time"),
    ("cron add -c '61 * * * *' hi", "minute"),
    ("cron add -e 5m", "no message"),
    ("cron add --tz Mars -c @daily hi", "time zone"),
    ("cron run nope", "no job named"),
    ("cron history nope", "no job named"),
    ("mcp test nope", "no MCP server named"),
    ("mcp add x http://h --env A=1", "not for a URL"),
    ("mcp add x -- nosuchprogram", "no program named"),
    ("skills show nope", "no skill named"),
    ("skills install nope", "no folder named"),
    ("usage --days x", "--days x"),
    ("doctor foo", "only with --provider"),
    ("config get timeout", "no setting named"),
    ("config get mcpServers.x", "no entry named"),
    ("config unset log.json", "no entry named"),
    ("config set allowed_users 5", "no setting named"),
    ("config edit", "needs a terminal"),
    ("completions ksh", "no shell named"),
    ("status now", "does not take"),
];

/// Texts of config.json that prevent questions, and a key word of the error.
const CONFIGS: &[(&str, &str)] = &[
    ("", "is empty"),
    ("{", "line 1, column 1"),
    ("{'a':1}", "line 1, column 2"),
    (r#"{"log":{"json":true,}}"#, "a comma after"),
    ("[]", "not a JSON object"),
    (
        r#"{"agents":{"defaults":{"max_tokens":"4096"}}}"#,
        "max_tokens is a string",
    ),
    (r#"{"agents":{"defaults":{"timeout":0}}}"#, "timeout is 0"),
    (
        r#"{"tools":{"exec":{"network":"on"}}}"#,
        "not one of its values",
    ),
    (r#"{"model_list":{}}"#, "model_list is an object"),
    (r#"{"providers":{}}"#, "no model is configured"),
    (r#"{"model_list":[{"model":"openai/x"}]}"#, "no key"),
    (r#"{"model_list":[{"model":"acme/x"}]}"#, "known vendor"),
    (
        r#"{"agents":{"defaults":{"model_name":"gpt-5"}}}"#,
        "no model named",
    ),
    (
        r#"{"model_list":[{"model":"openai/x","api_base":"127.0.0.1:1/v1"}]}"#,
        "no scheme",
    ),
    (
        r#"{"model_list":[{"model":"openai/x","api_base":"ftp://h/v1"}]}"#,
        "must begin with",
    ),
    (
        r#"{"model_list":[{"model":"openai/x","api_key":"$NOPE"}]}"#,
        "looks like a variable",
    ),
    (
        r#"{"model_list":[{"model":"openai/x","api_key":"${NOPE}"}]}"#,
        "is not set",
    ),
    (
        r#"{"model_list":[{"model":"openai/x","api_key":"file:nokey"}]}"#,
        "cannot open",
    ),
    (
        r#"{"model_list":[{"model":"openai/x","api_key":"cmd:/nope/pass"}]}"#,
        "no program named",
    ),
    (
        r#"{"model_list":[{"model":"openai/x","headers":{"X Title":"a"}}]}"#,
        "no name of a header",
    ),
];

/// A damaged home: a file, its content, the command, the exit code and a key word.
const HOMES: &[(&str, &str, &str, i32, &str)] = &[
    ("cron/jobs.json", "broken", "cron list", 3, "jobs.json"),
    (
        "cron/jobs.json",
        r#"{"jobs": ["#,
        "cron list",
        3,
        "the file ends within",
    ),
    (
        "agent/AGENT.md/file",
        "in the way",
        "agent hi",
        3,
        "AGENT.md is a directory",
    ),
    ("workspace", "in the way", "agent hi", 3, "not a directory"),
    (
        "sessions",
        "in the way",
        "agent hi",
        1,
        "opening the session",
    ),
    (
        "config.json",
        DEMO,
        "config set log.json maybe",
        3,
        "log.json is a string",
    ),
];

/// Texts of libraries and the system.
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

/// Makes a mistake in a home with a file, and returns its command line and output.
fn told((file, content): (&str, &str), line: &str, code: i32, word: &str) -> String {
    let home = Home::empty();
    home.config(DEMO);
    home.write(file, content);
    let args = shell_words::split(line).unwrap();
    let run = home.bantam().args(&args).run();
    run.exits(code).prints("").fails_with_a_hint().says(word);
    is_told_what_to_do(&run.stderr);
    let root = home.path("").parent().unwrap().display().to_string();
    let told = run.stderr.replace(&root, "");
    format!("{told}\n")
}

#[test]
fn each_mistake_has_its_exit_code_and_its_sentences() {
    let typed = TYPED.iter().map(|(line, word)| {
        let told = told(("config.json", DEMO), line, 2, word);
        format!("$ bantam {line}\n{told}")
    });
    let configs = CONFIGS.iter().map(|(text, word)| {
        let told = told(("config.json", text), "agent hi", 3, word);
        format!("config.json: {text}\n{told}")
    });
    let homes = HOMES.iter().map(|(file, text, line, code, word)| {
        let told = told((file, text), line, *code, word);
        format!("$ bantam {line} ({file}: {text})\n{told}")
    });
    let page: String = typed.chain(configs).chain(homes).collect();
    let snapshot = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/mistakes.txt");
    if std::env::var_os("BANTAM_BLESS").is_some() {
        fs::write(snapshot, &page).unwrap();
    }
    let known = fs::read_to_string(snapshot).unwrap();
    let lines = page.lines().zip(known.lines());
    for (line, known) in lines {
        assert_eq!(line, known, "BANTAM_BLESS=1 cargo test --test it mistakes");
    }
    assert_eq!(
        page.len(),
        known.len(),
        "BANTAM_BLESS=1 cargo test --test it mistakes"
    );
}

#[test]
fn unusable_host_error_has_a_fix() {
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
fn missing_argument_target_fails_before_any_request() {
    let home = Home::with(&crate::harness::config_for("http://127.0.0.1:9/v1"));
    for (args, word) in [
        (&["skills", "remove", "nosuch"][..], "no skill named"),
        (&["agent", "-n", "-a", "my question"], "no file named"),
        (&[""], "the question is empty"),
    ] {
        let run = home.bantam().args(args).run();
        run.exits(2).prints("").fails_with_a_hint().says(word);
    }
}

#[test]
fn a_mistyped_flag_of_a_question_is_a_flag() {
    let home = Home::empty();
    let run = home.bantam().args(["--modle", "x", "hi"]).run();
    run.exits(2)
        .says("no flag named \"--modle\"")
        .says("`--model`")
        .fails_with_a_hint();
}
