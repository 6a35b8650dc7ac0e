//! Splits HTML into tags and text, with the parts of the HTML standard that pages depend on (WHATWG HTML, section 13.2.5).
//!
//! Custom code, because html5gum, with every state and all 2,231 named characters, adds 240 KB to the binary.

use std::collections::BTreeMap;

use super::entities::named_character;
use crate::text::whole_words;

/// Elements whose content is text up to their end tag.
const RAW: [&str; 7] = [
    "script", "style", "xmp", "iframe", "noembed", "title", "textarea",
];
/// Raw elements whose text may contain character references such as `&amp;`.
const ESCAPABLE: [&str; 2] = ["title", "textarea"];

/// Names in lower case, and values with decoded characters.
pub(super) type Attributes = BTreeMap<String, String>;

#[derive(Debug, PartialEq)]
pub(super) enum Token {
    Start {
        name: String,
        attributes: Attributes,
        self_closing: bool,
    },
    End(String),
    Text(String),
}

pub(super) struct Tokens<'a> {
    rest: &'a str,
    /// Element whose raw text follows.
    raw: Option<String>,
}

/// Maximum length of a title, in bytes; a longer title counts as unclosed.
const MAX_TITLE: usize = 500;
/// Maximum number of attributes of a tag; the rest is dropped.
const MAX_ATTRIBUTES: usize = 100;

pub(super) fn tokens(html: &str) -> Tokens<'_> {
    Tokens {
        rest: html,
        raw: None,
    }
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        if let Some(name) = self.raw.take() {
            let text = self.take(end_of_raw(self.rest, &name));
            if !text.is_empty() {
                return Some(Token::Text(if ESCAPABLE.contains(&&*name) {
                    decode(text)
                } else {
                    text.to_owned()
                }));
            }
        }
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let after = self.rest.strip_prefix('<').unwrap_or_default();
            let is_end = after.starts_with('/');
            let name = after.trim_start_matches('/');
            if after.starts_with("!--") {
                // `<!-->` is also a comment.
                let end = after.get(1..).and_then(|comment| comment.find("-->"));
                self.take(end.map_or(self.rest.len(), |end| end + "<!-->".len()));
            } else if after.starts_with(['!', '?'])
                || (is_end && !name.starts_with(|c: char| c.is_ascii_alphabetic()))
            {
                let end = self.rest.find('>');
                self.take(end.map_or(self.rest.len(), |end| end + 1));
            } else if name.starts_with(|c: char| c.is_ascii_alphabetic())
                && after.len() - name.len() <= 1
            {
                return Some(self.tag(is_end));
            } else {
                // A `<` that does not start a tag is text.
                let end = self
                    .rest
                    .char_indices()
                    .skip(1)
                    .find(|(_, c)| *c == '<')
                    .map_or(self.rest.len(), |(at, _)| at);
                return Some(Token::Text(decode(self.take(end))));
            }
        }
    }
}

impl<'a> Tokens<'a> {
    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn take_until(&mut self, is_end: impl Fn(char) -> bool) -> &'a str {
        self.take(self.rest.find(is_end).unwrap_or(self.rest.len()))
    }

    fn tag(&mut self, is_end: bool) -> Token {
        self.take(if is_end { 2 } else { 1 });
        let name = self
            .take_until(|c| c.is_ascii_whitespace() || c == '/' || c == '>')
            .to_ascii_lowercase();
        let mut attributes = Attributes::new();
        let self_closing = loop {
            let space = self.take_until(|c| !c.is_ascii_whitespace() && c != '/');
            if self.rest.is_empty() || self.rest.starts_with('>') {
                self.take(1);
                break space.ends_with('/');
            }
            let is_end = |c: char| c.is_ascii_whitespace() || "/>=".contains(c);
            // A stray `=` starts a name.
            let first = self.take(self.rest.chars().next().map_or(0, char::len_utf8));
            let attribute = format!("{first}{}", self.take_until(is_end)).to_ascii_lowercase();
            let value = self.value();
            if attributes.len() < MAX_ATTRIBUTES {
                attributes.entry(attribute).or_insert(value);
            }
        };
        if is_end {
            return Token::End(name);
        }
        if RAW.contains(&&*name) && !self_closing {
            self.raw = Some(name.clone());
        }
        Token::Start {
            name,
            attributes,
            self_closing,
        }
    }

    /// Returns the value of an attribute; empty if it has none.
    fn value(&mut self) -> String {
        let after_name = self.rest.trim_start();
        let Some(value) = after_name.strip_prefix('=') else {
            return String::new();
        };
        self.rest = value.trim_start();
        let quote = self.rest.chars().next().filter(|c| *c == '"' || *c == '\'');
        let Some(quote) = quote else {
            return decode(self.take_until(|c| c.is_ascii_whitespace() || c == '>'));
        };
        self.take(1);
        let value = decode(self.take_until(|c| c == quote));
        self.take(1);
        value
    }
}

/// Returns the start of a raw element's end tag.
fn end_of_raw(text: &str, name: &str) -> usize {
    let is_title = name == "title";
    let searched = if is_title {
        whole_words(text, MAX_TITLE)
    } else {
        text
    };
    let mut ends = searched.match_indices("</").filter(|(at, _)| {
        let after = text.as_bytes().get(at + 2..).unwrap_or_default();
        let is_name = after
            .get(..name.len())
            .is_some_and(|tag| tag.eq_ignore_ascii_case(name.as_bytes()));
        is_name
            && after
                .get(name.len())
                .is_none_or(|b| b.is_ascii_whitespace() || b"/>".contains(b))
    });
    match ends.next() {
        Some((at, _)) => at,
        // An unclosed title would swallow the page.
        None if is_title => text.find('<').unwrap_or(text.len()),
        None => text.len(),
    }
}

/// Decodes `&amp;`, `&#8212;` and `&#x2014;`; unknown references remain unchanged.
fn decode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let end = after
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '#')
            .unwrap_or(after.len());
        let (name, behind) = after.split_at(end);
        match named_character(name, behind.starts_with(';')) {
            Some(character) => {
                out.push(character);
                rest = behind.strip_prefix(';').unwrap_or(behind);
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out + rest
}
