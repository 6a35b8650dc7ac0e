//! The web: fetches pages for a model to read, and searches.
//!
//! Every address comes from a model that may have read a hostile page, so each connection, of each redirect, goes through
//! the address guard. What the guard's look-up answered is what is connected to, also through a proxy.

mod address;
mod charset;
mod elements;
mod entities;
mod html;
mod search;
#[cfg(test)]
mod tests;
mod tokens;

use std::time::{Duration, Instant};

pub(crate) use search::Search;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::http::{Client, Exchange, Head, Outgoing, left};
use crate::message::Media;
use crate::packed::gunzip;
use crate::secret::Secret;
use crate::text::parse_json;

/// The most bytes that are read of one page.
const MAX_BYTES: usize = 8 << 20;
/// Browsers follow 20.
const MAX_REDIRECTS: usize = 10;

/// What came from an address.
#[derive(Debug)]
pub(crate) struct Page {
    pub status: u16,
    /// After all redirects.
    pub address: String,
    pub title: String,
    pub content: Content,
    /// The page was longer than [`MAX_BYTES`].
    pub is_cut: bool,
    /// What the reader should know of it; mostly empty.
    pub note: String,
}

#[derive(Debug)]
pub(crate) enum Content {
    Text(String),
    Image(Media),
    /// A type that cannot be read as text, and its size in bytes.
    Other(String, usize),
}

/// Makes the client for an address: each has its own way out.
pub(crate) type Connect = dyn Fn(&str) -> Client + Send + Sync;

/// Fetches what a model asks for. `connect` guards the connections.
pub(crate) fn fetch(
    connect: &Connect,
    url: &str,
    timeout: Duration,
    cancel: &Cancel,
) -> Result<Page> {
    let until = Instant::now() + timeout;
    let mut address = address::normalize(url)?;
    for _ in 0..=MAX_REDIRECTS {
        let accepted = "text/html,text/*;q=0.9,application/json;q=0.9,*/*;q=0.5";
        let headers = [("accept", accepted), ("accept-encoding", "gzip")];
        let headers = headers
            .map(|(name, value)| (name.to_owned(), Secret::new(value)))
            .to_vec();
        let mut exchange = connect(&address).send(
            Outgoing {
                url: address.clone(),
                headers,
                body: None,
            },
            cancel,
        )?;
        let head = exchange.head(left(until))?;
        if let Some(location) = head
            .header("location")
            .filter(|_| (300..400).contains(&head.status))
        {
            let target = address::join(&address, location).unwrap_or_else(|| location.to_owned());
            address = address::normalize(&target)
                .map_err(|e| e.doing(format!("following a redirect to {target}")))?;
            continue;
        }
        let (bytes, is_cut) = read(&mut exchange, &head, until)?;
        return Ok(page(&head, &bytes, is_cut, &address));
    }
    Err(Error::failed(format!(
        "more than {MAX_REDIRECTS} redirects, the last one to {address}"
    )))
}

/// The body, up to [`MAX_BYTES`], and whether there was more.
fn read(exchange: &mut Exchange, head: &Head, until: Instant) -> Result<(Vec<u8>, bool)> {
    let mut bytes = exchange.whole_body(MAX_BYTES, until)?;
    let mut is_cut = bytes.len() > MAX_BYTES;
    bytes.truncate(MAX_BYTES);
    if head
        .header("content-encoding")
        .is_some_and(|encoding| encoding.to_ascii_lowercase().contains("gzip"))
    {
        bytes = gunzip(&bytes, MAX_BYTES)
            .ok_or_else(|| Error::failed("the answer is not gzip as it says"))?;
        is_cut |= bytes.len() == MAX_BYTES;
    }
    Ok((bytes, is_cut))
}

/// What the body of a response holds.
fn page(head: &Head, bytes: &[u8], is_cut: bool, address: &str) -> Page {
    let header = head
        .header("content-type")
        .unwrap_or_default()
        .to_ascii_lowercase();
    let mime = header
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned();
    let is_html =
        mime.contains("html") || (mime.is_empty() && bytes.trim_ascii_start().starts_with(b"<"));
    let new = |title, content, note| Page {
        status: head.status,
        address: address.to_owned(),
        title,
        content,
        is_cut,
        note,
    };
    if let Some(image) = Media::image(bytes).filter(|_| !is_cut) {
        return new(String::new(), Content::Image(image), String::new());
    }
    let is_text = is_html
        || mime.is_empty()
        || mime.starts_with("text/")
        || ["json", "xml", "javascript", "yaml"]
            .iter()
            .any(|kind| mime.contains(kind));
    if !is_text || bytes.iter().take(1024).any(|byte| *byte == 0) && !charset::is_utf_16(bytes) {
        return new(
            String::new(),
            Content::Other(mime, bytes.len()),
            String::new(),
        );
    }
    let (text, note) = match charset::decode(bytes, &header, is_html) {
        Ok(text) => (text, String::new()),
        Err((name, text)) => (
            text,
            format!("[its character encoding {name} is unknown: read as UTF-8]"),
        ),
    };
    if is_html {
        let page = html::convert(&text, address);
        return new(page.title, Content::Text(page.markdown), note);
    }
    let json = parse_json(&text).ok().filter(|_| mime.contains("json"));
    let laid_out = json.and_then(|value| serde_json::to_string_pretty(&value).ok());
    new(String::new(), Content::Text(laid_out.unwrap_or(text)), note)
}
