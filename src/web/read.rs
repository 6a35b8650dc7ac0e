//! Parses untrusted bytes in a worker process with limits on time and memory.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{charset, page, search};
use crate::error::{Error, Result};
use crate::inflate::gunzip;
use crate::json::parse_json;
use crate::message::{MAX_IMAGE, is_shown};
use crate::text::{media_type, size, whole_words};
use crate::worker::protocol::{Header, MAX_BODY, Reading, ReadingJob, Reply};

/// Media type of a PDF.
const PDF: &str = "application/pdf";

/// Maximum size of decompressed data, in bytes.
const MAX_UNPACKED: usize = 8 << 20;
/// Maximum size of JSON that is formatted, in bytes. Its values take many times its size in memory.
const MAX_JSON: usize = 1 << 20;
/// Maximum size of a title and of the text, in bytes.
const MAX_TITLE: usize = 1_000;
const MAX_TEXT: usize = MAX_BODY - (64 << 10);

/// Description of a page; the text follows on the next line.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Found {
    pub title: String,
    pub is_text: bool,
    /// Whether the page was longer than its text here.
    pub is_cut: bool,
    /// Name of an unknown character encoding; empty if known.
    pub unknown_encoding: String,
    /// Size of the page, in bytes.
    pub size: usize,
    /// Whether the page is an image that exceeds the limit.
    pub is_image: bool,
}

/// Parses bytes according to a job.
pub(crate) fn perform(job: ReadingJob, mut bytes: Vec<u8>) -> Result<Reply> {
    if job.is_gzip {
        bytes = gunzip(&bytes, MAX_UNPACKED + 1)
            .ok_or_else(|| Error::failed("the answer says that it is gzip, and is not"))?;
    }
    let is_pdf = crate::message::media_type(&bytes) == Some(PDF);
    let body = match job.what {
        Reading::Page { .. } if is_image(&bytes) => {
            return Reply::new(Header::Image, bytes);
        }
        Reading::Page { .. } if is_pdf && bytes.len() > MAX_UNPACKED => {
            // The PDF was truncated, which its parser could not report.
            let most = size(MAX_UNPACKED as u64);
            return Err(Error::failed(format!(
                "it is a PDF of more than {most}: download it to a file and read that"
            )));
        }
        Reading::Page { .. } if is_pdf => return Reply::new(Header::Pdf, bytes),
        Reading::Page {
            content_type,
            address,
            max_chars,
            ..
        } => {
            let (found, text) = read_page(&bytes, &content_type, &address, max_chars);
            format!("{}\n{text}", serde_json::to_string(&found)?)
        }
        Reading::Hits { names, count } => {
            let answer = String::from_utf8_lossy(&bytes);
            let hits = match names {
                Some(names) => search::from_json(&answer, &names, count),
                None => search::from_page(&answer, count),
            };
            serde_json::to_string(&hits)?
        }
    };
    Reply::new(Header::Text, body.into_bytes())
}

/// Whether these bytes are an image within the limit.
fn is_image(bytes: &[u8]) -> bool {
    bytes.len() <= MAX_IMAGE && is_shown(bytes)
}

fn read_page(bytes: &[u8], content_type: &str, address: &str, max_chars: usize) -> (Found, String) {
    let header = content_type.to_ascii_lowercase();
    let mime = media_type(&header).unwrap_or_default();
    let is_html =
        mime.contains("html") || (mime.is_empty() && bytes.trim_ascii_start().starts_with(b"<"));
    let is_text = is_html
        || mime.is_empty()
        || mime.starts_with("text/")
        || ["json", "xml", "javascript", "yaml"]
            .iter()
            .any(|kind| mime.contains(kind));
    let mut found = Found {
        size: bytes.len(),
        is_cut: bytes.len() >= MAX_UNPACKED,
        is_image: bytes.len() > MAX_IMAGE && is_shown(bytes),
        ..Found::default()
    };
    let bytes = &bytes[..bytes.len().min(MAX_UNPACKED)];
    if found.is_image {
        return (found, String::new());
    }
    if !is_text || bytes.iter().take(1024).any(|byte| *byte == 0) && !charset::is_utf_16(bytes) {
        return (found, String::new());
    }
    found.is_text = true;
    let text = match charset::decode(bytes, &header, is_html) {
        Ok(text) => text,
        Err((name, text)) => {
            whole_words(&name, 40).clone_into(&mut found.unknown_encoding);
            text
        }
    };
    let text = if is_html {
        let read = page::convert(&text, address);
        whole_words(&read.title, MAX_TITLE).clone_into(&mut found.title);
        read.markdown
    } else if mime.contains("json") && text.len() <= MAX_JSON {
        laid_out(&text).unwrap_or(text)
    } else {
        text
    };
    let end = text
        .char_indices()
        .nth(max_chars)
        .map_or(text.len(), |(at, _)| at);
    let shown = whole_words(&text, end.min(MAX_TEXT));
    found.is_cut |= shown.len() < text.len();
    (found, shown.to_owned())
}

/// Returns JSON with one value per line, up to the limit.
fn laid_out(text: &str) -> Option<String> {
    let value = parse_json(text).ok()?;
    let mut out = Capped(Vec::new());
    // A write error at the limit only truncates the text.
    drop(serde_json::to_writer_pretty(&mut out, &value));
    String::from_utf8(out.0).ok()
}

/// Writer with a size limit.
struct Capped(Vec<u8>);

impl Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_BODY {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
