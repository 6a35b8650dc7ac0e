//! What the commands of a conversation do.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::question::Question;
use super::repl::Conversation;
use super::{attach, table, tty};
use crate::access::{self, Links};
use crate::agent::Agent;
use crate::app::{self, Parts};
use crate::error::{Context, Error, Result};
use crate::message::{Message, Usage};
use crate::paths::{of_user, session_name};
use crate::provider::offers::{self, HostOffers, Offer};
use crate::session::{archive, fresh_key};
use crate::storage;
use crate::text::{counted, nearest, one_line};
use crate::usage::Totals;

impl Conversation {
    pub(super) fn start_over(&mut self) -> Result<String> {
        let mut kept = "";
        if self.repl.factory.options.memory.is_some() {
            self.repl.chat = fresh_key(SystemTime::now());
            self.repl.session = session_name("cli", &self.repl.chat)?;
        } else if self.repl.factory.reset(&self.repl.session)? {
            kept = "; the old one is kept";
        }
        self.unanswered = None;
        self.set_model(None)?;
        Ok(format!("bantam: started a new conversation{kept}"))
    }

    pub(super) fn attach_next(&mut self, path: &str) -> Result<String> {
        // A paste that no mark tells from typing may hold this line.
        if let Some(bytes) = attach::length(path, &self.repl.factory.env) {
            if !tty::confirm(&self.screen, &attach::question(&[(path, bytes)]))? {
                return Ok("bantam: not attached".to_owned());
            }
        }
        self.attach(path)
            .map(|shown| format!("bantam: attached {shown}; it goes with the next message"))
    }

    /// What the host of a model offers.
    fn offers(&self, model: &str) -> Result<HostOffers> {
        let factory = &self.repl.factory;
        let config = factory.load(None)?.config;
        offers::of(factory.parts(&config), model)
    }

    /// Lists the models, or changes to one.
    pub(super) fn model(&mut self, name: &str) -> Result<String> {
        if name.is_empty() {
            return Ok(self.list_models());
        }
        let model = self
            .set_model(Some(name))
            .map_err(|e| self.meaning(name, e))?;
        self.repl.factory.choose_model(&self.repl.session, name)?;
        let done = format!("bantam: the model is now {model}");
        let Some((vendor, id)) = name
            .split_once('/')
            .filter(|_| !self.repl.models.iter().any(|known| known == name))
        else {
            return Ok(done);
        };
        let offers = self
            .offers(name)
            .and_then(|host| host.models)
            .unwrap_or_default();
        if offers.is_empty() || offers.iter().any(|offer| offer.id == id) {
            return Ok(done);
        }
        Ok(match offers::meant(&offers, id) {
            Some(near) => {
                let near = one_line(near, 80);
                format!(
                    "{done}, but its host does not list that model: did you mean /model {vendor}/{near}?"
                )
            }
            None => {
                format!(
                    "{done}, but its host does not list that model; /model lists the ones it has"
                )
            }
        })
    }

    /// The models that can be chosen. From now on Tab completes those that its host offers.
    fn list_models(&mut self) -> String {
        let model = self.agent.model();
        let mut names = self.repl.models.clone();
        let offers = self.offers(model).and_then(|host| host.models);
        let offers = offers.unwrap_or_default();
        let row = |offer: &Offer| [offer.name.clone(), offer.abilities()];
        let has_name = |offer: &&Offer| !offer.name.is_empty();
        let rows: Vec<_> = offers.iter().filter(has_name).map(row).collect();
        if let Some(editor) = &mut self.editor {
            editor.complete_models(rows.iter().map(|[name, _]| name.clone()));
        }
        if !rows.is_empty() {
            names.push("one of these".to_owned());
        }
        names.push("or vendor/model".to_owned());
        format!(
            "bantam: the model is {model}\n{}bantam: /model NAME changes it: {}",
            table(&rows),
            names.join(", ")
        )
    }

    /// The error for a name that is none, with what the hosts offer instead.
    fn meaning(&self, name: &str, e: Error) -> Error {
        let is_of_a_host = |hint: &str| hint.starts_with("put its host in front");
        if !e.hint.as_deref().is_some_and(is_of_a_host) {
            return e;
        }
        let Ok(loaded) = self.repl.factory.load(None) else {
            return e;
        };
        let offered = offers::names(self.repl.factory.parts(&loaded.config));
        let ids = offered
            .iter()
            .filter_map(|name| Some(name.split_once('/')?.1));
        let near = nearest(name, ids.clone());
        let meant = offered.iter().find(|offer| {
            offer
                .split_once('/')
                .is_some_and(|(_, id)| Some(id) == near)
        });
        e.hint(match meant {
            Some(meant) => format!("did you mean /model {}?", one_line(meant, 80)),
            None => "/model lists the models".to_owned(),
        })
    }

    /// Answers with this model or the configured one, and returns its name.
    fn set_model(&mut self, name: Option<&str>) -> Result<String> {
        let factory = &self.repl.factory;
        let agent = factory.build(&factory.load(name)?.config)?.agent;
        Ok(self.set_agent(agent))
    }

    fn set_agent(&mut self, agent: Agent) -> String {
        self.agent = Arc::new(agent);
        self.agent.model().to_owned()
    }

    /// Asks the last question again, as if it had not been asked before.
    pub(super) fn retry(&mut self) -> Result<String> {
        let question = match self.unanswered.take() {
            Some(question) => question,
            None => match self.repl.factory.undo(&self.repl.session)? {
                Some(user) => Question {
                    text: user.content,
                    title: user.title,
                    media: user.media,
                },
                None => return Ok("bantam: nothing was asked yet".to_owned()),
            },
        };
        self.screen
            .detail(&format!("asking again: {}", one_line(&question.text, 60)));
        self.turn(question)
    }

    pub(super) fn undo(&mut self) -> Result<String> {
        self.unanswered = None;
        let Some(undone) = self.repl.factory.undo_with_files(&self.repl.session)? else {
            return Ok("bantam: there is nothing to take back".to_owned());
        };
        let lines = undone.lines();
        let lines = lines.iter().map(|line| format!("bantam: {line}"));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// By OSC 52, which also reaches the clipboard over SSH.
    pub(super) fn copy(&self) -> Result<String> {
        let session = self.repl.factory.peek(&self.repl.session)?;
        let answer = session
            .messages
            .iter()
            .rev()
            .find_map(|message| match message {
                Message::Assistant(reply) if !reply.text.trim().is_empty() => {
                    Some(reply.text.trim())
                }
                _ => None,
            });
        let Some(answer) = answer else {
            return Ok("bantam: there is no answer yet".to_owned());
        };
        if !self.screen.style.ansi || !self.screen.stderr_is_terminal {
            return Err(
                Error::failed("this terminal has no clipboard").hint("/export FILE writes a file")
            );
        }
        self.screen
            .draw(&format!("\x1b]52;c;{}\x07", STANDARD.encode(answer)));
        self.screen.entered();
        let what = counted(answer.chars().count(), "character");
        Ok(format!(
            "bantam: sent the last answer to the clipboard ({what}), if your terminal allows it"
        ))
    }

    /// Writes what was said, without tool calls and their results.
    pub(super) fn export(&self, path: &str) -> Result<String> {
        let session = self.repl.factory.peek(&self.repl.session)?;
        let mut page = String::new();
        if let Some(summary) = &session.summary {
            page.push_str(&format!(
                "## Summary of what came before\n\n{}\n\n",
                summary.trim()
            ));
        }
        for message in &session.messages {
            let (who, text) = match message {
                Message::User(user) => ("You", &user.content),
                Message::Assistant(reply) if !reply.text.trim().is_empty() => {
                    ("bantam", &reply.text)
                }
                _ => continue,
            };
            page.push_str(&format!("## {who}\n\n{}\n\n", text.trim()));
        }
        if page.is_empty() {
            return Ok("bantam: the conversation is empty".to_owned());
        }
        let shown = one_line(path, 200);
        let config = self.repl.factory.load(None)?.config;
        let is_new = write_new(path, page.as_bytes(), self.repl.factory.parts(&config))
            .doing(format_args!("writing {shown}"))?;
        if !is_new {
            return Err(
                Error::usage(format!("{shown} exists already")).hint("/export another name")
            );
        }
        Ok(format!("bantam: wrote {shown}"))
    }

    /// Lists the conversations, the newest last, where the prompt is; those that leave room on the screen, or all.
    pub(super) fn sessions(&self, which: &str) -> Result<String> {
        let mut list = super::sessions::of_cli(&self.repl.factory.home);
        if list.is_empty() {
            return Ok("bantam: no conversations yet".to_owned());
        }
        let room = tty::size().1.saturating_sub(6).max(5);
        let older = match which {
            "" => list.len().saturating_sub(room),
            "all" => 0,
            _ => return Err(Error::usage("/sessions takes no other word than all")),
        };
        list.truncate(list.len() - older);
        list.reverse();
        let page = super::sessions::page(&list, &self.repl.factory.env);
        let older = if older > 0 {
            format!("bantam: {older} older ones: /sessions all\n")
        } else {
            String::new()
        };
        Ok(format!(
            "{page}{older}bantam: this is {}; /resume KEY continues another",
            self.repl.chat
        ))
    }

    pub(super) fn resume(&mut self, key: &str) -> Result<String> {
        let factory = &self.repl.factory;
        if factory.options.memory.is_some() {
            return Err(Error::usage(
                "this conversation is not stored, so it cannot switch to another",
            )
            .hint("start bantam agent without --no-session"));
        }
        let listed = archive::find(&factory.home, &format!("cli_{key}"));
        let session = listed.or_else(|_| archive::find(&factory.home, key))?;
        let Some(chat) = session.strip_prefix("cli_") else {
            let shown = one_line(key, 80);
            return Err(Error::usage(format!("{shown} belongs to another channel"))
                .hint("/sessions lists yours"));
        };
        let (_, ready) = factory.for_session(&session)?;
        ready
            .notices
            .iter()
            .for_each(|notice| self.screen.note(&format!("bantam: {notice}")));
        let last = factory.last_question(&session)?;
        let model = self.set_agent(ready.agent);
        self.repl.chat = chat.to_owned();
        self.repl.session = session;
        self.unanswered = None;
        let last = last.map_or(String::new(), |user| {
            format!("; you asked last: {}", one_line(&user.content, 60))
        });
        Ok(format!(
            "bantam: now in {}, with {model}{last}",
            self.repl.chat
        ))
    }

    pub(super) fn skills(&self) -> String {
        let names: Vec<String> = self
            .repl
            .skills
            .iter()
            .map(|name| format!("/{name}"))
            .collect();
        if names.is_empty() {
            "bantam: no skills".to_owned()
        } else {
            format!("bantam: {}", names.join(", "))
        }
    }

    pub(super) fn toggle_thinking(&mut self) -> String {
        let thinking = &mut self.repl.output.thinking;
        *thinking = !*thinking;
        format!(
            "bantam: the model's thoughts are {}",
            if *thinking { "shown" } else { "hidden" }
        )
    }

    pub(super) fn usage(&self) -> Result<String> {
        let Totals { calls, usage, cost } = &self.total;
        let Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
        } = usage;
        let turns = counted(usize::try_from(*calls).unwrap_or(usize::MAX), "turn");
        let cost = cost.map_or(String::new(), |_| {
            format!("; cost {}", super::usage::cost(*cost))
        });
        let context = self.agent.window_use(&self.repl.session)?;
        Ok(format!(
            "bantam: {turns}: {prompt_tokens} tokens read ({cached_tokens} of them cached), {completion_tokens} written{cost}\n\
             bantam: context: {context}"
        ))
    }
}

/// Writes a new file that the user named. `false` when something is there. In a tree that a model can change no link is
/// followed, as `-a` follows none.
fn write_new(path: &str, content: &[u8], parts: Parts) -> Result<bool> {
    let path = &of_user(path, parts.env);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
        let shown = one_line(&dir.to_string_lossy(), 200);
        return Err(Error::usage(format!("there is no folder {shown}")));
    }
    let Some((tree, below)) = app::layout(parts)?.hold_in(path)? else {
        return storage::write_new(path, content);
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    match tree.open_at(&below, flags, Mode::RUSR | Mode::WUSR, Links::Refuse) {
        Ok(file) => Ok(File::from(file).write_all(content).map(|()| true)?),
        Err(Errno::EXIST) => Ok(false),
        Err(e) => Err(access::explain(e, path)),
    }
}
