//! Reads PDFs, with the programs of Poppler where they are installed. A PDF is a program of a stranger's: what reads it is a
//! command in the sandbox, without network, with little memory and time.

use std::os::fd::AsFd;

use rustix::process::Resource;

use super::exec::exec;
use super::process::limit;
use crate::error::{Context, Error, Result};
use crate::files::Trees;
use crate::text::clip;
use crate::worker::protocol::{
    Confinement, ExecJob, Header, MAX_BODY, PdfPart, Reply, Setup, Termination,
};

/// What reading may take: bytes of each program, and seconds.
const MAX_MEMORY: u64 = 256 << 20;
const MAX_SECONDS: u64 = 15;

/// Reads these pages of a PDF, `7` or `3-12`, all if that is empty: as many as fit into `most` bytes of text.
pub(super) fn read(
    trees: &Trees,
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
    limit(Resource::Data, MAX_MEMORY)?;
    // Whoever waits for an answer comes first.
    rustix::process::nice(5).doing("giving way to others")?;
    let run = |command: String, input: Vec<u8>| {
        let job = ExecJob {
            command,
            working_dir: ".".to_owned(),
            timeout_secs: MAX_SECONDS,
            input,
            ..ExecJob::default()
        };
        exec(trees, setup, job, std::io::stdin().as_fd())
    };
    let about = run("pdfinfo -enc UTF-8 - 2>&1".to_owned(), pdf.clone())?;
    let count = count_of(&about)?;
    let (first, last) = range(pages, count)?;
    let command = format!(
        "pdftotext -q -enc UTF-8 -f {first} -l {last} - - 2>/dev/null | head -c {}",
        // One byte more than there is room for would be missing in the middle.
        most.min(MAX_BODY - 1) + 1
    );
    let text = run(command, pdf)?;
    if let Header::Exited {
        end: Termination::TimedOut | Termination::Signal(_),
        ..
    } = text.header
    {
        return Err(too_much());
    }
    laid_out(
        &String::from_utf8_lossy(&text.body),
        Extent { count, first, last },
        most,
    )
}

/// Pages of a PDF: how many there are, and which are wanted.
#[derive(Clone, Copy)]
struct Extent {
    count: u32,
    first: u32,
    last: u32,
}

fn too_much() -> Error {
    Error::failed("it is a PDF that takes too much time or memory to read")
}

/// How many pages there are, as `pdfinfo` says.
fn count_of(about: &Reply) -> Result<u32> {
    let said = String::from_utf8_lossy(&about.body);
    // The last one: what the PDF says of itself comes before.
    let count = said
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("Pages:")?.trim().parse().ok());
    match (&about.header, count) {
        (
            Header::Exited {
                end: Termination::Code(0),
                ..
            },
            Some(count),
        ) if count > 0 => Ok(count),
        (
            Header::Exited {
                end: Termination::Code(127),
                ..
            },
            _,
        ) => Err(Error::failed(
            "it is a PDF, and reading it takes pdfinfo and pdftotext, which are not installed (package poppler-utils)",
        )),
        (
            Header::Exited {
                end: Termination::TimedOut | Termination::Signal(_),
                ..
            },
            _,
        ) => Err(too_much()),
        _ if said.contains("Incorrect password") => Err(Error::failed(
            "it is an encrypted PDF, which opens only with a password",
        )),
        _ => Err(Error::failed(
            "it is a broken PDF: its pages cannot be found",
        )),
    }
}

/// The first and the last of the pages that are wanted.
fn range(pages: &str, count: u32) -> Result<(u32, u32)> {
    let pages = pages.trim();
    if pages.is_empty() {
        return Ok((1, count));
    }
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|page| *page > 0);
    let (first, last) = pages.split_once('-').unwrap_or((pages, pages));
    let last = if last.trim().is_empty() {
        Some(count)
    } else {
        number(last)
    };
    let (Some(first), Some(last)) = (number(first), last) else {
        return Err(Error::failed("pages takes a page or a range, 7 or 3-12"));
    };
    if first > count || last < first {
        return Err(Error::failed(format!(
            "there is no page {first}: it has {count}"
        )));
    }
    Ok((first, last.min(count)))
}

/// The text with a line before each page, and what there is of it.
fn laid_out(text: &str, extent: Extent, most: usize) -> Result<(PdfPart, String)> {
    let Extent { count, first, last } = extent;
    let mut is_cut = text.len() > most;
    let text = clip(text, most);
    // Each page ends with a form feed.
    let mut pages: Vec<&str> = text.split('\u{c}').collect();
    let rest = pages.pop().unwrap_or_default();
    let heading = |number: u32| format!("[page {number}]\n");
    // What stands around a page counts as text: there may be many empty ones.
    let mut len = 0;
    let fits = |(number, page): &(u32, &&str)| {
        len += heading(*number).len() + page.len() + 1;
        len <= most
    };
    let fitting = (first..).zip(&pages).take_while(fits).count();
    is_cut |= fitting < pages.len();
    // A page that is cut waits for the next part, unless it is all there is.
    let is_torn = is_cut && fitting == 0;
    if is_torn {
        let page = pages.first().copied().unwrap_or(rest);
        let room = most.saturating_sub(heading(first).len() + 1);
        pages = vec![clip(page, room)];
    } else {
        pages.truncate(fitting);
    }
    let shown = u32::try_from(pages.len()).unwrap_or(count);
    if shown == 0 {
        return Err(too_much());
    }
    let end = (first + shown - 1).min(last);
    // The reader was ended before it came to the last one.
    let is_stopped = !is_cut && end < last;
    let of = if count == 1 {
        "1 page".to_owned()
    } else {
        format!("{count} pages")
    };
    let head = format!("[a PDF of {of}");
    if pages.iter().all(|page| page.trim().is_empty()) && !is_cut && !is_stopped {
        let which = if (first, last) == (1, count) {
            String::new()
        } else {
            format!(", {first} to {last} of them")
        };
        let text = format!("{head}{which} without text: pictures of pages, perhaps a scan]\n");
        return Ok((PdfPart::default(), text));
    }
    let mut out = head;
    if (first, end) != (1, count) {
        out.push_str(&format!("; here are pages {first} to {end}"));
    }
    out.push_str("]\n");
    for (number, page) in (first..).zip(&pages) {
        out.push_str(&format!("{}{}\n", heading(number), page.trim_end()));
    }
    if is_torn {
        out.push_str(&format!("[page {first} is cut here: it is too long]\n"));
    }
    if is_stopped {
        let next = end + 1;
        out.push_str(&format!(
            "[page {next} takes too much time or memory, or is broken]\n"
        ));
    }
    let more = match end {
        _ if end == count => String::new(),
        _ if end + 1 == count => count.to_string(),
        _ => format!("{}-{count}", end + 1),
    };
    Ok((PdfPart { more }, out))
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
        let read = |text: &str, count, first, last, most| {
            let (part, text) = laid_out(text, Extent { count, first, last }, most).unwrap();
            (part.more, text)
        };
        let text = "one\u{c}two\u{c}three\u{c}";
        let (more, all) = read(text, 3, 1, 3, 100);
        assert_eq!(
            (more.as_str(), all.as_str()),
            (
                "",
                "[a PDF of 3 pages]\n[page 1]\none\n[page 2]\ntwo\n[page 3]\nthree\n"
            )
        );
        let (more, all) = read(text, 3, 1, 3, 30);
        assert_eq!(
            (more.as_str(), all.as_str()),
            (
                "3",
                "[a PDF of 3 pages; here are pages 1 to 2]\n[page 1]\none\n[page 2]\ntwo\n"
            )
        );
        let (more, all) = read("four\u{c}five\u{c}", 9, 4, 5, 100);
        assert_eq!(more, "6-9");
        assert!(all.starts_with("[a PDF of 9 pages; here are pages 4 to 5]\n[page 4]\nfour\n"));
        let (more, all) = read("a page without an end", 2, 1, 2, 16);
        assert_eq!(more, "2");
        assert!(
            all.ends_with("[page 1]\na page\n[page 1 is cut here: it is too long]\n"),
            "{all}"
        );
        let (more, all) = read(" \u{c}\n\u{c}", 2, 1, 2, 100);
        assert_eq!(more, "");
        assert!(all.contains("2 pages without text"), "{all}");
        let (more, all) = read("one\u{c}tw", 9, 1, 9, 100);
        assert_eq!(more, "2-9");
        assert!(
            all.ends_with("[page 1]\none\n[page 2 takes too much time or memory, or is broken]\n"),
            "{all}"
        );
    }

    #[test]
    fn the_lines_before_many_short_pages_count_as_text() {
        let (count, most) = (50_000, 100_000);
        let pages = "x\u{c}".repeat(50_000);
        let extent = Extent {
            count,
            first: 1,
            last: count,
        };
        let (part, text) = laid_out(&pages, extent, most).unwrap();
        assert!(text.len() <= most + 100, "{}", text.len());
        let shown = text.matches("[page ").count();
        assert_eq!(part.more, format!("{}-{count}", shown + 1));
        assert!(shown > 5000, "{shown}");
    }

    #[test]
    fn a_range_is_one_of_pages_that_are_there() {
        for (pages, is) in [
            ("", Some((1, 9))),
            ("3", Some((3, 3))),
            (" 3 - 5 ", Some((3, 5))),
            ("3-", Some((3, 9))),
            ("8-40", Some((8, 9))),
            ("10", None),
            ("0", None),
            ("5-3", None),
            ("-1", None),
            ("a", None),
            ("1;rm", None),
            ("4294967296", None),
        ] {
            assert_eq!(range(pages, 9).ok(), is, "{pages}");
        }
    }
}
