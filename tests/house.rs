//! The rules of the house, checked on the source text: who may know whom, and who alone does what.
//!
//! A room is the first segment of a path below `src/`: `provider/openai.rs` and `provider/mod.rs` are in `provider`. The table
//! [`RANKS`] is the one in the code map of `src/lib.rs`; a room uses lower ranks and itself. Rank 0 are the words everybody speaks, so they may
//! be put in terms of each other, but not in a circle. The checks are plain
//! functions from a [`Source`] to complaints, so that the tests at the end can show each of them a sinner.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Every room and its rank. A room may use rooms of a lower rank, and itself; those of rank 0 one another, too.
const RANKS: &[(usize, &[&str])] = &[
    (6, &["main", "cli"]),
    (5, &["app"]),
    (4, &["gateway"]),
    (3, &["agent", "doctor"]),
    (2, &["provider", "tool", "mcp", "telegram"]),
    (1, &["config", "http", "hands", "session", "memory", "skills", "usage", "cron", "outbox"]),
    (
        0,
        &[
            "message", "bus", "cancel", "child", "text", "paths", "disk", "log", "sse", "error", "secret", "beneath",
            "sys", "guard", "template", "zone", "bell",
        ],
    ),
];

/// Something that only a few places do.
struct Owned {
    what: &'static str,
    /// Any of these, as it stands in the code (comments, strings and test modules do not count).
    signs: &'static [&'static str],
    /// Who may: a file, or a folder with its slash; each with the reason, unless the name is the reason.
    owners: &'static [(&'static str, &'static str)],
    instead: &'static str,
}

const OWNED: &[Owned] = &[
    Owned {
        what: "speaks HTTP",
        signs: &["ureq::", "use ureq"],
        owners: &[("http.rs", "the one maker of HTTP agents")],
        instead: "ask `http` for what you need",
    },
    Owned {
        what: "starts a process",
        signs: &["Command::new", "process::Command"],
        owners: &[("child.rs", "the one constructor of children")],
        instead: "ask `child` for one: it rebuilds the environment and keeps descriptors to itself",
    },
    Owned {
        what: "writes to the file system",
        signs: &[
            "fs::write",
            "File::create",
            "File::options",
            "OpenOptions",
            "fs::rename",
            "fs::copy",
            "fs::hard_link",
            "fs::remove_",
            "fs::create_dir",
            "fs::set_permissions",
            "DirBuilder",
            "symlink(",
            "renameat",
            "unlinkat",
            "mkdirat",
            "ftruncate",
            ".set_len(",
        ],
        owners: &[
            ("disk.rs", "the one writer of files"),
            ("disk/", "its rooms"),
            ("hands/", "writes beneath the directory handle it holds, in a process of its own"),
        ],
        instead: "let `disk` do it: it knows modes, atomic replacement and syncing",
    },
    Owned {
        what: "reads the environment",
        signs: &["env::var", "env::vars", "env::{"],
        owners: &[("config/", "the one place that says where a value came from")],
        instead: "take the value from the configuration as an argument",
    },
    Owned {
        what: "lifts the ban on unsafe code",
        signs: &["unsafe ", "unsafe{", "unsafe_code"],
        owners: &[("sys.rs", "says for each use why no safe way exists")],
        instead: "find the safe way in `rustix` or `std`, or add one small function to `sys.rs` with its reason",
    },
];

/// What nobody does, and what to do instead.
const BANNED: &[(&str, &str)] = &[
    ("allow(dead_code)", "delete what nobody uses; it is in the history"),
    ("todo!", "leave out what is not there yet"),
    ("unimplemented!", "leave out what is not there yet"),
    ("dbg!", "take it out again"),
    ("async fn", "block: this program has threads and no runtime"),
    (".await", "block: this program has threads and no runtime"),
];

/// The most lines a file may have.
const LINES: usize = 600;

/// One file below `src/`.
struct Source {
    /// Relative to `src/`.
    path: String,
    /// As it is on disk.
    text: String,
    /// Without comments, without the insides of strings, without test modules; line by line the same.
    code: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        // `fs_err` is `std::fs` with better errors: the same deeds under another name.
        // `tests.rs` is what `mod tests` is elsewhere, where that would be longer than what it tests.
        let is_test = path.ends_with("/tests.rs");
        let code = if is_test { String::new() } else { without_tests(&bare(text)).replace("fs_err::", "fs::") };
        Self { path: path.to_owned(), text: text.to_owned(), code }
    }

    /// The room the file belongs to.
    fn room(&self) -> &str {
        let first = self.path.split('/').next().unwrap();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// How many modules deep the file is: 1 for `http.rs` and `config/mod.rs`, 2 for `config/load.rs`.
    fn depth(&self) -> usize {
        let parts = self.path.split('/').count();
        if self.path.ends_with("/mod.rs") { parts - 1 } else { parts }
    }

    /// The lines of the code in which `sign` stands, counted from 1.
    fn lines_with(&self, sign: &str) -> Vec<usize> {
        let lines = self.code.lines().enumerate();
        lines.filter(|(_, line)| line.contains(sign)).map(|(n, _)| n + 1).collect()
    }
}

/// All sources, read from disk.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut left = vec![root.clone()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
                found.push(Source::new(name, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 10, "only {} files below {}", found.len(), root.display());
    found
}

/// The text with comments and the insides of strings blanked out, so that every line stays where it was.
fn bare(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let blank = |out: &mut String, c: char| out.push(if c == '\n' { '\n' } else { ' ' });
    let starts = |at: usize, what: &str| characters[at..].iter().copied().take(what.len()).eq(what.chars());
    let mut at = 0;
    while at < characters.len() {
        let end = if starts(at, "//") {
            (at..characters.len()).find(|&n| characters[n] == '\n').unwrap_or(characters.len())
        } else if starts(at, "/*") {
            end_of_block_comment(&characters, at)
        } else if let Some(hashes) = raw_string(&characters, at) {
            let close: String = ["\"", &"#".repeat(hashes)].concat();
            let open = at + 2 + hashes;
            (open..characters.len()).find(|&n| starts(n, &close)).map_or(characters.len(), |n| n + close.len())
        } else if characters[at] == '"' {
            end_of_string(&characters, at)
        } else if characters[at] == '\'' {
            end_of_character(&characters, at)
        } else {
            out.push(characters[at]);
            at += 1;
            continue;
        };
        for &c in &characters[at..end] {
            blank(&mut out, c);
        }
        at = end;
    }
    out
}

fn end_of_block_comment(text: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < text.len() {
        match (text[at], text.get(at + 1)) {
            ('/', Some('*')) => depth += 1,
            ('*', Some('/')) => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The number of hashes, if a raw string starts here.
fn raw_string(text: &[char], at: usize) -> Option<usize> {
    let inside_a_word = at > 0 && (text[at - 1].is_alphanumeric() || text[at - 1] == '_') && text[at - 1] != 'b';
    if text[at] != 'r' || inside_a_word {
        return None;
    }
    let hashes = text[at + 1..].iter().take_while(|&&c| c == '#').count();
    (text.get(at + 1 + hashes) == Some(&'"')).then_some(hashes)
}

fn end_of_string(text: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

/// The end of a character literal; of a lifetime, only its quote.
fn end_of_character(text: &[char], start: usize) -> usize {
    if text.get(start + 1) == Some(&'\\') {
        let close = (start + 3..text.len()).find(|&n| text[n] == '\'');
        return close.map_or(text.len(), |n| n + 1);
    }
    if text.get(start + 2) == Some(&'\'') { start + 3 } else { start + 1 }
}

/// Blanks out every item under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::with_capacity(code.len());
    let mut left = code;
    while let Some(start) = left.find(MARK) {
        let (before, item) = left.split_at(start);
        out.push_str(before);
        let mut depth = 0_i32;
        let body = item.char_indices().skip(MARK.len()).find(|&(_, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && (c == '}' || c == ';')
        });
        let end = body.map_or(item.len(), |(at, c)| at + c.len_utf8());
        out.extend(item[..end].chars().filter(|&c| c == '\n'));
        left = &item[end..];
    }
    out + left
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The rooms a source names, each with its line: through `crate::`, `bantam::`, lists of either, and `super::` where it
/// reaches the root.
fn used(source: &Source) -> Vec<(usize, String)> {
    let to_the_root = "super::".repeat(source.depth());
    let mut found = Vec::new();
    for root in ["crate::", "bantam::", &to_the_root] {
        for (at, _) in source.code.match_indices(root) {
            let before = source.code[..at].chars().next_back();
            if before.is_some_and(|c| is_word(c) || c == ':') {
                continue;
            }
            let line = source.code[..at].matches('\n').count() + 1;
            let names = firsts(&source.code[at + root.len()..]);
            found.extend(names.into_iter().map(|name| (line, name)));
        }
    }
    found
}

/// The first segments of what follows `crate::`: one name, or those of a list in braces. Macros live at the root by
/// nature and belong to no room.
fn firsts(path: &str) -> Vec<String> {
    let Some(list) = path.strip_prefix('{') else {
        let name: String = path.chars().take_while(|&c| is_word(c)).collect();
        let is_macro = path[name.len()..].starts_with('!');
        return if name.is_empty() || is_macro { Vec::new() } else { vec![name] };
    };
    let mut depth = 0;
    let mut names = vec![String::new()];
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(String::new()),
            _ if depth == 0 => names.last_mut().unwrap().push(c),
            _ => {}
        }
    }
    let first = |name: &String| name.trim().chars().take_while(|&c| is_word(c)).collect::<String>();
    names.iter().map(first).filter(|name| !name.is_empty() && name != "self").collect()
}

fn rank(room: &str) -> Option<usize> {
    RANKS.iter().find(|(_, rooms)| rooms.contains(&room)).map(|(rank, _)| *rank)
}

/// `lib` only lists the rooms and what is public of them; every other file has a rank and looks down.
fn breaks_the_layers(source: &Source) -> Vec<String> {
    let room = source.room();
    if room == "lib" {
        return Vec::new();
    }
    let Some(own) = rank(room) else {
        return vec![format!(
            "src/{}: there is no room `{room}`; move the file into a room, or give the new one a rank in RANKS \
             (tests/house.rs) and a line in the code map (src/lib.rs)",
            source.path
        )];
    };
    let mut complaints = Vec::new();
    for (line, name) in used(source) {
        let place = format!("src/{}:{line}", source.path);
        match rank(&name) {
            // `main` is the door to `cli` and does nothing else.
            _ if name == room || (room == "main" && name == "cli") => {}
            None => complaints.push(format!(
                "{place}: `{name}` is no room; name the room it is in, or rank it in RANKS (tests/house.rs)"
            )),
            Some(other) if other >= own && own > 0 || other > own => complaints.push(format!(
                "{place}: `{room}` (rank {own}) uses `{name}` (rank {other}); rooms look down only: pass what is needed \
                 as an argument or a trait, or move the shared part to a lower room"
            )),
            Some(_) => {}
        }
    }
    complaints
}

/// The rooms of rank 0 that can only be explained by each other: what is left when those that are explained by what is
/// already explained have gone.
fn goes_in_circles(sources: &[Source]) -> Vec<String> {
    let mut left: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| rank(source.room()) == Some(0)) {
        let names = used(source).into_iter().map(|(_, name)| name);
        let others = names.filter(|name| name != source.room());
        left.entry(source.room()).or_default().extend(others);
    }
    loop {
        let explained = left.iter().find(|(_, needs)| needs.iter().all(|need| !left.contains_key(need.as_str())));
        let Some(room) = explained.map(|(room, _)| *room) else {
            break;
        };
        left.remove(room);
    }
    let circle: Vec<&str> = left.into_keys().collect();
    if circle.is_empty() {
        return Vec::new();
    }
    let circle = circle.join(", ");
    vec![format!("of {circle}, some use each other in a circle; move what they share into one of them, or a new room")]
}

fn does_what_others_own(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    for owned in OWNED {
        let owns = |owner: &str| source.path == owner || (owner.ends_with('/') && source.path.starts_with(owner));
        if owned.owners.iter().any(|(owner, _)| owns(owner)) {
            continue;
        }
        let lines = owned.signs.iter().flat_map(|sign| source.lines_with(sign).into_iter().map(move |n| (n, sign)));
        for (line, sign) in lines {
            let mut complaint = format!("src/{}:{line}: `{sign}` {}, which is for", source.path, owned.what);
            for (owner, reason) in owned.owners {
                write!(complaint, " src/{owner} ({reason})").unwrap();
            }
            complaints.push(format!("{complaint}; {}", owned.instead));
        }
    }
    complaints
}

fn does_what_nobody_does(source: &Source) -> Vec<String> {
    let complain = |&(sign, instead): &(&str, &str)| {
        let lines = source.lines_with(sign);
        lines.into_iter().map(|line| format!("src/{}:{line}: `{sign}`; {instead}", source.path)).collect::<Vec<_>>()
    };
    BANNED.iter().flat_map(complain).collect()
}

fn is_too_long_or_untitled(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let lines = source.text.lines().count();
    if lines > LINES {
        let path = &source.path;
        complaints.push(format!("src/{path}: {lines} lines, over {LINES}; it has more than one job, so split it"));
    }
    if !source.text.starts_with("//!") {
        let path = &source.path;
        complaints.push(format!("src/{path}: begin it with `//!` and a sentence that says what it is for and why"));
    }
    complaints
}

/// The code map is the first thing a stranger reads: every room has its place in the table there, under the rank that
/// it has here.
fn differs_from_the_map(map: &Source, sources: &[Source]) -> Vec<String> {
    let rows = map.text.lines().take_while(|line| line.starts_with("//!"));
    let mut mapped: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        let mut cells = row.split('|').skip(1);
        let Some(Ok(rank)) = cells.next().map(|cell| cell.trim().parse()) else {
            continue;
        };
        let names = cells.next().unwrap_or_default().split('`').skip(1).step_by(2);
        mapped.extend(names.map(|name| (name, rank)));
    }
    let rooms: BTreeSet<&str> = sources.iter().map(Source::room).filter(|room| *room != "lib").collect();
    let complain = |room: &str| match (mapped.get(room), rank(room)) {
        (None, _) => Some(format!(
            "src/lib.rs: the code map has no `{room}`; give it a place in the table and say what it is for"
        )),
        (Some(told), Some(own)) if *told != own => {
            Some(format!("src/lib.rs: the code map gives `{room}` rank {told}, RANKS (tests/house.rs) says {own}"))
        }
        _ => None,
    };
    let gone = mapped.keys().filter(|name| !rooms.contains(*name));
    let gone = gone.map(|name| format!("src/lib.rs: the code map has `{name}`, which is not there; take it out"));
    rooms.iter().filter_map(|room| complain(room)).chain(gone).collect()
}

/// Fails with every complaint there is, so that one run shows all the work.
#[track_caller]
fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n\n{}\n", complaints.join("\n"));
}

fn all(check: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    sources().iter().flat_map(check).collect()
}

#[test]
fn rooms_use_only_lower_rooms() {
    none(&all(breaks_the_layers));
}

#[test]
fn words_are_not_explained_in_a_circle() {
    none(&goes_in_circles(&sources()));
}

#[test]
fn what_has_an_owner_is_done_by_its_owner_alone() {
    none(&all(does_what_others_own));
}

#[test]
fn nobody_does_what_nobody_should() {
    none(&all(does_what_nobody_does));
}

#[test]
fn every_file_has_one_job_and_says_which() {
    none(&all(is_too_long_or_untitled));
}

#[test]
fn the_code_map_is_true() {
    let sources = sources();
    let map = sources.iter().find(|source| source.path == "lib.rs").expect("src/lib.rs");
    none(&differs_from_the_map(map, &sources));
}

/// The checks themselves: each is shown what it must see, and what it must not mind.
mod the_checks {
    use super::*;

    fn layers(path: &str, text: &str) -> usize {
        breaks_the_layers(&Source::new(path, text)).len()
    }

    #[test]
    fn a_higher_room_is_seen_however_it_is_named() {
        assert_eq!(layers("http.rs", "use crate::agent::Turn;"), 1);
        assert_eq!(layers("http.rs", "use crate::{\n    text,\n    agent::{Turn, session},\n    session,\n};"), 2);
        assert_eq!(layers("http.rs", "fn f() { crate::agent::run() }"), 1);
        assert_eq!(layers("main.rs", "fn main() { bantam::cli::run() }"), 0);
        assert_eq!(layers("app.rs", "use bantam::cli::run;"), 1);
        assert_eq!(layers("http.rs", "use super::agent;"), 1);
        assert_eq!(layers("config/load.rs", "use super::super::agent;"), 1);
        assert_eq!(layers("config/mod.rs", "use super::agent;"), 1);
    }

    #[test]
    fn a_lower_room_and_ones_own_are_free_to_use() {
        assert_eq!(layers("agent/turn.rs", "use crate::{provider, tool::Tool, message::{self, Reply}};"), 0);
        assert_eq!(layers("config/load.rs", "use super::table; use crate::config::Config;"), 0);
        assert_eq!(layers("http.rs", "// see crate::agent\nfn f() -> &'static str { \"crate::agent\" }"), 0);
        assert_eq!(layers("http.rs", "fn f() { crate::say!() }"), 0);
    }

    #[test]
    fn a_room_of_the_same_rank_is_too_high() {
        assert_eq!(layers("session.rs", "use crate::config::Config;"), 1);
        assert_eq!(layers("tool/exec.rs", "use crate::provider::Provider;"), 1);
    }

    #[test]
    fn words_may_use_each_other_but_nothing_above_and_not_in_a_circle() {
        assert_eq!(layers("message.rs", "use crate::error::Result;"), 0);
        assert_eq!(layers("message.rs", "use crate::config::Config;"), 1);
        let [error, text] = [Source::new("error.rs", "use crate::text;"), Source::new("text.rs", "use crate::error;")];
        assert_eq!(goes_in_circles(&[error, text]).len(), 1);
        let [error, text] = [Source::new("error.rs", "use crate::text;"), Source::new("text.rs", "")];
        assert_eq!(goes_in_circles(&[error, text]).len(), 0);
    }

    #[test]
    fn a_room_nobody_ranked_is_seen() {
        assert_eq!(layers("utils.rs", ""), 1);
        assert_eq!(layers("http.rs", "use crate::helpers;"), 1);
    }

    #[test]
    fn a_deed_that_another_owns_is_seen() {
        let deeds = |path: &str, text: &str| does_what_others_own(&Source::new(path, text)).len();
        assert_eq!(deeds("telegram/mod.rs", "fn f() { ureq::get(x) }"), 1);
        assert_eq!(deeds("http.rs", "fn f() { ureq::get(x) }"), 0);
        assert_eq!(deeds("tool/exec.rs", "let c = Command::new(x);"), 1);
        assert_eq!(deeds("session.rs", "fs_err::write(path, text)?;"), 1);
        assert_eq!(deeds("hands/files.rs", "fs_err::write(path, text)?;"), 0);
        assert_eq!(deeds("http.rs", "std::env::var(name)"), 1);
        assert_eq!(deeds("config/load.rs", "std::env::var(name)"), 0);
        assert_eq!(deeds("http.rs", "env!(\"CARGO_PKG_VERSION\")"), 0);
        assert_eq!(deeds("http.rs", "unsafe { f() }"), 1);
    }

    #[test]
    fn a_ban_a_length_and_a_missing_title_are_seen() {
        let banned = |text: &str| does_what_nobody_does(&Source::new("http.rs", text)).len();
        assert_eq!(banned("#[allow(dead_code)]\nfn f() { todo!() }"), 2);
        assert_eq!(banned("fn f() { \"todo!\" } // todo!"), 0);
        let shape = |text: &str| is_too_long_or_untitled(&Source::new("http.rs", text)).len();
        assert_eq!(shape("//! Does one thing.\n"), 0);
        assert_eq!(shape("use std::fs;\n"), 1);
        assert_eq!(shape(&format!("//! Long.\n{}", "\n".repeat(LINES))), 1);
    }

    #[test]
    fn a_map_that_leaves_a_room_out_or_puts_it_elsewhere_is_seen() {
        let rooms = [Source::new("http.rs", ""), Source::new("config/load.rs", "")];
        let differs = |table: &str| differs_from_the_map(&Source::new("lib.rs", table), &rooms).len();
        assert_eq!(differs("//! | rank | room |\n//! | 1 | [`http`], `config` | speaks |\n"), 0);
        assert_eq!(differs("//! | 1 | [`http`] | speaks, as `config` says |\npub mod config;\n"), 1);
        assert_eq!(differs("//! | 2 | [`http`] | speaks |\n//! | 1 | `config` | says |\n"), 1);
        assert_eq!(differs("//! | 1 | `http`, `config`, `text` | speaks |\n"), 1);
    }

    #[test]
    fn what_is_not_code_is_blanked_and_lines_stay_where_they_were() {
        let text = "a /* b /* c */ d */ e\n\"f\\\"g\" 'h' '\\'' i<'j> // k\nr#\"l \" m\"# br\"n\" o\n";
        let code = bare(text);
        assert_eq!(code.lines().count(), text.lines().count());
        let words: Vec<&str> = code.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).collect();
        assert_eq!(words, ["a", "e", "i", "j", "b", "o"]);
    }

    #[test]
    fn tests_are_left_out_and_what_follows_them_is_not() {
        let text = "fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() { todo!() }\n}\nfn h() { dbg!(1) }\n#[cfg(test)]\nuse x::y;\nfn i() {}\n";
        assert!(Source::new("http/tests.rs", text).code.is_empty());
        let source = Source::new("http.rs", text);
        assert_eq!(source.lines_with("dbg!"), [6]);
        assert!(source.lines_with("todo!").is_empty());
        assert_eq!(source.lines_with("fn i"), [9]);
    }
}
