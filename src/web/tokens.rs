//! Splits HTML into tags and text, with the parts of the HTML standard that pages depend on (WHATWG HTML, section 13.2.5).
//!
//! Custom code, because html5gum, with every state and all 2,231 named characters, adds 240 KB to the binary.

use std::collections::BTreeMap;

use super::entities::named_character;

/// Elements whose content is text up to their end tag.
const RAW: [&str; 5] = ["script", "style", "iframe", "noembed", "textarea"];
/// Maximum number of attributes of a tag; the rest is dropped.
const MAX_ATTRIBUTES: usize = 100;

/// Names in lower case, and values with decoded characters.
pub(super) type Attributes = BTreeMap<String, String>;

#[derive(Debug, PartialEq)]
pub(super) enum Token {
    Start {
        name: String,
        attributes: Attributes,
    },
    End(String),
    Text(String),
}

pub(super) struct Tokens<'a> {
    rest: &'a str,
    /// Element whose raw text follows.
    raw: Option<String>,
}

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
                return Some(Token::Text(text.to_owned()));
            }
        }
        let is_letter = |c: char| c.is_ascii_alphabetic();
        while !self.rest.is_empty() {
            let after = self.rest.strip_prefix('<').unwrap_or_default();
            let name = after.strip_prefix('/').unwrap_or(after);
            if name.starts_with(is_letter) {
                return Some(self.tag(after.starts_with('/')));
            }
            if after.starts_with("!--") {
                // `<!-->` is also a comment.
                let end = after[1..].find("-->");
                self.take(end.map_or(self.rest.len(), |end| end + "<!-->".len()));
            } else if after.starts_with(['!', '?', '/']) {
                self.take_until(|c| c == '>');
                self.take(1);
            } else {
                // A `<` that does not start a tag is text.
                let start = usize::from(self.rest.starts_with('<'));
                let end = self.rest[start..].find('<');
                let text = self.take(end.map_or(self.rest.len(), |end| start + end));
                return Some(Token::Text(decode(text)));
            }
        }
        None
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
        loop {
            self.take_until(|c| !c.is_ascii_whitespace() && c != '/');
            if self.rest.is_empty() || self.rest.starts_with('>') {
                break;
            }
            let is_end = |c: char| c.is_ascii_whitespace() || "/>=".contains(c);
            // A stray `=` starts a name.
            let first = self.take(self.rest.chars().next().map_or(0, char::len_utf8));
            let attribute = format!("{first}{}", self.take_until(is_end)).to_ascii_lowercase();
            let value = self.value();
            if attributes.len() < MAX_ATTRIBUTES {
                attributes.entry(attribute).or_insert(value);
            }
        }
        self.take(1);
        if is_end {
            return Token::End(name);
        }
        if RAW.contains(&&*name) {
            self.raw = Some(name.clone());
        }
        Token::Start { name, attributes }
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
    let is_end = |at: &usize| {
        let after = text.as_bytes().get(at + 2..at + 2 + name.len());
        after.is_some_and(|after| after.eq_ignore_ascii_case(name.as_bytes()))
    };
    let mut ends = text.match_indices("</").map(|(at, _)| at);
    ends.find(is_end).unwrap_or(text.len())
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
