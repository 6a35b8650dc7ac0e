//! Behavior of the programs in docs/examples.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::json;

use crate::Test;
use crate::support::harness::{Home, has_none, until};
use crate::support::model::{Model, Reply, call};
use crate::support::without_syscall::{Withheld, withhold};

pub const TESTS: &[Test] = tests!(
    programs,
    [
        ask_prints_the_answer,
        request_without_a_thread_fails_like_the_network,
        stream_shows_the_answer_and_its_tokens,
        tool_gets_its_arguments_as_a_type,
        exec_runs_in_the_sandbox_of_its_home,
        limits_end_a_turn_that_is_stopped,
        sessions_are_kept_apart,
        subagents_work_side_by_side,
        mcp_has_a_sandbox_of_its_own,
        chat_answers_what_a_crash_interrupted,
        pipe_channel_writes_an_answer_that_a_crash_has_kept,
        channel_answers_each_line_before_it_ends,
        store_goes_on_with_its_conversation,
        research_searches_and_reads_by_its_rules,
        usage_tells_what_each_answer_took,
        tool_test_needs_no_model,
        resume_repeats_nothing
    ]
);

/// A directory for a program.
pub struct Place(Home);

impl Place {
    pub fn new() -> Self {
        let home = Home::empty();
        fs::create_dir_all(home.path("")).unwrap();
        Self(home)
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.0.path(below)
    }

    pub fn start(&self, name: &str, model: &Model) -> Child {
        self.command(name, model).spawn().unwrap()
    }

    fn command(&self, name: &str, model: &Model) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["run", name])
            .current_dir(self.path(""))
            .env("MODEL_API", model.base())
            .env("CHAT", "127.0.0.1:0")
            .env("BANTAM_HOME", self.path("home"))
            .env("OPENAI_API_KEY", "not-a-real-key-0003")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Returns the output of a program that must succeed.
    pub fn run(&self, name: &str, model: &Model) -> String {
        printed(self.start(name, model).wait_with_output().unwrap())
    }
}

fn printed(output: Output) -> String {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn ask_prints_the_answer() {
    let model = Model::scripted([Reply::text("It scatters.")]);
    assert_eq!(Place::new().run("ask", &model), "It scatters.\n");
    assert!(
        model
            .request(0)
            .last("user")
            .ends_with("\nWhy is the sky blue?")
    );
    assert_eq!(model.request(0).body["model"], "qwen3:4b");
    assert_eq!(model.request(0).header("authorization"), None);
}

/// As with too many processes of the same user: a later try may succeed.
fn request_without_a_thread_fails_like_the_network() {
    const THREADS: &[Withheld] = &[
        (libc::SYS_clone3, libc::EAGAIN),
        (libc::SYS_clone, libc::EAGAIN),
    ];
    let place = Place::new();
    let mut command = place.command("ask", &Model::never_asked());
    withhold(&mut command, THREADS);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no thread could be started"), "{said}");
}

fn stream_shows_the_answer_and_its_tokens() {
    let model = Model::scripted([Reply::text("Once upon a time.")]);
    let said = Place::new().run("stream", &model);
    assert!(
        said.starts_with("Once upon a time.\n18 tokens in "),
        "{said}"
    );
    assert!(model.request(0).is_streamed());
}

fn tool_gets_its_arguments_as_a_type() {
    let model = Model::scripted([
        Reply::calls([
            call("a", "order", &json!({"number": 8})),
            call("b", "order", &json!({"number": -1})),
            call("c", "order", &json!({"number": 7})),
        ]),
        Reply::text("On Monday."),
    ]);
    assert_eq!(Place::new().run("tool", &model), "On Monday.\n");
    let results = model.request(1).texts("tool");
    assert!(results[0].contains("there is no such order"), "{results:?}");
    assert!(results[1].contains("invalid arguments"), "{results:?}");
    assert_eq!(results[2], "It was sent on Monday.");
}

fn exec_runs_in_the_sandbox_of_its_home() {
    let place = Place::new();
    fs::write(place.path("key.txt"), "a key").unwrap();
    let above = "cat ../../key.txt ../../../home/key.txt; echo $MODEL_API; wc -c < haiku.txt";
    let model = Model::scripted([
        Reply::call(
            "write_file",
            &json!({"path": "haiku.txt", "content": "An old pond."}),
        ),
        Reply::call("exec", &json!({"command": above})),
        Reply::text("12 bytes."),
    ]);
    assert_eq!(place.run("exec", &model), "12 bytes.\n");
    let result = model.request(2).last("tool");
    assert!(result.ends_with("12\n"), "{result}");
    has_none(&result, ["a key"]);
    assert!(!result.contains("http"), "{result}");
    let written = place.path("agent-home/workspace/haiku.txt");
    assert_eq!(fs::read_to_string(written).unwrap(), "An old pond.");
    let mut offered = model.request(0).tools().join(" ");
    offered.push(' ');
    for name in ["read_file", "exec", "grep"] {
        assert!(offered.contains(&format!("{name} ")), "{offered}");
    }
    assert!(!offered.contains("web_fetch"), "{offered}");
}

fn limits_end_a_turn_that_is_stopped() {
    let model = Model::scripted([Reply::text("One, two, three").held_after(1)]);
    let said = Place::new().run("limits", &model);
    assert!(said.starts_with("cancelled: "), "{said}");
}

fn sessions_are_kept_apart() {
    let model = Model::answering(|request, _| {
        let said = request.texts("user");
        // Each starts with a line with the time.
        let said = said.iter().filter_map(|text| text.lines().nth(1));
        Reply::text(&said.collect::<Vec<_>>().join("|"))
    });
    let place = Place::new();
    let said = place.run("sessions", &model);
    for name in ["ada", "ben", "cleo"] {
        let second = format!("{name}: Hello!|What did I say?\n");
        assert!(said.contains(&second), "{said}");
        assert!(
            place
                .path(&format!("agent-home/sessions/{name}.jsonl"))
                .exists()
        );
    }
}

fn subagents_work_side_by_side() {
    let model = Model::answering(|request, _| match request.texts("tool").len() {
        0 if request.last("user").contains("subagent.") => Reply::text("It wakes you."),
        0 => Reply::calls(["tea", "coffee"].map(|drink| {
            call(
                drink,
                "subagent",
                &json!({"task": format!("Argue for {drink}.")}),
            )
        })),
        _ => Reply::text("Tea."),
    });
    assert_eq!(Place::new().run("subagents", &model), "Tea. (72 tokens)\n");
    assert_eq!(model.asked(), 4);
}

fn resume_repeats_nothing() {
    let place = Place::new();
    let model = Model::scripted([
        Reply::call("pay", &json!({})),
        Reply::text("Paid it.").held(),
    ]);
    let mut first = place.start("resume", &model);
    model.wait_for_holds(1);
    first.kill().unwrap();
    let said = first.wait_with_output().unwrap().stdout;
    assert_eq!(String::from_utf8(said).unwrap(), "paid\n");
    let model = Model::scripted([Reply::text("It is paid.")]);
    assert_eq!(place.run("resume", &model), "It is paid.\n");
    assert_eq!(model.request(0).last("tool"), "It is paid.");
    // The turn has ended, so the model is not asked.
    assert_eq!(place.run("resume", &Model::never_asked()), "It is paid.\n");
}

fn mcp_has_a_sandbox_of_its_own() {
    let place = Place::new();
    fs::create_dir(place.path("bricks")).unwrap();
    let server = place.path("bricks/server");
    fs::write(&server, include_str!("../support/mcp_server.sh")).unwrap();
    fs::set_permissions(server, Permissions::from_mode(0o755)).unwrap();
    let model = Model::answering(|request, _| match request.texts("tool").pop() {
        None => {
            let tool = request
                .tools()
                .into_iter()
                .find(|name| name.starts_with("bricks__"));
            Reply::call(tool.unwrap(), &json!({"text": "red"}))
        }
        Some(result) if result.contains("You said red") => Reply::text("Seven."),
        Some(result) => Reply::text(&result),
    });
    assert_eq!(place.run("mcp", &model), "Seven.\n");
    assert!(place.path("agent-home/state/mcp/bricks").is_dir());
}

/// Returns a client of the chat, and its lines.
fn client(chat: &mut Child, name: &str) -> (TcpStream, impl Iterator<Item = String> + use<>) {
    let mut address = String::new();
    let mut out = BufReader::new(chat.stdout.take().unwrap());
    out.read_line(&mut address).unwrap();
    let mut stream = TcpStream::connect(address.trim()).unwrap();
    writeln!(stream, "{name}").unwrap();
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    (stream, lines.map(Result::unwrap))
}

fn chat_answers_what_a_crash_interrupted() {
    let place = Place::new();
    fs::write(
        place.path("people.txt"),
        "ada a-word-0004\n/../tcp_ada a-word-0005\n",
    )
    .unwrap();
    let model = Model::scripted([Reply::text("Hello, Ada."), Reply::text("Lost.").held()]);
    let mut chat = place.start("chat", &model);
    let (mut stream, mut lines) = client(&mut chat, "ada a-word-0004");
    writeln!(stream, "Hello!").unwrap();
    assert_eq!(lines.next().unwrap(), "Hello, Ada.");
    writeln!(stream, "Who am I?").unwrap();
    model.wait_for_holds(1);
    chat.kill().unwrap();
    chat.wait().unwrap();
    let model = Model::scripted([
        Reply::text("You are Ada.").held(),
        Reply::text("Bye."),
        Reply::text("I do not know you."),
    ]);
    let mut chat = place.start("chat", &model);
    let (mut stream, mut lines) = client(&mut chat, "ada a-word-0004");
    // The turn continues by itself; a new conversation can wait.
    model.wait_for_requests(1);
    assert!(model.request(0).last("user").ends_with("Who am I?"));
    model.release();
    writeln!(stream, "Goodbye.").unwrap();
    let said: Vec<String> = lines.by_ref().take_while(|line| line != "Bye.").collect();
    assert!(said.iter().all(|line| line == "You are Ada."), "{said:?}");
    writeln!(stream, "/new").unwrap();
    assert_eq!(lines.next().unwrap(), "This is a new conversation.");
    writeln!(stream, "/stop").unwrap();
    assert_eq!(lines.next().unwrap(), "There is nothing to stop.");
    // A client's name leads only to its own conversation.
    let mut other = TcpStream::connect(stream.peer_addr().unwrap()).unwrap();
    let mut heard = BufReader::new(other.try_clone().unwrap()).lines();
    writeln!(other, "/../tcp_ada a-word-0005\nWho am I?").unwrap();
    assert_eq!(heard.next().unwrap().unwrap(), "I do not know you.");
    // A name without its password is not answered.
    for first in ["ada", "ada a-word-0005", ""] {
        let mut stranger = TcpStream::connect(stream.peer_addr().unwrap()).unwrap();
        writeln!(stranger, "{first}\nWho am I?").unwrap();
        let heard = BufReader::new(stranger).lines().next();
        assert!(!matches!(heard, Some(Ok(_))), "{first:?}: {heard:?}");
    }
    assert_eq!(model.asked(), 3);
    let seen = model.request(2).texts("user");
    assert!(
        seen.len() == 1 && seen[0].ends_with("Who am I?"),
        "{seen:?}"
    );
    chat.kill().unwrap();
    chat.wait().unwrap();
}

fn channel_answers_each_line_before_it_ends() {
    let place = Place::new();
    let model = Model::scripted([Reply::text("Hello!")]);
    let mut terminal = place.start("channel", &model);
    let mut lines = terminal.stdin.take().unwrap();
    lines.write_all(b"/status\nHi!\n").unwrap();
    drop(lines);
    let said = printed(terminal.wait_with_output().unwrap());
    let (status, answer) = said.split_once("\nHello!").unwrap();
    assert!(status.contains("`qwen3:4b`\ncontext: "), "{said}");
    assert_eq!(answer, "\n");
    let kept = place.path("agent-home/sessions/terminal_me.jsonl");
    assert!(kept.exists());
}

fn pipe_channel_writes_an_answer_that_a_crash_has_kept() {
    let place = Place::new();
    let pipe = place.path("questions");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let model = Model::scripted([Reply::text("It is noon.")]);
    // Nothing can be written to a directory, so the answer waits.
    fs::create_dir(place.path("answers")).unwrap();
    let mut program = place.start("pipe_channel", &model);
    fs::write(&pipe, "What time is it?\n").unwrap();
    let queue = place.path("agent-home/state/queue.jsonl");
    until("no answer is kept", || {
        fs::read_to_string(&queue).is_ok_and(|lines| lines.contains("It is noon."))
    });
    program.kill().unwrap();
    program.wait().unwrap();
    fs::remove_dir(place.path("answers")).unwrap();
    let mut program = place.start("pipe_channel", &model);
    until("the answer is not written", || {
        fs::read_to_string(place.path("answers")).is_ok_and(|text| text == "It is noon.\n")
    });
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!(model.asked(), 1);
}

fn store_goes_on_with_its_conversation() {
    let model = Model::answering(|request, _| {
        Reply::text(&format!("{} things.", request.texts("user").len()))
    });
    let place = Place::new();
    assert_eq!(place.run("store", &model), "1 things.\n");
    assert_eq!(place.run("store", &model), "2 things.\n");
    assert!(place.path("conversations/library_default").is_file());
}

fn research_searches_and_reads_by_its_rules() {
    let place = Place::new();
    let site = Model::answering(|request, _| match request.path.as_str() {
        path if path.starts_with("/search") => Reply::json(
            200,
            &json!({"results": [
                {"title": "Chickens", "url": format!("http://{}/hens", request.header("host").unwrap()), "content": "How old?"},
            ]}),
        ),
        _ => Reply::html(200, "<p>A hen may live for eight years.</p>"),
    });
    let base = site.base().trim_end_matches("/v1").to_owned();
    let settings = json!({"tools": {"web": {
        "search": {"provider": "searxng", "base_url": base},
        "fetch": {"allow_private": true},
    }}});
    fs::write(place.path("research.json"), settings.to_string()).unwrap();
    let model = Model::scripted([
        Reply::call("web_search", &json!({"query": "age of chickens"})),
        Reply::call("web_fetch", &json!({"url": format!("{base}/hens")})),
        Reply::text("Eight years."),
    ]);
    assert_eq!(place.run("research", &model), "Eight years.\n(3 steps)\n");
    let first = model.request(0);
    let tools = first.tools();
    assert_eq!(tools, ["web_fetch", "web_search", "write_file"]);
    assert!(model.request(0).texts("system")[0].contains("You are a research assistant."));
    assert!(model.request(1).last("tool").contains("/hens"));
    assert!(model.request(2).last("tool").contains("eight years"));
}

fn usage_tells_what_each_answer_took() {
    let model = Model::scripted([
        Reply::call("stock", &json!({})),
        Reply::text("Eggs and bread."),
        Reply::calls([
            call("a", "buy", &json!({"item": "milk"})),
            call("b", "buy", &json!({"item": "bread"})),
        ]),
        Reply::text("Done."),
        Reply::text("You are welcome."),
    ]);
    // Each request has 11 prompt tokens and 7 reply tokens.
    let expected = "Eggs and bread.
  36 tokens, 0.000016 dollars, [\"stock\"]
Done.
  36 tokens, 0.000016 dollars, [\"buy\", \"buy\"]
You are welcome.
  18 tokens, 0.000008 dollars, []
[\"milk\",\"bread\"]
";
    assert_eq!(Place::new().run("usage", &model), expected);
}

fn tool_test_needs_no_model() {
    assert_eq!(Place::new().run("tool_test", &Model::never_asked()), "ok\n");
}
