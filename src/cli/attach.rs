//! Attached files. Text is added to the message, other supported files are sent as media.

use encoding_rs::UTF_8;

use super::input;
use super::ui::Ui;
use crate::access::Links;
use crate::app;
use crate::app::media::Attachment;
use crate::cancel::Cancel;
use crate::config::{Env, Loaded};
use crate::error::{Error, Result};
use crate::message::kind::binary_kind;
use crate::message::{MAX_FILE, Media, MediaKind};
use crate::paths::of_user;
use crate::text::{fence, size, to_single_line};

/// Maximum size of a text, in bytes; larger than context windows, and the limit of a stored message.
const MAX_TEXT: usize = 4 << 20;
/// Maximum size of an image, in bytes. Servers refuse larger ones, and later turns send it again.
const MAX_IMAGE: usize = 4 << 20;

/// Name of standard input.
pub(super) const STDIN: &str = "standard input";

/// Returns the distinct files that a message names as `@PATH`, with their sizes in bytes.
///
/// # Errors
/// Returns an error for a name that looks like a path but is no file. `@somebody` is a user name.
pub(super) fn named_in<'t>(text: &'t str, env: &Env) -> Result<Vec<(&'t str, u64)>> {
    let mut named = Vec::new();
    let words = text.split_whitespace();
    for path in words.filter_map(|word| word.strip_prefix('@')) {
        let bare = path.trim_end_matches([',', '.', ';', ':', '!', '?', ')']);
        let found = [path, bare].into_iter().find_map(|path| {
            let meta = std::fs::metadata(of_user(path, env.get("HOME"))).ok()?;
            meta.is_file().then_some((path, meta.len()))
        });
        if found.is_none() && bare.trim_start_matches('.').contains(['/', '.']) {
            let shown = to_single_line(bare, 200);
            return Err(Error::usage(format!("not sent: no file named {shown}"))
                .hint("correct its path, or leave out the @ to send the text as it is"));
        }
        named.extend(found.filter(|file| !named.contains(file)));
    }
    Ok(named)
}

/// Returns the question whether to attach these files.
pub(super) fn question(files: &[(&str, u64)]) -> String {
    let shown =
        |(path, bytes): &(&str, u64)| format!("{}, {}", to_single_line(path, 200), size(*bytes));
    let files: Vec<String> = files.iter().map(shown).collect();
    format!("Attach {}?", files.join("; "))
}

/// Reads a file, or standard input for `-`. Text is fenced, with the file's name.
pub(super) fn read(
    path: &str,
    loaded: &Loaded,
    deadline: Option<&Cancel>,
    ui: &Ui,
) -> Result<Attachment> {
    let shown = match path {
        "-" => STDIN.to_owned(),
        path => to_single_line(path, 200),
    };
    let bytes = match path {
        "-" => input::read_stdin(MAX_FILE, deadline)?,
        path => read_file(path, &shown, loaded)?,
    };
    let text = match of_bytes(&bytes, &shown, ui)? {
        Attachment::Text(text) => text,
        media @ Attachment::Media(_) => return Ok(media),
    };
    let (text, fence) = (text.trim_end_matches('\n'), fence(&text));
    let text = format!("[file: {shown}]\n{fence}\n{text}\n{fence}");
    Ok(Attachment::Text(text))
}

/// Reads a file that the user named. It may be a pipe or a link, but not a link that a model made.
fn read_file(path: &str, shown: &str, loaded: &Loaded) -> Result<Vec<u8>> {
    let wrong = |what: String| Error::usage(format!("attaching {shown}: {what}"));
    let path = of_user(path, loaded.env.get("HOME"));
    let file = match app::grants(loaded)?.open_named(&path) {
        Ok(Some((tree, below))) => tree
            .read(&below, &path, Links::Refuse)
            .map_err(|e| wrong(e.message))?,
        Ok(None) => input::open(&path, shown)?,
        Err(_) if path.as_os_str().is_empty() => input::open(&path, shown)?,
        Err(e) => return Err(wrong(e.message).hint("attach the file that the link leads to")),
    };
    input::read(file, MAX_FILE)
}

/// Returns a file's media, or its text. Warns of bytes that are no text.
pub(super) fn of_bytes(bytes: &[u8], shown: &str, ui: &Ui) -> Result<Attachment> {
    let wrong = |what: String| Error::usage(format!("attaching {shown}: {what}"));
    if let Some(media) = Media::detect(bytes) {
        let (what, most) = match media.kind() {
            MediaKind::Image => ("an image", MAX_IMAGE),
            MediaKind::Pdf => ("a PDF", MAX_FILE),
            MediaKind::Audio => ("a recording", MAX_FILE),
        };
        if bytes.len() > most {
            return Err(wrong(format!("{what} of more than {} MB", most >> 20))
                .hint("make a smaller copy of it, or attach the part that matters"));
        }
        let name = shown.rsplit('/').next().unwrap_or_default();
        return Ok(Attachment::Media(media.named(name)));
    }
    // A mark of the byte order decides, as in `read_file`.
    let (text, encoding, is_damaged) = UTF_8.decode(bytes);
    if text.len() > MAX_TEXT {
        return Err(wrong(format!("larger than {} MB", MAX_TEXT >> 20))
            .hint("pass the part that matters, or put the file into the workspace and name it"));
    }
    let kind = (encoding == UTF_8).then(|| binary_kind(bytes)).flatten();
    if let Some(kind) = kind {
        return Err(wrong(format!("the file is {}, not text", kind.name))
            .hint("convert it, e.g. to PDF, or put it into the workspace and name it"));
    }
    if is_damaged {
        let name = encoding.name();
        let line = format!("{shown} is not {name}; each wrong byte is replaced by \u{fffd}");
        ui.warn([&line]);
    }
    Ok(Attachment::Text(text.into_owned()))
}

/// Returns a warning about a PDF without readable text. Only some models read the PDF itself.
pub(super) fn pdf_warning(path: &str, file: &Attachment) -> Option<String> {
    let Attachment::Media(media) = file else {
        return None;
    };
    // Text has a heading for each page; a single line in brackets is the reason for its absence.
    let why = media.text.strip_prefix('[')?.strip_suffix(']')?;
    let is_warning = media.kind() == MediaKind::Pdf && !why.contains('\n');
    is_warning.then(|| {
        let shown = to_single_line(path, 200);
        format!("{shown}: {why}; only a model that takes PDFs can read it")
    })
}
