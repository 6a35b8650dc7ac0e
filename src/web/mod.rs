//! The web: fetches pages for a model to read, and searches.
//!
//! Every address comes from a model that may have read a hostile page, so each connection, of each redirect, goes through
//! the address guard. What the guard's look-up answered is what is connected to, also through a proxy.

mod address;
mod charset;
mod elements;
mod entities;
mod html;
mod read;
mod search;
#[cfg(test)]
mod tests;
mod tokens;

use std::time::{Duration, Instant};

use read::Found as ReadFound;
pub(crate) use read::perform;
pub(crate) use search::{Search, keys_in};

use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::http::{Client, Exchange, Head, Outgoing, left};
use crate::message::Media;
use crate::secret::Secret;
use crate::text::{clip, foreign, from_json, media_type, one_line};
use crate::wire::{Reading, ReadingJob};

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
    /// The page was longer than what is here.
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

/// Reads another's bytes in a process of its own, and gives what it says of them.
pub(crate) type Read = dyn Fn(ReadingJob, &Cancel) -> Result<String> + Send + Sync;

/// Fetches what a model asks for, as much as `max_chars` of it. `connect` guards the connections.
pub(crate) fn fetch(
    connect: &Connect,
    read: &Read,
    url: &str,
    max_chars: usize,
    timeout: Duration,
    cancel: &Cancel,
) -> Result<Page> {
    let until = Instant::now() + timeout;
    let accepted = "text/html,text/*;q=0.9,application/json;q=0.9,*/*;q=0.5";
    let headers = [("accept", accepted), ("accept-encoding", "gzip")];
    let mut found = follow(connect, url, &headers, until, cancel)?;
    let body = Body::receive(&mut found.exchange, &found.head, until)?;
    body.page(
        &found.head,
        read,
        found.asked,
        found.address,
        max_chars,
        cancel,
    )
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

/// The body of an answer as it came, up to [`MAX_BYTES`].
struct Body {
    bytes: Vec<u8>,
    is_gzip: bool,
    /// There was more.
    is_cut: bool,
}

impl Body {
    fn receive(exchange: &mut Exchange, head: &Head, until: Instant) -> Result<Self> {
        let mut bytes = exchange.whole_body(MAX_BYTES, until)?;
        let is_cut = bytes.len() > MAX_BYTES;
        bytes.truncate(MAX_BYTES);
        let encoding = head.header("content-encoding").unwrap_or_default();
        Ok(Self {
            bytes,
            is_gzip: encoding.to_ascii_lowercase().contains("gzip"),
            is_cut,
        })
    }

    /// What it holds. Only its first bytes are looked at here; the rest is read elsewhere.
    fn page(
        self,
        head: &Head,
        read: &Read,
        asked: String,
        address: String,
        max_chars: usize,
        cancel: &Cancel,
    ) -> Result<Page> {
        let content_type = head.header("content-type").unwrap_or_default().to_owned();
        let mut page = Page {
            status: head.status,
            asked,
            address,
            title: String::new(),
            content: Content::Other(String::new(), 0),
            is_cut: self.is_cut,
            unknown_encoding: String::new(),
        };
        let is_whole = !self.is_cut && !self.is_gzip;
        if let Some(image) = is_whole.then(|| Media::image(&self.bytes)).flatten() {
            page.content = Content::Image(image);
            return Ok(page);
        }
        let told = read(
            ReadingJob {
                what: Reading::Page {
                    content_type: clip(&content_type, 1_000).to_owned(),
                    address: page.address.clone(),
                    max_chars,
                },
                is_gzip: self.is_gzip,
                bytes: self.bytes,
            },
            cancel,
        )?;
        let (found, text) = told.split_once('\n').unwrap_or((&told, ""));
        let found: ReadFound = from_json(found).doing("reading what was read of the page")?;
        page.title = found.title;
        page.unknown_encoding = found.unknown_encoding;
        page.is_cut |= found.is_cut;
        page.content = if found.is_text {
            Content::Text(text.to_owned())
        } else {
            let mime = media_type(&content_type).unwrap_or_default();
            Content::Other(mime, found.size)
        };
        Ok(page)
    }
}
