//! The web: fetches pages for a model, and searches.
//!
//! Every address comes from a model that may have read a hostile page, so each connection, including those of redirects, passes
//! the address guard. The connection uses the address that the guard has looked up, even through a proxy.

mod address;
mod charset;
mod entities;
mod page;
mod read;
mod search;
#[cfg(test)]
mod tests;
mod tokens;

use std::time::{Duration, Instant};

pub(crate) use entities::named_character;
use read::Found as ReadFound;
pub(crate) use read::perform;
pub(crate) use search::{Search, keys_in};

use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::http::{Client, Exchange, Head, Outgoing, left};
use crate::json::from_json;
use crate::message::Media;
use crate::secret::Secret;
use crate::text::{foreign, foreign_line, media_type, whole_words};
use crate::worker::protocol::{Header, Pieces, Reading, ReadingJob, Reply};

/// Maximum size of a page, in bytes.
const MAX_BYTES: usize = 8 << 20;
/// Maximum number of redirects; browsers allow 20.
const MAX_REDIRECTS: usize = 10;
/// Maximum length of an invalid address in an error message, in characters.
const MAX_SHOWN: usize = 500;

/// A fetched page.
#[derive(Debug)]
pub(crate) struct Page {
    pub status: u16,
    /// Requested address.
    pub asked: String,
    /// Address after all redirects; chosen by servers if there were any.
    pub address: String,
    pub title: String,
    pub content: Content,
    /// Whether the page was longer than its content here.
    pub is_cut: bool,
    /// Name of an unknown character encoding; empty if known.
    pub unknown_encoding: String,
}

#[derive(Debug)]
pub(crate) enum Content {
    Text(String),
    Image(Media),
    Pdf(Vec<u8>),
    /// A type that cannot be read as text, and its size in bytes.
    Other(String, usize),
    /// Size of an image that exceeds the limit, in bytes.
    LargeImage(usize),
}

/// Creates the client for an address, because proxies depend on the address.
pub(crate) type Connect<'a> = dyn Fn(&str) -> Client + 'a;

/// Parses untrusted bytes as they arrive, in a separate process, and returns the result.
pub(crate) type Read<'a> = dyn Fn(ReadingJob, &mut Pieces, &Cancel) -> Result<Reply> + 'a;

/// Fetches a page for a model. `connect` guards the connections. The body is only parsed in a worker process.
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
    let content_type = found.head.header("content-type").unwrap_or_default();
    let what = Reading::Page {
        content_type: whole_words(content_type, 1_000).to_owned(),
        address: found.address.clone(),
        max_chars,
    };
    let job = ReadingJob {
        what,
        is_gzip: is_gzip(&found.head),
    };
    let reply = read(job, &mut pieces(&mut found.exchange, until), cancel)?;
    page_of(found, reply)
}

/// Builds a page from a worker's reply.
fn page_of(found: Found, reply: Reply) -> Result<Page> {
    let mut page = Page {
        status: found.head.status,
        asked: found.asked,
        address: found.address,
        title: String::new(),
        content: Content::Text(String::new()),
        is_cut: false,
        unknown_encoding: String::new(),
    };
    if reply.header == Header::Pdf {
        page.content = Content::Pdf(reply.body);
        return Ok(page);
    }
    if reply.header == Header::Image {
        let image = Media::image(&reply.body);
        page.content = Content::Image(image.ok_or_else(|| Error::failed("it is not an image"))?);
        return Ok(page);
    }
    let told = reply.into_text()?;
    let (read, text) = told.split_once('\n').unwrap_or((&told, ""));
    let read: ReadFound = from_json(read).doing("reading what was read of the page")?;
    page.title = read.title;
    page.unknown_encoding = read.unknown_encoding;
    page.is_cut = read.is_cut;
    page.content = if read.is_text {
        Content::Text(text.to_owned())
    } else if read.is_image {
        Content::LargeImage(read.size)
    } else {
        let content_type = found.head.header("content-type").unwrap_or_default();
        Content::Other(media_type(content_type).unwrap_or_default(), read.size)
    };
    Ok(page)
}

/// A response that is not a redirect.
struct Found {
    exchange: Exchange,
    head: Head,
    asked: String,
    address: String,
}

/// Requests an address, and follows its redirects.
fn follow(
    connect: &dyn Fn(&str) -> Client,
    url: &str,
    headers: &[(&str, &str)],
    until: Instant,
    cancel: &Cancel,
) -> Result<Found> {
    let asked = address::normalize(url)?;
    let mut address = asked.clone();
    // Each request is a step of a counted chain, so a page that redirects to itself ends too.
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
        let is_redirect = (300..400).contains(&head.status);
        let location = match head.header("location") {
            Some(location) if is_redirect => location,
            _ => {
                return Ok(Found {
                    exchange,
                    head,
                    asked,
                    address,
                });
            }
        };
        let target = address::join(&address, location).unwrap_or_else(|| location.to_owned());
        address = address::normalize(&target).map_err(|_| {
            let why = "the page redirects to an address that is neither http nor https";
            Error::failed(foreign(why, &foreign_line(&target, MAX_SHOWN)))
        })?;
    }
    let why = format!("more than {MAX_REDIRECTS} redirects, the last one to this address");
    Err(Error::failed(foreign(
        &why,
        &foreign_line(&address, MAX_SHOWN),
    )))
}

/// The error at an address that a server has chosen contains untrusted text.
fn of_redirect(e: Error, is_redirected: bool) -> Error {
    if !is_redirected || e.kind != Kind::Failed {
        return e;
    }
    let why = "the page redirects to an address that cannot be fetched";
    Error::failed(foreign(why, &foreign_line(&e.message, MAX_SHOWN)))
}

fn is_gzip(head: &Head) -> bool {
    let encoding = head.header("content-encoding").unwrap_or_default();
    encoding.to_ascii_lowercase().contains("gzip")
}

/// Returns the body of a response in pieces, limited to one byte more than [`MAX_BYTES`].
fn pieces(
    exchange: &mut Exchange,
    until: Instant,
) -> impl FnMut() -> Result<Option<Vec<u8>>> + use<'_> {
    let mut room = MAX_BYTES + 1;
    move || {
        if room == 0 {
            return Ok(None);
        }
        let Some(mut piece) = exchange.body(left(until))? else {
            return Ok(None);
        };
        piece.truncate(room);
        room -= piece.len();
        Ok(Some(piece))
    }
}
