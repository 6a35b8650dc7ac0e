//! Reads text files, images and unchanged files.

use std::io::{self, BufRead, BufReader, Read, Write};

use encoding_rs::{Encoding, UTF_8};
use rustix::fs::{Stat, fstat};

use super::lines::skip_bom;
use super::{Target, text_reply};
use crate::access::Links;
use crate::error::{Context, Error, Result};
use crate::message::kind::binary_kind;
use crate::message::{MAX_FILE, MAX_IMAGE, media_type};
use crate::text::size;
use crate::worker::protocol::{Header, LineRange, Reply};

const MAX_LINES: u64 = 2000;

/// Maximum size of text in a reply, in bytes, without the notice.
const MAX_TEXT: usize = 48 << 10;

/// Maximum size of a UTF-16 file, in bytes, because it is decoded in memory.
const MAX_UTF16: u64 = 32 << 20;

/// Sends a regular file unchanged.
///
/// # Errors
/// Returns an error if it has more than `most` bytes, or changes meanwhile.
pub(super) fn send_file(target: &Target, most: u64, output: &mut dyn Write) -> Result<Reply> {
    let mut file = target.open(Links::Follow)?;
    let stat = fstat(&file)?;
    let len = u64::try_from(stat.st_size).unwrap_or(0);
    let name = target.asked.display();
    if len > most {
        return Err(too_large(target, len, most));
    }
    let sent = io::copy(&mut (&mut file).take(len), output)?;
    if sent < len || stamp(&fstat(&file)?) != stamp(&stat) {
        return Err(Error::failed(format!(
            "{name} changed while it was read: try again"
        )));
    }
    let state = stamp(&stat);
    Ok(Reply {
        header: Header::Sent { state },
        body: Vec::new(),
    })
}

pub(super) fn too_large(target: &Target, len: u64, most: u64) -> Error {
    let (name, len, most) = (target.asked.display(), size(len), size(most));
    Error::failed(format!("{name} is too large: {len}; the limit is {most}"))
}

/// Returns a stamp that changes with a file.
pub(super) fn stamp(stat: &Stat) -> String {
    format!(
        "{}-{}-{}-{}-{}",
        stat.st_dev, stat.st_ino, stat.st_size, stat.st_ctime, stat.st_ctime_nsec
    )
}

/// Reads an image, a PDF, or lines of a text file.
pub(super) fn read_file(target: &Target, range: &LineRange) -> Result<Reply> {
    let name = target.asked.display();
    let file = target.open(Links::Follow)?;
    let len = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
    let mut file = BufReader::new(file);
    match media_type(file.fill_buf()?) {
        Some("application/pdf") => return whole(file, Header::Pdf, MAX_FILE, len, target),
        Some(mime) if mime.starts_with("image/") => {
            return whole(file, Header::Image, MAX_IMAGE, len, target);
        }
        Some(_) => {
            return Ok(Reply {
                header: Header::Recording,
                body: Vec::new(),
            });
        }
        None => {}
    }
    let bom = Encoding::for_bom(file.fill_buf()?);
    if bom.is_some_and(|(encoding, _)| encoding != UTF_8) {
        let mut content = Vec::new();
        file.take(MAX_UTF16 + 1).read_to_end(&mut content)?;
        if content.len() as u64 > MAX_UTF16 {
            return Err(too_large(target, len, MAX_UTF16));
        }
        let (text, ..) = UTF_8.decode(&content);
        return lines(&mut text.as_bytes(), target, range).map(text_reply);
    }
    if let Some(kind) = binary_kind(file.fill_buf()?) {
        let path = name.to_string();
        return Err(Error::failed(kind.refusal(&path, &size(len))));
    }
    skip_bom(&mut file)?;
    lines(&mut file, target, range).map(text_reply)
}

/// Returns lines, and how to continue.
fn lines(file: &mut dyn BufRead, target: &Target, range: &LineRange) -> Result<Vec<u8>> {
    let name = target.asked.display();
    let first = range.offset.unwrap_or(1).max(1);
    for passed in 0..first - 1 {
        if file
            .skip_until(b'\n')
            .doing(format_args!("reading {name} up to line {first}"))?
            == 0
        {
            return Err(Error::failed(format!("{name} has only {passed} lines")));
        }
    }
    let limit = range.limit.unwrap_or(MAX_LINES).clamp(1, MAX_LINES);
    // The notice, a fence and the marks of secrets need room as well.
    let most = range
        .room
        .map_or(MAX_TEXT, |room| MAX_TEXT.min(room - room / 8));
    let (mut body, mut next) = (Vec::new(), first);
    while next - first < limit {
        let left = (most - body.len()) as u64;
        if (&mut *file).take(left).read_until(b'\n', &mut body)? == 0 {
            break;
        }
        next += 1;
    }
    if file.fill_buf().is_ok_and(|rest| !rest.is_empty()) {
        let line_end = body.iter().rposition(|byte| *byte == b'\n');
        let notice = match line_end {
            Some(end) => {
                // A line that is cut comes with the next offset.
                next -= u64::from(end + 1 < body.len());
                body.truncate(end + 1);
                let last = next - 1;
                format!(
                    "[lines {first} to {last}, and there are more: continue with offset {next}]\n"
                )
            }
            None => format!(
                "\n[line {first} is cut: results are limited to {}; the next has offset {next}]\n",
                size(most as u64)
            ),
        };
        body.extend_from_slice(notice.as_bytes());
    }
    Ok(body)
}

/// Reads a whole file, up to `most` bytes.
fn whole(file: impl Read, header: Header, most: usize, len: u64, target: &Target) -> Result<Reply> {
    let mut body = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut body)?;
    if body.len() > most {
        return Err(too_large(target, len, most as u64));
    }
    Ok(Reply { header, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Dir;
    use crate::test_dir::TestDir;
    use std::path::Path;

    /// A writer that changes the file while it is sent.
    struct Changing(std::path::PathBuf);

    impl Write for Changing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            std::fs::write(&self.0, "another")?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_is_sent_whole_or_not_at_all() {
        let root = TestDir::new();
        let whole: Vec<u8> = (0..=250).cycle().take(1_000_000).collect();
        std::fs::write(root.join("file"), &whole).unwrap();
        let (dir, path) = (Dir::open(&root).unwrap(), Path::new("file"));
        let target = || Target {
            dir: &dir,
            path: path.into(),
            asked: path,
        };
        let len = whole.len() as u64;
        let mut sent = Vec::new();
        send_file(&target(), len, &mut sent).unwrap();
        assert!(sent == whole);
        let error = send_file(&target(), len - 1, &mut io::sink()).unwrap_err();
        assert!(error.message.contains("too large"), "{error}");
        let error = send_file(&target(), len, &mut Changing(root.join("file"))).unwrap_err();
        assert!(error.message.contains("changed"), "{error}");
    }
}
