//! Reads PDFs, with `pdftotext` of Poppler where it is installed. A PDF is a program of a stranger's: what reads it is a command
//! in the sandbox, without network, with little memory and time.

use std::os::fd::AsFd;

use rustix::process::Resource;

use super::exec::exec;
use super::process::limit;
use crate::error::{Context, Error, Result};
use crate::files::OpenGrants;
use crate::text::clip;
use crate::worker::protocol::{Confinement, ExecJob, Header, PdfPart, Setup, Termination};

/// What reading may take: bytes, and seconds.
const MAX_MEMORY: u64 = 256 << 20;
const MAX_SECONDS: u64 = 15;
/// The most pages that are read at once.
const MAX_PAGES: u32 = 50;

/// Reads these pages of a PDF, `7` or `3-12`, from the first if that is empty: as many as fit into `most` bytes of text.
pub(super) fn read(
    grants: &OpenGrants,
    setup: &Setup,
    pdf: Vec<u8>,
    pages: &str,
    most: usize,
) -> Result<(PdfPart, String)> {
    if setup.confinement == Confinement::Unconfined {
        return Err(Error::failed(
            "it is a PDF, and there is no sandbox here to read it in",
        ));
    }
    let wanted = Wanted::parse(pages)?;
    limit(Resource::Data, MAX_MEMORY)?;
    // Whoever waits for an answer comes first.
    rustix::process::nice(5).doing("giving way to others")?;
    let (first, next) = (wanted.first, wanted.last.saturating_add(1));
    let job = ExecJob {
        // The page after the last shows that there is one.
        command: format!("pdftotext -q -enc UTF-8 -f {first} -l {next} - - 2>/dev/null"),
        working_dir: ".".to_owned(),
        timeout_secs: MAX_SECONDS,
        input: pdf,
        ..ExecJob::default()
    };
    let reply = exec(grants, setup, job, std::io::stdin().as_fd())?;
    let Header::Exited { end, dropped } = reply.header else {
        return Err(reply.header.into_error());
    };
    let why = match end {
        Termination::Code(0) => {
            let len = dropped.map_or(reply.body.len(), |dropped| dropped.at);
            let text = String::from_utf8_lossy(&reply.body[..len]);
            return Ok(laid_out(&text, wanted, most));
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

/// The pages that are wanted, from 1, at most [`MAX_PAGES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    first: u32,
    last: u32,
}

impl Wanted {
    fn parse(pages: &str) -> Result<Self> {
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|page| *page > 0);
        let pages = pages.trim();
        let (first, last) = pages.split_once('-').unwrap_or((pages, pages));
        let (first, last) = match (pages, last.trim()) {
            ("", _) => (Some(1), Some(u32::MAX)),
            (_, "") => (number(first), Some(u32::MAX)),
            _ => (number(first), number(last)),
        };
        match (first, last) {
            (Some(first), Some(last)) if first <= last => {
                let last = last.min(first.saturating_add(MAX_PAGES - 1));
                Ok(Self { first, last })
            }
            _ => Err(Error::failed("pages takes a page or a range, 7 or 3-12")),
        }
    }
}

/// The text of the wanted pages with a line before each, and which pages are left.
fn laid_out(text: &str, wanted: Wanted, most: usize) -> (PdfPart, String) {
    // Each page ends with a form feed. The last one has none where its text was too long.
    let pages: Vec<&str> = text.split_terminator('\u{c}').collect();
    let heading = |number: u32| format!("[page {number}]\n");
    let mut out = String::new();
    let (mut next, mut is_cut) = (wanted.first, false);
    for page in &pages {
        let shown = format!("{}{}\n", heading(next), page.trim_end());
        let fits = out.len() + shown.len() <= most;
        if next > wanted.last || !fits && !out.is_empty() {
            break;
        }
        if !fits {
            out.push_str(clip(&shown, most));
            out.push_str(&format!("\n[page {next} is cut here: it is too long]\n"));
            next += 1;
            is_cut = true;
            break;
        }
        out.push_str(&shown);
        next += 1;
    }
    let shown = next - wanted.first;
    let end = next.saturating_sub(1).max(wanted.first);
    let is_rest = (shown as usize) < pages.len();
    let which = match (wanted.first, is_rest, end) {
        (1, false, 1) => "[a PDF of 1 page".to_owned(),
        (1, false, end) => format!("[a PDF of {end} pages"),
        (first, _, end) => format!("[a PDF; here are pages {first} to {end}"),
    };
    let is_empty = pages.iter().all(|page| page.trim().is_empty());
    let text = if is_empty && !is_cut {
        format!("{which} without text: pictures of pages, perhaps a scan]\n")
    } else {
        format!("{which}]\n{out}")
    };
    let more = match is_rest {
        false => String::new(),
        // All that were wanted are here, and there are others.
        true if next > wanted.last => format!("{next}-"),
        true => format!("{next}-{}", wanted.last),
    };
    (PdfPart { more }, text)
}

/// The line that says how to go on.
pub(super) fn continued(part: &PdfPart) -> String {
    if part.more.is_empty() {
        String::new()
    } else {
        format!("[there is more: read it again with pages {}]\n", part.more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_as_long_as_they_fit_and_the_rest_is_named() {
        let read = |text: &str, first, last, most| {
            let (part, text) = laid_out(text, Wanted { first, last }, most);
            (part.more, text)
        };
        for (text, first, last, most, more, says) in [
            (
                "one\u{c}two\u{c}",
                1,
                50,
                100,
                "",
                "[a PDF of 2 pages]\n[page 1]\none\n[page 2]\ntwo\n",
            ),
            (
                "one\u{c}two\u{c}three\u{c}",
                1,
                50,
                30,
                "3-50",
                "[a PDF; here are pages 1 to 2]\n[page 1]\none\n[page 2]\ntwo\n",
            ),
            (
                "four\u{c}five\u{c}six\u{c}",
                4,
                5,
                100,
                "6-",
                "[a PDF; here are pages 4 to 5]\n[page 4]\nfour\n[page 5]\nfive\n",
            ),
            (
                "nine\u{c}",
                9,
                58,
                100,
                "",
                "[a PDF; here are pages 9 to 9]\n[page 9]\nnine\n",
            ),
            (
                "a page without an end\u{c}b\u{c}",
                1,
                2,
                16,
                "2-2",
                "[a PDF; here are pages 1 to 1]\n[page 1]\na page \n[page 1 is cut here: it is too long]\n",
            ),
            (
                " \u{c}\n\u{c}",
                1,
                50,
                100,
                "",
                "[a PDF of 2 pages without text: pictures of pages, perhaps a scan]\n",
            ),
        ] {
            let expected = (more.to_owned(), says.to_owned());
            assert_eq!(read(text, first, last, most), expected, "{text:?}");
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
            ("-1", None),
            ("a", None),
            ("1;rm", None),
            ("4294967296", None),
        ] {
            let wanted = Wanted::parse(pages).ok();
            let is = is.map(|(first, last)| Wanted { first, last });
            assert_eq!(wanted, is, "{pages}");
        }
    }
}
