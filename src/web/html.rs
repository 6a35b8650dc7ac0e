//! HTML to Markdown, for a model to read.
//!
//! What a browser does not show is left out, and so is what surrounds the content (menus, page headers and footers, forms)
//! if something is left without it.

mod table;

use super::address;
use super::elements::{Element, Node, parse};
use crate::text::whole_words;

/// Elements whose text is not shown, or is of no use to a reader.
const HIDDEN: [&str; 14] = [
    "script", "style", "template", "svg", "iframe", "canvas", "audio", "video", "select",
    "datalist", "textarea", "dialog", "map", "noembed",
];
/// Elements and roles that surround the content.
const SURROUNDING: [&str; 5] = ["nav", "navigation", "search", "dialog", "alertdialog"];
/// Those that do unless they are within it: an article may have notes and a quotation its source.
const OUTSIDE: [&str; 4] = ["footer", "aside", "contentinfo", "complementary"];
/// Elements within a line that Markdown marks.
const MARKED: [&str; 13] = [
    "a", "b", "strong", "i", "em", "code", "kbd", "samp", "del", "s", "strike", "sup", "q",
];
/// The texts of links to the heading that they stand in.
const ANCHORS: [&str; 4] = ["¶", "#", "§", "🔗"];
/// Text shorter than this, in bytes, is not taken for the content of a page without a look at the rest.
const ENOUGH: usize = 1_000;
/// Quotations and lists within one another that show.
const MAX_LEVELS: usize = 16;
/// The most bytes that are written of a page or of a part of it.
const MAX_WRITTEN: usize = 1 << 20;
/// The most bytes of an address that a page gives.
const MAX_ADDRESS: usize = 2_000;
/// Shorter than this, a `main` or `article` is not the content.
const MIN_CONTENT: usize = 200;

/// A page as a person would note it down.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub title: String,
    pub markdown: String,
}

/// Converts a page that came from `base`, an absolute address.
pub(crate) fn convert(html: &str, base: &str) -> Page {
    let page = parse(html);
    let content = Writer::run(&page, base, true);
    if content.markdown.len() >= ENOUGH {
        return content;
    }
    // What looked like a menu may be all there is.
    let whole = Writer::run(&page, base, false);
    let has_more = prose(&whole.markdown) > prose(&content.markdown) * 4;
    if has_more || content.markdown.is_empty() {
        whole
    } else {
        content
    }
}

/// Bytes of a page outside its links.
fn prose(markdown: &str) -> usize {
    let (mut rest, mut bytes) = (markdown, 0);
    while let Some((before, link)) = rest.split_once('[') {
        bytes += before.trim().len();
        rest = link;
        let address = link.split_once("](").map(|(_, address)| address);
        match address.and_then(|address| address.split_once(')')) {
            Some((_, after)) => rest = after,
            // There are no more links.
            None => break,
        }
    }
    bytes + rest.trim().len()
}

/// What stands between two pieces of text; of several, the greatest.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    #[default]
    None,
    Space,
    Line,
    Paragraph,
}

/// Text with its white space as HTML counts it: a gap is written when more text follows.
#[derive(Default)]
struct Flow {
    text: String,
    /// Before the text.
    before: Gap,
    /// After it.
    gap: Gap,
}

impl Flow {
    fn space(&mut self, gap: Gap) {
        self.gap = self.gap.max(gap);
    }

    /// Adds text as it is.
    fn push(&mut self, text: &str) {
        let gap = std::mem::take(&mut self.gap);
        if self.text.is_empty() {
            self.before = gap;
        } else {
            self.text.push_str(["", " ", "\n", "\n\n"][gap as usize]);
        }
        let room = MAX_WRITTEN.saturating_sub(self.text.len());
        self.text.push_str(whole_words(text, room));
    }

    /// Adds text in which all white space is one space.
    fn write(&mut self, text: &str) {
        for (n, word) in text.split([' ', '\t', '\n', '\r', '\u{c}']).enumerate() {
            self.space(if n > 0 { Gap::Space } else { Gap::None });
            if !word.is_empty() {
                self.push(word);
            }
        }
    }

    /// Adds a block, unless it is empty.
    fn block(&mut self, text: &str, gap: Gap) {
        self.space(gap);
        if !text.is_empty() {
            self.push(text);
            self.space(gap);
        }
    }
}

/// Where in a page the writer is.
#[derive(Clone, Copy, Default)]
struct Place {
    /// In a `main`, an `article` or a quotation.
    in_content: bool,
    in_link: bool,
    within: Within,
    /// Quotations and items around it.
    levels: usize,
}

/// The innermost block.
#[derive(Clone, Copy, Default, PartialEq)]
enum Within {
    #[default]
    Block,
    Heading,
    Item,
}

#[derive(Default)]
struct Writer {
    base: String,
    /// Leave out what surrounds the content.
    only_content: bool,
    title: Option<String>,
    /// The page's `main` and `article` elements that are in no other, each with its text.
    contents: Vec<(String, String)>,
    place: Place,
}

impl Writer {
    fn run(page: &Element, base: &str, only_content: bool) -> Page {
        let mut writer = Self {
            base: base.to_owned(),
            only_content,
            ..Self::default()
        };
        let whole = writer.inside(page, |_| {}).text;
        let of = |name: &str| {
            writer
                .contents
                .iter()
                .filter(|(n, _)| n == name)
                .collect::<Vec<_>>()
        };
        let content = match (&of("main")[..], &of("article")[..]) {
            ([main, ..], _) => Some(&main.1),
            (_, [article]) => Some(&article.1),
            _ => None,
        };
        let markdown = content
            .filter(|text| only_content && text.len() >= MIN_CONTENT)
            .unwrap_or(&whole);
        let title = whole_words(writer.title.as_deref().unwrap_or_default(), MAX_ADDRESS);
        Page {
            title: title.split_whitespace().collect::<Vec<_>>().join(" "),
            markdown: markdown.trim().to_owned(),
        }
    }

    /// What an element contains, in a place of its own.
    fn inside(&mut self, element: &Element, change: impl FnOnce(&mut Place)) -> Flow {
        let (before, mut flow) = (self.place, Flow::default());
        change(&mut self.place);
        self.children(element, &mut flow);
        self.place = before;
        flow
    }

    fn children(&mut self, element: &Element, flow: &mut Flow) {
        for node in &element.children {
            match node {
                Node::Text(text) => flow.write(text),
                Node::Element(element) => self.element(element, flow),
            }
        }
    }

    fn element(&mut self, element: &Element, flow: &mut Flow) {
        if self.is_left_out(element, flow) {
            return;
        }
        match &*element.name {
            "title" => drop(self.title.get_or_insert_with(|| verbatim(element))),
            "base" => {
                self.base = self.address(element.get("href")).unwrap_or_default();
            }
            "br" => flow.space(if flow.gap >= Gap::Line {
                Gap::Paragraph
            } else {
                Gap::Line
            }),
            "hr" => flow.block("---", Gap::Paragraph),
            "pre" => flow.block(&code_block(element), Gap::Paragraph),
            "table" => self.table(element, flow),
            "ul" | "ol" | "menu" => self.list(element, flow),
            "li" => self.item(element, "-", flow),
            "dt" => {
                flow.space(Gap::Paragraph);
                self.children(element, flow);
                flow.space(Gap::Line);
            }
            "dd" => {
                let text = self
                    .inside(element, |place| place.within = Within::Block)
                    .text;
                flow.block(&prefixed(&text, ": ", "", ""), Gap::Line);
            }
            "blockquote" => self.quotation(element, flow),
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => self.heading(element, flow),
            "main" | "article" => self.content(element, flow),
            "img" => self.image(element, flow),
            "frame" => self.frame(element, flow),
            "math" => self.formula(element, flow),
            "input"
                if self.place.within == Within::Item
                    && flow.text.is_empty()
                    && element.get("type") == "checkbox" =>
            {
                flow.push(if element.attributes.contains_key("checked") {
                    "[x]"
                } else {
                    "[ ]"
                });
                flow.space(Gap::Space);
            }
            _ if element.is_block() => {
                flow.space(Gap::Paragraph);
                self.children(element, flow);
                flow.space(Gap::Paragraph);
            }
            name if MARKED.contains(&name) => self.inline(element, flow),
            _ => self.children(element, flow),
        }
    }

    fn quotation(&mut self, element: &Element, flow: &mut Flow) {
        let quoted = self.inside(element, |place| {
            (place.in_content, place.within) = (true, Within::Block);
            place.levels += 1;
        });
        flow.block(&self.prefixed(quoted.text, "> ", "> ", ">"), Gap::Paragraph);
    }

    fn heading(&mut self, element: &Element, flow: &mut Flow) {
        let text = self
            .inside(element, |place| place.within = Within::Heading)
            .text;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let marker = &"######"[..usize::from(element.name.as_bytes()[1] - b'0')];
        flow.block(
            &prefixed(&text, &format!("{marker} "), "", ""),
            Gap::Paragraph,
        );
    }

    /// A `main` or `article`.
    fn content(&mut self, element: &Element, flow: &mut Flow) {
        let is_outer = !self.place.in_content;
        let text = self.inside(element, |place| place.in_content = true).text;
        flow.block(&text, Gap::Paragraph);
        if is_outer {
            self.contents.push((element.name.clone(), text));
        }
    }

    /// Whether an element is not shown, or not part of the content.
    fn is_left_out(&mut self, element: &Element, flow: &mut Flow) -> bool {
        let (name, role, place) = (&*element.name, element.get("role"), self.place);
        let is = |names: &[&str]| names.contains(&name) || names.contains(&role);
        let is_surrounding = is(&SURROUNDING) || is(&OUTSIDE) && !place.in_content;
        let is_hidden = element
            .attributes
            .get("hidden")
            .is_some_and(|until| until != "until-found")
            || element.get("aria-hidden") == "true";
        // A button may be a heading that unfolds what is below it.
        let unfolds = place.within == Within::Heading
            || (element.attributes.contains_key("aria-expanded") && place.in_content);
        if name == "iframe" && !is_hidden {
            self.frame(element, flow);
        }
        if is_surrounding && self.only_content {
            flow.space(Gap::Line);
            return true;
        }
        HIDDEN.contains(&name)
            || is_hidden
            || (name == "button" && !unfolds)
            || element.get("class") == "mw-editsection"
    }

    fn list(&mut self, list: &Element, flow: &mut Flow) {
        let (mut lines, place) = (Flow::default(), self.place);
        let mut number: u64 = list.get("start").parse().unwrap_or(1);
        self.place.within = Within::Block;
        for node in &list.children {
            match node {
                Node::Element(item) if item.name == "li" && list.name == "ol" => {
                    self.item(item, &format!("{number}."), &mut lines);
                    number = number.saturating_add(1);
                }
                Node::Element(element) => self.element(element, &mut lines),
                Node::Text(text) => lines.write(text),
            }
        }
        self.place = place;
        flow.block(
            &lines.text,
            if place.within == Within::Item {
                Gap::Line
            } else {
                Gap::Paragraph
            },
        );
    }

    fn item(&mut self, item: &Element, marker: &str, flow: &mut Flow) {
        if self.is_left_out(item, flow) {
            return;
        }
        let text = self
            .inside(item, |place| {
                place.within = Within::Item;
                place.levels += 1;
            })
            .text;
        let marker = format!("{marker} ");
        flow.block(
            &self.prefixed(text, &marker, &" ".repeat(marker.len()), ""),
            Gap::Line,
        );
    }

    /// A quotation or an item, unless it is too deep within others.
    fn prefixed(&self, text: String, first: &str, other: &str, empty: &str) -> String {
        if self.place.levels < MAX_LEVELS {
            prefixed(&text, first, other, empty)
        } else {
            text
        }
    }

    /// What stands within a line, with its marks.
    fn inline(&mut self, element: &Element, flow: &mut Flow) {
        let name = &*element.name;
        let Flow { text, before, gap } = self.inside(element, |place| place.in_link |= name == "a");
        // What is between the element and the text around it.
        flow.space(before);
        let is_line = !text.contains('\n');
        let marked = match name {
            "a" => self.link(element, &text),
            _ if text.is_empty() => text,
            "q" => format!("“{text}”"),
            "sup" => {
                let is_power = text.starts_with(|c: char| c.is_ascii_digit() || "+-−(".contains(c));
                let has_base = flow
                    .text
                    .ends_with(|c: char| c.is_alphanumeric() || "*`)".contains(c));
                if is_power && has_base && flow.gap == Gap::None {
                    format!("^{text}")
                } else {
                    text
                }
            }
            "b" | "strong" if is_line => format!("**{text}**"),
            "i" | "em" if is_line => format!("*{text}*"),
            "del" | "s" | "strike" if is_line => format!("~~{text}~~"),
            "code" | "kbd" | "samp" if is_line && text.contains('`') => format!("`` {text} ``"),
            "code" | "kbd" | "samp" if is_line => format!("`{text}`"),
            _ => text,
        };
        if !marked.is_empty() {
            flow.push(&marked);
        }
        flow.space(gap);
    }

    /// Where a link of the page leads.
    fn address(&self, link: &str) -> Option<String> {
        if link.len() > MAX_ADDRESS {
            return None;
        }
        address::join(&self.base, link).filter(|address| address.len() <= MAX_ADDRESS)
    }

    /// A link; of a block with more than a line, its first line.
    fn link(&self, element: &Element, text: &str) -> String {
        let href = element.get("href");
        let is_anchor = href.starts_with('#');
        let target = self
            .address(href)
            .filter(|_| !href.is_empty() && !is_anchor);
        let labels = ["aria-label", "title"].map(|name| element.get(name).trim());
        let label = labels.into_iter().find(|label| !label.is_empty());
        match (target, label) {
            _ if is_anchor && ANCHORS.contains(&text) => String::new(),
            (None, _) => text.to_owned(),
            (Some(target), Some(label)) if text.is_empty() => format!("[{label}]({target})"),
            _ if text.is_empty() => String::new(),
            (Some(target), _) => {
                let (first, rest) = text.split_at(text.find("\n\n").unwrap_or(text.len()));
                let name = first
                    .trim_start_matches('#')
                    .strip_prefix(' ')
                    .unwrap_or(first);
                let (marker, words) = (
                    &first[..first.len() - name.len()],
                    name.split_whitespace().collect::<Vec<_>>(),
                );
                format!("{marker}[{}]({target}){rest}", words.join(" "))
            }
        }
    }

    fn image(&self, image: &Element, flow: &mut Flow) {
        let alt = image.get("alt").trim();
        // An image without a description is decoration.
        if alt.is_empty() || is_dot(image) {
            return;
        }
        let sources = ["src", "data-src", "srcset"].map(|name| image.get(name));
        let source = sources
            .into_iter()
            .find(|src| !src.is_empty() && !src.starts_with("data:"));
        let image = match source.and_then(|src| self.address(src.split_whitespace().next()?)) {
            Some(source) if !self.place.in_link => format!("![{alt}]({source})"),
            _ => alt.to_owned(),
        };
        // It comes again for browsers without scripts.
        if !flow.text.ends_with(&image) {
            flow.push(&image);
        }
    }

    /// A link to what a page shows within it.
    fn frame(&self, frame: &Element, flow: &mut Flow) {
        let names = ["title", "name"].map(|name| frame.get(name));
        let name = names.into_iter().find(|name| !name.is_empty());
        let source = Some(frame.get("src")).filter(|src| !src.is_empty());
        if let (Some(name), Some(source)) = (name, source.and_then(|src| self.address(src))) {
            flow.block(&format!("[{name}]({source})"), Gap::Paragraph);
        }
    }

    /// A formula as TeX, if the page has it.
    fn formula(&mut self, math: &Element, flow: &mut Flow) {
        let tex = Some(math.get("alttext").trim().to_owned())
            .filter(|tex| !tex.is_empty())
            .or_else(|| tex_of(math));
        match tex {
            Some(tex) => flow.push(&format!("${tex}$")),
            None => self.children(math, flow),
        }
    }
}

/// Whether nobody sees an image: it is there to be counted, and is a pixel wide or high.
fn is_dot(image: &Element) -> bool {
    ["width", "height"].into_iter().any(|name| {
        let size = image.get(name).trim();
        matches!(size.strip_suffix("px").unwrap_or(size), "0" | "1")
    })
}

/// The TeX among the annotations of a formula.
fn tex_of(element: &Element) -> Option<String> {
    let elements = element.children.iter().filter_map(|node| match node {
        Node::Element(element) => Some(element),
        Node::Text(_) => None,
    });
    let is_tex =
        |element: &Element| element.name == "annotation" && element.get("encoding").contains("tex");
    elements.into_iter().find_map(|element| {
        if is_tex(element) {
            Some(verbatim(element).trim().to_owned())
        } else {
            tex_of(element)
        }
    })
}

/// All text of an element as it is.
fn verbatim(element: &Element) -> String {
    let text = |node: &Node| match node {
        Node::Text(text) => text.clone(),
        Node::Element(element) if element.name == "br" => "\n".to_owned(),
        Node::Element(element) if HIDDEN.contains(&&*element.name) => String::new(),
        Node::Element(element) => verbatim(element),
    };
    element.children.iter().map(text).collect()
}

fn code_block(pre: &Element) -> String {
    let text = verbatim(pre);
    // The first line end after the tag does not count.
    let text = text.strip_prefix('\n').unwrap_or(&text).trim_end();
    let language = match pre.children.first() {
        Some(Node::Element(code)) => code
            .get("class")
            .split_whitespace()
            .find_map(|c| c.strip_prefix("language-")),
        _ => None,
    };
    if text.is_empty() {
        String::new()
    } else {
        format!("```{}\n{text}\n```", language.unwrap_or_default())
    }
}

/// A block with something before its first line, the others and empty ones; nothing if there is no text.
fn prefixed(text: &str, first: &str, other: &str, empty: &str) -> String {
    let mut out = String::with_capacity(text.len());
    if text.is_empty() {
        return out;
    }
    for (n, line) in text.split('\n').enumerate() {
        let before = match (n, line) {
            (0, _) => first,
            (_, "") => empty,
            _ => other,
        };
        if n > 0 {
            out.push('\n');
        }
        out.push_str(before);
        out.push_str(line);
        if out.len() > MAX_WRITTEN {
            break;
        }
    }
    out
}
