//! Converts HTML to Markdown for a model, in one pass over the tags.
//!
//! Real pages omit end tags and cross them. The browsers' complete rules are long (WHATWG HTML, section 13.2.6); this module
//! has the rules that affect text.

mod buffer;
mod links;

use buffer::{Buffer, Gap};

use super::tokens::{Attributes, Token, tokens};
use crate::text::{fence, whole_words};

/// Elements that are not shown, or whose text is useless to a reader.
const HIDDEN: [&str; 14] = [
    "script", "style", "template", "svg", "iframe", "canvas", "audio", "video", "select",
    "datalist", "textarea", "dialog", "map", "noembed",
];
/// Elements and roles that surround the content.
const SURROUNDING: [&str; 3] = ["nav", "navigation", "search"];
/// Elements and roles that surround the content unless they are in it: an article may have notes, and a quotation its source.
const OUTSIDE: [&str; 4] = ["footer", "aside", "contentinfo", "complementary"];
/// Elements without content.
const VOID: [&str; 15] = [
    "area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param",
    "source", "track", "wbr",
];
/// Elements that start and end a paragraph.
const BLOCKS: &str = "address article aside blockquote caption center dd details div dl dt fieldset figcaption figure footer \
    form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav noframes ol p pre search section summary table tbody td \
    tfoot th thead tr ul";
/// Maximum nesting depth of elements; the text of deeper ones belongs to the deepest open one.
const MAX_OPEN: usize = 128;
/// Maximum number of elements of a page; the rest is dropped.
const MAX_ELEMENTS: usize = 200_000;
/// Maximum number of cells of a page; further cells become paragraphs.
const MAX_CELLS: usize = 20_000;
/// Maximum size of the output of a page or a part of it, in bytes.
const MAX_WRITTEN: usize = 1 << 20;
/// Maximum size of an address and of the title, in bytes.
const MAX_ADDRESS: usize = 2_000;
/// Minimum size of a page's content, in bytes.
const MIN_CONTENT: usize = 200;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Converted {
    pub title: String,
    pub markdown: String,
}

/// Converts a page from `base`, an absolute address.
pub(crate) fn convert(html: &str, base: &str) -> Converted {
    let content = Writer::new(base, true).convert(html);
    if content.markdown.len() >= MIN_CONTENT {
        return content;
    }
    // The whole page may have looked like a menu.
    Writer::new(base, false).convert(html)
}

/// Effect of an open element on its text or at its end.
enum Effect {
    Plain,
    Hidden,
    Title,
    Block,
    Heading,
    /// Marks around the text, and the start of the text if there is any.
    Mark {
        marks: [&'static str; 2],
        at: Option<usize>,
    },
    Link {
        at: Option<usize>,
        address: Option<String>,
        label: String,
        is_anchor: bool,
    },
    /// Number of the next item; `None` for an unordered list.
    List {
        next: Option<u64>,
    },
    Item,
    Definition,
    Quote,
    Table {
        has_head: bool,
    },
    Row(Vec<String>),
    Cell,
    Pre {
        language: String,
    },
    Main,
}

struct Open {
    name: String,
    effect: Effect,
    /// Bits for the elements around the content.
    inside: u16,
}

const IN_HIDDEN: u16 = 1;
const IN_TITLE: u16 = 1 << 1;
const IN_PRE: u16 = 1 << 2;
/// Within a `main`, an `article` or a quotation.
const IN_CONTENT: u16 = 1 << 3;
const IN_HEADING: u16 = 1 << 4;
const IN_LINK: u16 = 1 << 5;
/// Within an item of a list, except for items around a cell or a quotation.
const IN_ITEM: u16 = 1 << 6;
const IN_TABLE: u16 = 1 << 7;
/// Within a row of the innermost table.
const IN_ROW: u16 = 1 << 8;

impl Effect {
    /// Returns the bits for the content of an element, given the bits around the element.
    fn inside(&self, around: u16) -> u16 {
        match self {
            Self::Hidden => around | IN_HIDDEN,
            Self::Title => around | IN_TITLE,
            Self::Pre { .. } => around | IN_PRE,
            Self::Main => around | IN_CONTENT,
            Self::Quote => (around | IN_CONTENT) & !IN_ITEM,
            Self::Heading => around | IN_HEADING,
            Self::Link {
                address: Some(_), ..
            } => around | IN_LINK,
            Self::Item => around | IN_ITEM,
            Self::Cell | Self::Definition => around & !IN_ITEM,
            Self::Table { .. } => (around | IN_TABLE) & !IN_ROW,
            Self::Row(_) => around | IN_ROW,
            _ => around,
        }
    }
}

struct Writer {
    base: String,
    /// Whether to drop the parts around the content.
    only_content: bool,
    /// Output of the page, and of each part that is written separately.
    out: Vec<Buffer>,
    open: Vec<Open>,
    elements: usize,
    cells: usize,
    title: Option<String>,
    main: Option<String>,
    articles: Vec<String>,
}

/// Returns the trimmed value of an attribute, or `""`.
fn attribute<'a>(attributes: &'a Attributes, name: &str) -> &'a str {
    attributes.get(name).map_or("", |value| value.trim())
}

fn is_block(name: &str) -> bool {
    BLOCKS.split(' ').any(|block| block == name)
}

/// Returns the text before and after an element that marks its content.
fn marks(name: &str) -> Option<[&'static str; 2]> {
    Some(match name {
        "b" | "strong" => ["**"; 2],
        "i" | "em" => ["*"; 2],
        "del" | "s" | "strike" => ["~~"; 2],
        "code" | "kbd" | "samp" => ["`"; 2],
        "q" => ["“", "”"],
        _ => return None,
    })
}

fn heading(name: &str) -> Option<usize> {
    match name.as_bytes() {
        [b'h', level @ b'1'..=b'6'] => Some(usize::from(level - b'0')),
        _ => None,
    }
}

impl Writer {
    fn new(base: &str, only_content: bool) -> Self {
        Self {
            base: base.to_owned(),
            only_content,
            out: vec![Buffer::default()],
            open: Vec::new(),
            elements: 0,
            cells: 0,
            title: None,
            main: None,
            articles: Vec::new(),
        }
    }

    fn convert(mut self, html: &str) -> Converted {
        self.read(html, true);
        let page = self
            .out
            .pop()
            .map_or_else(String::new, |buffer| buffer.text);
        let article = match &self.articles[..] {
            [article] if article.len() >= MIN_CONTENT => Some(article),
            _ => None,
        };
        let content = if self.only_content {
            self.main.as_ref().or(article)
        } else {
            None
        };
        let markdown = content.unwrap_or(&page);
        let title = self.title.unwrap_or_default();
        let title: Vec<&str> = whole_words(&title, MAX_ADDRESS)
            .split_whitespace()
            .collect();
        Converted {
            title: title.join(" "),
            markdown: markdown.trim().to_owned(),
        }
    }

    /// Reads a page, or the markup in a `noscript`.
    fn read(&mut self, html: &str, is_page: bool) {
        let around = self.open.len();
        for token in tokens(html) {
            if self.elements > MAX_ELEMENTS {
                break;
            }
            // A title only contains text, even without an end tag.
            let in_title = matches!(
                self.open.last(),
                Some(Open {
                    effect: Effect::Title,
                    ..
                })
            );
            if in_title && !matches!(token, Token::Text(_)) {
                self.close_to(self.open.len() - 1);
            }
            match token {
                Token::Text(text) => match self.open.last() {
                    Some(open) if is_page && matches!(&*open.name, "noscript" | "noframes") => {
                        self.read(&text, false);
                    }
                    _ => self.text(&text),
                },
                Token::Start { name, .. } if matches!(&*name, "html" | "head" | "body") => {}
                Token::End(name) if matches!(&*name, "html" | "head" | "body") => {
                    self.close_to(around);
                }
                Token::Start {
                    name,
                    attributes,
                    self_closing,
                } => {
                    self.start(name, &attributes, self_closing, around);
                }
                Token::End(name) => self.end(&name, around),
            }
        }
        self.close_to(around);
    }

    fn buffer(&mut self) -> &mut Buffer {
        if self.out.is_empty() {
            self.out.push(Buffer::default());
        }
        let last = self.out.len() - 1;
        &mut self.out[last]
    }

    fn space(&mut self, gap: Gap) {
        self.buffer().space(gap);
    }

    fn push(&mut self, text: &str) {
        let begin = self.buffer().push(text);
        for open in self.open.iter_mut().rev() {
            match &mut open.effect {
                Effect::Mark { at, .. } | Effect::Link { at, .. } if at.is_none() => {
                    *at = Some(begin);
                }
                Effect::Mark { .. } | Effect::Link { .. } => break,
                Effect::Cell | Effect::Main | Effect::Pre { .. } => break,
                _ => {}
            }
        }
    }

    fn block(&mut self, text: &str, gap: Gap) {
        self.space(gap);
        if !text.is_empty() {
            self.push(text);
            self.space(gap);
        }
    }

    /// Whether the current position is in any of these places.
    fn is_in(&self, places: u16) -> bool {
        self.inside() & places != 0
    }

    fn inside(&self) -> u16 {
        self.open.last().map_or(0, |open| open.inside)
    }

    fn open(&mut self, name: String, effect: Effect) {
        let inside = effect.inside(self.inside());
        self.open.push(Open {
            name,
            effect,
            inside,
        });
    }

    fn text(&mut self, text: &str) {
        if self.is_in(IN_HIDDEN) {
            return;
        }
        if self.is_in(IN_TITLE) {
            self.title.get_or_insert_with(|| text.to_owned());
        } else if self.is_in(IN_PRE) {
            let buffer = self.buffer();
            let room = MAX_WRITTEN.saturating_sub(buffer.text.len());
            buffer.text.push_str(whole_words(text, room));
        } else {
            for (n, word) in text.split([' ', '\t', '\n', '\r', '\u{c}']).enumerate() {
                self.space(if n > 0 { Gap::Space } else { Gap::None });
                if !word.is_empty() {
                    self.push(word);
                }
            }
        }
    }

    fn start(&mut self, name: String, attributes: &Attributes, self_closing: bool, around: usize) {
        self.elements += 1;
        self.end_before(&name, around);
        let is_shown = !self.is_in(IN_HIDDEN);
        let is_empty = self_closing || VOID.contains(&&*name);
        let effect = if is_shown {
            self.effect(&name, attributes)
        } else {
            Effect::Plain
        };
        let is_deep = self.open.len() >= MAX_OPEN && !matches!(effect, Effect::Hidden);
        if is_deep && is_shown && is_block(&name) {
            self.space(Gap::Paragraph);
        }
        if is_deep {
            return;
        }
        if matches!(effect, Effect::Cell) && !self.is_in(IN_ROW) {
            self.open("tr".to_owned(), Effect::Row(Vec::new()));
        }
        self.begin(&name, &effect);
        self.open(name, effect);
        if is_empty {
            self.close_to(self.open.len() - 1);
        }
    }

    /// Returns the effect of an element, and writes its replacement if it has one.
    fn effect(&mut self, name: &str, attributes: &Attributes) -> Effect {
        let get = |name| attribute(attributes, name);
        if self.is_in(IN_PRE) {
            return self.effect_in_pre(name, get("class"));
        }
        if self.only_content && self.is_surrounding(name, get("role")) {
            self.space(Gap::Line);
            return Effect::Hidden;
        }
        if self.is_unseen(name, attributes) {
            return Effect::Hidden;
        }
        match name {
            "iframe" | "frame" => self.frame(attributes),
            "hr" => self.block("---", Gap::Paragraph),
            "img" => self.image(attributes),
            "input" => self.checkbox(attributes),
            _ => {}
        }
        if let Some(marks) = marks(name) {
            return Effect::Mark { marks, at: None };
        }
        match name {
            _ if HIDDEN.contains(&name) => Effect::Hidden,
            "title" => Effect::Title,
            "base" => {
                self.base = self.address(get("href")).unwrap_or_default();
                Effect::Plain
            }
            "br" => {
                let is_blank = self.buffer().gap >= Gap::Line;
                self.space(if is_blank { Gap::Paragraph } else { Gap::Line });
                Effect::Plain
            }
            "pre" => Effect::Pre {
                language: String::new(),
            },
            "table" => Effect::Table { has_head: false },
            "thead" | "tbody" | "tfoot" => Effect::Plain,
            "tr" if self.is_in(IN_TABLE) => Effect::Row(Vec::new()),
            "td" | "th" if self.is_in(IN_TABLE) && self.cells < MAX_CELLS => Effect::Cell,
            "ul" | "menu" => Effect::List { next: None },
            "ol" => Effect::List {
                next: Some(get("start").parse().unwrap_or(1)),
            },
            "li" => Effect::Item,
            "dd" => Effect::Definition,
            "blockquote" => Effect::Quote,
            "main" | "article" if !self.is_in(IN_CONTENT) => Effect::Main,
            "a" => self.link(attributes),
            "sup" if self.buffer().gap == Gap::None => Effect::Mark {
                marks: ["^", ""],
                at: None,
            },
            _ if heading(name).is_some() => Effect::Heading,
            _ if is_block(name) => Effect::Block,
            _ => Effect::Plain,
        }
    }

    fn effect_in_pre(&mut self, name: &str, class: &str) -> Effect {
        if name == "br" {
            self.buffer().text.push('\n');
        }
        let named = if name == "code" && self.buffer().text.is_empty() {
            let mut classes = class.split_whitespace();
            classes.find_map(|class| class.strip_prefix("language-"))
        } else {
            None
        };
        let open = self.open.last_mut().map(|open| &mut open.effect);
        if let (Some(named), Some(Effect::Pre { language })) = (named, open) {
            whole_words(named, 40).clone_into(language);
        }
        if HIDDEN.contains(&name) {
            Effect::Hidden
        } else {
            Effect::Plain
        }
    }

    fn is_surrounding(&self, name: &str, role: &str) -> bool {
        let is = |names: &[&str]| names.contains(&name) || names.contains(&role);
        is(&SURROUNDING) || is(&OUTSIDE) && !self.is_in(IN_CONTENT)
    }

    fn is_unseen(&self, name: &str, attributes: &Attributes) -> bool {
        let hidden = attributes.get("hidden");
        // A button may be a heading that expands the content after it.
        let unfolds = self.is_in(IN_HEADING)
            || attributes.contains_key("aria-expanded") && self.is_in(IN_CONTENT);
        hidden.is_some_and(|until| until != "until-found")
            || attribute(attributes, "aria-hidden") == "true"
            || matches!(attribute(attributes, "role"), "dialog" | "alertdialog")
            || name == "button" && !unfolds
            || attribute(attributes, "class") == "mw-editsection"
    }

    fn begin(&mut self, name: &str, effect: &Effect) {
        match effect {
            Effect::Block | Effect::Table { .. } => self.space(Gap::Paragraph),
            Effect::List { .. } => {
                let gap = if self.is_in(IN_ITEM) {
                    Gap::Line
                } else {
                    Gap::Paragraph
                };
                self.space(gap);
            }
            Effect::Item => {
                let marker = self.marker();
                let other = " ".repeat(marker.len());
                self.buffer().begin(Gap::Line, marker, other);
            }
            Effect::Definition => self
                .buffer()
                .begin(Gap::Line, ": ".to_owned(), String::new()),
            Effect::Quote => self
                .buffer()
                .begin(Gap::Paragraph, "> ".to_owned(), "> ".to_owned()),
            Effect::Heading => {
                let marker = "#".repeat(heading(name).unwrap_or(1)) + " ";
                self.buffer().begin(Gap::Paragraph, marker, String::new());
                self.buffer().is_line = true;
            }
            Effect::Cell => {
                self.cells += 1;
                self.out.push(Buffer::default());
            }
            Effect::Main | Effect::Pre { .. } => self.out.push(Buffer::default()),
            _ => {}
        }
    }

    /// Returns the marker of the next item of the innermost list.
    fn marker(&mut self) -> String {
        let lists = self
            .open
            .iter_mut()
            .rev()
            .find_map(|open| match &mut open.effect {
                Effect::List { next } => Some(next),
                _ => None,
            });
        match lists {
            Some(Some(number)) => {
                let marker = format!("{number}. ");
                *number = number.saturating_add(1);
                marker
            }
            _ => "- ".to_owned(),
        }
    }

    /// Closes the innermost elements until `count` remain open.
    fn close_to(&mut self, count: usize) {
        while self.open.len() > count {
            if let Some(open) = self.open.pop() {
                self.close(&open.name, open.effect);
            }
        }
    }

    fn close(&mut self, name: &str, effect: Effect) {
        match effect {
            Effect::Plain | Effect::Hidden | Effect::Title => {}
            Effect::Block if name == "dt" => self.space(Gap::Line),
            Effect::Block | Effect::Table { .. } => self.space(Gap::Paragraph),
            Effect::List { .. } => {
                let gap = if self.is_in(IN_ITEM) {
                    Gap::Line
                } else {
                    Gap::Paragraph
                };
                self.space(gap);
            }
            Effect::Item | Effect::Definition => self.buffer().end(Gap::Line),
            Effect::Quote => self.buffer().end(Gap::Paragraph),
            Effect::Heading => {
                self.buffer().is_line = false;
                self.buffer().end(Gap::Paragraph);
            }
            Effect::Mark { marks, at } => {
                if let Some(at) = at {
                    self.mark(at, marks);
                }
            }
            Effect::Link {
                at,
                address,
                label,
                is_anchor,
            } => match (at, address) {
                (None, Some(address)) if !label.is_empty() => {
                    self.push(&format!("[{label}]({address})"));
                }
                (Some(at), address) => self.finish_link(at, address.as_deref(), is_anchor),
                _ => {}
            },
            Effect::Cell => {
                let cell = self
                    .out
                    .pop()
                    .map_or_else(String::new, |buffer| buffer.text);
                for open in self.open.iter_mut().rev() {
                    if let Effect::Row(cells) = &mut open.effect {
                        cells.push(cell.trim().to_owned());
                        break;
                    }
                }
            }
            Effect::Row(cells) => self.row(&cells),
            Effect::Pre { language } => self.code_block(&language),
            Effect::Main => {
                let part = self
                    .out
                    .pop()
                    .map_or_else(String::new, |buffer| buffer.text);
                self.block(&part, Gap::Paragraph);
                match name {
                    "article" => self.articles.push(part),
                    _ if part.len() >= MIN_CONTENT => drop(self.main.get_or_insert(part)),
                    _ => {}
                }
            }
        }
    }

    fn mark(&mut self, at: usize, [begin, end]: [&'static str; 2]) {
        let text = &mut self.buffer().text;
        let inner = &text[at..];
        let is_power = inner.starts_with(|c: char| c.is_ascii_digit() || "+-−(".contains(c))
            && text[..at].ends_with(|c: char| c.is_alphanumeric() || "*`)".contains(c));
        if inner.is_empty() || inner.contains('\n') || begin == "^" && !is_power {
            return;
        }
        let [begin, end] = if begin == "`" && inner.contains('`') {
            ["`` ", " ``"]
        } else {
            [begin, end]
        };
        text.insert_str(at, begin);
        text.push_str(end);
    }

    /// Writes the checkbox of an item.
    fn checkbox(&mut self, attributes: &Attributes) {
        let is_first = self
            .buffer()
            .prefixes
            .last()
            .is_some_and(|prefix| !prefix.is_written);
        if is_first && attribute(attributes, "type") == "checkbox" {
            let is_checked = attributes.contains_key("checked");
            self.push(if is_checked { "[x]" } else { "[ ]" });
            self.space(Gap::Space);
        }
    }

    fn code_block(&mut self, language: &str) {
        let text = self
            .out
            .pop()
            .map_or_else(String::new, |buffer| buffer.text);
        // The first line end after the tag is ignored.
        let text = text.strip_prefix('\n').unwrap_or(&text).trim_end();
        if !text.is_empty() {
            let fence = fence(text);
            self.block(
                &format!("{fence}{language}\n{text}\n{fence}"),
                Gap::Paragraph,
            );
        }
    }

    /// Writes a row: as a row of a table if it has data, or as paragraphs if it is only layout.
    fn row(&mut self, cells: &[String]) {
        let table = self
            .open
            .iter_mut()
            .rev()
            .find_map(|open| match &mut open.effect {
                Effect::Table { has_head } => Some(has_head),
                _ => None,
            });
        let mut no_table = false;
        let has_head = table.unwrap_or(&mut no_table);
        let filled = cells.iter().filter(|cell| !cell.is_empty());
        let is_data = filled.clone().all(|cell| !cell.contains('\n'))
            && filled.clone().count() > usize::from(!*has_head);
        if !is_data {
            for cell in filled {
                self.block(cell, Gap::Paragraph);
            }
            return;
        }
        let is_head = !std::mem::replace(has_head, true);
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        self.block(&format!("| {} |", cells.join(" | ")), Gap::Line);
        if is_head {
            self.block(&format!("|{}", " --- |".repeat(cells.len())), Gap::Line);
        }
    }

    /// Closes elements that end implicitly where this element starts.
    fn end_before(&mut self, name: &str, around: usize) {
        match name {
            "li" => self.close_within(&["ul", "ol", "menu", "table"], &["li"], around),
            "dt" | "dd" => self.close_within(&["dl", "table"], &["dt", "dd"], around),
            "td" | "th" => self.close_within(&["table"], &["td", "th", "caption"], around),
            "tr" => self.close_within(&["table"], &["tr", "td", "th", "caption"], around),
            "thead" | "tbody" | "tfoot" => {
                let ended = ["thead", "tbody", "tfoot", "tr", "td", "th", "caption"];
                self.close_within(&["table"], &ended, around);
            }
            "a" => self.close_within(&["td", "th"], &["a"], around),
            _ => {}
        }
        if is_block(name) {
            self.close_within(&["td", "th", "caption", "button"], &["p"], around);
        }
    }

    /// Closes the outermost element with one of these names inside the innermost one of `limits`.
    fn close_within(&mut self, limits: &[&str], names: &[&str], around: usize) {
        let limit = self
            .open
            .iter()
            .rposition(|open| limits.contains(&&*open.name));
        let from = limit.map_or(0, |at| at + 1).max(around);
        let mut inner = self.open.iter().enumerate().skip(from);
        if let Some((at, _)) = inner.find(|(_, open)| names.contains(&&*open.name)) {
            self.close_to(at);
        }
    }

    /// Closes the element of an end tag and the elements in it, but never crosses a table or list. Emphasis and links do not
    /// end a block.
    fn end(&mut self, name: &str, around: usize) {
        let is_meant = |open: &Open| {
            open.name == name || heading(name).is_some() && heading(&open.name).is_some()
        };
        let is_limit = |open: &Open| match name {
            "table" => false,
            "li" => matches!(&*open.name, "ul" | "ol" | "menu" | "table"),
            _ if is_block(name) => open.name == "table",
            _ => is_block(&open.name),
        };
        for at in (around..self.open.len()).rev() {
            if is_meant(&self.open[at]) {
                return self.close_to(at);
            }
            if is_limit(&self.open[at]) {
                return;
            }
        }
    }
}
