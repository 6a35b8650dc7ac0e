//! The compiled-in demo model: a few plain verbs, to try bantam without a key and a network.
//!
//! It uses the real loop and the real tools, like any other model, and introduces itself as a demo.

use serde_json::json;

use super::{Provider, ProviderError, Request, Sink, ToolOffer};
use crate::bus::Event;
use crate::message::{Message, Reply, ToolCall, User};

/// The demo model. It answers `time`, calls a tool of `bantam` for `list files`, `list files in DIR`, `read FILE`, `write TEXT
/// to FILE` and `run COMMAND`, and repeats the result. Its answer to anything else is a help text.
#[derive(Default)]
pub struct Demo;

const HELP: &str = "I am bantam's built-in demo, not a language model. I understand: list files, read FILE, \
write TEXT to FILE, run COMMAND, time.\n\
For a real model, set a key and ask again: export OPENROUTER_API_KEY=... (or OPENAI_API_KEY, DEEPSEEK_API_KEY, ...), \
or start Ollama on this machine. If your config.json names demo/demo, change agents.defaults.model_name there, too.";

impl Provider for Demo {
    fn model(&self) -> &'static str {
        "demo/demo"
    }

    fn chat(&self, request: &Request, sink: &dyn Sink) -> Result<Reply, ProviderError> {
        let mut reply = match request.messages.last() {
            Some(Message::ToolResult(result)) if result.content.trim().is_empty() => say("Done."),
            Some(Message::ToolResult(result)) => say(result.content.trim_end()),
            Some(Message::User(user)) => answer(user, request.tools),
            _ => say(HELP),
        };
        // As if a host had counted them, so that every report says the same.
        reply.usage.prompt_tokens = request.input_tokens;
        reply.usage.completion_tokens = reply.text.len() as u64 / 4;
        if !reply.text.is_empty() {
            sink.event(Event::Delta(reply.text.clone()));
        }
        Ok(reply)
    }
}

fn say(text: &str) -> Reply {
    Reply {
        text: text.to_owned(),
        ..Reply::default()
    }
}

fn answer(user: &User, tools: &[ToolOffer]) -> Reply {
    // Only the first line is a command; piped text follows it.
    let line = user.content.trim().lines().next().unwrap_or_default();
    let lower = line.to_ascii_lowercase();
    // ASCII lower case preserves offsets, so an offset in `lower` is valid in `line`.
    let after = |verb: &str| {
        let rest = lower.starts_with(verb).then(|| line[verb.len()..].trim());
        rest.filter(|rest| !rest.is_empty())
    };
    let plain = lower.trim_end_matches(['.', '?', '!']);
    let (tool, arguments) = if let "ls" | "list files" | "what is in my workspace" = plain {
        ("list_dir", json!({"path": "."}))
    } else if let Some(path) = after("list files in ").or_else(|| after("list ")) {
        ("list_dir", json!({"path": path}))
    } else if let Some(path) = after("read ") {
        ("read_file", json!({"path": path}))
    } else if let Some((text, path)) = after("write ").and_then(|rest| rest.rsplit_once(" to ")) {
        (
            "write_file",
            json!({"path": path.trim(), "content": format!("{}\n", text.trim())}),
        )
    } else if let Some(command) = after("run ") {
        ("exec", json!({"command": command}))
    } else if let "time" | "what time is it" | "what is the time" = plain {
        return say(&format!("It is {}.", user.shown_time()));
    } else {
        return say(HELP);
    };
    if !tools.iter().any(|t| t.name == tool) {
        return say(&format!("The tool {tool} is not offered here."));
    }
    let call = ToolCall {
        id: "demo_1".to_owned(),
        name: tool.to_owned(),
        arguments: arguments.to_string(),
        ..ToolCall::default()
    };
    Reply {
        calls: vec![call],
        ..Reply::default()
    }
}
