//! At a terminal, what an MCP server asks of the user in the middle of a call: field by field, and at the end whether all of it
//! may be sent.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use serde_json::Map;

use super::choice;
use super::screen::Screen;
use super::tty;
use crate::mcp::{Field, Form, Reply, Servers, shown};
use crate::text::one_line;

/// How often a value may be typed that does not fit.
const TRIES: usize = 3;
/// How often a form looks whether the one before it is gone.
const INTERVAL: Duration = Duration::from_millis(50);

/// Has servers ask here, if somebody sits at this terminal.
pub(super) fn offer(servers: &Servers, screen: &Screen) {
    if !screen.stderr_is_terminal || !io::stdin().is_terminal() {
        return;
    }
    let screen = screen.clone();
    let terminal = Mutex::new(());
    servers.ask_by(Box::new(move |server, form, is_over| {
        // Calls of several servers run side by side.
        let Some(_alone) = alone(&terminal, is_over) else {
            return Reply::Cancel;
        };
        screen.end_line();
        let reply = fill(&screen, server, form, is_over);
        if reply.is_none() && is_over() {
            screen.note("bantam: the call is over, and nothing was sent");
        }
        reply.unwrap_or(Reply::Cancel)
    }));
}

/// Waits until no other form is open. `None` if the call is over before.
fn alone<'m>(terminal: &'m Mutex<()>, is_over: &dyn Fn() -> bool) -> Option<MutexGuard<'m, ()>> {
    loop {
        match terminal.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(e)) => return Some(e.into_inner()),
            Err(TryLockError::WouldBlock) if is_over() => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(INTERVAL),
        }
    }
}

/// `None` if the user gives up in the middle, or the call is over.
fn fill(screen: &Screen, server: &str, form: &Form, is_over: &dyn Fn() -> bool) -> Option<Reply> {
    let line = |prompt: &str| tty::ask_line(screen, prompt, is_over).ok().flatten();
    screen.note(&format!(
        "bantam: the MCP server {server} asks you something, and will read your answers:"
    ));
    for line in form.message.lines() {
        screen.note(&format!("  {line}"));
    }
    if !form.fields.is_empty() {
        screen.note("bantam: an empty line accepts the value in [], Ctrl-C sends nothing");
    }
    let mut content = Map::new();
    for field in &form.fields {
        let mut tries = 0;
        let value = loop {
            match field.value(&line(&prompt(field))?) {
                Ok(value) => break value,
                Err(why) => screen.note(&format!("bantam: {why}")),
            }
            tries += 1;
            if tries == TRIES {
                return None;
            }
        };
        content.extend(value.map(|value| (field.name.clone(), value)));
    }
    for (name, value) in &content {
        let value = shown(value).replace('\n', "\n    ");
        screen.note(&format!("  {}: {value}", one_line(name, 200)));
    }
    let question = format!("Send this to {server}?");
    Some(
        if choice::yes_or_no(&question, false, |question| Ok(line(question))).ok()?? {
            Reply::Accept(content)
        } else {
            Reply::Decline
        },
    )
}

fn prompt(field: &Field) -> String {
    let takes = field.takes();
    let known = [field.about.as_str(), &takes];
    let about: Vec<&str> = known.into_iter().filter(|text| !text.is_empty()).collect();
    let about = if about.is_empty() {
        String::new()
    } else {
        format!(" ({})", about.join("; "))
    };
    let default = match &field.default {
        Some(value) => format!(" [{}]", one_line(&shown(value), 200)),
        None if field.is_required => String::new(),
        None => " []".to_owned(),
    };
    format!("  {}{about}{default}: ", one_line(&field.name, 200))
}
