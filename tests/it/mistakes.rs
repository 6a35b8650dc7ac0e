//! The mistakes that a user makes: each has its exit code, its kind with `--json`, and a hint.

use crate::contract::object;
use crate::harness::Home;

const DEMO: &str = r#"{"agents":{"defaults":{"model_name":"demo/demo"}}}"#;

/// Arguments, exit code, kind with `--json`, and a word of the error or its hint.
const TYPED: &str = r#"
agnet                                 | 2 |        | `bantam agent`
what is up                            | 2 |        | `bantam 'what is up'`
hello                                 | 2 |        | `bantam agent hello`
memory                                | 2 |        | `bantam help memory`
chat                                  | 2 |        | `bantam agent`
logs                                  | 2 |        | `bantam help recipes logs`
setup                                 | 2 |        | `bantam onboard`
update                                | 2 |        | `bantam help backup`
cron rm logs                          | 2 |        | `bantam cron remove`
version                               | 2 |        | `bantam --version`
help sanbox                           | 2 |        | `bantam help sandbox`
sessions rename garden                | 2 |        | `bantam help sessions`
cron remove --all                     | 2 |        | `bantam help cron remove`
sessions reset garden --yes           | 2 |        | `bantam help sessions reset`
cron edit logs                        | 2 |        | `bantam help cron`
agent --no-attach x hi                | 2 |        | put `--`
--hlep                                | 2 |        | `--help`
models opnai                          | 2 |        | `openai`
agent --model a --model b hi          | 2 |        | --model is given twice
--modle x hi                          | 2 |        | `--model`
agent -m                              | 2 |        | needs a value
agent -m hi there                     | 2 |        | given twice
agent -m hi -m there                  | 2 |        | given twice
agent --json -a /etc/passwd /etc/hosts hi | 2 | usage | `-a /etc/hosts`
agent --json -a /etc/passwd -m hi /etc/hosts | 2 | usage | `-a /etc/hosts`
agent --json -t summarize -p inptu=x hi | 2 | usage | placeholders: input
agent --json ''                       | 2 | usage  | no question
agent --json --timeout soon hi        | 2 | usage  | --timeout soon
agent --json --new -s x hi            | 2 | usage  | cannot be used together
agent --json -c hi                    | 2 | usage  | no conversation
agent --json -s +nosuch hi            | 2 | usage  | no session named
agent --json -t sumarize hi           | 2 | usage  | summarize
agent --json -a nosuch.txt hi         | 2 | usage  | starts in
agent --json --schema nosuch.json hi  | 2 | usage  | no file named
agent --json --schema '{' hi          | 2 | usage  | line 1, column 1: it ends
agent --json --schema '{"a": [' hi  | 2 | usage  | line 1, column 7: it ends
agent --json -a '' hi                 | 2 | usage  | no file named
agent --json --workspace / hi         | 3 | config | --workspace: /
agent --json --workspace /etc/hosts hi | 2 | usage | `bantam -a /etc/hosts`
agent --json --to pigeon:1 hi         | 2 | usage  | telegram:
agent --json --tools read_fil hi      | 2 | usage  | `read_file`
agent --json --model opnai/gpt-5 hi   | 2 | usage  | `openai/gpt-5`
sessions show garden                  | 2 |        | no session named
cron add -c '61 * * * *' hi           | 2 |        | minute
cron add --tz Mars -c @daily hi       | 2 |        | time zone
cron run nope                         | 2 |        | no job named
mcp test nope                         | 2 |        | no MCP server named
mcp add x -- nosuchprogram            | 2 |        | no program named
mcp add x --network -- cat            | 2 |        | `bantam help mcp add`
mcp add x ftp://x/mcp                 | 2 |        | http://
mcp add x http://127.0.0.1:1/mcp more | 2 |        | one address
mcp add x -- 'npx -y server'          | 2 |        | the quotes
mcp add x '{"command":"npx"}'         | 2 |        | `bantam config set
mcp add                               | 2 |        | missing NAME
mcp add foo                           | 2 |        | missing URL or COMMAND
skills show nope                      | 2 |        | no skill named
config get timeout                    | 2 |        | agents.defaults.timeout
config set log.json maybe             | 2 |        | true or false
config set model_list.5.model x       | 2 |        | write 0
config set model_list.x.model x       | 2 |        | model_list[0].model
"#;

/// Files of the home, their content, and the end of a question then.
const HOMES: &str = r#"
config.json         | {"log":{"json":true,}}                                          | 3 | config | line 1
config.json         | {"agents":{"defaults":{"max_tokens":"4096"}}}                   | 3 | config | max_tokens
config.json         | {"tools":{"exec":{"network":"on"}}}                             | 3 | config | guarded
config.json         | {}                                                              | 3 | config | bantam onboard
config.json         | {"model_list":[{"model":"openai/x"}]}                           | 3 | config | OPENAI_API_KEY
config.json         | {"model_list":[{"model":"openai/x","api_key":"${NOPE}"}]}       | 3 | config | NOPE
config.json         | {"model_list":[{"model":"openai/x","api_base":"h:1/v1"}]}       | 3 | config | http://h:1/v1
config.json/file    | a directory                                                     | 3 | config | config.json
agent/AGENT.md/file | a directory                                                     | 3 | config | AGENT.md
workspace           | a file                                                          | 3 | config | workspace
sessions            | a file                                                          | 1 | failed | sessions
"#;

/// Texts of libraries and the system, which tell a user nothing.
const FOREIGN: [&str; 6] = [
    "os error",
    "EOF",
    "metadata",
    "failed to ",
    "panicked",
    "Error {",
];

fn rows<const N: usize>(table: &'static str) -> impl Iterator<Item = [&'static str; N]> {
    let cells = |row: &'static str| row.split(" | ").map(str::trim).collect::<Vec<_>>();
    table
        .lines()
        .skip(1)
        .map(move |row| cells(row).try_into().unwrap())
}

#[track_caller]
fn check(home: &Home, arguments: &str, [code, kind, word]: [&str; 3]) {
    let run = home.run(shell_words::split(arguments).unwrap());
    run.exits(code.parse().unwrap())
        .fails_with_a_hint()
        .says(word);
    assert!(
        run.stderr.lines().count() <= 3,
        "{arguments}: {}",
        run.stderr
    );
    for foreign in FOREIGN {
        assert!(!run.stderr.contains(foreign), "{arguments}: {}", run.stderr);
    }
    if kind.is_empty() {
        run.prints("");
    } else {
        assert_eq!(object(&run)["error"]["kind"], kind, "{arguments}");
    }
}

#[test]
fn each_mistake_has_its_exit_code_and_a_hint() {
    let home = Home::empty();
    home.config(DEMO);
    for [arguments, code, kind, word] in rows(TYPED) {
        check(&home, arguments, [code, kind, word]);
    }
    for [file, content, code, kind, word] in rows(HOMES) {
        let home = Home::empty();
        if !file.starts_with("config.json") {
            home.config(DEMO);
        }
        home.write(file, content);
        check(&home, "agent --json hi", [code, kind, word]);
    }
    let file = home.path("config.json");
    let run = home.bantam().env("BANTAM_HOME", file).arg("hi there").run();
    run.exits(3)
        .prints("")
        .says("not a directory")
        .fails_with_a_hint();
}
