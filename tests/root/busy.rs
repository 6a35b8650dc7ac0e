//! A model that makes calls in two steps before it answers.

use serde_json::json;

use crate::model::{Model, Reply, call};

/// Returns the final answer to a question.
pub fn answer_to(question: &str) -> String {
    format!("That was {question}.")
}

/// Returns a model that makes two calls in a first step, one of them this command, and one in a second. Then it answers the
/// last question, because killed ones precede it.
pub fn busy(command: &'static str, answer: fn(&str) -> String) -> Model {
    Model::answering(move |request, _| {
        if request.texts("system")[0].contains("so that the assistant can continue") {
            return Reply::text("Questions were asked.");
        }
        let messages = request.messages();
        let results = messages
            .iter()
            .rev()
            .take_while(|message| message["role"] != "user");
        let reply = match results.filter(|message| message["role"] == "tool").count() {
            0 => Reply::calls([
                call("call_a", "list_dir", &json!({ "path": "." })),
                call("call_b", "exec", &json!({ "command": command })),
            ])
            .saying("I look first."),
            2 => Reply::calls([call("call_c", "read_file", &json!({ "path": "notes.txt" }))]),
            _ => {
                let question = request.last("user");
                let word = question
                    .split_whitespace()
                    .rfind(|word| word.starts_with("question-"));
                Reply::text(&answer(word.unwrap()))
            }
        };
        reply.counted(request.body.to_string().len() as u64 / 4, 100)
    })
}
