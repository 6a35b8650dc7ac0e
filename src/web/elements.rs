//! The elements of a page, one within another, as far as a reader depends on it: pages in the wild leave out end tags and
//! cross them. A browser's rules for that fill a book (WHATWG HTML, section 13.2.6); these are the ones that text needs.

use super::tokens::{Attributes, Token, tokens};

/// Elements within one another; what is deeper counts to the deepest. Reading and writing a page recurses this far.
const MAX_DEPTH: usize = 128;
/// Elements of one page; what comes after them is left out.
const MAX_ELEMENTS: usize = 200_000;
/// Elements that have no content.
const VOID: [&str; 15] = [
    "area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param",
    "source", "track", "wbr",
];
/// Elements that begin and end a paragraph.
const BLOCKS: &str = "address article aside blockquote caption center dd details div dl dt fieldset figcaption figure footer \
    form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav noframes ol p pre search section summary table tbody td \
    tfoot th thead tr ul";
/// Elements whose beginning means nothing to a reader, and whose end ends all others.
const TRANSPARENT: [&str; 3] = ["html", "head", "body"];

fn is_block(name: &str) -> bool {
    BLOCKS.split(' ').any(|block| block == name)
}

pub(super) enum Node {
    Text(String),
    Element(Element),
}

#[derive(Default)]
pub(super) struct Element {
    /// In lower case.
    pub name: String,
    pub attributes: Attributes,
    pub children: Vec<Node>,
}

impl Element {
    /// An attribute, or `""`.
    pub(super) fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    pub(super) fn is_block(&self) -> bool {
        is_block(&self.name)
    }

    fn is_one_of(&self, names: &[&str]) -> bool {
        names.contains(&&*self.name)
    }
}

/// Reads a page; the element it returns stands for the whole.
pub(super) fn parse(html: &str) -> Element {
    read(html, true)
}

/// What stands in a `noscript` or `noframes` is markup, too, but not within another.
fn read(html: &str, is_page: bool) -> Element {
    let mut open = vec![Element::default()];
    let mut elements = 0;
    for token in tokens(html) {
        if elements == MAX_ELEMENTS {
            break;
        }
        // A title holds text alone, also one without an end.
        if !matches!(token, Token::Text(_))
            && open.last().is_some_and(|element| element.name == "title")
        {
            close(&mut open, 1);
        }
        match token {
            Token::Text(text) => {
                let Some(parent) = open.last_mut() else {
                    continue;
                };
                match &*parent.name {
                    "noscript" | "noframes" if is_page => {
                        parent.children.extend(read(&text, false).children);
                    }
                    _ => match parent.children.last_mut() {
                        // A `<` that begins no tag is a token of its own.
                        Some(Node::Text(before)) => before.push_str(&text),
                        _ => parent.children.push(Node::Text(text)),
                    },
                }
            }
            Token::Start { name, .. } if TRANSPARENT.contains(&&*name) => {}
            Token::End(name) if TRANSPARENT.contains(&&*name) => {
                let depth = open.len() - 1;
                close(&mut open, depth);
            }
            Token::Start {
                name,
                attributes,
                self_closing,
            } => {
                elements += 1;
                end_before(&mut open, &name);
                let is_empty = self_closing || VOID.contains(&&*name) || open.len() == MAX_DEPTH;
                open.push(Element {
                    name,
                    attributes,
                    children: Vec::new(),
                });
                if is_empty {
                    close(&mut open, 1);
                }
            }
            Token::End(name) => end(&mut open, &name),
        }
    }
    let depth = open.len() - 1;
    close(&mut open, depth);
    open.remove(0)
}

/// Closes the innermost `count` elements.
fn close(open: &mut Vec<Element>, count: usize) {
    for _ in 0..count {
        let closed = open.pop();
        let parent = open.last_mut().map(|parent| &mut parent.children);
        parent
            .into_iter()
            .zip(closed)
            .for_each(|(children, element)| children.push(Node::Element(element)));
    }
}

/// Closes what the beginning of an element ends, though it has no end tag.
fn end_before(open: &mut Vec<Element>, name: &str) {
    let mut close_within = |limits: &[&str], ended: &[&str]| {
        let floor = open
            .iter()
            .rposition(|element| element.is_one_of(limits))
            .map_or(1, |at| at + 1);
        if let Some(n) = open[floor.min(open.len())..]
            .iter()
            .position(|element| element.is_one_of(ended))
        {
            let count = open.len() - floor - n;
            close(open, count);
        }
    };
    match name {
        "li" => close_within(&["ul", "ol", "menu", "table"], &["li"]),
        "dt" | "dd" => close_within(&["dl", "table"], &["dt", "dd"]),
        "td" | "th" => close_within(&["table"], &["td", "th", "caption"]),
        "tr" => close_within(&["table"], &["tr", "td", "th", "caption"]),
        "thead" | "tbody" | "tfoot" => {
            close_within(
                &["table"],
                &["thead", "tbody", "tfoot", "tr", "td", "th", "caption"],
            );
        }
        "a" => close_within(&["td", "th"], &["a"]),
        _ => {}
    }
    if is_block(name) {
        close_within(&["td", "th", "caption", "button"], &["p"]);
    }
}

/// Closes the element that an end tag names and those within it, but nothing around the table that the tag stands in;
/// emphasis and links do not end a block.
fn end(open: &mut Vec<Element>, name: &str) {
    let is_heading = |name: &str| matches!(name.as_bytes(), [b'h', b'1'..=b'6']);
    let is_meant =
        |element: &Element| element.name == name || (is_heading(name) && is_heading(&element.name));
    let is_limit = |element: &Element| match name {
        "table" => false,
        "li" => element.is_one_of(&["ul", "ol", "menu", "table"]),
        _ if is_block(name) => element.name == "table",
        _ => element.is_block(),
    };
    let found = open
        .iter()
        .skip(1)
        .rev()
        .take_while(|element| is_meant(element) || !is_limit(element));
    if let Some(n) = found.into_iter().position(is_meant) {
        close(open, n + 1);
    }
}
