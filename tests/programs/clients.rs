//! Tests the HTTP endpoint with independent clients: whole answers and streams, a tool of the client, an image, an abandoned
//! stream, a wrong token, and fifty questions at the same time.
//!
//! `tests/run` installs them in the target directory. Each runs a script in `tests/programs/clients`.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::door::{TOKEN, address, settings};
use crate::harness::{Home, Running, merged};
use crate::model::{Model, Reply, Request};

/// The smallest PNG.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// Answers with the current and the earlier questions; calls the client's tool if asked for the weather.
fn answer(request: &Request) -> Reply {
    let last_word = |text: String| text.split_whitespace().next_back().map(str::to_owned);
    let mut words: Vec<String> = request
        .texts("user")
        .into_iter()
        .filter_map(last_word)
        .collect();
    let word = words.pop().unwrap_or_default();
    let has_image = request.body["messages"].to_string().contains("image_url");
    match word.as_str() {
        "weather" => match request.texts("tool").pop() {
            None => Reply::call("weather", &json!({ "city": "Ulm" })),
            Some(result) => Reply::text(&format!("It is {result}.")),
        },
        "hold" => Reply::text("This is never told to its end.").held_after(2),
        "fail" => Reply::error(500, "down"),
        _ if has_image => Reply::text(&format!("heard {word} and an image")),
        _ => match words.pop() {
            Some(before) => Reply::text(&format!("heard {word} after {before}")),
            None => Reply::text(&format!("heard {word}")),
        },
    }
}

fn home(model: &Model, http: &serde_json::Value) -> Home {
    let channels = json!({ "channels": { "http": http } });
    Home::with(&merged(merged(model.config(), &settings()), &channels))
}

fn open(home: &Home) -> (Running<'_>, String) {
    let gateway = home.bantam().arg("gateway").spawn();
    let address = address(&gateway.stderr_line("http://127.0.0.1:"));
    (gateway, format!("http://{address}/v1"))
}

/// Returns the path where `tests/run` installs the clients, next to `tmp` in the target directory.
fn installed(below: &str) -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let path = target.join("clients").join(below);
    assert!(
        path.exists(),
        "{} is missing: tests/run installs it",
        path.display()
    );
    path.display().to_string()
}

fn script(name: &str) -> String {
    format!(
        "{}/tests/programs/clients/{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}

#[track_caller]
fn passes(mut command: Command) {
    let output = command.output().unwrap();
    let told = [&output.stdout, &output.stderr].map(|told| String::from_utf8_lossy(told));
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        told[0],
        told[1]
    );
}

/// Runs a client in a separate process, with a gateway and the model above.
#[track_caller]
fn client(program: &str, name: &str, prepare: impl FnOnce(&Home, &str, &mut Command)) {
    let model = Model::answering(|request, _| answer(request)).forgetful();
    let home = home(&model, &json!({}));
    let (gateway, base) = open(&home);
    let mut command = Command::new(program);
    command.arg(script(name)).current_dir(home.path("../cwd"));
    command.env("BASE", &base).env("TOKEN", TOKEN);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    prepare(&home, &base, &mut command);
    passes(command);
    // The abandoned stream.
    gateway.wait_for_stderr("a turn ended (cancelled)");
}

#[test]
fn openai_of_python() {
    client("python3", "openai_python.py", |_, _, command| {
        command.env("PYTHONPATH", installed("python"));
    });
}

#[test]
fn openai_of_node() {
    client("node", "openai_node.mjs", |_, _, command| {
        command.env("MODULES", installed("node_modules/openai"));
        command.env("PNG", format!("data:image/png;base64,{PNG}"));
    });
}

#[test]
fn the_ai_sdk() {
    client("node", "ai.mjs", |_, _, command| {
        command.env("MODULES", installed("node_modules/ai"));
        command.env("PNG", PNG);
    });
}

#[test]
fn llm() {
    use base64::Engine as _;
    client("python3", "llm_python.py", |home, base, command| {
        let png = base64::engine::general_purpose::STANDARD
            .decode(PNG)
            .unwrap();
        let model = format!(
            "- model_id: bantam\n  model_name: bantam\n  api_base: {base}\n  api_key_name: bantam\n  vision: true\n  supports_tools: true\n"
        );
        home.write("../llm/extra-openai-models.yaml", model);
        command.env("LLM_USER_PATH", home.path("../llm"));
        command.env("PNG", home.write("../llm/a.png", png));
        command.env("PYTHONPATH", installed("python"));
    });
}

/// Returns the indented code lines of docs/http.md from this one on, without their indentation.
fn recipe(first: &str) -> String {
    let text = include_str!("../../docs/http.md");
    let lines = text
        .lines()
        .skip_while(|line| *line != format!("    {first}"));
    let lines = lines.map_while(|line| line.strip_prefix("    "));
    let recipe: Vec<&str> = lines.collect();
    assert!(!recipe.is_empty(), "docs/http.md has no line {first:?}");
    recipe.join("\n")
}

#[test]
fn the_recipes_of_the_documentation() {
    let model = Model::answering(|request, _| answer(request)).forgetful();
    let home = home(&model, &json!({}));
    let (_gateway, base) = open(&home);
    let mine = |recipe: String| {
        recipe
            .replace("http://127.0.0.1:7475/v1", &base)
            .replace("\"TOKEN\"", &format!("\"{TOKEN}\""))
    };
    let told = |program: &str, code: &str| {
        let mut command = Command::new(program);
        command.args(["-c", code]).env("TOKEN", TOKEN);
        command.env("PYTHONPATH", installed("python"));
        let output = command.output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        String::from_utf8(told).unwrap()
    };
    let curl = recipe("curl http://127.0.0.1:7475/v1/chat/completions \\");
    let answer = told("sh", &mine(curl));
    assert!(answer.contains("heard workspace?"), "{answer}");
    let python = told("python3", &mine(recipe("from openai import OpenAI")));
    assert_eq!(python, "heard yesterday?\n");
    let page = recipe("python3 -m http.server 8000 --directory docs/examples");
    assert!(page.ends_with("docs/examples"));
}

/// `chromium` on Debian, Chrome on GitHub's machines.
fn browser() -> &'static str {
    let names = ["chromium", "google-chrome", "chromium-browser"];
    let is_there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    names
        .into_iter()
        .find(is_there)
        .expect("a Chromium: tests/run installs it")
}

#[test]
fn a_web_page() {
    // The page's origin must be known before the gateway starts.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", server.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let page = include_str!("../../docs/examples/chat.html");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close";
        for mut stream in server.incoming().flatten() {
            drop(stream.read(&mut [0; 4096]));
            drop(write!(
                stream,
                "{head}\r\nContent-Length: {}\r\n\r\n{page}",
                page.len()
            ));
        }
    });
    let model = Model::answering(|request, _| answer(request)).forgetful();
    let home = home(&model, &json!({ "allow_origin": origin }));
    let (_gateway, base) = open(&home);
    let mut command = Command::new("node");
    command.arg(script("page.mjs"));
    command.env("CHROMIUM", browser()).env("PAGE", &origin);
    command.env("BASE", base).env("TOKEN", TOKEN);
    passes(command);
}
