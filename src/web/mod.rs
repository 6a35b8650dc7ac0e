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

pub(crate) use search::{Search, keys_in};

use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::http::{Client, Exchange, Head, Outgoing, left};
use crate::message::Media;
use crate::packed::gunzip;
use crate::secret::Secret;
use crate::text::{foreign, media_type, one_line, parse_json};

/// The most bytes that are read of one page.
const MAX_BYTES: usize = 8 << 20;
/// Browsers follow 20.
const MAX_REDIRECTS: usize = 10;
/// The most characters of an address that cannot be followed.
const MAX_SHOWN: usize = 500;

/// What came from an address.
#[derive(Debug)]
pub(crate) struct Page {
    pub status: u16,
    /// The address that was asked for.
    pub asked: String,
    /// After all redirects: from there on servers have chosen it.
    pub address: String,
    pub title: String,
    pub content: Content,
    /// The page was longer than [`MAX_BYTES`].
    pub is_cut: bool,
    /// The name of a character encoding that is unknown; mostly empty.
    pub unknown_encoding: String,
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
    let accepted = "text/html,text/*;q=0.9,application/json;q=0.9,*/*;q=0.5";
    let headers = [("accept", accepted), ("accept-encoding", "gzip")];
    let mut found = follow(connect, url, &headers, until, cancel)?;
    let (bytes, is_cut) = read(&mut found.exchange, &found.head, until)?;
    Ok(page(
        &found.head,
        &bytes,
        is_cut,
        found.asked,
        found.address,
    ))
}

/// Fetches a file as it is: one byte more than `most` where it is longer.
pub(crate) fn download(
    connect: &dyn Fn(&str) -> Client,
    url: &str,
    most: usize,
    timeout: Duration,
    cancel: &Cancel,
) -> Result<Vec<u8>> {
    let until = Instant::now() + timeout;
    let mut found = follow(connect, url, &[("accept", "*/*")], until, cancel)?;
    let status = found.head.status;
    if !found.head.is_success() {
        return Err(Error::failed(format!(
            "the host answered with status {status}"
        )));
    }
    Ok(found.exchange.whole_body(most, until)?)
}

/// An answer that is no redirect.
struct Found {
    exchange: Exchange,
    head: Head,
    asked: String,
    address: String,
}

/// Asks for an address, and for those that it redirects to.
fn follow(
    connect: &dyn Fn(&str) -> Client,
    url: &str,
    headers: &[(&str, &str)],
    until: Instant,
    cancel: &Cancel,
) -> Result<Found> {
    let asked = address::normalize(url)?;
    let mut address = asked.clone();
    for _ in 0..=MAX_REDIRECTS {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)))
            .collect();
        let request = Outgoing {
            url: address.clone(),
            headers,
            body: None,
        };
        let started = connect(&address)
            .send(request, cancel)
            .and_then(|mut exchange| {
                let head = exchange.head(left(until))?;
                Ok((exchange, head))
            });
        let (exchange, head) = started.map_err(|e| of_redirect(e, address != asked))?;
        if let Some(location) = head
            .header("location")
            .filter(|_| (300..400).contains(&head.status))
        {
            let target = address::join(&address, location).unwrap_or_else(|| location.to_owned());
            address = address::normalize(&target).map_err(|_| {
                let why = "the page redirects to what is no http or https address";
                Error::failed(foreign(why, &one_line(&target, MAX_SHOWN)))
            })?;
            continue;
        }
        return Ok(Found {
            exchange,
            head,
            asked,
            address,
        });
    }
    let why = format!("more than {MAX_REDIRECTS} redirects, the last one to this address");
    Err(Error::failed(foreign(&why, &one_line(&address, MAX_SHOWN))))
}

/// An error at an address that a server has chosen names that server's words.
fn of_redirect(e: Error, is_redirected: bool) -> Error {
    if !is_redirected || e.kind != Kind::Failed {
        return e;
    }
    let why = "the page redirects to an address that cannot be fetched";
    Error::failed(foreign(why, &one_line(&e.message, MAX_SHOWN)))
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
fn page(head: &Head, bytes: &[u8], is_cut: bool, asked: String, address: String) -> Page {
    let header = head
        .header("content-type")
        .unwrap_or_default()
        .to_ascii_lowercase();
    let mime = media_type(&header).unwrap_or_default();
    let is_html =
        mime.contains("html") || (mime.is_empty() && bytes.trim_ascii_start().starts_with(b"<"));
    let mut page = Page {
        status: head.status,
        asked,
        address,
        title: String::new(),
        content: Content::Other(mime.clone(), bytes.len()),
        is_cut,
        unknown_encoding: String::new(),
    };
    if let Some(image) = Media::image(bytes).filter(|_| !is_cut) {
        page.content = Content::Image(image);
        return page;
    }
    let is_text = is_html
        || mime.is_empty()
        || mime.starts_with("text/")
        || ["json", "xml", "javascript", "yaml"]
            .iter()
            .any(|kind| mime.contains(kind));
    if !is_text || bytes.iter().take(1024).any(|byte| *byte == 0) && !charset::is_utf_16(bytes) {
        return page;
    }
    let text = match charset::decode(bytes, &header, is_html) {
        Ok(text) => text,
        Err((name, text)) => {
            page.unknown_encoding = name;
            text
        }
    };
    if is_html {
        let read = html::convert(&text, &page.address);
        page.title = read.title;
        page.content = Content::Text(read.markdown);
        return page;
    }
    let json = parse_json(&text).ok().filter(|_| mime.contains("json"));
    let laid_out = json.and_then(|value| serde_json::to_string_pretty(&value).ok());
    page.content = Content::Text(laid_out.unwrap_or(text));
    page
}
