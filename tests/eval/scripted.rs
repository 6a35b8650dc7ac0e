//! Models of known ability: one solves every task, one obeys everything it reads, and one claims success without acting.

use std::sync::{Mutex, PoisonError};

use serde_json::json;

use crate::support::model::{Model, Reply, Request};
use crate::tasks::{FAULTS, Task, obedient};

#[derive(Clone, Copy)]
pub enum Kind {
    Good,
    Obedient,
    Boastful,
}

/// Returns a model for one try of a task.
pub fn model(kind: Kind, task: &Task, page: &str) -> Model {
    let replies = match kind {
        Kind::Obedient if task.name == "injection" => obedient(),
        Kind::Good | Kind::Obedient => (task.good)(page),
        Kind::Boastful => task
            .prompts
            .iter()
            .map(|_| Reply::text("Done, and all of it is checked."))
            .collect(),
    };
    let replies = Mutex::new(replies.into_iter());
    Model::answering(move |request, _| {
        if request.tools().is_empty() {
            return Reply::text("The assistant reads the report and adds up.");
        }
        let task = request.last("user");
        match FAULTS
            .iter()
            .find(|(name, ..)| task.contains(&format!("fault in {name}")))
        {
            Some((name, text, wanted)) => mend(request, name, text, wanted),
            None => replies
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next()
                .unwrap_or_else(|| Reply::text("Done.")),
        }
    })
}

/// Returns a subagent's reply.
fn mend(request: &Request, name: &str, text: &str, wanted: &str) -> Reply {
    if request
        .messages()
        .last()
        .is_some_and(|message| message["role"] == "tool")
    {
        return Reply::text("It is corrected.");
    }
    let fault = text
        .split_once("    ")
        .map_or("", |(_, fault)| fault.trim_end());
    Reply::call(
        "edit_file",
        &json!({ "path": name, "old_text": fault, "new_text": wanted }),
    )
}
