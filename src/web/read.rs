//! Parses untrusted bytes in a worker process with limits on time and memory.

use serde::{Deserialize, Serialize};

use super::{charset, page, search};
use crate::error::{Error, Result};
use crate::inflate::gunzip;
use crate::message::{MAX_IMAGE, is_shown};
use crate::text::{media_type, size, whole_words};
use crate::worker::protocol::{Header, MAX_BODY, Reading, ReadingJob, Reply};

/// Media type of a PDF.
const PDF: &str = "application/pdf";

/// Maximum size of decompressed data, in bytes.
const MAX_UNPACKED: usize = 8 << 20;
/// Maximum size of a title and of the text, in bytes.
const MAX_TITLE: usize = 1_000;
const MAX_TEXT: usize = MAX_BODY - (64 << 10);

/// What a worker tells about a page; the text follows on the next line.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Told {
    pub title: String,
    /// What it is instead of text, and its size; empty for text.
    pub other: String,
    /// Whether the page was longer than its text here.
    pub is_cut: bool,
}

/// Parses bytes according to a job.
pub(crate) fn perform(job: ReadingJob, mut bytes: Vec<u8>) -> Result<Reply> {
    if job.is_gzip {
        bytes = gunzip(&bytes, MAX_UNPACKED + 1)
            .ok_or_else(|| Error::failed("the answer says that it is gzip, and is not"))?;
    }
    let is_pdf = crate::message::media_type(&bytes) == Some(PDF);
    match job.what {
        Reading::Hits { names, count } => {
            let answer = String::from_utf8_lossy(&bytes);
            let hits = match names {
                Some(names) => search::from_json(&answer, &names, count),
                None => search::from_page(&answer, count),
            };
            Reply::new(Header::Text, serde_json::to_vec(&hits)?)
        }
        Reading::Page { .. } if bytes.len() <= MAX_IMAGE && is_shown(&bytes) => {
            Reply::new(Header::Image, bytes)
        }
        Reading::Page { .. } if is_pdf && bytes.len() > MAX_UNPACKED => {
            // The PDF was truncated, which its parser could not report.
            let most = size(MAX_UNPACKED as u64);
            Err(Error::failed(format!(
                "it is a PDF of more than {most}: download it to a file and read that"
            )))
        }
        Reading::Page { .. } if is_pdf => Reply::new(Header::Pdf, bytes),
        Reading::Page {
            content_type,
            address,
            max_chars,
        } => {
            let (told, text) = read_page(&bytes, &content_type, &address, max_chars);
            let body = format!("{}\n{text}", serde_json::to_string(&told)?);
            Reply::new(Header::Text, body.into_bytes())
        }
    }
}

fn read_page(bytes: &[u8], content_type: &str, address: &str, max_chars: usize) -> (Told, String) {
    let header = content_type.to_ascii_lowercase();
    let mime = media_type(&header).unwrap_or_default();
    let is_html =
        mime.contains("html") || (mime.is_empty() && bytes.trim_ascii_start().starts_with(b"<"));
    let is_text = mime.is_empty()
        || ["text/", "html", "json", "xml", "javascript", "yaml"]
            .iter()
            .any(|kind| mime.contains(kind));
    let has_nul = bytes.iter().take(1024).any(|byte| *byte == 0);
    let mut told = Told {
        is_cut: bytes.len() >= MAX_UNPACKED,
        ..Told::default()
    };
    let total = size(bytes.len() as u64);
    if is_shown(bytes) {
        let most = size(MAX_IMAGE as u64);
        told.other = format!("an image, {total}: larger than {most}");
        return (told, String::new());
    }
    if !is_text || has_nul && !charset::is_utf_16(bytes) {
        let kind = if mime.is_empty() { "bytes" } else { &mime };
        told.other = format!("{kind}, {total}: not text");
        return (told, String::new());
    }
    let bytes = &bytes[..bytes.len().min(MAX_UNPACKED)];
    let mut text = charset::decode(bytes, &header, is_html);
    if is_html {
        let read = page::convert(&text, address);
        whole_words(&read.title, MAX_TITLE).clone_into(&mut told.title);
        text = read.markdown;
    }
    let end = text.char_indices().nth(max_chars);
    let end = end.map_or(text.len(), |(at, _)| at);
    let shown = whole_words(&text, end.min(MAX_TEXT)).len();
    told.is_cut |= shown < text.len();
    text.truncate(shown);
    (told, text)
}
