//! Searches the files of a directory for lines that match a pattern.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use regex_lite::{Regex, RegexBuilder};
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;

use super::glob::Glob;
use super::lines::{excerpt, skip_bom};
use super::names::shown;
use super::{Target, text_reply};
use crate::access::{Dir, Links};
use crate::error::{Error, Result};
use crate::worker::protocol::Reply;

/// Default and maximum number of matching lines.
const DEFAULT_MATCHES: usize = 100;
const MAX_MATCHES: usize = 1000;

/// Time limit, less than that of the job, so that the matches so far are returned.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum size of the output, in bytes: less than a page, so that the summary is on the first page.
const MAX_OUTPUT: usize = 28 << 10;

/// Maximum number of bytes searched in a line.
const MAX_LINE: usize = 64 << 10;

/// Maximum size of a compiled pattern, in bytes. The time for a line is in proportion to it and to the line.
const MAX_PATTERN: usize = 64 << 10;

/// Maximum depth of directories; each level takes a descriptor.
const MAX_DEPTH: usize = 100;

/// Searches a file, or the files of a directory and its subdirectories. Skips binary files and `.git`, and does not follow
/// links.
pub(super) fn grep(
    target: &Target,
    pattern: &str,
    glob: Option<&str>,
    max: Option<usize>,
) -> Result<Reply> {
    let asked = target.asked.components();
    let asked: PathBuf = asked.filter(|part| *part != Component::CurDir).collect();
    let base = shown(asked.as_os_str().as_bytes());
    let compiled = RegexBuilder::new(pattern).size_limit(MAX_PATTERN).build();
    let pattern = compiled.map_err(|e| Error::failed(format!("invalid pattern: {e}")))?;
    let mut search = Search {
        pattern,
        glob: glob
            .filter(|glob| !glob.is_empty())
            .map(Glob::new)
            .transpose()?,
        max: max.unwrap_or(DEFAULT_MATCHES).clamp(1, MAX_MATCHES),
        until: Instant::now() + TIMEOUT,
        base: if base.is_empty() {
            String::new()
        } else {
            format!("{}/", base.trim_end_matches('/'))
        },
        output: String::new(),
        matches: 0,
        stopped: None,
        skipped: BTreeMap::new(),
    };
    match target.dir.dir_at(&target.path, Links::Follow) {
        Ok(dir) => search.directory(&dir, "", 0)?,
        Err(Errno::NOTDIR) => search.file(target.open(Links::Follow)?, &base)?,
        Err(e) => return Err(target.error(e)),
    }
    Ok(text_reply(search.finish()))
}

const UNREADABLE: &str = "files or directories that cannot be read";

struct Search {
    pattern: Regex,
    glob: Option<Glob>,
    max: usize,
    until: Instant,
    /// Prefix of every path in the output.
    base: String,
    output: String,
    matches: usize,
    /// Why the search ended early.
    stopped: Option<&'static str>,
    /// Reasons why files were skipped or searched partially, with counts.
    skipped: BTreeMap<&'static str, usize>,
}

impl Search {
    /// Searches a directory. `prefix` is its path from the search's start.
    fn directory(&mut self, dir: &Dir, prefix: &str, depth: usize) -> Result<()> {
        for name in dir.names()? {
            if self.stopped.is_none() && Instant::now() > self.until {
                self.stopped = Some("stopped: not everything was searched in time");
            }
            if self.stopped.is_some() {
                break;
            }
            let Ok(stat) = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let own = shown(name.as_bytes());
            let path = format!("{prefix}{own}");
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if own == ".git" => {}
                FileType::Directory => match dir.dir_at(name.as_ref(), Links::Refuse) {
                    Ok(inner) if depth < MAX_DEPTH => {
                        self.directory(&inner, &format!("{path}/"), depth + 1)?;
                    }
                    _ => self.skip(UNREADABLE),
                },
                FileType::RegularFile
                    if self
                        .glob
                        .as_ref()
                        .is_none_or(|glob| glob.matches(&path, &own)) =>
                {
                    let name = Path::new(&name);
                    let path = format!("{}{path}", self.base);
                    let opened = dir.read(name, name, Links::Refuse);
                    if opened.and_then(|file| self.file(file, &path)).is_err() {
                        self.skip(UNREADABLE);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, file: fs_err::File, path: &str) -> Result<()> {
        let mut file = BufReader::new(file);
        if file.fill_buf()?.contains(&0) {
            self.skip("binary files skipped");
            return Ok(());
        }
        skip_bom(&mut file)?;
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let mut part = file.by_ref().take(MAX_LINE as u64);
            if part.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if line.len() == MAX_LINE && !line.ends_with(b"\n") {
                self.skip("lines searched only at their start");
                file.skip_until(b'\n')?;
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\n', '\r']);
            let Some(found) = self.pattern.find(text) else {
                continue;
            };
            if self.matches == self.max || self.output.len() > MAX_OUTPUT {
                self.stopped = Some("there are more matches");
                break;
            }
            self.output.push_str(&format!(
                "{path}:{number}:{}\n",
                excerpt(text, found.start())
            ));
            self.matches += 1;
        }
        Ok(())
    }

    fn skip(&mut self, what: &'static str) {
        *self.skipped.entry(what).or_default() += 1;
    }

    /// Returns the matches, and a line about skipped files.
    fn finish(mut self) -> String {
        let skipped = self.skipped.iter().map(|(what, n)| format!("{what}: {n}"));
        let stopped = self.stopped.map(str::to_owned);
        let notices: Vec<String> = stopped.into_iter().chain(skipped).collect();
        if self.matches == 0 {
            self.output.push_str("no matches\n");
        }
        if !notices.is_empty() {
            self.output.push_str(&format!("[{}]\n", notices.join("; ")));
        }
        self.output
    }
}
