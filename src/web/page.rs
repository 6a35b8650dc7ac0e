//! Converts HTML to Markdown for a model, in one pass over the tags.
//!
//! Real pages omit end tags and cross them. The browsers' complete rules are long (WHATWG HTML, section 13.2.6); this module
//! has the rules that affect text.

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
/// Maximum nesting depth of lines with a prefix; deeper ones have none.
const MAX_PREFIXES: usize = 16;
/// Maximum number of elements of a page; the rest is dropped.
const MAX_ELEMENTS: usize = 200_000;
/// Maximum number of cells of a page; further cells become paragraphs.
const MAX_CELLS: usize = 20_000;
/// Maximum size of the output, in bytes.
const MAX_WRITTEN: usize = 1 << 20;
/// Maximum size of an address and of the title, in bytes.
const MAX_ADDRESS: usize = 2_000;
/// Texts of links to the heading that contains them.
const ANCHORS: [&str; 4] = ["¶", "#", "§", "🔗"];
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

/// What separates two pieces of text; the largest of several wins, and is written when more text follows.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    #[default]
    None,
    Space,
    Line,
    Paragraph,
}

/// Effect of an open element on its text or at its end.
enum Kind {
    Plain,
    Hidden,
    Title,
    Block,
    /// The prefix of the first line and of further lines, and the gap around them: an item, a definition, a quotation or a
    /// heading.
    Lines(String, String, Gap),
    /// Marks around the text.
    Mark([&'static str; 2]),
    Link {
        address: Option<String>,
        is_anchor: bool,
    },
    /// Number of the next item; `None` for an unordered list.
    List(Option<u64>),
    /// Whether its first row was written.
    Table(bool),
    Row(Vec<String>),
    /// Text that is taken out at its end: a cell, or a code block with its language.
    Cell,
    Pre(String),
    /// A `main` or an `article`.
    Part,
}

struct Open {
    name: String,
    kind: Kind,
    /// Start of its text in the output, if there is any.
    start: Option<usize>,
    /// What separates text that is taken out from the text before it.
    gap: Gap,
}

#[derive(Default)]
struct Writer {
    base: String,
    /// Whether to drop the parts around the content.
    only_content: bool,
    out: String,
    gap: Gap,
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
            ..Self::default()
        }
    }

    fn convert(mut self, html: &str) -> Converted {
        for token in tokens(html) {
            if self.elements > MAX_ELEMENTS {
                break;
            }
            self.read(token);
        }
        self.close_to(0);
        let article = match &self.articles[..] {
            [article] if article.len() >= MIN_CONTENT => Some(article),
            _ => None,
        };
        let markdown = match self.main.as_ref().or(article) {
            Some(content) if self.only_content => content,
            _ => &self.out,
        };
        let title = self.title.as_deref().unwrap_or_default();
        let title: Vec<&str> = whole_words(title, MAX_ADDRESS).split_whitespace().collect();
        Converted {
            title: title.join(" "),
            markdown: markdown.trim().to_owned(),
        }
    }

    fn read(&mut self, token: Token) {
        // A title only contains text, even without an end tag.
        let in_title = matches!(self.open.last(), Some(open) if matches!(open.kind, Kind::Title));
        if in_title && !matches!(token, Token::Text(_)) {
            self.close_to(self.open.len() - 1);
        }
        match token {
            Token::Text(text) => self.text(&text),
            Token::Start { name, .. } if matches!(&*name, "html" | "head" | "body") => {}
            Token::End(name) if matches!(&*name, "html" | "head" | "body") => self.close_to(0),
            Token::Start {
                name,
                attributes,
                self_closing,
            } => {
                let count = self.open.len();
                self.start(name, &attributes);
                if self_closing && self.open.len() > count {
                    self.close_to(count);
                }
            }
            Token::End(name) => self.end(&name),
        }
    }

    /// Returns the number of elements around the text that is written, and where it starts: all of it, a cell or a code block.
    fn part(&self) -> (usize, usize) {
        let is_apart = |open: &Open| matches!(open.kind, Kind::Cell | Kind::Pre(_));
        match self.open.iter().rposition(is_apart) {
            Some(n) => (n + 1, self.open[n].start.unwrap_or(0)),
            None => (0, 0),
        }
    }

    /// Whether an element of this kind is open.
    fn is_in(&self, is_kind: fn(&Kind) -> bool) -> bool {
        self.open.iter().any(|open| is_kind(&open.kind))
    }

    fn is_in_content(&self) -> bool {
        self.open
            .iter()
            .any(|open| matches!(open.kind, Kind::Part) || open.name == "blockquote")
    }

    fn space(&mut self, gap: Gap) {
        let (from, _) = self.part();
        let is_lines = |open: &&Open| matches!(open.kind, Kind::Lines(..));
        let most = match self.open[from..].iter().rev().find(is_lines) {
            // A block has no gap before its first word.
            Some(lines) if lines.start.is_none() => return,
            Some(lines) if heading(&lines.name).is_some() => Gap::Space,
            _ => Gap::Paragraph,
        };
        self.gap = self.gap.max(gap.min(most));
    }

    /// Writes what separates it, and then the text.
    fn push(&mut self, text: &str) {
        let (from, begin) = self.part();
        let gap = std::mem::take(&mut self.gap);
        let is_first = self.out.len() == begin;
        match gap {
            _ if is_first => {}
            Gap::None => {}
            Gap::Space => self.out.push(' '),
            Gap::Line => self.out.push('\n'),
            Gap::Paragraph => {
                self.out.push('\n');
                for open in &self.open[from..] {
                    if let (Kind::Lines(_, other, _), Some(_)) = (&open.kind, open.start) {
                        self.out.push_str(other);
                    }
                }
                self.out.truncate(self.out.trim_end_matches(' ').len());
                self.out.push('\n');
            }
        }
        let is_new_line = is_first || gap >= Gap::Line;
        for (n, line) in text.split('\n').enumerate() {
            if n > 0 {
                self.out.truncate(self.out.trim_end_matches(' ').len());
                self.out.push('\n');
            }
            if n > 0 || is_new_line {
                self.begin_line(from);
            }
            if n == 0 {
                let at = self.out.len();
                let inner = self.open[from..].iter_mut().rev();
                inner
                    .take_while(|open| open.start.is_none())
                    .for_each(|open| open.start = Some(at));
            }
            let room = MAX_WRITTEN.saturating_sub(self.out.len());
            self.out.push_str(whole_words(line, room));
            if room == 0 {
                break;
            }
        }
    }

    fn begin_line(&mut self, from: usize) {
        for open in &self.open[from..] {
            if let Kind::Lines(first, other, _) = &open.kind {
                self.out
                    .push_str(if open.start.is_none() { first } else { other });
            }
        }
    }

    fn block(&mut self, text: &str, gap: Gap) {
        self.space(gap);
        self.push(text);
        self.space(gap);
    }

    fn text(&mut self, text: &str) {
        let is_white = |c| matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{c}');
        let kind = self.open.last().map(|open| &open.kind);
        let is_anchor = matches!(
            kind,
            Some(Kind::Link {
                is_anchor: true,
                ..
            })
        );
        if self.is_in(|kind| matches!(kind, Kind::Hidden))
            || is_anchor && ANCHORS.contains(&text.trim())
        {
            return;
        }
        if matches!(kind, Some(Kind::Title)) {
            self.title.get_or_insert_with(|| text.to_owned());
            return;
        }
        if self.is_in(|kind| matches!(kind, Kind::Pre(_))) {
            let room = MAX_WRITTEN.saturating_sub(self.out.len());
            self.out.push_str(whole_words(text, room));
            return;
        }
        if text.starts_with(is_white) {
            self.space(Gap::Space);
        }
        let words: Vec<&str> = text
            .split(is_white)
            .filter(|word| !word.is_empty())
            .collect();
        if !words.is_empty() {
            self.push(&words.join(" "));
            if text.ends_with(is_white) {
                self.space(Gap::Space);
            }
        }
    }

    fn start(&mut self, name: String, attributes: &Attributes) {
        self.elements += 1;
        self.end_before(&name);
        let is_hidden = self.is_in(|kind| matches!(kind, Kind::Hidden));
        if VOID.contains(&&*name) {
            if !is_hidden {
                self.void(&name, attributes);
            }
            return;
        }
        let kind = if is_hidden {
            Kind::Plain
        } else {
            self.kind(&name, attributes)
        };
        if self.open.len() >= MAX_OPEN && !matches!(kind, Kind::Hidden) {
            if is_block(&name) {
                self.space(Gap::Paragraph);
            }
            return;
        }
        let around = self.open.iter().rev().map(|open| &open.kind);
        let mut around = around.filter(|kind| matches!(kind, Kind::Table(_) | Kind::Row(_)));
        if matches!(kind, Kind::Cell) && !matches!(around.next(), Some(Kind::Row(_))) {
            self.open("tr".to_owned(), Kind::Row(Vec::new()));
        }
        self.open(name, kind);
    }

    fn open(&mut self, name: String, kind: Kind) {
        match kind {
            Kind::Block | Kind::Table(_) | Kind::Part => self.space(Gap::Paragraph),
            Kind::List(_) => self.space(self.around_list()),
            Kind::Lines(_, _, gap) => self.space(gap),
            _ => {}
        }
        let mut open = Open {
            name,
            kind,
            start: None,
            gap: Gap::None,
        };
        if matches!(open.kind, Kind::Cell | Kind::Pre(_)) {
            open.start = Some(self.out.len());
            open.gap = std::mem::take(&mut self.gap);
        }
        self.open.push(open);
    }

    /// Writes what stands for an element without content.
    fn void(&mut self, name: &str, attributes: &Attributes) {
        match name {
            "base" => {
                self.base = self
                    .address(attribute(attributes, "href"))
                    .unwrap_or_default();
            }
            "br" if self.is_in(|kind| matches!(kind, Kind::Pre(_))) => self.out.push('\n'),
            "br" if self.gap >= Gap::Line => self.space(Gap::Paragraph),
            "br" => self.space(Gap::Line),
            "hr" => self.block("---", Gap::Paragraph),
            "img" => self.image(attributes),
            _ => {}
        }
    }

    fn kind(&mut self, name: &str, attributes: &Attributes) -> Kind {
        let get = |name| attribute(attributes, name);
        if self.only_content && self.is_surrounding(name, get("role")) {
            self.space(Gap::Line);
            return Kind::Hidden;
        }
        if HIDDEN.contains(&name) || self.is_unseen(name, attributes) {
            return Kind::Hidden;
        }
        if let Some(open) = self.open.last_mut() {
            if let Kind::Pre(language) = &mut open.kind {
                let mut classes = get("class").split_whitespace();
                let named = classes.find_map(|class| class.strip_prefix("language-"));
                whole_words(named.unwrap_or_default(), 40).clone_into(language);
                return Kind::Plain;
            }
        }
        if self.is_in(|kind| matches!(kind, Kind::Pre(_))) {
            return Kind::Plain;
        }
        if let Some(marks) = marks(name) {
            return Kind::Mark(marks);
        }
        let in_table = self.is_in(|kind| matches!(kind, Kind::Table(_)));
        match name {
            "title" => Kind::Title,
            "pre" => Kind::Pre(String::new()),
            "table" => Kind::Table(false),
            "thead" | "tbody" | "tfoot" => Kind::Plain,
            "tr" if in_table => Kind::Row(Vec::new()),
            "td" | "th" if in_table && self.cells < MAX_CELLS => {
                self.cells += 1;
                Kind::Cell
            }
            "ul" | "menu" => Kind::List(None),
            "ol" => Kind::List(Some(get("start").parse().unwrap_or(1))),
            "li" => {
                let marker = self.marker();
                let other = " ".repeat(marker.len());
                self.lines(marker, other, Gap::Line)
            }
            "dd" => self.lines(": ".to_owned(), String::new(), Gap::Line),
            "blockquote" => self.lines("> ".to_owned(), "> ".to_owned(), Gap::Paragraph),
            "main" | "article" if !self.is_in_content() => Kind::Part,
            "a" => Kind::Link {
                address: Some(get("href"))
                    .filter(|href| !href.is_empty() && !href.starts_with('#'))
                    .and_then(|href| self.address(href)),
                is_anchor: get("href").starts_with('#'),
            },
            "sup" if self.gap == Gap::None => Kind::Mark(["^", ""]),
            _ => match heading(name) {
                Some(level) => self.lines("#".repeat(level) + " ", String::new(), Gap::Paragraph),
                None if is_block(name) => Kind::Block,
                None => Kind::Plain,
            },
        }
    }

    fn lines(&self, first: String, other: String, gap: Gap) -> Kind {
        let is_lines = |open: &&Open| matches!(open.kind, Kind::Lines(..));
        if self.open.iter().filter(is_lines).count() >= MAX_PREFIXES {
            return Kind::Lines(String::new(), String::new(), gap);
        }
        Kind::Lines(first, other, gap)
    }

    fn is_surrounding(&self, name: &str, role: &str) -> bool {
        let is = |names: &[&str]| names.contains(&name) || names.contains(&role);
        is(&SURROUNDING) || is(&OUTSIDE) && !self.is_in_content()
    }

    fn is_unseen(&self, name: &str, attributes: &Attributes) -> bool {
        // A button may be a heading that expands the content after it.
        let unfolds = self.open.iter().any(|open| heading(&open.name).is_some())
            || attributes.contains_key("aria-expanded") && self.is_in_content();
        let hidden = attributes.get("hidden");
        hidden.is_some_and(|until| until != "until-found")
            || attribute(attributes, "aria-hidden") == "true"
            || matches!(attribute(attributes, "role"), "dialog" | "alertdialog")
            || name == "button" && !unfolds
            || attribute(attributes, "class") == "mw-editsection"
    }

    /// Returns what separates a list from the text around it.
    fn around_list(&self) -> Gap {
        let is_apart = |open: &&Open| matches!(open.kind, Kind::Lines(..) | Kind::Cell);
        match self.open.iter().rev().find(is_apart) {
            Some(open) if open.name == "li" => Gap::Line,
            _ => Gap::Paragraph,
        }
    }

    /// Returns the marker of the next item of the innermost list.
    fn marker(&mut self) -> String {
        for open in self.open.iter_mut().rev() {
            match &mut open.kind {
                Kind::List(Some(number)) => {
                    let marker = format!("{number}. ");
                    *number = number.saturating_add(1);
                    return marker;
                }
                Kind::List(None) => break,
                _ => {}
            }
        }
        "- ".to_owned()
    }

    /// Resolves a link of the page.
    fn address(&self, link: &str) -> Option<String> {
        if link.len() > MAX_ADDRESS {
            return None;
        }
        address::join(&self.base, link).filter(|address| address.len() <= MAX_ADDRESS)
    }

    fn image(&mut self, attributes: &Attributes) {
        let get = |name| attribute(attributes, name);
        // An image without a description is decoration, and an image with a width or height of one pixel is a tracker.
        let is_dot = |size| matches!(get(size).trim_end_matches("px"), "0" | "1");
        let alt: Vec<&str> = get("alt").split_whitespace().collect();
        if alt.is_empty() || is_dot("width") || is_dot("height") {
            return;
        }
        let alt = alt.join(" ");
        let mut sources = ["src", "data-src"].into_iter().map(get);
        let source = sources.find(|src| !src.is_empty() && !src.starts_with("data:"));
        let is_in_link = self.is_in(|kind| {
            matches!(
                kind,
                Kind::Link {
                    address: Some(_),
                    ..
                }
            )
        });
        let image = match source.and_then(|src| self.address(src)) {
            Some(source) if !is_in_link => format!("![{alt}]({source})"),
            _ => alt,
        };
        // Pages repeat images for browsers without scripts.
        if !self.out.ends_with(&image) {
            self.push(&image);
        }
    }

    /// Closes the innermost elements until `count` remain open.
    fn close_to(&mut self, count: usize) {
        while self.open.len() > count {
            if let Some(open) = self.open.pop() {
                self.close(open);
            }
        }
    }

    fn close(&mut self, open: Open) {
        match open.kind {
            Kind::Plain | Kind::Hidden | Kind::Title => {}
            Kind::Block if open.name == "dt" => self.space(Gap::Line),
            Kind::Block | Kind::Table(_) => self.space(Gap::Paragraph),
            Kind::List(_) => self.space(self.around_list()),
            Kind::Lines(_, _, gap) => {
                // Gaps at its end are dropped.
                if open.start.is_some() {
                    self.gap = Gap::None;
                }
                self.space(gap);
            }
            Kind::Mark(marks) => self.mark(open.start, marks),
            Kind::Link {
                address: Some(address),
                ..
            } => self.finish_link(open.start, &address),
            Kind::Link { .. } => {}
            Kind::Cell => {
                let cell = self.take(&open).trim().to_owned();
                let outer = self.open.iter_mut().rev().map(|open| &mut open.kind);
                if let Some(Kind::Row(cells)) =
                    outer.into_iter().find(|k| matches!(k, Kind::Row(_)))
                {
                    cells.push(cell);
                }
            }
            Kind::Row(cells) => self.row(&cells),
            Kind::Pre(ref language) => {
                let text = self.take(&open);
                // The first line end after the tag is ignored.
                let text = text.strip_prefix('\n').unwrap_or(&text).trim_end();
                if !text.is_empty() {
                    let fence = fence(text);
                    let block = format!("{fence}{language}\n{text}\n{fence}");
                    self.block(&block, Gap::Paragraph);
                }
            }
            Kind::Part => {
                self.space(Gap::Paragraph);
                // The first line starts with its marker.
                let text = open.start.and_then(|at| self.out.get(..at));
                let start = text.map_or(0, |text| text.rfind('\n').map_or(0, |feed| feed + 1));
                let part = self.out[start..].to_owned();
                if open.name == "article" {
                    self.articles.push(part);
                } else if part.len() >= MIN_CONTENT {
                    self.main.get_or_insert(part);
                }
            }
        }
    }

    /// Takes the text of a cell or a code block out of the output.
    fn take(&mut self, open: &Open) -> String {
        self.gap = open.gap;
        let start = open.start.unwrap_or_default();
        self.out.split_off(start.min(self.out.len()))
    }

    fn mark(&mut self, start: Option<usize>, [begin, end]: [&'static str; 2]) {
        let Some((before, inner)) = start.and_then(|at| self.out.split_at_checked(at)) else {
            return;
        };
        let is_power = inner.starts_with(|c: char| c.is_ascii_digit() || "+-−(".contains(c))
            && before.ends_with(|c: char| c.is_alphanumeric() || "*`)".contains(c));
        if inner.is_empty() || inner.contains('\n') || begin == "^" && !is_power {
            return;
        }
        let is_ticked = begin == "`" && inner.contains('`');
        let [begin, end] = if is_ticked {
            ["`` ", " ``"]
        } else {
            [begin, end]
        };
        self.out.insert_str(before.len(), begin);
        self.out.push_str(end);
    }

    /// Makes a link of the text from `start`; only of the first line if there are several.
    fn finish_link(&mut self, start: Option<usize>, address: &str) {
        let Some((before, inner)) = start.and_then(|at| self.out.split_at_checked(at)) else {
            return;
        };
        let (at, len) = (before.len(), inner.find('\n').unwrap_or(inner.len()));
        if len > 0 {
            self.out.insert_str(at + len, &format!("]({address})"));
            self.out.insert(at, '[');
        }
    }

    /// Writes a row: as a row of a table if it has data, or as paragraphs if it is only layout.
    fn row(&mut self, cells: &[String]) {
        let mut tables = self
            .open
            .iter_mut()
            .rev()
            .filter_map(|open| match &mut open.kind {
                Kind::Table(has_head) => Some(has_head),
                _ => None,
            });
        let mut no_table = false;
        let has_head = tables.next().unwrap_or(&mut no_table);
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
    fn end_before(&mut self, name: &str) {
        let (limits, ended): (&[&str], &[&str]) = match name {
            "li" => (&["ul", "ol", "menu", "table"], &["li"]),
            "dt" | "dd" => (&["dl", "table"], &["dt", "dd"]),
            "td" | "th" => (&["table"], &["td", "th", "caption"]),
            "tr" => (&["table"], &["tr", "td", "th", "caption"]),
            "thead" | "tbody" | "tfoot" => (
                &["table"],
                &["thead", "tbody", "tfoot", "tr", "td", "th", "caption"],
            ),
            "a" => (&["td", "th"], &["a"]),
            _ => (&[], &[]),
        };
        self.close_within(limits, ended);
        if is_block(name) {
            self.close_within(&["td", "th", "caption", "button"], &["p"]);
        }
    }

    /// Closes the outermost element with one of these names inside the innermost one of `limits`.
    fn close_within(&mut self, limits: &[&str], names: &[&str]) {
        let is = |open: &Open, names: &[&str]| names.contains(&&*open.name);
        let limit = self.open.iter().rposition(|open| is(open, limits));
        let from = limit.map_or(0, |at| at + 1);
        let outermost = self.open[from..].iter().position(|open| is(open, names));
        if let Some(n) = outermost {
            self.close_to(from + n);
        }
    }

    /// Closes the element of an end tag and the elements in it, but never crosses a table or list. Emphasis and links do not
    /// end a block.
    fn end(&mut self, name: &str) {
        let (is_name_block, is_heading) = (is_block(name), heading(name).is_some());
        let is_limit = |open: &Open| match name {
            "table" => false,
            "li" => matches!(&*open.name, "ul" | "ol" | "menu" | "table"),
            _ if is_name_block => open.name == "table",
            _ => is_block(&open.name),
        };
        for at in (0..self.open.len()).rev() {
            let open = &self.open[at];
            if open.name == name || is_heading && heading(&open.name).is_some() {
                return self.close_to(at);
            }
            if is_limit(open) {
                return;
            }
        }
    }
}
