//! Writes links, and converts images and frames to links.

use super::{Effect, Gap, IN_LINK, MAX_ADDRESS, Writer, attribute};
use crate::web::address;
use crate::web::tokens::Attributes;

/// Texts of links to the heading that contains them.
const ANCHORS: [&str; 4] = ["¶", "#", "§", "🔗"];

impl Writer {
    /// Resolves a link of the page.
    pub(super) fn address(&self, link: &str) -> Option<String> {
        let is_short = |address: &str| address.len() <= MAX_ADDRESS;
        Some(link)
            .filter(|link| is_short(link))
            .and_then(|link| address::join(&self.base, link))
            .filter(|address| is_short(address))
    }

    pub(super) fn link(&mut self, attributes: &Attributes) -> Effect {
        let get = |name| attribute(attributes, name);
        let href = get("href");
        let is_anchor = href.starts_with('#');
        let labels = [get("aria-label"), get("title")];
        let label = labels.into_iter().find(|label| !label.is_empty());
        Effect::Link {
            at: None,
            address: if href.is_empty() || is_anchor {
                None
            } else {
                self.address(href)
            },
            label: label.unwrap_or_default().to_owned(),
            is_anchor,
        }
    }

    /// Makes a link of the text from `at`; only of the first line if there are several.
    pub(super) fn finish_link(&mut self, at: usize, address: Option<&str>, is_anchor: bool) {
        let buffer = self.buffer();
        let text = &buffer.text[at..];
        if is_anchor && ANCHORS.contains(&text) {
            let is_spaced = buffer.text[..at].ends_with(' ');
            buffer.text.truncate(at - usize::from(is_spaced));
            buffer.space(if is_spaced { Gap::Space } else { Gap::None });
        }
        if buffer.text.len() <= at {
            return;
        }
        let Some(address) = address else { return };
        let end = buffer.text[at..]
            .find('\n')
            .map_or(buffer.text.len(), |len| at + len);
        buffer.text.insert_str(end, &format!("]({address})"));
        buffer.text.insert(at, '[');
    }

    pub(super) fn image(&mut self, attributes: &Attributes) {
        let get = |name| attribute(attributes, name);
        // An image without a description is decoration, and an image with a width or height of one pixel is a tracker.
        let is_dot = [get("width"), get("height")]
            .into_iter()
            .any(|size| matches!(size.trim_end_matches("px"), "0" | "1"));
        let alt: Vec<&str> = get("alt").split_whitespace().collect();
        if alt.is_empty() || is_dot {
            return;
        }
        let alt = alt.join(" ");
        let sources = ["src", "data-src", "srcset"].map(get);
        let source = sources
            .into_iter()
            .find(|src| !src.is_empty() && !src.starts_with("data:"));
        let in_link = self.is_in(IN_LINK);
        let image = match source.and_then(|src| self.address(src.split_whitespace().next()?)) {
            Some(source) if !in_link => format!("![{alt}]({source})"),
            _ => alt,
        };
        // Pages repeat images for browsers without scripts.
        if !self.buffer().text.ends_with(&image) {
            self.push(&image);
        }
    }

    /// Writes a link to an embedded page.
    pub(super) fn frame(&mut self, attributes: &Attributes) {
        let get = |name| attribute(attributes, name);
        let name = [get("title"), get("name")]
            .into_iter()
            .find(|name| !name.is_empty());
        let source = Some(get("src")).filter(|src| !src.is_empty());
        if let (Some(name), Some(source)) = (name, source.and_then(|src| self.address(src))) {
            self.block(&format!("[{name}]({source})"), Gap::Paragraph);
        }
    }
}
