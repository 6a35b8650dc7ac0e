//! Text of PDFs, by `pdftotext` of Poppler if it is installed. PDFs are untrusted, so it runs as a sandboxed command without
//! network, with little memory and time.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Workers;
use crate::cancel::Cancel;
use crate::child::Network;
use crate::error::{Error, Result};
use crate::message::Media;
use crate::text::clip;
use crate::worker::protocol::{ExecJob, Policy, Termination};

/// Limits of reading: memory in MiB, and time in seconds.
const MEMORY_MB: u64 = 256;
const MAX_SECONDS: u64 = 15;
/// Maximum number of pages per read.
const MAX_PAGES: u32 = 50;
/// Maximum size of the text attached to a message, in bytes.
const MAX_ATTACHED: usize = 100 << 10;

impl Workers {
    /// Adds the text of a PDF, or the reason why it cannot be read.
    pub(crate) fn add_text(&self, pdf: &mut Media, cancel: &Cancel) {
        let bytes = STANDARD.decode(&pdf.base64).unwrap_or_default();
        pdf.text = match self.read_pdf(bytes, "", MAX_ATTACHED, cancel) {
            Ok(text) => text.trim_end().to_owned(),
            Err(e) => format!("[its text cannot be read: {}]", e.message),
        };
    }

    /// Reads pages of a PDF, `7` or `3-12`, all if empty: as many as fit into `most` bytes of text. It has a
    /// heading line before each page, and names the remaining pages.
    ///
    /// # Errors
    /// Returns an error for the model if the pages do not exist or the PDF cannot be read.
    pub(crate) fn read_pdf(
        &self,
        pdf: Vec<u8>,
        pages: &str,
        most: usize,
        cancel: &Cancel,
    ) -> Result<String> {
        let (first, last) = range(pages)?;
        let next = last.saturating_add(1);
        let job = ExecJob {
            // Requests one more page to detect whether more pages follow.
            command: format!(
                "exec nice -n 5 pdftotext -q -enc UTF-8 -f {first} -l {next} - - 2>/dev/null"
            ),
            working_dir: ".".to_owned(),
            timeout_secs: MAX_SECONDS,
            input: pdf,
            ..ExecJob::default()
        };
        let policy = Policy {
            network: Network::None,
            grants: Vec::new(),
            notes: None,
            all_except: None,
            memory_mb: MEMORY_MB,
            ..self.policy.clone()
        };
        let reader = Self::new(policy, &self.home, self.sandbox, self.guard.clone());
        let output = reader.run(job, cancel)?;
        let why = match output.end {
            Termination::Code(0) => {
                let text = String::from_utf8_lossy(&output.printed);
                return Ok(with_headings(&text, (first, last), most));
            }
            Termination::Code(127) => {
                "it is a PDF, and reading it takes pdftotext, which is not installed (package poppler-utils)".to_owned()
            }
            Termination::Code(99) if first > 1 => format!("the PDF has no page {first}"),
            Termination::Code(1 | 99) => "it is a PDF that is broken or encrypted".to_owned(),
            _ => "it is a PDF that takes too much time or memory to read".to_owned(),
        };
        Err(Error::failed(why))
    }
}

/// Returns the first and the last page to read, counted from 1: up to [`MAX_PAGES`] pages.
fn range(pages: &str) -> Result<(u32, u32)> {
    let number = |text: &str, default| match text.trim() {
        "" => Some(default),
        text => text.parse().ok().filter(|page| *page > 0),
    };
    let (first, last) = pages.split_once('-').unwrap_or((pages, pages));
    match (number(first, 1), number(last, u32::MAX)) {
        (Some(first), Some(last)) if first <= last => {
            Ok((first, last.min(first.saturating_add(MAX_PAGES - 1))))
        }
        _ => Err(Error::failed("pages takes a page or a range, 7 or 3-12")),
    }
}

/// Puts a heading line before each page, as many as fit into `most` bytes, and names the remaining pages.
fn with_headings(text: &str, (first, last): (u32, u32), most: usize) -> String {
    // Each page ends with a form feed, except a last page that was cut off.
    let pages: Vec<&str> = text.split_terminator('\u{c}').collect();
    let (mut out, mut next) = (String::new(), first);
    for page in pages.iter().map(|page| page.trim_end()) {
        if next > last || !out.is_empty() && out.len() + page.len() > most {
            break;
        }
        let shown = clip(page, most);
        let cut = if shown == page {
            ""
        } else {
            "\n[cut here: the page is too long]"
        };
        out.push_str(&format!("[page {next}]\n{shown}{cut}\n"));
        next += 1;
    }
    let mut kind = "";
    if pages.iter().all(|page| page.trim().is_empty()) {
        (out, kind) = (String::new(), " without text, perhaps a scan");
    }
    let last = first.max(next - 1);
    if ((next - first) as usize) < pages.len() {
        out.push_str(&format!("[there is more: pages {next}-]\n"));
    }
    format!("[a PDF; here are pages {first} to {last}{kind}]\n{out}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pdf_pages_beyond_limit_are_named() {
        // A text, its first and last page, the limit, and the result.
        for row in r"
one^two^ | 1 | 50 | 100 | 1 to 2]/[page 1]/one/[page 2]/two/
one^two^three^ | 1 | 50 | 17 | 1 to 2]/[page 1]/one/[page 2]/two/[there is more: pages 3-]/
four^five^six^ | 4 | 5 | 100 | 4 to 5]/[page 4]/four/[page 5]/five/[there is more: pages 6-]/
too long^b^ | 1 | 2 | 6 | 1 to 1]/[page 1]/too lo/[cut here: the page is too long]/[there is more: pages 2-]/
 ^ | 1 | 50 | 100 | 1 to 1 without text, perhaps a scan]/"
            .lines()
            .skip(1)
        {
            let cells: Vec<&str> = row.split('|').map(|cell| cell.trim_matches(' ')).collect();
            let number = |n: usize| cells[n].parse().unwrap();
            let text = cells[0].replace('^', "\u{c}");
            let read = with_headings(&text, (number(1), number(2)), cells[3].parse().unwrap());
            let says = format!("[a PDF; here are pages {}", cells[4].replace('/', "\n"));
            assert_eq!(read, says, "{row}");
        }
    }

    #[test]
    fn a_range_is_one_of_at_most_fifty_pages() {
        for (pages, is) in [
            ("", Some((1, 50))),
            ("3", Some((3, 3))),
            (" 3 - 5 ", Some((3, 5))),
            ("3-", Some((3, 52))),
            ("8-400", Some((8, 57))),
            ("0", None),
            ("5-3", None),
            ("1;rm", None),
        ] {
            assert_eq!(range(pages).ok(), is, "{pages}");
        }
    }
}
