//! Long results in pages: the first goes into the conversation, the others wait for `read_more` until the turn ends.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::Value;

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn, arguments};
use crate::error::{Error, Result};
use crate::text::{clip, one_line};

/// What one result may put into the conversation, in bytes, with the line that says which page it is.
const MOST: usize = 30_000;
/// The text of a page, in bytes.
const PAGE: usize = MOST - 200;
/// What is kept for one turn, in bytes: beyond it the oldest results go. The newest always stays.
const MOST_KEPT: usize = 8 << 20;

/// The long results of one turn.
#[derive(Default)]
pub struct Pages {
    kept: Mutex<VecDeque<Long>>,
}

struct Long {
    id: String,
    text: String,
    /// Where each page ends.
    ends: Vec<usize>,
}

impl Pages {
    /// `text` as it goes into the conversation: whole, or its first page, with the rest kept under `id`.
    pub fn fold(&self, id: &str, text: String) -> String {
        if text.len() <= MOST {
            return text;
        }
        let long = Long { id: id.to_owned(), ends: page_ends(&text), text };
        let first = long.page(1);
        let mut kept = self.lock();
        kept.push_back(long);
        while kept.len() > 1 && kept.iter().map(|long| long.text.len()).sum::<usize>() > MOST_KEPT {
            kept.pop_front();
        }
        first
    }

    /// One page of a kept result.
    pub fn page(&self, id: &str, page: usize) -> Result<String> {
        let kept = self.lock();
        let Some(long) = kept.iter().find(|long| long.id == id.trim()) else {
            let ids: Vec<&str> = kept.iter().map(|long| long.id.as_str()).collect();
            let those = if ids.is_empty() { "none of its results has more" } else { "those with more are: " };
            return Err(Error::failed(format!(
                "this turn has no pages of \"{}\" ({those}{}); pages are kept for one turn, so call the tool again",
                one_line(id, 40),
                ids.join(", ")
            )));
        };
        if page == 0 || page > long.ends.len() {
            return Err(Error::failed(format!("{id} has the pages 1 to {}, and no page {page}", long.ends.len())));
        }
        Ok(long.page(page))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Long>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Long {
    /// `page` counts from 1 and is there.
    fn page(&self, page: usize) -> String {
        let start = if page > 1 { self.ends[page - 2] } else { 0 };
        let (text, id, pages) = (&self.text[start..self.ends[page - 1]], &self.id, self.ends.len());
        let line_end = if text.ends_with('\n') { "" } else { "\n" };
        let more = match page {
            1 => format!("{} bytes in all; for the next: read_more", self.text.len()),
            _ if page == pages => return format!("{text}{line_end}[page {page} of {pages} of {id}, the last]"),
            _ => "for the next: read_more".to_owned(),
        };
        let next = page + 1;
        format!("{text}{line_end}[page {page} of {pages} of {id}, {more} {{\"result_id\":\"{id}\",\"page\":{next}}}]")
    }
}

/// Where the pages of `text` end: after a line, unless that would leave a page less than half full.
fn page_ends(text: &str) -> Vec<usize> {
    let (mut ends, mut start) = (Vec::new(), 0);
    while text.len() - start > PAGE {
        let full = clip(&text[start..], PAGE);
        let line_end = full.rfind('\n').map(|at| at + 1).filter(|at| *at > PAGE / 2);
        start += line_end.unwrap_or(full.len());
        ends.push(start);
    }
    ends.push(text.len());
    ends
}

const SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"#,
    r#""result_id":{"type":"string","description":"As the page before tells it"},"#,
    r#""page":{"type":"integer","minimum":1,"description":"The first page is 1"}},"#,
    r#""required":["result_id","page"]}"#
);

/// The tool that gives the other pages. Every agent that has tools has it.
pub struct ReadMore {
    spec: ToolSpec,
}

impl ReadMore {
    pub const NAME: &str = "read_more";

    pub fn new() -> Self {
        let spec = ToolSpec {
            name: Self::NAME.into(),
            description: "Get another page of a result of this turn that was too long to give at once.".into(),
            schema: SCHEMA.into(),
            risk: Risk::Safe,
            source: "built in".into(),
        };
        Self { spec }
    }
}

impl Default for ReadMore {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Deserialize)]
struct Args {
    result_id: String,
    page: usize,
}

impl Tool for ReadMore {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn summary(&self, args: &Value) -> String {
        let id = args.get("result_id").and_then(Value::as_str).unwrap_or_default();
        format!("{} page {}", one_line(id, 40), args.get("page").unwrap_or(&Value::Null))
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        let Args { result_id, page } = arguments(args)?;
        Ok(ToolOutput::text(turn.pages.page(&result_id, page)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages of `text` without the lines that say which they are.
    fn read(text: &str) -> Vec<String> {
        let pages = Pages::default();
        let first = pages.fold("r1", text.to_owned());
        let count = page_ends(text).len();
        let mut all = vec![first];
        all.extend((2..=count).map(|n| pages.page("r1", n).unwrap()));
        assert!(pages.page("r1", count + 1).is_err() && pages.page("r1", 0).is_err());
        assert_eq!(pages.page("r1", 1).unwrap(), all[0]);
        all.iter()
            .enumerate()
            .map(|(n, page)| {
                assert!(page.len() <= MOST, "{} bytes", page.len());
                let (text, note) = page.rsplit_once("[page ").unwrap();
                assert!(note.starts_with(&format!("{} of {count} of r1, ", n + 1)), "{note}");
                text.to_owned()
            })
            .collect()
    }

    #[test]
    fn what_fits_is_left_alone() {
        let pages = Pages::default();
        let text = "x".repeat(MOST);
        assert_eq!(pages.fold("r1", text.clone()), text);
        let e = pages.page("r1", 1).unwrap_err();
        assert!(e.message.contains("no pages of \"r1\"") && e.message.contains("call the tool again"), "{}", e.message);
    }

    #[test]
    fn pages_end_with_a_line_and_together_are_the_text() {
        let text = (0..9_000).map(|n| format!("line {n} of the text")).collect::<Vec<_>>().join("\n") + "\n";
        let pages = read(&text);
        assert_eq!(pages.len(), text.len().div_ceil(PAGE));
        assert!(pages.iter().all(|page| page.ends_with('\n')));
        assert_eq!(pages.concat(), text);
    }

    #[test]
    fn a_line_longer_than_a_page_is_split_between_characters() {
        let text = "日本語".repeat(20_000);
        let pages = read(&text);
        assert_eq!(pages.iter().map(|page| page.trim_end_matches('\n')).collect::<String>(), text);
        let text = format!("short\n{}\nlast", "é".repeat(40_000));
        assert_eq!(read(&text).concat().replace('\n', ""), text.replace('\n', ""));
    }

    #[test]
    fn the_oldest_results_go_when_there_is_too_much() {
        let pages = Pages::default();
        for n in 0..4 {
            assert!(pages.fold(&format!("r{n}"), "x".repeat(MOST_KEPT / 3)).contains("of r"));
        }
        assert!(pages.page("r0", 2).unwrap_err().message.contains("r1, r2, r3"));
        assert!(pages.page("r1", 2).is_ok() && pages.page(" r3", 2).is_ok());
        // One that is larger than all there may be is still there for the model that has just asked for it.
        assert!(pages.fold("huge", "x".repeat(MOST_KEPT + 1)).contains("of huge"));
        assert!(pages.page("huge", 2).is_ok() && pages.page("r3", 2).is_err());
    }
}
