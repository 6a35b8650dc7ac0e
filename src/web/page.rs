//! Converts HTML to Markdown for a model, in one pass over the tags.
//!
//! Each open element collects its own text. At its end, the text becomes part of the element around it. Real pages omit end
//! tags and cross them. The browsers' complete rules are long (WHATWG HTML, section 13.2.6); this module has the rules that
//! affect text.

use super::address;
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
/// Classes of the links in a heading that edit it or lead to it (`MediaWiki`, Sphinx).
const HEADING_LINKS: [&str; 2] = ["mw-editsection", "headerlink"];
/// Elements that start and end a paragraph, see also [`is_block`].
const BLOCKS: [&str; 37] = [
    "address", "article", "aside", "caption", "center", "dd", "details", "div", "dl", "dt",
    "fieldset", "figure", "footer", "form", "header", "hgroup", "hr", "legend", "li", "main",
    "menu", "nav", "noframes", "ol", "p", "pre", "search", "section", "summary", "table", "tbody",
    "td", "tfoot", "th", "thead", "tr", "ul",
];
/// Elements that end where another one starts: names of the new one, the elements that protect those outside, and the ended ones.
const ENDED: [[&[&str]; 3]; 5] = [
    [&["li"], &["ul", "ol", "menu", "table"], &["li"]],
    [&["dt", "dd"], &["dl", "table"], &["dt", "dd"]],
    [&["td", "th"], &["table"], &["td", "th", "caption"]],
    [&["tr"], &["table"], &["tr", "td", "th", "caption"]],
    [&["a"], &["td", "th"], &["a"]],
];
/// Maximum nesting depth of elements; the text of deeper ones belongs to the deepest open one.
const MAX_OPEN: usize = 128;
/// Maximum nesting depth of lines with a prefix; deeper ones have none.
const MAX_PREFIXES: usize = 16;
/// Maximum number of elements of a page; the rest is dropped.
const MAX_ELEMENTS: usize = 200_000;
/// Maximum size of the text, its marks and its addresses, in bytes.
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
    let read = |only_content| Writer {
        base: base.to_owned(),
        only_content,
        open: vec![Open::default()],
        ..Writer::default()
    };
    let content = read(true).convert(html);
    if content.markdown.len() >= MIN_CONTENT {
        return content;
    }
    // The whole page may have looked like a menu.
    read(false).convert(html)
}

/// What separates two pieces of text; the largest of several wins, and is written when more text follows.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    #[default]
    None,
    Space,
    Line,
    Paragraph,
}

/// Effect of an element on its text.
#[derive(Default)]
enum Kind {
    #[default]
    Plain,
    Hidden,
    Title,
    /// Text with all its spaces: a code block, and an element in it.
    Pre,
    Raw,
    /// A paragraph, and what separates it from the text after it.
    Block(Gap),
    /// The prefix of the first line and of further lines, and the gap around them: an item, a definition or a quotation.
    Lines(String, String, Gap),
    /// Marks around the text.
    Mark(&'static str, &'static str),
    Link(String),
    /// Number of the next item; `None` for an unordered list.
    List(Option<u64>),
    /// Whether its first row was written.
    Table(bool),
    Row(Vec<String>),
    Cell,
}

#[derive(Default)]
struct Open {
    name: String,
    kind: Kind,
    text: String,
    /// What separates its text from the text before it, and from the text that follows.
    before: Gap,
    gap: Gap,
}

impl Open {
    fn add(&mut self, before: Gap, text: &str, after: Gap) {
        self.gap = self.gap.max(before);
        if !text.is_empty() {
            let gap = std::mem::take(&mut self.gap);
            match gap {
                _ if self.text.is_empty() => self.before = gap,
                Gap::None => {}
                Gap::Space => self.text.push(' '),
                Gap::Line => self.text.push('\n'),
                Gap::Paragraph => self.text.push_str("\n\n"),
            }
            self.text.push_str(text);
        }
        self.gap = self.gap.max(after);
    }

    fn add_block(&mut self, text: &str, gap: Gap) {
        self.add(gap, text, gap);
    }
}

#[derive(Default)]
struct Writer {
    base: String,
    /// Whether to drop the parts around the content.
    only_content: bool,
    /// Open elements; the first one is the page.
    open: Vec<Open>,
    elements: usize,
    /// Size of what was written so far, in bytes.
    written: usize,
    title: Option<String>,
    /// Texts of `main` and of articles.
    contents: Vec<String>,
}

/// Returns the trimmed value of an attribute, or `""`.
fn attribute<'a>(attributes: &'a Attributes, name: &str) -> &'a str {
    attributes.get(name).map_or("", |value| value.trim())
}

fn is_block(name: &str) -> bool {
    BLOCKS.contains(&name) || is_heading(name) || ["blockquote", "figcaption"].contains(&name)
}

fn is_heading(name: &str) -> bool {
    ["h1", "h2", "h3", "h4", "h5", "h6"].contains(&name)
}

impl Writer {
    fn convert(mut self, html: &str) -> Converted {
        for token in tokens(html) {
            if self.elements > MAX_ELEMENTS {
                break;
            }
            // A title only contains text, even without an end tag.
            if matches!(self.top().kind, Kind::Title) && !matches!(token, Token::Text(_)) {
                self.close_to(self.open.len() - 1);
            }
            self.read(token);
        }
        self.close_to(1);
        let markdown = match &self.contents[..] {
            [content] if self.only_content && content.len() >= MIN_CONTENT => content,
            _ => &self.open[0].text,
        };
        let title = self.title.as_deref().unwrap_or_default();
        Converted {
            title: whole_words(title, MAX_ADDRESS).to_owned(),
            markdown: markdown.trim().to_owned(),
        }
    }

    fn read(&mut self, token: Token) {
        match token {
            Token::Text(text) => self.text(&text),
            Token::Start { name, .. } if ["html", "head", "body"].contains(&&*name) => {}
            Token::End(name) if ["html", "head", "body"].contains(&&*name) => self.close_to(1),
            Token::Start { name, attributes } => {
                self.elements += 1;
                self.end_before(&name);
                self.start(name, &attributes);
            }
            Token::End(name) => self.end(&name),
        }
    }

    /// Returns the innermost open element.
    fn top(&mut self) -> &mut Open {
        self.open.last_mut().expect("the page is always open")
    }

    fn is_within(&self, is_it: fn(&Open) -> bool) -> bool {
        self.open.iter().any(is_it)
    }

    fn is_in_content(&self) -> bool {
        self.is_within(|open| ["main", "article", "blockquote"].contains(&&*open.name))
    }

    fn text(&mut self, text: &str) {
        let text = whole_words(text, MAX_WRITTEN.saturating_sub(self.written));
        let is_white = |c| matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{c}');
        match self.top().kind {
            Kind::Hidden => return,
            Kind::Pre | Kind::Raw => self.top().text.push_str(text),
            _ => {
                let gap = |is_white| if is_white { Gap::Space } else { Gap::None };
                let words = text.split(is_white).filter(|word| !word.is_empty());
                let words = words.collect::<Vec<_>>().join(" ");
                let [before, after] = [text.starts_with(is_white), text.ends_with(is_white)];
                self.top().add(gap(before), &words, gap(after));
            }
        }
        self.written += text.len();
    }

    fn start(&mut self, name: String, attributes: &Attributes) {
        let is_in_hidden = matches!(self.top().kind, Kind::Hidden);
        if self.is_void(&name, attributes) {
            return;
        }
        let kind = self.kind(&name, attributes);
        let is_hidden = matches!(kind, Kind::Hidden);
        if is_hidden && is_block(&name) {
            self.top().add_block("", Gap::Line);
        }
        if self.open.len() < MAX_OPEN || is_hidden && !is_in_hidden {
            self.open.push(Open {
                name,
                kind,
                ..Open::default()
            });
        } else if is_block(&name) {
            self.top().add_block("", Gap::Paragraph);
        }
    }

    /// Writes what stands for an element whose content, if any, belongs to the element around it. Returns whether it is one.
    fn is_void(&mut self, name: &str, attributes: &Attributes) -> bool {
        let is_raw = matches!(self.top().kind, Kind::Pre | Kind::Raw);
        let top = self.top();
        match name {
            "br" if is_raw => top.text.push('\n'),
            "br" if top.gap >= Gap::Line => top.gap = Gap::Paragraph,
            "br" => top.gap = Gap::Line,
            "hr" => top.add_block("---", Gap::Paragraph),
            "img" => self.image(attributes),
            "base" => {
                let address = self.address(attribute(attributes, "href"));
                self.base = address.unwrap_or_default();
            }
            "area" | "col" | "embed" | "frame" | "input" | "link" | "meta" | "param" | "source"
            | "track" | "wbr" | "thead" | "tbody" | "tfoot" => {}
            _ => return false,
        }
        true
    }

    fn kind(&mut self, name: &str, attributes: &Attributes) -> Kind {
        let is_in_hidden = matches!(self.top().kind, Kind::Hidden);
        if is_in_hidden || self.is_hidden(name, attributes) {
            return Kind::Hidden;
        }
        if matches!(self.top().kind, Kind::Pre | Kind::Raw) {
            return Kind::Raw;
        }
        match name {
            "b" | "strong" => Kind::Mark("**", "**"),
            "i" | "em" => Kind::Mark("*", "*"),
            "del" | "s" | "strike" => Kind::Mark("~~", "~~"),
            "code" | "kbd" | "samp" => Kind::Mark("`", "`"),
            "q" => Kind::Mark("“", "”"),
            "sup" => Kind::Mark("^", ""),
            "title" => Kind::Title,
            "pre" => Kind::Pre,
            "table" => Kind::Table(false),
            "tr" if matches!(self.top().kind, Kind::Table(_)) => Kind::Row(Vec::new()),
            "td" | "th" if matches!(self.top().kind, Kind::Row(_)) => Kind::Cell,
            "ul" | "menu" => Kind::List(None),
            "ol" => Kind::List(Some(attribute(attributes, "start").parse().unwrap_or(1))),
            "li" => {
                let marker = self.marker();
                let other = " ".repeat(marker.len());
                self.lines(&marker, &other, Gap::Line)
            }
            "dt" => Kind::Block(Gap::Line),
            "dd" => self.lines(": ", "", Gap::Line),
            "blockquote" => self.lines("> ", "> ", Gap::Paragraph),
            "a" => match attribute(attributes, "href") {
                href if href.is_empty() || href.starts_with('#') => Kind::Plain,
                href => self.address(href).map_or(Kind::Plain, Kind::Link),
            },
            _ if is_heading(name) => {
                let marker = "#".repeat(name[1..].parse().unwrap_or(1)) + " ";
                self.lines(&marker, "", Gap::Paragraph)
            }
            _ if is_block(name) => Kind::Block(Gap::Paragraph),
            _ => Kind::Plain,
        }
    }

    fn lines(&self, first: &str, other: &str, gap: Gap) -> Kind {
        let is_lines = |open: &&Open| matches!(open.kind, Kind::Lines(..));
        match self.open.iter().filter(is_lines).count() {
            MAX_PREFIXES.. => Kind::Block(gap),
            _ => Kind::Lines(first.to_owned(), other.to_owned(), gap),
        }
    }

    fn is_hidden(&self, name: &str, attributes: &Attributes) -> bool {
        let get = |name| attribute(attributes, name);
        let is = |names: &[&str]| names.contains(&name) || names.contains(&get("role"));
        let is_around = is(&SURROUNDING) || is(&OUTSIDE) && !self.is_in_content();
        self.only_content && is_around
            || HIDDEN.contains(&name)
            // A button may be a heading that expands the content after it.
            || name == "button"
                && !attributes.contains_key("aria-expanded")
                && !self.is_within(|open| is_heading(&open.name))
            || get("aria-hidden") == "true"
            || get("role").ends_with("dialog")
            || HEADING_LINKS.contains(&get("class"))
            || matches!(attributes.get("hidden"), Some(until) if until != "until-found")
    }

    /// Returns the marker of the next item of the innermost list.
    fn marker(&mut self) -> String {
        let lists = self.open.iter_mut().rev();
        let mut numbers = lists.filter_map(|open| match &mut open.kind {
            Kind::List(number) => Some(number),
            _ => None,
        });
        match numbers.next() {
            Some(Some(number)) => {
                let marker = format!("{number}. ");
                *number = number.saturating_add(1);
                marker
            }
            _ => "- ".to_owned(),
        }
    }

    /// Resolves a link of the page.
    fn address(&self, link: &str) -> Option<String> {
        let is_short = |address: &str| address.len() <= MAX_ADDRESS;
        let link = Some(link).filter(|link| is_short(link))?;
        address::join(&self.base, link).filter(|address| is_short(address))
    }

    fn image(&mut self, attributes: &Attributes) {
        let get = |name| attribute(attributes, name);
        let alt = get("alt").split_whitespace().collect::<Vec<_>>().join(" ");
        // An image without a description is decoration. Pages repeat images for browsers without scripts.
        let is_repeated = self.is_within(|open| open.name == "noscript");
        if alt.is_empty() || is_repeated || self.written > MAX_WRITTEN {
            return;
        }
        let mut sources = ["src", "data-src"].into_iter().map(get);
        let source = sources.find(|src| !src.is_empty() && !src.starts_with("data:"));
        let is_in_link = self.is_within(|open| matches!(open.kind, Kind::Link(_)));
        let image = match source.and_then(|src| self.address(src)) {
            Some(source) if !is_in_link => format!("![{alt}]({source})"),
            _ => alt,
        };
        self.written += image.len();
        self.top().add(Gap::None, &image, Gap::None);
    }

    /// Closes the innermost elements until `count` remain open.
    fn close_to(&mut self, count: usize) {
        while self.open.len() > count {
            if let Some(open) = self.open.pop() {
                self.close(open);
            }
        }
    }

    /// Adds the text of a closed element to the element around it.
    fn close(&mut self, open: Open) {
        let (mut text, mut before, mut after) = (open.text, open.before, open.gap);
        let size = text.len();
        let mut around = Gap::None;
        match open.kind {
            Kind::Hidden => return,
            Kind::Plain | Kind::Raw => {}
            Kind::Title => {
                self.title.get_or_insert(text);
                return;
            }
            Kind::Block(end) => {
                before = Gap::Paragraph;
                after = after.max(end);
            }
            Kind::Table(_) => around = Gap::Paragraph,
            Kind::List(_) if self.top().name == "li" => around = Gap::Line,
            Kind::List(_) => around = Gap::Paragraph,
            Kind::Lines(first, other, gap) => {
                // Gaps at the start and the end of its text are dropped.
                (before, after) = (gap, gap);
                if self.written < MAX_WRITTEN {
                    text = prefixed(&text, &first, &other);
                }
            }
            Kind::Mark(begin, end) => text = self.marked(text, [begin, end]),
            Kind::Link(address) => text = linked(&text, &address),
            Kind::Row(cells) => {
                self.top().add(before, &text, after);
                return self.row(&cells);
            }
            Kind::Cell => {
                if let Kind::Row(cells) = &mut self.top().kind {
                    cells.push(text);
                }
                return;
            }
            Kind::Pre => {
                // The first line end after the tag is ignored.
                let code = text.strip_prefix('\n').unwrap_or(&text).trim_end();
                let fence = fence(code);
                let block = format!("{fence}\n{code}\n{fence}");
                text = if code.is_empty() {
                    String::new()
                } else {
                    block
                };
                around = Gap::Paragraph;
            }
        }
        self.written += text.len().saturating_sub(size);
        if ["main", "article"].contains(&&*open.name) && !self.is_in_content() {
            self.contents.push(text.clone());
        }
        self.top().add(before.max(around), &text, after.max(around));
    }

    fn marked(&mut self, text: String, [begin, end]: [&str; 2]) -> String {
        let may_have_power = |c: char| c.is_alphanumeric() || "*`)".contains(c);
        let is_power = text.starts_with(|c: char| c.is_ascii_digit() || "+-−(".contains(c))
            && self.top().text.ends_with(may_have_power);
        match begin {
            _ if text.is_empty() || text.contains('\n') => text,
            "^" if !is_power => text,
            "`" if text.contains('`') => format!("`` {text} ``"),
            _ => format!("{begin}{text}{end}"),
        }
    }

    /// Writes a row: as a row of a table if it has data, or as paragraphs if it is only layout.
    fn row(&mut self, cells: &[String]) {
        let has_head = matches!(self.top().kind, Kind::Table(true));
        let filled: Vec<&String> = cells.iter().filter(|cell| !cell.is_empty()).collect();
        let is_data =
            filled.iter().all(|cell| !cell.contains('\n')) && filled.len() > usize::from(!has_head);
        if !is_data {
            for cell in filled {
                self.top().add_block(cell, Gap::Paragraph);
            }
            return;
        }
        self.top().kind = Kind::Table(true);
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let mut row = format!("| {} |", cells.join(" | "));
        if !has_head {
            row += &format!("\n|{}", " --- |".repeat(cells.len()));
        }
        self.written += row.len();
        self.top().add_block(&row, Gap::Line);
    }

    /// Closes elements that end implicitly where this element starts.
    fn end_before(&mut self, name: &str) {
        for [names, limits, ended] in ENDED {
            if names.contains(&name) {
                self.close_within(limits, ended);
            }
        }
        if is_block(name) {
            self.close_within(&["td", "th", "caption", "button"], &["p"]);
        }
    }

    /// Closes the outermost element with one of these names inside the innermost one of `limits`.
    fn close_within(&mut self, limits: &[&str], names: &[&str]) {
        let mut outside = self.open.iter();
        let limit = outside.rposition(|open| limits.contains(&&*open.name));
        let from = limit.map_or(0, |at| at + 1);
        let mut inside = self.open[from..].iter();
        if let Some(n) = inside.position(|open| names.contains(&&*open.name)) {
            self.close_to(from + n);
        }
    }

    /// Closes the element of an end tag and the elements in it, but never crosses a table or list. Emphasis and links do not
    /// end a block.
    fn end(&mut self, name: &str) {
        let is_limit = |open: &Open| match name {
            "table" => false,
            "li" => ["ul", "ol", "menu", "table"].contains(&&*open.name),
            _ if is_block(name) => open.name == "table",
            _ => is_block(&open.name),
        };
        for at in (1..self.open.len()).rev() {
            let open = &self.open[at];
            if open.name == name || is_heading(name) && is_heading(&open.name) {
                return self.close_to(at);
            }
            if is_limit(open) {
                return;
            }
        }
    }
}

/// Starts the first line with `first`, and further lines with `other`. An empty text remains empty.
fn prefixed(text: &str, first: &str, other: &str) -> String {
    let mut out = String::new();
    for (n, line) in text.lines().enumerate() {
        let (end, prefix) = if n == 0 { ("", first) } else { ("\n", other) };
        out = out + end + prefix + line;
        out.truncate(out.trim_end_matches(' ').len());
    }
    out
}

/// Makes a link of the text; only of the first line if there are several.
fn linked(text: &str, address: &str) -> String {
    let end = text.find('\n').unwrap_or(text.len());
    let (line, rest) = text.split_at(end);
    let is_heading = |at: &usize| line[..*at].bytes().all(|byte| byte == b'#');
    let start = line.find("# ").filter(is_heading).map_or(0, |at| at + 2);
    match line.split_at(start) {
        (_, "") => text.to_owned(),
        (marker, line) => format!("{marker}[{line}]({address}){rest}"),
    }
}
