//! What users wrote, kept from before Telegram forgets it until it has been answered.
//!
//! A journal for each bot, `state/telegram-BOT.jsonl`. Its lines are `{"in":UPDATE,"chat",..}`, `{"edit":UPDATE,"of":UPDATE,
//! "text"}`, `{"started":[UPDATE..]}` each time a turn for them begins, `{"ended":[UPDATE..]}` when the program has ended and
//! turns were under way, with what a single one was for, `{"closed":[UPDATE..]}` once they are answered,
//! `{"stranger":USER}`, and `{"seen":[UPDATE..]}` for what an earlier file held.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::update::{Attached, Said};
use crate::disk::{self, Durability, Fields, Journal};
use crate::error::{Context, Result};

/// From this many bytes on what is closed is left behind.
const RENEWED_AT: u64 = 1 << 20;
/// Updates that are remembered as seen: those of days. Telegram forgets them after one.
const REMEMBERED: usize = 4000;
/// Strangers that are remembered: anybody can make as many accounts as he likes.
const MOST_STRANGERS: usize = 1000;

/// A message that is not answered yet.
#[derive(Clone, Debug, Default)]
pub struct Open {
    pub update: u64,
    pub said: Said,
    /// With which others a turn for it began the last time; empty when none has.
    pub group: Vec<u64>,
    /// That turn is under way.
    is_under_way: bool,
    /// How often the program died while this turn alone was under way.
    pub deaths: u32,
}

pub struct Inbox {
    path: PathBuf,
    journal: Option<Journal>,
    open: Vec<Open>,
    seen: BTreeSet<u64>,
    /// The same in the order in which they came: their numbers may begin anew anywhere.
    order: VecDeque<u64>,
    /// The newest, the last one at the end.
    strangers: VecDeque<i64>,
    /// The program is about to end.
    is_leaving: bool,
    bytes: u64,
    /// What it came to when it was last renewed.
    least: u64,
}

impl Inbox {
    /// Opens the inbox of the bot `bot` in `state`. Nobody else may have it open. Damage is told in sentences.
    pub fn open(state: &Path, bot: i64) -> Result<(Self, Vec<String>)> {
        let path = state.join(format!("telegram-{bot}.jsonl"));
        let opened = Journal::open(&path).doing("opening the inbox")?;
        let mut inbox = Self::empty(path);
        inbox.bytes = fs_err::metadata(&inbox.path).map_or(0, |meta| meta.len());
        let mut damage = Vec::new();
        if let Some(opened) = opened {
            for line in &opened.lines {
                inbox.apply(&line.fields);
            }
            inbox.journal = Some(opened.journal);
            damage = opened.damage;
        }
        Ok((inbox, damage))
    }

    fn empty(path: PathBuf) -> Self {
        Self {
            path,
            journal: None,
            open: Vec::new(),
            seen: BTreeSet::new(),
            order: VecDeque::new(),
            strangers: VecDeque::new(),
            is_leaving: false,
            bytes: 0,
            least: 0,
        }
    }

    /// What is open, the oldest first.
    pub fn all(&self) -> Vec<Open> {
        self.open.clone()
    }

    pub fn has_seen(&self, update: u64) -> bool {
        self.seen.contains(&update)
    }

    /// Whether this stranger is none of those who came last; and remembers him.
    pub fn is_new_stranger(&mut self, user: i64) -> Result<bool> {
        if self.strangers.contains(&user) {
            return Ok(false);
        }
        self.append(&[json!({"stranger": user})], Durability::Later)?;
        Ok(true)
    }

    /// Keeps what a poll brought: messages, what is only remembered as seen, and edits, which replace what was said as long as
    /// no turn for it has begun. On disk when this returns.
    pub fn keep(&mut self, said: &[(u64, Said)], others: &[u64], edits: &[(u64, Said)]) -> Result<()> {
        let mut lines: Vec<Value> = said.iter().map(|(update, said)| line(*update, said)).collect();
        if !others.is_empty() {
            lines.push(json!({"seen": others}));
        }
        for (update, edit) in edits {
            let same = |other: &Said| other.message == edit.message && other.chat == edit.chat;
            let open = self.open.iter().find(|open| same(&open.said));
            let of = match open {
                Some(open) => open.group.is_empty().then_some(open.update),
                None => said.iter().find(|(_, said)| same(said)).map(|(update, _)| *update),
            };
            lines.push(match of {
                Some(of) => json!({"edit": update, "of": of, "text": edit.text}),
                None => json!({"seen": [update]}),
            });
        }
        let counts = !said.is_empty() || lines.iter().any(|line| line.get("edit").is_some());
        self.append(&lines, if counts { Durability::Now } else { Durability::Later })
    }

    /// A turn for these begins.
    pub fn start(&mut self, ids: &[String]) -> Result<()> {
        if self.is_leaving {
            return Ok(());
        }
        self.append(&[json!({"started": numbers(ids)})], Durability::Later)
    }

    /// Turns that are under way have been cut short: the program has died, or is told to end, which is nobody's fault. What
    /// it was about when it died counts against a turn only if there was no other.
    pub fn end(&mut self, has_died: bool) -> Result<()> {
        // What would begin now would only be cut short.
        self.is_leaving |= !has_died;
        let mut under_way: Vec<&Vec<u64>> = self.open.iter().filter(|o| o.is_under_way).map(|o| &o.group).collect();
        under_way.dedup();
        let Some(first) = under_way.first() else { return Ok(()) };
        let alone: &[u64] = if has_died && under_way.len() == 1 { first } else { &[] };
        self.append(&[json!({"ended": alone})], Durability::Later)
    }

    /// These are answered.
    pub fn close(&mut self, ids: &[String]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.append(&[json!({"closed": numbers(ids)})], Durability::Later)?;
        // Twice what stays, so that what is open for long is not written anew each time.
        let open: usize = self.open.iter().map(|open| open.said.text.len()).sum();
        if self.bytes > RENEWED_AT.max(2 * open as u64) { self.renew() } else { Ok(()) }
    }

    /// How often the program died while a turn for one of these was alone under way.
    pub fn deaths(&self, ids: &[String]) -> u32 {
        let numbers = numbers(ids);
        let these = self.open.iter().filter(|open| numbers.contains(&open.update));
        these.map(|open| open.deaths).max().unwrap_or(0)
    }

    /// The files that came with these.
    pub fn files(&self, ids: &[String]) -> Vec<Attached> {
        let numbers = numbers(ids);
        let these = self.open.iter().filter(|open| numbers.contains(&open.update));
        these.flat_map(|open| open.said.files.clone()).collect()
    }

    /// The texts of these, as far as they are open.
    pub fn texts(&self, ids: &[String]) -> String {
        let numbers = numbers(ids);
        let texts = numbers.iter().filter_map(|update| self.open.iter().find(|open| open.update == *update));
        let texts: Vec<&str> = texts.map(|open| open.said.text.as_str()).filter(|text| !text.is_empty()).collect();
        texts.join("\n\n")
    }

    fn append(&mut self, lines: &[Value], durability: Durability) -> Result<()> {
        let fields: Vec<Fields> = lines.iter().filter_map(|line| line.as_object().cloned()).collect();
        if fields.is_empty() {
            return Ok(());
        }
        match &mut self.journal {
            Some(journal) => match journal.append(&fields, durability) {
                Ok(()) => {}
                Err(e) => {
                    // A handle that has failed is not trusted again: the file is, and is read anew the next time.
                    self.journal = None;
                    return Err(e);
                }
            },
            None => match Journal::open(&self.path)? {
                Some(opened) => {
                    let mut journal = opened.journal;
                    journal.append(&fields, durability)?;
                    self.journal = Some(journal);
                }
                None => {
                    let header = json!({"v": 1}).as_object().cloned().unwrap_or_default();
                    let lines: Vec<Fields> = std::iter::once(header).chain(fields).collect();
                    self.journal = Some(Journal::create(&self.path, &lines)?);
                }
            },
        }
        for line in lines {
            self.bytes += line.to_string().len() as u64 + 40;
            self.apply(line);
        }
        if self.bytes > RENEWED_AT.max(2 * self.least) { self.renew() } else { Ok(()) }
    }

    fn apply(&mut self, line: &Value) {
        let list = |key: &str| -> Vec<u64> {
            line.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64).collect()
        };
        if let Some(update) = line.get("in").and_then(Value::as_u64) {
            self.remember(update);
            let deaths = line["deaths"].as_u64().and_then(|deaths| deaths.try_into().ok()).unwrap_or(0);
            self.open.push(Open { update, said: said(line), group: list("group"), is_under_way: false, deaths });
        } else if let Some(update) = line.get("edit").and_then(Value::as_u64) {
            self.remember(update);
            let of = line.get("of").and_then(Value::as_u64);
            if let Some(open) = self.open.iter_mut().find(|open| Some(open.update) == of) {
                open.said.text = line["text"].as_str().unwrap_or_default().to_owned();
            }
        } else if let Some(user) = line.get("stranger").and_then(Value::as_i64) {
            if !self.strangers.contains(&user) {
                self.strangers.push_back(user);
            }
            if self.strangers.len() > MOST_STRANGERS {
                self.strangers.pop_front();
            }
        }
        let started = list("started");
        for open in self.open.iter_mut().filter(|open| started.contains(&open.update)) {
            open.is_under_way = true;
            open.group.clone_from(&started);
        }
        if line.get("ended").is_some() {
            let alone = list("ended");
            for open in &mut self.open {
                open.is_under_way = false;
                open.deaths += u32::from(alone.contains(&open.update));
            }
        }
        let closed = list("closed");
        self.open.retain(|open| !closed.contains(&open.update));
        for update in list("seen") {
            self.remember(update);
        }
    }

    fn remember(&mut self, update: u64) {
        if self.seen.insert(update) {
            self.order.push_back(update);
        }
        if self.order.len() > REMEMBERED {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.seen.remove(&oldest));
        }
    }

    fn renew(&mut self) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let mut lines = vec![json!({"v": 1}), json!({"seen": self.order})];
        lines.extend(self.strangers.iter().map(|user| json!({"stranger": user})));
        for open in &self.open {
            let mut line = line(open.update, &open.said);
            if !open.group.is_empty() {
                (line["group"], line["deaths"]) = (open.group.clone().into(), open.deaths.into());
            }
            lines.push(line);
            if open.is_under_way {
                lines.push(json!({"started": open.group}));
            }
        }
        let fields: Vec<Fields> = lines.iter().filter_map(|line| line.as_object().cloned()).collect();
        journal.restart(fields)?;
        self.bytes = fs_err::metadata(&self.path)?.len();
        self.least = self.bytes;
        Ok(())
    }
}

/// What there is to tell of an inbox.
#[derive(Debug, Default)]
pub struct Glance {
    /// How many messages are open.
    pub waiting: usize,
    /// Users who wrote and may not.
    pub strangers: Vec<i64>,
}

/// Looks at the inboxes of every bot in `state`, and changes nothing.
pub fn look(state: &Path) -> Result<Glance> {
    let mut glance = Glance::default();
    for entry in fs_err::read_dir(state).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let bot = name.strip_prefix("telegram-").and_then(|rest| rest.strip_suffix(".jsonl"));
        // Others stand for what was left behind.
        if bot.is_none_or(|bot| bot.parse::<i64>().is_err()) {
            continue;
        }
        let mut inbox = Inbox::empty(entry.path());
        for line in disk::read_journal(&inbox.path).doing("reading the inbox")?.unwrap_or_default().lines {
            inbox.apply(&line.fields);
        }
        glance.waiting += inbox.open.len();
        glance.strangers.extend(inbox.strangers);
    }
    Ok(glance)
}

/// What a message is called outside of here.
pub fn id(update: u64) -> String {
    format!("{}:{update}", super::CHANNEL)
}

fn numbers(ids: &[String]) -> Vec<u64> {
    ids.iter().filter_map(|id| id.rsplit(':').next()?.parse().ok()).collect()
}

fn line(update: u64, said: &Said) -> Value {
    let files: Vec<Value> = said.files.iter().map(Attached::to_json).collect();
    let mut line = json!({"in": update, "chat": said.chat, "message": said.message, "text": said.text});
    line["from"] = said.from.into();
    if !files.is_empty() {
        line["files"] = files.into();
    }
    if said.is_part {
        line["part"] = true.into();
    }
    if let Some(command) = &said.command {
        line["command"] = command.clone().into();
    }
    line
}

fn said(line: &Value) -> Said {
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    Said {
        chat: text("chat"),
        message: line["message"].as_i64().unwrap_or_default(),
        // Earlier lines do not say; a private chat has the number of its user.
        from: line["from"].as_i64().or_else(|| text("chat").parse().ok()).unwrap_or_default(),
        text: text("text"),
        command: line["command"].as_str().map(str::to_owned),
        files: line["files"].as_array().into_iter().flatten().map(Attached::from_json).collect(),
        is_part: line["part"] == true,
        is_edit: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(chat: &str, message: i64) -> Said {
        Said { chat: chat.into(), message, text: "hello".into(), ..Said::default() }
    }

    #[test]
    fn what_is_kept_is_there_after_a_crash_until_it_is_closed() {
        let dir = std::env::temp_dir().join(format!("bantam-inbox-{}", std::process::id()));
        let open = || Inbox::open(&dir, 7).unwrap().0;
        let mut inbox = open();
        inbox.keep(&[(10, hello("1", 5)), (11, hello("2", 6))], &[12], &[]).unwrap();
        inbox.start(&[id(10)]).unwrap();
        let edit = |update, text: &str, of: Said| (update, Said { text: text.into(), ..of });
        let edits = [edit(13, "late", hello("1", 5)), edit(14, "better", hello("2", 6))];
        inbox.keep(&[], &[], &edits).unwrap();
        // Of what comes with it.
        inbox.keep(&[(15, hello("3", 7))], &[], &[edit(16, "at once", hello("3", 7))]).unwrap();
        assert!(inbox.is_new_stranger(99).unwrap() && !inbox.is_new_stranger(99).unwrap());
        drop(inbox);
        let mut inbox = open();
        let all = inbox.all();
        assert_eq!(all.iter().map(|o| (o.update, o.group.len())).collect::<Vec<_>>(), [(10, 1), (11, 0), (15, 0)]);
        assert_eq!([0, 1, 2].map(|n| all[n].said.text.as_str()), ["hello", "better", "at once"]);
        assert!((10..=16).all(|update| inbox.has_seen(update)) && !inbox.has_seen(9));
        assert!(!inbox.is_new_stranger(99).unwrap());
        inbox.close(&[id(10), id(11), id(15)]).unwrap();
        assert!(open().all().is_empty());
        fs_err::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn of_many_strangers_the_newest_are_remembered() {
        let dir = std::env::temp_dir().join(format!("bantam-inbox-strangers-{}", std::process::id()));
        let mut inbox = Inbox::open(&dir, 7).unwrap().0;
        assert!((0..1500).all(|user| inbox.is_new_stranger(user).unwrap()));
        drop(inbox);
        let mut inbox = Inbox::open(&dir, 7).unwrap().0;
        assert!(inbox.strangers.iter().copied().eq(500..1500));
        assert!(!inbox.is_new_stranger(1499).unwrap() && inbox.is_new_stranger(499).unwrap());
        fs_err::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_death_counts_against_a_turn_that_was_alone() {
        let dir = std::env::temp_dir().join(format!("bantam-inbox-deaths-{}", std::process::id()));
        let open = || Inbox::open(&dir, 7).unwrap().0;
        let deaths = |inbox: &Inbox| inbox.all().iter().map(|open| open.deaths).collect::<Vec<_>>();
        let mut inbox = open();
        inbox.keep(&[(1, hello("1", 1)), (2, hello("2", 2)), (3, hello("1", 3))], &[], &[]).unwrap();
        let (one, other) = ([id(1), id(3)], [id(2)]);
        // (what was begun, whether the program died, what it comes to)
        for (begun, has_died, comes_to) in [
            (&[&one[..], &other][..], true, [0, 0, 0]),
            (&[&one], true, [1, 0, 1]),
            (&[], true, [1, 0, 1]),
            (&[&other], false, [1, 0, 1]),
            (&[&other], true, [1, 1, 1]),
        ] {
            for ids in begun {
                inbox.start(ids).unwrap();
            }
            drop(inbox);
            inbox = open();
            inbox.end(has_died).unwrap();
            assert_eq!(deaths(&inbox), comes_to);
            drop(inbox);
            inbox = open();
        }
        // Told to end, it begins nothing more; and what has begun once is too late for an edit.
        inbox.end(false).unwrap();
        inbox.start(&one).unwrap();
        let mut inbox = open();
        inbox.end(true).unwrap();
        assert_eq!(deaths(&inbox), [1, 1, 1]);
        inbox.keep(&[], &[], &[(4, Said { text: "late".into(), ..hello("1", 1) })]).unwrap();
        assert_eq!(inbox.all()[0].said.text, "hello");
        fs_err::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_inbox_with_much_that_is_open_is_not_written_anew_each_time() {
        let dir = std::env::temp_dir().join(format!("bantam-inbox-much-{}", std::process::id()));
        let mut inbox = Inbox::open(&dir, 7).unwrap().0;
        let long = Said { text: "x".repeat(600_000), ..hello("1", 2) };
        inbox.keep(&[(1, long.clone()), (2, long.clone()), (3, long)], &[], &[]).unwrap();
        inbox.close(&[id(1)]).unwrap();
        let least = inbox.least;
        for update in 10..30 {
            inbox.keep(&[(update, hello("1", 9))], &[], &[]).unwrap();
            inbox.close(&[id(update)]).unwrap();
        }
        assert_eq!(inbox.least, least);
        fs_err::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_long_inbox_is_renewed_and_forgets_nothing_that_is_open() {
        let dir = std::env::temp_dir().join(format!("bantam-inbox-long-{}", std::process::id()));
        let mut inbox = Inbox::open(&dir, 7).unwrap().0;
        inbox.keep(&[(1, hello("1", 1)), (1000, hello("1", 3)), (1001, hello("1", 4))], &[], &[]).unwrap();
        inbox.start(&[id(1), id(1000)]).unwrap();
        inbox.end(true).unwrap();
        inbox.start(&[id(1), id(1000)]).unwrap();
        let long = Said { text: "x".repeat(10_000), ..hello("1", 2) };
        for update in 2..300 {
            inbox.keep(&[(update, long.clone())], &[], &[]).unwrap();
            inbox.close(&[id(update)]).unwrap();
        }
        let files: Vec<_> = fs_err::read_dir(&dir).unwrap().collect();
        assert_eq!(files.len(), 1);
        assert!(fs_err::metadata(&inbox.path).unwrap().len() < 2 * RENEWED_AT);
        let again = Inbox::open(&dir, 7).unwrap().0;
        let stands = |open: &Open| (open.update, open.deaths, open.group.clone(), open.is_under_way);
        let all: Vec<_> = again.all().iter().map(stands).collect();
        assert_eq!(all, [(1, 1, vec![1, 1000], true), (1000, 1, vec![1, 1000], true), (1001, 0, vec![], false)]);
        assert!((1..300).all(|update| again.has_seen(update)));
        fs_err::remove_dir_all(&dir).unwrap();
    }
}
