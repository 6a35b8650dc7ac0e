//! Searching the files of a tree for lines that match.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use regex_lite::{Regex, escape};
use rustix::fs::{AtFlags, FileType, statat};

use super::encoding::{Encoding, as_utf8};
use super::read::{Line, below, names, take_line};
use super::{Target, shown, text};
use crate::beneath::{self, Dir, Links};
use crate::error::{Error, Result};
use crate::text::printable;
use crate::wire::Reply;

/// Lines that are given, unless the call names another number, and at most.
const LINES: usize = 100;
const MOST_LINES: usize = 1000;

/// How long one search may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of output, so that the last line, which says what was left out, is not cut off by the limit on a result.
const MOST_OUTPUT: usize = 28 << 10;

/// Bytes of a line that are searched.
const MOST_SEARCHED: usize = 64 << 10;

/// Characters of a line that are shown, and how many of them may stand before the match.
const MOST_SHOWN: usize = 300;
const BEFORE: usize = 100;

/// Directories within each other, at most: each takes a descriptor.
const DEEPEST: usize = 100;

/// What is searched for.
pub struct Search {
    pattern: Regex,
    glob: Option<Glob>,
    max: usize,
}

impl Search {
    pub fn new(pattern: &str, glob: &str, max: Option<usize>) -> Result<Self> {
        let wrong = |what, e| Error::failed(format!("the {what} cannot be used: {e}"));
        let glob = if glob.is_empty() { None } else { Some(Glob::new(glob).map_err(|e| wrong("glob", e))?) };
        let pattern = Regex::new(pattern).map_err(|e| wrong("pattern", e))?;
        Ok(Self { pattern, glob, max: max.unwrap_or(LINES).clamp(1, MOST_LINES) })
    }

    /// Searches a file, or the files of a directory and those below it. Links are not followed, binary files and
    /// `.git` are left out.
    pub fn run(&self, target: Target, hung_up: &dyn Fn() -> bool) -> Result<Reply> {
        let until = Instant::now() + PATIENCE;
        let stop = || Instant::now() > until || hung_up();
        let mut found =
            Found { search: self, stop: &stop, text: String::new(), shown: 0, end: None, left: Left::default() };
        let base = shown(&target.asked.to_string_lossy());
        match target.tree.dir_at(target.path, Links::Follow) {
            Ok(dir) => {
                let base = base.strip_prefix("./").unwrap_or(&base).trim_end_matches('/');
                let base = if base == "." { String::new() } else { format!("{base}/") };
                found.directory(&dir, &base, "", 0)?;
            }
            Err(rustix::io::Errno::NOTDIR) => {
                let file = target.tree.read(target.path, target.asked, Links::Follow)?;
                found.file(BufReader::new(file), &base)?;
            }
            Err(e) => return Err(beneath::explain(e, target.asked)),
        }
        Ok(text(found.report()))
    }
}

/// Why a search ended before its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Full,
    Time,
}

/// What was left out.
#[derive(Default)]
struct Left {
    binary: usize,
    unreadable: usize,
    too_deep: usize,
    long: usize,
}

struct Found<'a> {
    search: &'a Search,
    stop: &'a dyn Fn() -> bool,
    text: String,
    shown: usize,
    end: Option<End>,
    left: Left,
}

impl Found<'_> {
    /// `base` is what stands before the names of the files, `below_base` the path from where the search began.
    fn directory(&mut self, dir: &Dir, base: &str, below_base: &str, depth: usize) -> Result<()> {
        for name in names(dir)? {
            if self.end.is_some() {
                return Ok(());
            }
            if (self.stop)() {
                self.end = Some(End::Time);
                return Ok(());
            }
            let Ok(stat) = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let own = name.to_string_lossy();
            let path = format!("{below_base}{own}");
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if own == ".git" => {}
                FileType::Directory if depth == DEEPEST => self.left.too_deep += 1,
                FileType::Directory => match below(dir, &name) {
                    Some(inner) => self.directory(&inner, base, &format!("{path}/"), depth + 1)?,
                    None => self.left.unreadable += 1,
                },
                FileType::RegularFile if self.search.glob.as_ref().is_none_or(|g| g.fits(&path, &own)) => {
                    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
                    let read = dir.read(name, name, Links::Refuse);
                    let shown = format!("{base}{}", shown(&path));
                    if read.and_then(|file| self.file(BufReader::new(file), &shown)).is_err() {
                        self.left.unreadable += 1;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, mut file: BufReader<fs_err::File>, path: &str) -> Result<()> {
        let start = file.fill_buf()?;
        if Encoding::of(start).0 == Encoding::Utf8 && start.contains(&0) {
            self.left.binary += 1;
            return Ok(());
        }
        let mut file = as_utf8(file)?;
        let stop = |_| (self.stop)();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let mut ended = take_line(&mut file, Some((&mut line, MOST_SEARCHED)), &stop)?;
            if ended == Line::Cut {
                self.left.long += 1;
                ended = take_line(&mut file, None, &stop)?;
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\n', '\r']);
            if ended == Line::Stopped || number % 1024 == 0 && (self.stop)() {
                self.end = Some(End::Time);
                return Ok(());
            }
            if ended == Line::End && line.is_empty() {
                return Ok(());
            }
            if let Some(at) = self.search.pattern.find(text) {
                if self.shown == self.search.max || self.text.len() > MOST_OUTPUT {
                    self.end = Some(End::Full);
                    return Ok(());
                }
                self.text.push_str(&format!("{path}:{number}:{}\n", around(text, at.range())));
                self.shown += 1;
            }
        }
        Ok(())
    }

    /// What was found, and a line for what was not looked at.
    fn report(mut self) -> String {
        let mut notes = Vec::new();
        match self.end {
            Some(End::Full) => notes.push(format!("there are more than these {} lines", self.shown)),
            Some(End::Time) => {
                notes.push("the time was up before everything was searched".to_owned());
            }
            None => {}
        }
        let Left { binary, unreadable, too_deep, long } = self.left;
        for (n, what) in [
            (binary, "binary files left out"),
            (unreadable, "that could not be read"),
            (too_deep, "directories too deep to enter"),
            (long, "lines searched only at their beginning"),
        ] {
            if n > 0 {
                notes.push(format!("{n} {what}"));
            }
        }
        if self.shown == 0 {
            self.text.push_str("no line matches\n");
        }
        if !notes.is_empty() {
            self.text.push_str(&format!("[{}]\n", notes.join("; ")));
        }
        self.text
    }
}

/// A line for people: all of it, or the part around the match.
pub fn around(line: &str, found: Range<usize>) -> String {
    let before = line[..found.start].chars().count();
    let skipped = if line.chars().count() > MOST_SHOWN { before.saturating_sub(BEFORE) } else { 0 };
    let mut out = String::new();
    if skipped > 0 {
        out.push('…');
    }
    let mut rest = line.chars().skip(skipped);
    out.extend(rest.by_ref().take(MOST_SHOWN));
    if rest.next().is_some() {
        out.push('…');
    }
    printable(&out)
}

/// A pattern for file names: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any directories.
struct Glob {
    pattern: Regex,
    /// It has a slash, so it is about the path from where the search began.
    whole_path: bool,
}

impl Glob {
    fn new(glob: &str) -> Result<Self, regex_lite::Error> {
        let glob = glob.strip_prefix("./").or_else(|| glob.strip_prefix('/')).unwrap_or(glob);
        let mut pattern = String::from("^");
        let mut rest = glob;
        let mut braces = 0;
        while let Some(c) = rest.chars().next() {
            let (used, becomes) = match c {
                _ if rest.starts_with("**/") => (3, "(?:.*/)?"),
                _ if rest.starts_with("**") => (2, ".*"),
                '*' => (1, "[^/]*"),
                '?' => (1, "[^/]"),
                '{' => {
                    braces += 1;
                    (1, "(?:")
                }
                '}' if braces > 0 => {
                    braces -= 1;
                    (1, ")")
                }
                ',' if braces > 0 => (1, "|"),
                '[' if rest.starts_with("[!") => (2, "[^"),
                '[' => (1, "["),
                ']' => (1, "]"),
                '-' => (1, "-"),
                '\\' if rest.len() > 1 => {
                    let literal = rest[1..].chars().next().map_or(0, char::len_utf8);
                    pattern.push_str(&escape(&rest[1..=literal]));
                    (1 + literal, "")
                }
                c => {
                    pattern.push_str(&escape(&rest[..c.len_utf8()]));
                    (c.len_utf8(), "")
                }
            };
            pattern.push_str(becomes);
            rest = &rest[used..];
        }
        pattern.push('$');
        Ok(Self { pattern: Regex::new(&format!("(?s){pattern}"))?, whole_path: glob.contains('/') })
    }

    fn fits(&self, path: &str, name: &str) -> bool {
        self.pattern.is_match(if self.whole_path { path } else { name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_are_about_names_and_with_a_slash_about_paths() {
        for (glob, fitting, others) in [
            ("*.rs", &["a.rs", "src/b.rs", ".rs"][..], &["a.rsx", "rs", "a.rs/x"][..]),
            ("src/*.rs", &["src/a.rs"], &["a.rs", "src/x/a.rs"]),
            ("./src/**", &["src/a", "src/x/y.txt"], &["a", "xsrc/a"]),
            ("**/test_?.py", &["test_a.py", "x/y/test_1.py"], &["test_.py", "x/test_10.py"]),
            ("*.{md,txt}", &["a.md", "x/b.txt"], &["a.mdx", "a.{md,txt}"]),
            ("[a-c]*[!0-9]", &["apple", "bx"], &["a1", "dog"]),
            ("a+b(1).txt", &["a+b(1).txt"], &["aab1.txt"]),
            ("图*", &["图片.png"], &["片图"]),
            ("\\*", &["*"], &["a"]),
        ] {
            let glob = Glob::new(glob).unwrap();
            let fits = |path: &str| glob.fits(path, path.rsplit('/').next().unwrap());
            for path in fitting {
                assert!(fits(path), "{path}");
            }
            for path in others {
                assert!(!fits(path), "{path}");
            }
        }
        assert!(Glob::new("[").is_err() && Glob::new("{a").is_err());
    }

    #[test]
    fn a_long_line_is_shown_around_its_match() {
        assert_eq!(around("short \u{1b}[0m", 0..5), "short [0m");
        let line = format!("{}needle{}", "ä".repeat(1000), "z".repeat(1000));
        let seen = around(&line, 2000..2006);
        assert!(seen.starts_with("…ä") && seen.ends_with("z…") && seen.contains("needle"), "{seen}");
        assert_eq!(seen.chars().count(), MOST_SHOWN + 2);
    }

    #[test]
    fn a_bad_pattern_is_told() {
        for pattern in ["(", "a{5000}{5000}", "(?=x)"] {
            let error = Search::new(pattern, "", None).err().unwrap();
            assert!(error.message.starts_with("the pattern cannot be used: "), "{}", error.message);
        }
    }
}
