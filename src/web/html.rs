//! HTML to Markdown, for a model to read.
//!
//! No tree is built, because pages in the wild rarely nest as they should and a reader
//! cares about the text. What a browser does not show is left out, and so is what surrounds the content (menus, page
//! headers and footers, forms) if something is left without it.

mod table;

use super::address;
use super::tokens::{Attributes, Token, tokens};
use table::Table;

/// Elements whose text is not shown, or is of no use to a reader.
const HIDDEN: [&str; 18] = [
    "script", "style", "template", "svg", "math", "head", "iframe", "object", "canvas", "audio", "video", "select",
    "datalist", "textarea", "button", "dialog", "map", "noembed",
];
/// Elements that surround the content.
const SURROUNDING: [&str; 3] = ["nav", "footer", "aside"];
/// Landmark roles that mean the same.
const SURROUNDING_ROLES: [&str; 4] = ["navigation", "contentinfo", "complementary", "search"];
/// Elements that never have an end tag.
const VOID: [&str; 14] =
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"];
/// Elements whose end tag is often left out, so that what would hide them would hide the rest of the page.
const OPEN_ENDED: [&str; 8] = ["p", "li", "dt", "dd", "tr", "td", "th", "body"];
/// What begins and ends a paragraph, beside the elements with a meaning of their own.
const BLOCKS: [&str; 24] = [
    "address",
    "article",
    "aside",
    "body",
    "caption",
    "center",
    "details",
    "div",
    "dl",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "header",
    "hgroup",
    "html",
    "legend",
    "main",
    "nav",
    "p",
    "section",
    "summary",
    "search",
];
/// Text shorter than this, in bytes, is not taken for the content of a page without a look at the rest.
const ENOUGH: usize = 1_000;
/// Levels of lists, quotations and tables within one another.
const MAX_DEPTH: usize = 32;

/// A page as a person would note it down.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub title: String,
    pub markdown: String,
}

/// Converts a page that came from `base`, an absolute address.
pub(crate) fn convert(html: &str, base: &str) -> Page {
    let content = Writer::run(html, base, true);
    if content.markdown.len() >= ENOUGH {
        return content;
    }
    // What looked like a menu may be all there is.
    let whole = Writer::run(html, base, false);
    if whole.markdown.len() > content.markdown.len() * 4 { whole } else { content }
}

/// An inline element that is open, and where in the text it began.
struct Inline {
    name: String,
    start: usize,
    /// Of a link.
    href: String,
}

/// A block that prefixes the lines within it, or collects them.
enum Block {
    Quote,
    /// The number of the next item; `None` for bullets.
    List(Option<u64>),
    /// The indentation of an item's further lines.
    Item(usize),
    Table(Table),
}

/// What becomes of text.
#[derive(Default, PartialEq)]
enum Text {
    /// It flows, and white space is one space.
    #[default]
    Flowing,
    /// It is kept as it is, in `pre`.
    Verbatim,
    Title,
    /// Markup, which the tokenizer takes for plain text, as a browser does that runs scripts.
    Noscript,
}

#[derive(Default)]
struct Writer {
    base: String,
    /// Leave out what surrounds the content.
    only_content: bool,
    title: Option<String>,
    text: String,
    inlines: Vec<Inline>,
    blocks: Vec<Block>,
    /// Line ends that are due before the next text.
    breaks: usize,
    /// The hidden element that is open, and how many of its name within one another.
    hidden: Option<(String, usize)>,
    text_is: Text,
    /// What is read comes from a `noscript`.
    is_nested: bool,
    /// The page's `main` and `article` elements: where in the text each begins and, once it has ended, ends.
    contents: Vec<(String, usize, Option<usize>)>,
}

fn attribute<'a>(attributes: &'a Attributes, name: &str) -> &'a str {
    attributes.get(name).map_or("", String::as_str)
}

impl Writer {
    fn run(html: &str, base: &str, only_content: bool) -> Page {
        let mut writer = Self { base: base.to_owned(), only_content, ..Self::default() };
        writer.read(html);
        while let Some(block) = writer.blocks.pop() {
            writer.close(block);
        }
        let markdown = writer.content().filter(|_| only_content).unwrap_or(&writer.text);
        let title = writer.title.as_deref().unwrap_or_default();
        Page { title: title.split_whitespace().collect::<Vec<_>>().join(" "), markdown: markdown.trim().to_owned() }
    }

    /// The text of the page's `main` element, or of its only article.
    fn content(&self) -> Option<&str> {
        let of = |name: &str| self.contents.iter().filter(|(n, ..)| n == name).collect::<Vec<_>>();
        let (_, start, end) = match (of("main")[..].first(), &of("article")[..]) {
            (Some(main), _) => main,
            (None, [article]) => article,
            _ => return None,
        };
        self.text.get(*start..end.unwrap_or(self.text.len())).filter(|text| text.trim().len() >= 200)
    }

    fn read(&mut self, html: &str) {
        for token in tokens(html) {
            match token {
                Token::Start { name, attributes, self_closing } => self.start(&name, &attributes, self_closing),
                Token::End(name) => self.end(&name),
                Token::Text(text) => self.said(&text),
            }
        }
    }

    fn said(&mut self, text: &str) {
        if self.text_is == Text::Title {
            self.title.get_or_insert_default().push_str(text);
        } else if self.text_is == Text::Noscript && self.hidden.is_none() {
            (self.text_is, self.is_nested) = (Text::Flowing, true);
            self.read(text);
            self.is_nested = false;
        } else if self.hidden.is_none() {
            self.write(text);
        }
    }

    /// Adds text to the current line, with white space as HTML counts it.
    fn write(&mut self, text: &str) {
        if self.text_is == Text::Verbatim {
            // The first line end after the tag does not count.
            let text = if self.breaks > 0 { text.strip_prefix('\n').unwrap_or(text) } else { text };
            self.open_line();
            let prefix = self.prefix();
            self.text.push_str(&text.replace('\n', &format!("\n{prefix}")));
            return;
        }
        for (n, word) in text.split([' ', '\t', '\n', '\r', '\u{c}']).enumerate() {
            let at_start = self.breaks > 0 || self.text.is_empty() || self.text.ends_with(['\n', ' ']);
            if n > 0 && !at_start && !self.at_line_start() {
                self.text.push(' ');
            }
            if !word.is_empty() {
                self.open_line();
                self.text.push_str(word);
            }
        }
    }

    /// Whether nothing but prefixes stands on the current line.
    fn at_line_start(&self) -> bool {
        let line = self.text.trim_end_matches(['>', '-', ' ']);
        line.is_empty() || line.ends_with('\n')
    }

    /// Writes the line ends that are due.
    fn open_line(&mut self) {
        let breaks = std::mem::take(&mut self.breaks);
        if breaks == 0 {
            return;
        }
        self.text.truncate(self.text.trim_end_matches(' ').len());
        // Lines that were opened for something that turned out to be empty.
        while let Some((before, _)) =
            self.text.rsplit_once('\n').filter(|(_, line)| line.trim_matches(['>', ' ']).is_empty())
        {
            self.text.truncate(before.trim_end_matches(' ').len());
        }
        let prefix = self.prefix();
        if self.text.is_empty() {
            return self.text.push_str(&prefix);
        }
        for n in 1..=breaks {
            self.text.push('\n');
            let line = if n == breaks { &prefix } else { prefix.trim_end() };
            self.text.push_str(line);
        }
    }

    /// What stands before each line of the open blocks.
    fn prefix(&self) -> String {
        let inner = self.blocks.iter().rev().take_while(|block| !matches!(block, Block::Table(_)));
        let prefixes: Vec<String> = inner
            .map(|block| match block {
                Block::Quote => "> ".to_owned(),
                Block::Item(indentation) => " ".repeat(*indentation),
                Block::List(_) | Block::Table(_) => String::new(),
            })
            .collect();
        prefixes.into_iter().rev().collect()
    }

    /// Ends the line; with 2, also the paragraph. Open inline elements do not span lines.
    fn break_line(&mut self, breaks: usize) {
        self.breaks = self.breaks.max(breaks);
    }

    fn start(&mut self, name: &str, attributes: &Attributes, self_closing: bool) {
        if self.is_left_out(name, attributes, self_closing) {
            return;
        }
        match name {
            "title" | "base" => self.describe(name, attributes),
            "noscript" if !self.is_nested => self.text_is = Text::Noscript,
            "br" => self.break_line(1),
            "hr" => self.paragraph("---"),
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.break_line(2);
                self.write(&"#".repeat(usize::from(name.as_bytes()[1] - b'0')));
                self.text.push(' ');
            }
            "pre" => {
                self.break_line(2);
                self.write("```");
                self.break_line(1);
                self.text_is = Text::Verbatim;
            }
            "blockquote" => self.open(Block::Quote),
            "ul" | "menu" => self.open(Block::List(None)),
            "ol" => self.open(Block::List(Some(attribute(attributes, "start").parse().unwrap_or(1)))),
            "li" => self.start_item(),
            "dt" => self.break_line(2),
            "dd" => {
                self.break_line(1);
                self.write(":");
                self.text.push(' ');
            }
            "table" => self.open(Block::Table(Table::default())),
            "tr" => self.start_row(),
            "td" | "th" => self.start_cell(),
            "img" => self.image(attributes),
            "a" | "b" | "strong" | "i" | "em" | "code" | "kbd" | "samp" | "del" | "s" | "strike"
                if self.text_is != Text::Verbatim =>
            {
                self.open_line();
                let href = attribute(attributes, "href").to_owned();
                self.inlines.push(Inline { name: name.to_owned(), start: self.text.len(), href });
            }
            "main" | "article" => {
                self.break_line(2);
                self.open_line();
                if self.table().is_none() {
                    self.contents.push((name.to_owned(), self.text.len(), None));
                }
            }
            // `pre` has just begun.
            "code" if self.text.ends_with("```") => {
                let mut classes = attribute(attributes, "class").split_whitespace();
                let language = classes.find_map(|class| class.strip_prefix("language-"));
                self.text.push_str(language.unwrap_or_default());
            }
            _ if BLOCKS.contains(&name) => self.break_line(2),
            _ => {}
        }
    }

    fn paragraph(&mut self, text: &str) {
        self.break_line(2);
        self.write(text);
        self.break_line(2);
    }

    /// Whether an element is not shown, because it is within one that is hidden or is one itself.
    fn is_left_out(&mut self, name: &str, attributes: &Attributes, self_closing: bool) -> bool {
        if let Some((hidden, depth)) = &mut self.hidden {
            if hidden == "head" && matches!(name, "title" | "base") {
                self.describe(name, attributes);
            } else if name == hidden && !self_closing {
                *depth += 1;
            } else if name == "body" {
                // A head without an end.
                self.hidden = None;
            }
            return true;
        }
        let role = attribute(attributes, "role");
        let is_surrounding = SURROUNDING.contains(&name) || SURROUNDING_ROLES.contains(&role);
        let is_hidden = !OPEN_ENDED.contains(&name)
            && (attributes.contains_key("hidden") || attribute(attributes, "aria-hidden") == "true");
        let is_left_out = HIDDEN.contains(&name) || is_hidden || (is_surrounding && self.only_content);
        if is_left_out {
            let is_open = !(VOID.contains(&name) || self_closing && name == "svg");
            self.hidden = is_open.then(|| (name.to_owned(), 1));
            self.break_line(usize::from(is_surrounding));
        }
        is_left_out
    }

    /// What stands in the page's head.
    fn describe(&mut self, name: &str, attributes: &Attributes) {
        let href = attribute(attributes, "href");
        match name {
            "title" => self.text_is = Text::Title,
            _ if href.is_empty() => {}
            _ => self.base = address::join(&self.base, href).unwrap_or_default(),
        }
    }

    fn end(&mut self, name: &str) {
        if name == "title" && self.text_is == Text::Title {
            self.text_is = Text::Flowing;
        }
        if let Some((hidden, depth)) = &mut self.hidden {
            if name == hidden {
                *depth -= 1;
                if *depth == 0 {
                    self.hidden = None;
                }
            }
            return;
        }
        match name {
            "noscript" => self.text_is = Text::Flowing,
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => self.break_line(2),
            "pre" if self.text_is == Text::Verbatim => {
                self.text_is = Text::Flowing;
                self.text.truncate(self.text.trim_end().len());
                self.break_line(1);
                self.write("```");
                self.break_line(2);
            }
            "blockquote" => self.close_until(|block| matches!(block, Block::Quote)),
            "ul" | "ol" | "menu" => self.close_until(|block| matches!(block, Block::List(_))),
            "li" => {
                if matches!(self.blocks.last(), Some(Block::Item(_))) {
                    self.blocks.pop();
                    self.break_line(1);
                }
            }
            "table" => self.close_until(|block| matches!(block, Block::Table(_))),
            "td" | "th" => self.end_cell(),
            "main" | "article" => {
                let open = self.contents.iter().rposition(|(n, _, end)| n == name && end.is_none());
                if let (Some(n), None) = (open, self.table()) {
                    self.contents[n].2 = Some(self.text.len());
                }
                self.break_line(2);
            }
            "dt" | "dd" => self.break_line(1),
            _ if BLOCKS.contains(&name) => self.break_line(2),
            _ => self.end_inline(name),
        }
    }

    fn open(&mut self, block: Block) {
        if self.blocks.len() == MAX_DEPTH {
            return self.break_line(2);
        }
        let nested = matches!((&block, self.blocks.last()), (Block::List(_), Some(Block::Item(_))));
        self.break_line(if nested { 1 } else { 2 });
        match block {
            Block::Table(mut table) => {
                self.open_line();
                table.outer = std::mem::take(&mut self.text);
                self.blocks.push(Block::Table(table));
            }
            block => self.blocks.push(block),
        }
    }

    /// Closes the innermost block of a kind, and those within it that were left open.
    fn close_until(&mut self, is_kind: impl Fn(&Block) -> bool) {
        let inner = self.blocks.iter().rposition(&is_kind);
        let outer_table = self.blocks.iter().rposition(|block| matches!(block, Block::Table(_)));
        // An end tag within a cell does not close what is around the table.
        if inner.is_none() || inner < outer_table {
            return self.break_line(1);
        }
        while let Some(block) = self.blocks.pop() {
            let is_last = is_kind(&block);
            self.close(block);
            if is_last {
                return;
            }
        }
    }

    fn close(&mut self, block: Block) {
        let is_nested = matches!(self.blocks.last(), Some(Block::Item(_)));
        match block {
            Block::Table(table) => self.write_table(table),
            Block::Item(_) => self.break_line(1),
            Block::List(_) if is_nested => self.break_line(1),
            Block::List(_) | Block::Quote => self.break_line(2),
        }
    }

    fn start_item(&mut self) {
        if matches!(self.blocks.last(), Some(Block::Item(_))) {
            self.blocks.pop();
        }
        self.break_line(1);
        let marker = match self.blocks.last_mut() {
            Some(Block::List(Some(number))) => {
                *number += 1;
                format!("{}.", *number - 1)
            }
            _ => "-".to_owned(),
        };
        self.write(&marker);
        self.text.push(' ');
        if self.blocks.len() < MAX_DEPTH {
            self.blocks.push(Block::Item(marker.len() + 1));
        }
    }

    fn image(&mut self, attributes: &Attributes) {
        let alt = attribute(attributes, "alt");
        let source = ["src", "data-src"]
            .map(|name| attribute(attributes, name))
            .into_iter()
            .find(|src| !src.starts_with("data:"));
        let source = source.filter(|src| !src.is_empty()).and_then(|src| address::join(&self.base, src));
        match source {
            // An image without a description is decoration.
            _ if alt.trim().is_empty() => {}
            Some(source) if self.inlines.iter().all(|inline| inline.name != "a") => {
                self.write(&format!("![{}]({source})", alt.trim()));
            }
            _ => self.write(alt),
        }
    }

    fn end_inline(&mut self, name: &str) {
        let Some(n) = self.inlines.iter().rposition(|inline| inline.name == name) else { return };
        let Inline { start, href, .. } = self.inlines.remove(n);
        self.inlines.truncate(n);
        let Some(inner) = self.text.get(start..) else { return };
        let (before, after) = (inner.len() - inner.trim_start().len(), inner.len() - inner.trim_end().len());
        let text = inner.trim().to_owned();
        if text.is_empty() {
            return;
        }
        let marked = match name {
            "a" => match address::join(&self.base, &href).filter(|_| !href.is_empty() && !href.starts_with('#')) {
                Some(address) => format!("[{}]({address})", text.split_whitespace().collect::<Vec<_>>().join(" ")),
                None => text,
            },
            _ if text.contains('\n') => text,
            "b" | "strong" => format!("**{text}**"),
            "i" | "em" => format!("*{text}*"),
            "del" | "s" | "strike" => format!("~~{text}~~"),
            _ => format!("`{text}`"),
        };
        let spaces = [before, after].map(|count| if count > 0 { " " } else { "" });
        self.text.truncate(start);
        self.text.push_str(&format!("{}{marked}{}", spaces[0], spaces[1]));
    }
}
