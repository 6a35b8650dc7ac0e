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

pub(crate) use read::{Told, perform};
pub(crate) use search::Search;

use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::http::{Client, Exchange, Head, Outgoing, left};
use crate::json::from_json;
use crate::message::Media;
use crate::secret::Secret;
use crate::text::{foreign, foreign_line, whole_words};
use crate::worker::protocol::{Header, Pieces, Reading, ReadingJob, Reply};

/// Maximum size of a page, in bytes.
const MAX_BYTES: usize = 8 << 20;
/// Maximum number of redirects; browsers allow 20.
const MAX_REDIRECTS: usize = 10;
/// Maximum length of an invalid address in an error message, in characters.
const MAX_SHOWN: usize = 500;
/// Media types that can be read.
const ACCEPTED: &str = "text/html,text/*;q=0.9,application/json;q=0.9,*/*;q=0.5";

/// A fetched page.
#[derive(Debug)]
pub(crate) struct Page {
    pub status: u16,
    /// Requested address.
    pub asked: String,
    /// Address after all redirects; chosen by servers if there were any.
    pub address: String,
    pub told: Told,
    pub content: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    Text(String),
    Image(Media),
    Pdf(Vec<u8>),
}

/// Parses untrusted bytes as they arrive, in a separate process, and returns the result.
type Read<'a> = dyn Fn(ReadingJob, &mut Pieces, &Cancel) -> Result<Reply> + 'a;

/// Access to the web. Each request has the whole `timeout`.
pub(crate) struct Web<'a> {
    /// Creates the client for an address, because proxies depend on the address.
    pub connect: &'a dyn Fn(&str) -> Client,
    pub read: &'a Read<'a>,
    pub timeout: Duration,
    pub cancel: &'a Cancel,
}

/// A response whose body has not been read.
struct Response {
    exchange: Exchange,
    head: Head,
    until: Instant,
}

impl Web<'_> {
    /// Fetches a page for a model. `connect` guards the connections. The body is only parsed in a worker process.
    pub(crate) fn fetch(&self, url: &str, max_chars: usize) -> Result<Page> {
        let asked = address::normalize(url)?;
        let (response, address) = self.follow(&asked)?;
        let status = response.head.status;
        let content_type = response.head.header("content-type").unwrap_or_default();
        let what = Reading::Page {
            content_type: whole_words(content_type, 1_000).to_owned(),
            address: address.clone(),
            max_chars,
        };
        let reply = self.read(response, what)?;
        let mut told = Told::default();
        let content = match reply.header {
            Header::Pdf => Content::Pdf(reply.body),
            Header::Image => {
                let image = Media::image(&reply.body);
                Content::Image(image.ok_or_else(|| Error::failed("it is not an image"))?)
            }
            _ => {
                let read = reply.into_text()?;
                let (first, text) = read.split_once('\n').unwrap_or((&read, ""));
                told = from_json(first).doing("reading what was read of the page")?;
                Content::Text(text.to_owned())
            }
        };
        Ok(Page {
            status,
            asked,
            address,
            told,
            content,
        })
    }

    /// Requests an address, and follows its redirects. Returns also the last address.
    fn follow(&self, asked: &str) -> Result<(Response, String)> {
        let until = Instant::now() + self.timeout;
        let mut address = asked.to_owned();
        // Each request is a step of a counted chain, so a page that redirects to itself ends too.
        for _ in 0..=MAX_REDIRECTS {
            let headers = [("accept", ACCEPTED), ("accept-encoding", "gzip")];
            let headers = headers.map(|(name, value)| (name.to_owned(), Secret::new(value)));
            let request = Outgoing {
                url: address.clone(),
                headers: headers.into(),
                body: None,
            };
            let sent = self.send(request, until);
            let response = sent.map_err(|e| of_redirect(e, address != asked))?;
            let is_redirect = (300..400).contains(&response.head.status);
            let location = match response.head.header("location") {
                Some(location) if is_redirect => location,
                _ => return Ok((response, address)),
            };
            let target = address::join(&address, location).unwrap_or_else(|| location.to_owned());
            address = address::normalize(&target).map_err(|_| {
                let why = "the page redirects to an address that is neither http nor https";
                Error::failed(foreign(why, &foreign_line(&target, MAX_SHOWN)))
            })?;
        }
        let why = format!("more than {MAX_REDIRECTS} redirects, the last one to this address");
        let address = foreign_line(&address, MAX_SHOWN);
        Err(Error::failed(foreign(&why, &address)))
    }

    fn send(&self, request: Outgoing, until: Instant) -> Result<Response> {
        let mut exchange = (self.connect)(&request.url).send(request, self.cancel)?;
        let head = exchange.head(left(until))?;
        Ok(Response {
            exchange,
            head,
            until,
        })
    }

    /// Has a worker parse the body of a response, limited to one byte more than [`MAX_BYTES`].
    fn read(&self, mut response: Response, what: Reading) -> Result<Reply> {
        let encoding = response.head.header("content-encoding");
        let is_gzip = encoding.is_some_and(|name| name.to_ascii_lowercase().contains("gzip"));
        let mut room = MAX_BYTES + 1;
        let mut next = || {
            if room == 0 {
                return Ok(None);
            }
            let mut piece = response.exchange.body(left(response.until))?;
            if let Some(piece) = &mut piece {
                piece.truncate(room);
                room -= piece.len();
            }
            Ok(piece)
        };
        (self.read)(ReadingJob { what, is_gzip }, &mut next, self.cancel)
    }
}

/// The error at an address that a server has chosen contains untrusted text.
fn of_redirect(e: Error, is_redirected: bool) -> Error {
    if !is_redirected || e.kind != Kind::Failed {
        return e;
    }
    let why = "the page redirects to an address that cannot be fetched";
    Error::failed(foreign(why, &foreign_line(&e.message, MAX_SHOWN)))
}
