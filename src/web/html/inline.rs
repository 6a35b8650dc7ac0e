//! What stands within a line: links, emphasis, images, formulas.

use super::{Attributes, Writer, address, attribute};

/// An inline element that is open, and where in the text it began.
pub(super) struct Inline {
    pub name: String,
    pub start: usize,
    /// Of a link.
    href: String,
    /// What a link without text is called.
    label: String,
}

/// Those that Markdown marks.
pub(super) const NAMES: [&str; 12] =
    ["a", "b", "strong", "i", "em", "code", "kbd", "samp", "del", "s", "strike", "sup"];
/// The texts of links to the heading that they stand in.
const ANCHORS: [&str; 4] = ["¶", "#", "§", "🔗"];

impl Writer {
    pub(super) fn start_inline(&mut self, name: &str, attributes: &Attributes) {
        let href = attribute(attributes, "href").to_owned();
        let labels = ["aria-label", "title"].map(|name| attribute(attributes, name).trim());
        let label = labels.into_iter().find(|label| !label.is_empty()).unwrap_or_default().to_owned();
        self.inlines.push(Inline { name: name.to_owned(), start: self.text.len(), href, label });
    }

    pub(super) fn end_inline(&mut self, name: &str) {
        let Some(n) = self.inlines.iter().rposition(|inline| inline.name == name) else {
            return;
        };
        let Inline { start, href, label, .. } = self.inlines.remove(n);
        self.inlines.truncate(n);
        let Some(inner) = self.text.get(start..) else {
            return;
        };
        let (before, after) = (inner.len() - inner.trim_start().len(), inner.len() - inner.trim_end().len());
        let text = inner.trim().to_owned();
        let target = Some(&href).filter(|href| !href.is_empty() && !href.starts_with('#'));
        let target = target.and_then(|href| address::join(&self.base, href));
        if text.is_empty() {
            if let Some(target) = target.filter(|_| name == "a" && !label.is_empty()) {
                self.write(&format!("[{label}]({target})"));
            }
            return;
        }
        let marked = match name {
            "a" if href.starts_with('#') && ANCHORS.contains(&&*text) => String::new(),
            "a" => target.map_or(text.clone(), |target| link(&text, &target)),
            "sup" => {
                let is_power = text.starts_with(|c: char| c.is_ascii_digit() || "+-−(".contains(c));
                let has_base = self.text[..start].ends_with(|c: char| c.is_alphanumeric() || "*`)".contains(c));
                if is_power && has_base { format!("^{text}") } else { text }
            }
            _ if text.contains('\n') => text,
            "b" | "strong" => format!("**{text}**"),
            "i" | "em" => format!("*{text}*"),
            "del" | "s" | "strike" => format!("~~{text}~~"),
            _ if text.contains('`') => format!("`` {text} ``"),
            _ => format!("`{text}`"),
        };
        let spaces = [before, after].map(|count| if count > 0 { " " } else { "" });
        self.text.truncate(start);
        self.text.push_str(&format!("{}{marked}{}", spaces[0], spaces[1]));
    }

    pub(super) fn image(&mut self, attributes: &Attributes) {
        let alt = attribute(attributes, "alt").trim();
        let sources = ["src", "data-src", "srcset"].map(|name| attribute(attributes, name));
        let source = sources.into_iter().find(|src| !src.is_empty() && !src.starts_with("data:"));
        let source = source.and_then(|src| address::join(&self.base, src.split_whitespace().next()?));
        let image = match source {
            // An image without a description is decoration.
            _ if alt.is_empty() => return,
            Some(source) if self.inlines.iter().all(|inline| inline.name != "a") => {
                format!("![{alt}]({source})")
            }
            _ => alt.to_owned(),
        };
        // It comes again for browsers without scripts.
        if !self.text.ends_with(&image) {
            self.write(&image);
        }
    }

    /// A link to what a page shows within it.
    pub(super) fn frame(&mut self, attributes: &Attributes) {
        let names = ["title", "name"].map(|name| attribute(attributes, name));
        let name = names.into_iter().find(|name| !name.is_empty());
        let source = Some(attribute(attributes, "src")).filter(|src| !src.is_empty());
        if let (Some(name), Some(source)) = (name, source.and_then(|src| address::join(&self.base, src))) {
            self.paragraph(&format!("[{name}]({source})"));
        }
    }

    /// A formula as TeX, if the page has it.
    pub(super) fn formula(&mut self, name: &str, attributes: &Attributes) {
        let tex = attribute(attributes, "alttext").trim();
        if name == "math" && tex.is_empty() {
            self.open_line();
            self.formula = Some(self.text.len());
        } else if name == "math" {
            self.write(&format!("${tex}$"));
            self.hidden = Some((name.to_owned(), 1));
        } else if let Some(start) = self.formula.filter(|_| attribute(attributes, "encoding").contains("tex")) {
            if self.text.is_char_boundary(start) {
                self.text.truncate(start);
            }
            self.write("$");
        } else {
            self.hidden = Some((name.to_owned(), 1));
        }
    }

    pub(super) fn end_formula(&mut self) {
        if self.formula.take().is_some() {
            self.write("$");
        }
    }
}

/// A link; of a block with more than a line, its first line.
fn link(text: &str, target: &str) -> String {
    let (first, rest) = text.split_at(text.find("\n\n").unwrap_or(text.len()));
    let name = first.trim_start_matches('#').strip_prefix(' ').unwrap_or(first);
    let (marker, words) = (&first[..first.len() - name.len()], name.split_whitespace().collect::<Vec<_>>());
    format!("{marker}[{}]({target}){rest}", words.join(" "))
}
