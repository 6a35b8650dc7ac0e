//! HTML to Markdown, for a model to read.
//!
//! No tree is built, because pages in the wild rarely nest as they should and a reader
//! cares about the text. What a browser does not show is left out, and so is what surrounds the content (menus, page
//! headers and footers, forms) if something is left without it.

mod inline;
mod layout;
mod table;

use super::address;
use super::tokens::{Attributes, Token, tokens};
use inline::Inline;
use table::Table;

/// Elements whose text is not shown, or is of no use to a reader.
const HIDDEN: [&str; 15] = [
    "script", "style", "template", "svg", "head", "iframe", "canvas", "audio", "video", "select", "datalist",
    "textarea", "dialog", "map", "noembed",
];
/// Elements and roles that surround the content.
const SURROUNDING: [&str; 5] = ["nav", "navigation", "search", "dialog", "alertdialog"];
/// Those that do unless they are within it: an article may have notes and a quotation its source.
const OUTSIDE: [&str; 4] = ["footer", "aside", "contentinfo", "complementary"];
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
    let has_more = prose(&whole.markdown) > prose(&content.markdown) * 4;
    if has_more || content.markdown.is_empty() { whole } else { content }
}

/// Bytes of a page outside its links.
fn prose(markdown: &str) -> usize {
    let (mut rest, mut bytes) = (markdown, 0);
    while let Some((before, link)) = rest.split_once('[') {
        bytes += before.trim().len();
        let after = link.split_once("](").and_then(|(_, address)| address.split_once(')'));
        rest = after.map_or(link, |(_, after)| after);
    }
    bytes + rest.trim().len()
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
    /// Markup, which the tokenizer takes for plain text, as a browser does that runs scripts and has frames.
    Markup,
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
    /// What the blocks put before the current line.
    line_prefix: String,
    /// Where the text ended before the current line.
    line_start: usize,
    /// The text up to here ends with the marker of a heading or item that has no text yet; what was due before it.
    marker: Option<(usize, usize)>,
    is_heading: bool,
    /// Where a formula began that may come as TeX, too.
    formula: Option<usize>,
    /// The hidden element that is open, and how many of its name within one another.
    hidden: Option<(String, usize)>,
    text_is: Text,
    /// What is read comes from a `noscript` or `noframes`.
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
        } else if self.text_is == Text::Markup && self.hidden.is_none() {
            (self.text_is, self.is_nested) = (Text::Flowing, true);
            self.read(text);
            self.is_nested = false;
        } else if self.hidden.is_none() {
            self.write(text);
        }
    }

    fn start(&mut self, name: &str, attributes: &Attributes, self_closing: bool) {
        if self.text_is == Text::Title {
            // One without an end.
            self.text_is = Text::Flowing;
        }
        if self.is_left_out(name, attributes, self_closing) {
            return;
        }
        match name {
            "title" | "base" => self.describe(name, attributes),
            "noscript" | "noframes" if !self.is_nested => self.text_is = Text::Markup,
            // One ends the line, two the paragraph.
            "br" => self.break_line(1 + self.breaks.min(1)),
            "hr" => self.paragraph("---"),
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.break_line(2);
                self.write_marker(&"#".repeat(usize::from(name.as_bytes()[1] - b'0')));
                self.is_heading = true;
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
                self.write_marker(":");
            }
            "table" => self.open(Block::Table(Table::default())),
            "tr" => self.start_row(),
            "td" | "th" => self.start_cell(attributes),
            "img" => self.image(attributes),
            "frame" => self.frame(attributes),
            "math" | "annotation" => self.formula(name, attributes),
            "q" => self.write("“"),
            "input" if self.has_marker() && attribute(attributes, "type") == "checkbox" => {
                self.text.push_str(if attributes.contains_key("checked") { "[x] " } else { "[ ] " });
            }
            _ if inline::NAMES.contains(&name) && self.text_is != Text::Verbatim => self.start_inline(name, attributes),
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
        let (role, is_content) = (attribute(attributes, "role"), self.is_content());
        let is = |names: &[&str]| names.contains(&name) || names.contains(&role);
        let is_surrounding = is(&SURROUNDING) || is(&OUTSIDE) && !is_content;
        let is_hidden = !OPEN_ENDED.contains(&name)
            && (attributes.get("hidden").is_some_and(|until| until != "until-found")
                || attribute(attributes, "aria-hidden") == "true");
        // A button may be a heading that unfolds what is below it.
        let unfolds = self.is_heading || (attributes.contains_key("aria-expanded") && is_content);
        let is_left_out = HIDDEN.contains(&name)
            || is_hidden
            || (is_surrounding && self.only_content)
            || (name == "button" && !unfolds)
            || attribute(attributes, "class") == "mw-editsection";
        if name == "iframe" && !is_hidden {
            self.frame(attributes);
        }
        if is_left_out {
            let is_open = !(VOID.contains(&name) || self_closing && name == "svg");
            self.hidden = is_open.then(|| (name.to_owned(), 1));
            self.break_line(usize::from(is_surrounding));
        }
        is_left_out
    }

    /// Whether what comes is part of the page's content for sure.
    fn is_content(&self) -> bool {
        let is_quote = self.blocks.iter().any(|block| matches!(block, Block::Quote));
        is_quote || self.contents.iter().any(|(.., end)| end.is_none())
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
            "noscript" | "noframes" => self.text_is = Text::Flowing,
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.is_heading = false;
                self.drop_marker();
                self.break_line(2);
            }
            "q" => self.write("”"),
            "annotation" => self.end_formula(),
            "pre" if self.text_is == Text::Verbatim => {
                self.text_is = Text::Flowing;
                self.text.truncate(self.text.trim_end().len());
                self.break_line(1);
                self.write("```");
                self.break_line(2);
            }
            "blockquote" => self.close_until(|block| matches!(block, Block::Quote)),
            "ul" | "menu" => self.close_until(|block| matches!(block, Block::List(None))),
            "ol" => self.close_until(|block| matches!(block, Block::List(Some(_)))),
            "li" => {
                if matches!(self.blocks.last(), Some(Block::Item(_))) {
                    self.end_item();
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
            "dt" | "dd" => {
                self.drop_marker();
                self.break_line(1);
            }
            _ if BLOCKS.contains(&name) => self.break_line(2),
            _ => self.end_inline(name),
        }
    }
}
