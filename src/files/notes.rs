//! The agent's notes: the files `memory/KEY.md` of the workspace, and finding things in them.
//!
//! A key is a plain name, so that none leads anywhere else; all the rest is as for other jobs with files.

use std::ffi::OsStr;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;

use super::encoding::as_utf8;
use super::read::names;
use super::{Target, shown, text};
use super::{edit, grep};
use crate::beneath::{self, Dir, Links};
use crate::error::{Error, Result};
use crate::text::{first_lines, one_line, size};
use crate::wire::{Action, Remember, Reply};

/// Bytes of `memory/MEMORY.md` that go with every prompt.
pub const SHOWN_OF_MEMORY: usize = 8 << 10;

/// The note that is meant when none is named.
const MEMORY: &str = "MEMORY";
/// Bytes of a note.
const MOST: usize = 64 << 10;
/// Bytes of a key: with what is added to it, it has to be a file's name.
const LONGEST_KEY: usize = 120;
/// Notes that are listed.
const MOST_LISTED: usize = 200;
/// Bytes read of a note that is only listed.
const HEAD: usize = 512;
/// Bytes of notes that are looked at for a list, and for a search; the least that one of them counts for.
const MOST_HEADS: usize = 2 << 20;
const MOST_SEARCHED: usize = 8 << 20;
const LEAST: usize = 256;
/// Lines that are ranked.
const MOST_HITS: usize = 100_000;
/// Lines that a search gives, and about how many bytes at most.
const MOST_FOUND: usize = 20;
const MOST_OUTPUT: usize = 16 << 10;
/// Words of a query that count.
const MOST_TERMS: usize = 32;

/// Does what is asked. `now` is local time, as [`crate::text::LocalTime`] tells it.
pub fn perform(workspace: &Dir, ask: &Remember, now: &str, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    let key = ask.key.as_deref().filter(|key| !key.trim().is_empty()).map(|key| checked(key, now)).transpose()?;
    let content = || ask.content.as_deref().ok_or_else(|| Error::failed("\"content\" is missing: what to write"));
    let path = format!("memory/{}.md", key.as_deref().unwrap_or(MEMORY));
    let target = Target { tree: workspace, path: Path::new(&path), asked: Path::new(&path) };
    // What is done to a link would be done to another file; nor does the prompt take notes through links.
    if let Err(e @ Errno::LOOP) = workspace.open_at(target.path, OFlags::PATH, Mode::empty(), Links::Refuse) {
        return Err(beneath::explain(e, target.asked));
    }
    match ask.action {
        Action::View if key.is_some() => view(target),
        Action::View => list(workspace, hung_up),
        Action::Search => {
            let query = ask.query.as_deref().or(ask.content.as_deref()).unwrap_or_default();
            search(workspace, query, hung_up)
        }
        Action::Write => {
            let content = content()?;
            fits(content)?;
            Ok(with_remark(edit::write_file(target, content, hung_up)?, &target, key.as_deref()))
        }
        Action::Append => {
            let content = content()?.trim_end();
            if content.is_empty() {
                return Err(Error::failed("there is nothing to add: \"content\" is empty"));
            }
            let lines = match key.as_deref() {
                Some(day) if now.starts_with(day) && is_day(day) => format!("- {} {content}\n", time(now, 11)),
                Some(day) if is_day(day) => format!("- {} {content}\n", time(now, 0)),
                _ => format!("{content}\n"),
            };
            fits(&lines)?;
            let reply = edit::append_lines(target, &lines, MOST as u64, hung_up)
                .map_err(|e| Error::failed(format!("{e}. Shorten the note first, or go on in another")))?;
            Ok(with_remark(reply, &target, key.as_deref()))
        }
        Action::Delete if key.is_none() => Err(Error::failed("\"key\" is missing: which note to delete")),
        Action::Delete => edit::remove_file(target, hung_up),
    }
}

/// Hours and minutes, from the day on or from the hour on.
fn time(now: &str, from: usize) -> &str {
    now.get(from..16).unwrap_or(now)
}

fn fits(content: &str) -> Result<()> {
    if content.len() <= MOST {
        return Ok(());
    }
    let (has, most) = (size(content.len() as u64), size(MOST as u64));
    Err(Error::failed(format!("a note has {most} at most, and this would be one of {has}: make several of it")))
}

/// A key as it stands in the file's name. `now` is for `today`.
fn checked(key: &str, now: &str) -> Result<String> {
    let key = key.trim();
    let key = key.strip_suffix(".md").unwrap_or(key);
    let wrong = |why: &str| {
        let key = one_line(key, 60);
        Err(Error::failed(format!("\"{key}\" is no key of a note: {why}. A key is a plain name, such as garden")))
    };
    if key.is_empty() {
        return wrong("it is empty");
    }
    if key.contains(['/', '\\']) || key.chars().any(char::is_control) {
        return wrong("there is a slash or a control character in it");
    }
    if key.starts_with('.') {
        return wrong("it begins with a dot");
    }
    if key.len() > LONGEST_KEY {
        return wrong(&format!("it has {} bytes, of {LONGEST_KEY} at most", key.len()));
    }
    Ok(match key.to_ascii_lowercase().as_str() {
        "today" => now.get(..10).unwrap_or(now).to_owned(),
        "memory" => MEMORY.to_owned(),
        _ => key.to_owned(),
    })
}

/// Whether a key is a date, `2026-11-22`.
fn is_day(key: &str) -> bool {
    let fits = |(at, b): (usize, u8)| if matches!(at, 4 | 7) { b == b'-' } else { b.is_ascii_digit() };
    key.len() == 10 && key.bytes().enumerate().all(fits)
}

/// Adds what the model should know about a note that has grown.
fn with_remark(mut reply: Reply, target: &Target, key: Option<&str>) -> Reply {
    let file = target.tree.open_at(target.path, OFlags::PATH, Mode::empty(), Links::Refuse);
    let len = file.and_then(fstat).map_or(0, |stat| stat.st_size);
    if key.is_none_or(|key| key == MEMORY) && usize::try_from(len).is_ok_and(|len| len > SHOWN_OF_MEMORY) {
        let shown = size(SHOWN_OF_MEMORY as u64);
        let remark =
            format!("\n[only its first {shown} go with every prompt: shorten it, or move parts into other notes]");
        reply.body.extend_from_slice(remark.as_bytes());
    }
    reply
}

fn view(target: Target) -> Result<Reply> {
    let name = target.asked.display();
    let file = target.tree.read(target.path, target.asked, Links::Refuse)?;
    let note = start(file, MOST + 1)?;
    let first = first_lines(&note, MOST);
    if note.is_empty() {
        return Ok(text("(empty)"));
    }
    let rest = if first.len() < note.len() {
        format!("\n[cut here: read_file shows the rest of {name}]")
    } else {
        String::new()
    };
    Ok(text(format!("{first}{rest}")))
}

/// A note as it was found.
#[derive(Default)]
struct Note {
    key: String,
    modified: Option<SystemTime>,
    len: u64,
    /// The beginning of it.
    text: String,
}

/// The first bytes of a file, as text.
fn start(file: fs_err::File, most: usize) -> Result<String> {
    let mut bytes = Vec::new();
    as_utf8(BufReader::new(file))?.take(most as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The notes there are, with at most so many bytes of each and of all; and how many were left out for want of room. Those
/// of days come newest first.
fn all(workspace: &Dir, each: usize, most: usize, hung_up: &dyn Fn() -> bool) -> Result<(Vec<Note>, usize)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = match workspace.open_at(Path::new("memory"), flags, Mode::empty(), Links::Refuse) {
        Err(Errno::NOENT) => return Ok((Vec::new(), 0)),
        opened => Dir::from(opened.map_err(|e| beneath::explain(e, Path::new("memory")))?),
    };
    let (mut notes, mut left, mut bytes) = (Vec::new(), 0, 0);
    for name in names(&dir)?.iter().rev() {
        let Some(key) = name.to_bytes().strip_suffix(b".md").filter(|key| !key.starts_with(b".")) else { continue };
        if bytes >= most || hung_up() {
            left += 1;
            continue;
        }
        let path = Path::new(OsStr::from_bytes(name.to_bytes()));
        // A directory, a link or a pipe of such a name is no note.
        let Ok(file) = dir.read(path, path, Links::Refuse) else { continue };
        let meta = file.metadata()?;
        let text = start(file, each)?;
        // A short one takes room, too.
        bytes += text.len().max(LEAST);
        let key = shown(&String::from_utf8_lossy(key));
        notes.push(Note { key, modified: meta.modified().ok(), len: meta.len(), text });
    }
    Ok((notes, left))
}

fn list(workspace: &Dir, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    let (mut notes, left) = all(workspace, HEAD, MOST_HEADS, hung_up)?;
    best_first(&mut notes, MOST_LISTED, |a, b| a.modified > b.modified);
    let mut out = String::new();
    for note in notes.iter().take(MOST_LISTED) {
        let first = note.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        out.push_str(&format!("{}  {}  {}\n", note.key, size(note.len), one_line(first, 100)));
    }
    let more = notes.len().saturating_sub(MOST_LISTED) + left;
    if more > 0 {
        out.push_str(&format!("[{more} more: search for what is in them]\n"));
    }
    Ok(text(if out.is_empty() { "there are no notes yet\n".to_owned() } else { out }))
}

fn search(workspace: &Dir, query: &str, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
    let terms = terms(query);
    if terms.is_empty() {
        return Err(Error::failed("\"query\" has no word to search for"));
    }
    let (notes, left) = all(workspace, MOST, MOST_SEARCHED, hung_up)?;
    let hits = rank(&notes, &terms);
    let (mut out, mut shown) = (String::new(), 0);
    for hit in hits.iter().take(MOST_FOUND) {
        if out.len() > MOST_OUTPUT {
            break;
        }
        shown += 1;
        let note = &notes[hit.note];
        for (n, line) in
            note.text.lines().enumerate().skip(hit.line.saturating_sub(1)).take(if hit.line == 0 { 2 } else { 3 })
        {
            let found = if n == hit.line { hit.at } else { 0 };
            if n == hit.line || !line.trim().is_empty() {
                let mark = if n == hit.line { ':' } else { '-' };
                out.push_str(&format!("{}:{}{mark} {}\n", note.key, n + 1, grep::around(line, found..found)));
            }
        }
        out.push('\n');
    }
    match hits.len() - shown {
        _ if hits.is_empty() => out.push_str(&format!("no line of {} notes has any of these words\n", notes.len())),
        0 => {}
        more => out.push_str(&format!("[{more} more lines have some of these words: search for rarer ones]\n")),
    }
    if left > 0 {
        out.push_str(&format!("[{left} notes were not searched: there is too much in the others]\n"));
    }
    Ok(text(out))
}

/// A line that has some of the words.
#[derive(Debug, PartialEq, Eq)]
struct Hit {
    /// Which note, and which line of it, from 0.
    note: usize,
    line: usize,
    /// Where in it, in bytes.
    at: usize,
    score: u32,
}

/// The lines that have any of the words, best first: those with more words and rarer ones, then those of newer notes. A
/// note's key counts as a part of its first line.
fn rank(notes: &[Note], terms: &[String]) -> Vec<Hit> {
    let mut hits = Vec::new();
    let (mut having, mut lines) = (vec![0_u32; terms.len()], 0_u32);
    for (number, note) in notes.iter().enumerate() {
        let key = note.key.to_lowercase();
        for (n, line) in note.text.lines().enumerate() {
            lines += 1;
            let lower = line.to_lowercase();
            let (mut mask, mut at) = (0_u32, line.len());
            for (term, word) in terms.iter().enumerate() {
                let found = occurs(word, &lower);
                if found.is_some() || n == 0 && occurs(word, &key).is_some() {
                    mask |= 1 << term;
                    having[term] += 1;
                    at = at.min(found.unwrap_or(0));
                }
            }
            if mask != 0 && hits.len() < MOST_HITS {
                // Letters that change their length with their case move what is behind them.
                let at = if lower.len() == line.len() && line.is_char_boundary(at) { at } else { 0 };
                hits.push(Hit { note: number, line: n, at, score: mask });
            }
        }
    }
    for hit in &mut hits {
        let words = (0..terms.len()).filter(|term| hit.score & (1 << term) != 0);
        hit.score = words.map(|term| 1 + (lines / having[term]).ilog2()).sum();
    }
    // They are found in the order of their notes and lines, and those that are equal stay so.
    best_first(&mut hits, MOST_FOUND, |a, b| {
        a.score > b.score || a.score == b.score && notes[a.note].modified > notes[b.note].modified
    });
    hits
}

/// Brings the best few to the front, in order; of equal ones the earlier is better. (The standard library's sorting would
/// take ten kilobytes of program for the two lists that are sorted here.)
fn best_first<T>(items: &mut [T], few: usize, better: impl Fn(&T, &T) -> bool) {
    for place in 0..few.min(items.len()) {
        let mut best = place;
        for other in place + 1..items.len() {
            if better(&items[other], &items[best]) {
                best = other;
            }
        }
        items[place..=best].rotate_right(1);
    }
}

/// What to look for: the words in small letters. Scripts that put no space between words are looked for two characters
/// at a time.
fn terms(query: &str) -> Vec<String> {
    let mut terms: Vec<String> = Vec::new();
    for word in query.to_lowercase().split(|c: char| !c.is_alphanumeric()) {
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|c| is_dense(c) != is_dense(first)).unwrap_or(rest.len());
            let (run, after) = rest.split_at(end);
            rest = after;
            let letters: Vec<char> = run.chars().collect();
            let pieces =
                if is_dense(first) && letters.len() > 2 { letters.windows(2) } else { letters.windows(letters.len()) };
            for piece in pieces {
                let piece: String = piece.iter().collect();
                if !terms.contains(&piece) && terms.len() < MOST_TERMS {
                    terms.push(piece);
                }
            }
        }
    }
    terms
}

/// Thai and its neighbours, Chinese, Japanese and Korean, by their Unicode blocks. (Korean has spaces, but its words end
/// in many ways.)
fn is_dense(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{2e80}'..='\u{d7ff}'
        | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9d}' | '\u{20000}'..='\u{3ffff}')
}

/// Where in a line of small letters a word begins: by itself, or as the beginning of a longer one when it has three
/// letters or more.
fn occurs(term: &str, line: &str) -> Option<usize> {
    let dense = term.chars().all(is_dense);
    let short = term.chars().nth(2).is_none();
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() && !is_dense(c));
    let alone = |at: &usize| {
        let (before, after) = (line[..*at].chars().next_back(), line[at + term.len()..].chars().next());
        dense || !(joins(before) || short && joins(after))
    };
    line.match_indices(term).map(|(at, _)| at).find(alone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// Notes, the oldest first.
    fn notes(texts: &[(&str, &str)]) -> Vec<Note> {
        let modified = |n: u64| Some(UNIX_EPOCH + Duration::from_secs(n));
        let note = |(n, (key, text)): (u64, &(&str, &str))| Note {
            key: (*key).into(),
            modified: modified(n),
            len: 0,
            text: (*text).into(),
        };
        (0..).zip(texts).map(note).collect()
    }

    /// The lines that a query finds, best first: `KEY:LINE`.
    fn found(texts: &[(&str, &str)], query: &str) -> Vec<String> {
        let notes = notes(texts);
        let hits = rank(&notes, &terms(query));
        hits.iter().map(|hit| format!("{}:{}", notes[hit.note].key, hit.line + 1)).collect()
    }

    #[test]
    fn a_key_is_a_plain_name_in_any_language() {
        let now = "2026-11-22 10:04:05";
        for (key, comes_to) in [
            ("garden", "garden"),
            (" garden.md ", "garden"),
            ("Sebastian's birthday", "Sebastian's birthday"),
            ("買い物", "買い物"),
            ("רשימה", "רשימה"),
            ("v1.2", "v1.2"),
            ("Today", "2026-11-22"),
            ("memory.md", "MEMORY"),
        ] {
            assert_eq!(checked(key, now).unwrap(), comes_to);
        }
        for key in ["../x", "a/b", "/etc/passwd", ".hidden", "..", ".md", "a\\b", "a\nb", "a\0b", &"長".repeat(50)] {
            assert!(checked(key, now).is_err(), "{key:?}");
        }
        assert!(is_day("2026-11-22") && !is_day("2026-1-22x") && !is_day("garden"));
    }

    #[test]
    fn words_are_found_in_any_case_and_at_the_beginning_of_longer_ones() {
        let texts = [("a", "The Tomatoes want water.\nunwatered\nIt is so."), ("b", "ÄPFEL und Birnen")];
        assert_eq!(found(&texts, "tomato"), ["a:1"]);
        assert_eq!(found(&texts, "WATER"), ["a:1"]);
        assert_eq!(found(&texts, "äpfel"), ["b:1"]);
        assert_eq!(found(&texts, "s is"), ["a:3"]);
        assert_eq!(found(&texts, "nothing"), [""; 0]);
        assert_eq!(terms("  ?!, -- "), [""; 0]);
    }

    #[test]
    fn more_and_rarer_words_come_first_and_then_what_is_newer() {
        let texts = [("old", "cat food\ncat\ncat\ncat"), ("new", "cat\nfood\nquince"), ("quince", "jam\ncat")];
        assert_eq!(found(&texts, "cat food")[0], "old:1");
        // A key is a part of its note's first line.
        assert_eq!(found(&texts, "cat quince")[..2], ["quince:1", "new:3"]);
        let cats = ["quince:2", "new:1", "old:1", "old:2", "old:3", "old:4"];
        assert_eq!(found(&texts, "cat"), cats);
    }

    #[test]
    fn text_without_spaces_is_found_by_its_parts() {
        let texts = [("a", "明日は東京タワーに行く\n京都は遠い"), ("b", "오늘은 서울에서 회의\nวันนี้ประชุมที่กรุงเทพ")];
        assert_eq!(terms("東京タワー"), ["東京", "京タ", "タワ", "ワー"]);
        assert_eq!(found(&texts, "東京タワー")[0], "a:1");
        assert_eq!(found(&texts, "京都"), ["a:2"]);
        assert_eq!(found(&texts, "서울"), ["b:1"]);
        assert_eq!(found(&texts, "ประชุม")[0], "b:2");
        assert_eq!(terms("iPhone15を買う"), ["iphone15", "を買", "買う"]);
    }
}
