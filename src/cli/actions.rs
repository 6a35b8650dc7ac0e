//! What the commands of a conversation do.

use std::sync::Arc;
use std::time::SystemTime;

use super::question::Question;
use super::repl::Conversation;
use super::table;
use crate::agent::Agent;
use crate::error::Result;
use crate::message::Usage;
use crate::paths::session_name;
use crate::provider::catalog::{self, HostOffers, Offer};
use crate::session::fresh_key;
use crate::text::{counted, one_line};
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

    /// What the host of a model offers.
    fn offers(&self, model: &str) -> Result<HostOffers> {
        let factory = &self.repl.factory;
        let config = factory.load(None)?.config;
        catalog::of(factory.parts(&config), model)
    }

    /// Lists the models, or changes to one.
    pub(super) fn model(&mut self, name: &str) -> Result<String> {
        if name.is_empty() {
            return Ok(self.list_models());
        }
        let model = self.set_model(Some(name))?;
        self.repl.factory.choose_model(&self.repl.session, name)?;
        let done = format!("bantam: the model is now {model}");
        let Some((_, id)) = name
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
        Ok(format!(
            "{done}, but its host does not list that model; /model lists the ones it has"
        ))
    }

    /// The models that can be chosen.
    fn list_models(&self) -> String {
        let model = self.agent.model();
        let mut names = self.repl.models.clone();
        let offers = self.offers(model).and_then(|host| host.models);
        let offers = offers.unwrap_or_default();
        let row = |offer: &Offer| [offer.name.clone(), offer.abilities()];
        let has_name = |offer: &&Offer| !offer.name.is_empty();
        let rows: Vec<_> = offers.iter().filter(has_name).map(row).collect();
        if !rows.is_empty() {
            names.push("one of these".to_owned());
        }
        names.push("or vendor/model".to_owned());
        format!(
            "bantam: the model is {model}\n{}bantam: /model NAME changes it: {}",
            table(&[], &rows),
            names.join(", ")
        )
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
