//! Attached files. Text is added to the message, other supported files are sent as media.

use encoding_rs::UTF_8;

use super::input::{self, Deadline};
use super::ui::Ui;
use crate::access::Links;
use crate::app;
use crate::app::media::Attachment;
use crate::config::{Env, Loaded};
use crate::error::{Error, Result};
use crate::message::kind::binary_kind;
use crate::message::{MAX_FILE, Media, MediaKind};
use crate::paths::of_user;
use crate::text::{fence, not_found, size, to_single_line};

/// Maximum size of a text file, in bytes; more than models read well.
const MAX_TEXT: usize = 1 << 20;
/// Maximum size of an image, in bytes. Servers refuse larger ones, and later turns send it again.
const MAX_IMAGE: usize = 4 << 20;

/// Name of standard input.
pub(super) const STDIN: &str = "standard input";

/// Returns the distinct files that a message names as `@PATH`, with their sizes in bytes.
pub(super) fn named_in<'t>(text: &'t str, env: &Env) -> Vec<(&'t str, u64)> {
    let mut named: Vec<(&str, u64)> = Vec::new();
    for word in text.split_whitespace() {
        let Some(path) = word.strip_prefix('@') else {
            continue;
        };
        let bare = path.trim_end_matches([',', '.', ';', ':', '!', '?', ')']);
        let found = [path, bare].into_iter().find_map(|path| {
            let meta = std::fs::metadata(of_user(path, env)).ok()?;
            meta.is_file().then_some((path, meta.len()))
        });
        named.extend(found.filter(|file| !named.contains(file)));
    }
    named
}

/// Returns the question whether to attach these files.
pub(super) fn question(files: &[(&str, u64)]) -> String {
    let files: Vec<String> = files
        .iter()
        .map(|(path, bytes)| format!("{}, {}", to_single_line(path, 200), size(*bytes)))
        .collect();
    format!("Attach {}?", files.join("; "))
}

/// Returns the first `@PATH` in a message that looks like a path but is no file.
pub(super) fn missing_in<'t>(text: &'t str, env: &Env) -> Option<&'t str> {
    let paths = text
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('@'))
        .map(|path| path.trim_end_matches([',', '.', ';', ':', '!', '?', ')']));
    // `@somebody` is a user name.
    let looks_like_a_file = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        path.contains('/')
            || name
                .rsplit_once('.')
                .is_some_and(|(stem, end)| !stem.is_empty() && !end.is_empty())
    };
    paths
        .filter(looks_like_a_file)
        .find(|path| std::fs::metadata(of_user(path, env)).is_err())
}

/// Reads a file, or standard input for `-`. Text is fenced, with the file's name.
pub(super) fn read(
    path: &str,
    loaded: &Loaded,
    deadline: Option<&Deadline>,
    ui: &Ui,
) -> Result<Attachment> {
    let shown = match path {
        "-" => STDIN.to_owned(),
        path => to_single_line(path, 200),
    };
    let bytes = match path {
        "-" => input::read(STDIN, &std::io::stdin(), MAX_FILE, deadline)?,
        path => read_file(path, &shown, loaded, deadline)?,
    };
    let text = match of_bytes(&bytes, &shown, ui)? {
        Attachment::Text(text) => text,
        media @ Attachment::Media(_) => return Ok(media),
    };
    if text.len() > MAX_TEXT {
        return Err(
            Error::usage(format!("attaching {shown}: larger than {} MB", MAX_TEXT >> 20)).hint(
                "attach the part that matters, or put the file into the workspace and name it in the question",
            ),
        );
    }
    let (text, fence) = (text.trim_end_matches('\n'), fence(&text));
    Ok(Attachment::Text(format!(
        "[file: {shown}]\n{fence}\n{text}\n{fence}"
    )))
}

/// Reads a file that the user named. It may be a pipe or a link, but not a link that a model made.
fn read_file(
    path: &str,
    shown: &str,
    loaded: &Loaded,
    deadline: Option<&Deadline>,
) -> Result<Vec<u8>> {
    let wrong = |what: String| Error::usage(format!("attaching {shown}: {what}"));
    let path = of_user(path, &loaded.env);
    let file = match app::grants(loaded)?.open_named(&path) {
        Ok(Some((tree, below))) => tree
            .read(&below, &path, Links::Refuse)
            .map_err(|e| wrong(e.message))?,
        Ok(None) => input::open(&path, deadline).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => no_file(shown),
            std::io::ErrorKind::IsADirectory => {
                wrong("it is a directory".to_owned()).hint("name its files, each with its own -a")
            }
            _ => wrong(Error::from(e).message),
        })?,
        Err(e) => return Err(wrong(e.message).hint("attach the file that the link leads to")),
    };
    input::read(&format!("the file {shown}"), &file, MAX_FILE, deadline)
}

/// Creates the error for a missing file, with the directory that was searched.
pub(super) fn no_file(path: &str) -> Error {
    let error = not_found("file", path, [], "");
    match std::env::current_dir() {
        Ok(dir) if !path.starts_with(['/', '~']) => {
            error.hint(format!("check the path, which starts in {}", dir.display()))
        }
        _ => error.hint("check the path"),
    }
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
    let kind = (encoding == UTF_8).then(|| binary_kind(bytes)).flatten();
    if let Some(kind) = kind {
        return Err(wrong(format!("it is {}, not text", kind.name))
            .hint("convert it, e.g. to PDF, or put it into the workspace and name it"));
    }
    if is_damaged {
        let name = encoding.name();
        ui.warn([&format!(
            "{shown} is not {name}; each wrong byte is replaced by \u{fffd}"
        )]);
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
