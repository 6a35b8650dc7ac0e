//! Tools that work on files. Each is a job for the workers, and the arguments of a call are the fields of that job. All
//! arguments come from the model, so tools that need settings have separate files.

use std::path::{Component, Path};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{CallContext, Change, Function, Risk, ToolOutput, ToolSpec, arguments, text};
use crate::access::Grant;
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};
use crate::message::{MAX_FILE, Media, MediaKind};
use crate::session::versions::{MOST_KEPT, Old};
use crate::text::{fenced, foreign_line, size};
use crate::usage::Budget;
use crate::worker::Workers;
use crate::worker::protocol::{FileJob, Header, Reply};

/// Maximum size of a PDF's text in one result, in bytes.
const MAX_PDF_TEXT: usize = 28_000;

/// Arguments shown in summaries.
const SHOWN: &[&str] = &["pattern", "path"];

/// The prompt explains that paths are relative to the workspace.
static SPECS: [ToolSpec; 6] = [
    ToolSpec::built_in(
        "list_dir",
        Risk::Safe,
        "List a directory, up to 200 entries.",
        concat!(
            r#"{"type":"object","properties":{"path":{"type":"string","description":"Default: the workspace"},"#,
            r#""depth":{"type":"integer","description":"Levels; default 1"}}}"#
        ),
    ),
    ToolSpec::built_in(
        "read_file",
        Risk::Safe,
        "Read a text file, up to 2000 lines at once, a PDF or a recording, or view an image.",
        concat!(
            r#"{"type":"object","properties":{"path":{"type":"string"},"#,
            r#""offset":{"type":"integer","description":"From 1"},"#,
            r#""limit":{"type":"integer","description":"Lines"},"#,
            r#""pages":{"type":"string","description":"Of a PDF: 3-12"}},"required":["path"]}"#
        ),
    ),
    ToolSpec::built_in(
        "grep",
        Risk::Safe,
        "Search files for lines. Skips binary files, links and .git.",
        concat!(
            r#"{"type":"object","properties":{"pattern":{"type":"string","description":"Regular expression, no look-around"},"#,
            r#""path":{"type":"string","description":"Default: the workspace"},"#,
            r#""glob":{"type":"string","description":"*.rs by name, src/**/*.rs by path"},"#,
            r#""max":{"type":"integer","description":"Default 100"}},"required":["pattern"]}"#
        ),
    ),
    ToolSpec::built_in(
        "write_file",
        Risk::Writes,
        "Create a text file, or replace its content.",
        concat!(
            r#"{"type":"object","properties":{"path":{"type":"string"},"#,
            r#""content":{"type":"string"}},"required":["path","content"]}"#
        ),
    ),
    ToolSpec::built_in(
        "append_file",
        Risk::Writes,
        "Append text to a file, or create it.",
        concat!(
            r#"{"type":"object","properties":{"path":{"type":"string"},"#,
            r#""content":{"type":"string"}},"required":["path","content"]}"#
        ),
    ),
    ToolSpec::built_in(
        "edit_file",
        Risk::Writes,
        "Replace text in a file.",
        concat!(
            r#"{"type":"object","properties":{"path":{"type":"string"},"#,
            r#""old_text":{"type":"string","description":"As in the file, where it occurs once"},"#,
            r#""new_text":{"type":"string"},"#,
            r#""replace_all":{"type":"boolean"}},"required":["path","old_text","new_text"]}"#
        ),
    ),
];

/// What the file tools use.
pub(crate) struct Files {
    pub workers: Arc<Workers>,
    /// Transcribes recordings, if a model is configured for it.
    pub transcribe: Option<Arc<Transcribe>>,
}

/// Makes the file tools, each of which runs the job of its name.
pub(crate) fn file_tools(files: &Arc<Files>) -> Vec<Function> {
    SPECS.iter().map(|spec| file_tool(files, spec)).collect()
}

fn file_tool(files: &Arc<Files>, spec: &ToolSpec) -> Function {
    let (own, name) = (files.clone(), spec.name.clone());
    let (workers, changing) = (files.workers.clone(), spec.name.clone());
    Function {
        changes: Box::new(move |args, cancel| match &*changing {
            "write_file" => replaced(&workers, args, cancel),
            "append_file" => Change::between("", text(args, "content")),
            "edit_file" => Change::between(text(args, "old_text"), text(args, "new_text")),
            _ => Change::default(),
        }),
        ..Function::built_in(spec.clone(), SHOWN, move |args, turn| {
            run(&name, &own, args, turn)
        })
    }
}

/// Function that transcribes a recording.
pub(crate) type Transcribe = dyn Fn(&Media, &Cancel, &Budget) -> Result<String> + Send + Sync;

fn run(name: &str, files: &Files, args: &Value, turn: &CallContext) -> Result<ToolOutput> {
    let workers = &files.workers;
    let path = text(args, "path");
    let mut action = json!({ name: args });
    action[name]["room"] = turn.room.into();
    let job = FileJob::new(path, arguments(&action)?);
    let reply = do_job(workers, job, turn)?;
    let content = match reply.header {
        Header::Image => return show_image(path, &reply.body),
        Header::Recording => return heard(files, path, turn),
        Header::Pdf => {
            let pages = text(args, "pages");
            let read = workers.read_pdf(reply.body, pages, MAX_PDF_TEXT, turn.cancel);
            read.doing(foreign_line(path, 300))?
        }
        _ => reply.into_text()?,
    };
    let is_foreign = |path: &str| is_in_inbox(path, workers.workspace());
    let mut found = content.lines().filter_map(|line| line.split(':').next());
    Ok(ToolOutput::text(match name {
        "read_file" | "grep" if is_foreign(path) => fenced(&content),
        "grep" if found.any(is_foreign) => fenced(&content),
        _ => content,
    }))
}

/// Does a job. If it changes a file, stores the previous version for `/undo`.
pub(super) fn do_job(workers: &Workers, job: FileJob, turn: &CallContext) -> Result<Reply> {
    let path = job.path.clone();
    let versions = match turn.budget.versions() {
        Some(versions) if job.changes_files() => versions,
        _ => return workers.call(job, turn.cancel),
    };
    let (content, read) = read_whole(workers, &path, MOST_KEPT, turn.cancel);
    let reply = workers.call(job, turn.cancel)?;
    if let Header::Changed { before, after } = &reply.header {
        let old = match read {
            _ if before.is_empty() => Old::Absent,
            Ok(state) if state == *before => Old::Content(&content),
            // Another file was read than was changed, or none could be read.
            _ => Old::Unknown,
        };
        if let Err(e) = versions.changed(&path, old, before, after.clone()) {
            let what = format!("/undo will not take {path} back: {}", e.message);
            (turn.events)(Event::Notice(what));
        }
    }
    Ok(reply)
}

/// Reads a file of up to `most` bytes. Returns also its state, or why it cannot be read.
pub(super) fn read_whole(
    workers: &Workers,
    path: &str,
    most: u64,
    cancel: &Cancel,
) -> (Vec<u8>, Result<String>) {
    let mut content = Vec::new();
    let state = workers.send_file(path, most, cancel, &mut |part| {
        content.extend_from_slice(part);
        Ok(())
    });
    (content, state)
}

/// Shows what replacing a file changes.
fn replaced(workers: &Workers, args: &Value, cancel: Option<&Cancel>) -> Change {
    let (path, new) = (text(args, "path"), text(args, "content"));
    let Some(cancel) = cancel else {
        return Change::between("", new);
    };
    let (content, read) = read_whole(workers, path, MOST_KEPT, cancel);
    match read {
        Ok(state) => Change {
            shown: Some(state),
            ..Change::replacing(&content, new)
        },
        Err(e) if e.message.ends_with("does not exist") => Change {
            shown: Some(String::new()),
            ..Change::between("", new)
        },
        Err(e) => Change::unseen(
            &format!("the file that is there, not shown: {}", e.message),
            new,
        ),
    }
}

/// Returns an image that a call read; requests carry it after the results.
fn show_image(path: &str, file: &[u8]) -> Result<ToolOutput> {
    let image = Media::image(file);
    let image = image.ok_or_else(|| {
        Error::failed("it begins like an image, but has no header that gives its size")
    })?;
    let name = Path::new(path).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let text = format!(
        "[an image, {}, {}: it follows the results]",
        image.mime,
        size(file.len() as u64)
    );
    Ok(ToolOutput {
        images: vec![image.named(&name)],
        ..ToolOutput::text(text)
    })
}

/// Returns the transcript of a recording, fenced as data.
fn heard(files: &Files, path: &str, turn: &CallContext) -> Result<ToolOutput> {
    let name = foreign_line(path, 300);
    let Some(transcribe) = &files.transcribe else {
        return Err(Error::failed(format!(
            "{name} is a recording, and tools.transcribe.model, which would transcribe it, is not set in config.json"
        )));
    };
    let (bytes, read) = read_whole(&files.workers, path, MAX_FILE as u64, turn.cancel);
    read?;
    let recording = Media::detect(&bytes).filter(|media| media.kind() == MediaKind::Audio);
    let recording =
        recording.ok_or_else(|| Error::failed(format!("{name} is no longer a recording")))?;
    drop(bytes);
    let words = transcribe(&recording, turn.cancel, turn.budget)?;
    Ok(ToolOutput::text(format!(
        "[transcript of {name}]\n{}",
        fenced(&words)
    )))
}

/// Whether a file came from outside, so that the agent may read but not edit it.
fn is_in_inbox(path: &str, workspace: &Grant) -> bool {
    let path = Path::new(path);
    let below = workspace.below(path).unwrap_or(path);
    let mut parts = below.components().filter(|part| *part != Component::CurDir);
    // A path with `..` may lead into the inbox.
    let is_winding = parts.clone().any(|part| part == Component::ParentDir);
    let is_inbox = |part: Component| part == Component::Normal("inbox".as_ref());
    // Another path may lead into the workspace, such as one below `~`.
    if below.is_absolute() || below.starts_with("~") {
        return is_winding || parts.any(is_inbox);
    }
    is_winding || parts.next().is_some_and(is_inbox)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_from_outside_are_known_by_any_path() {
        let workspace = Grant::at("/w".into(), crate::access::Access::Write);
        for (path, is) in [
            ("inbox/a", true),
            ("./inbox/a", true),
            ("/w/inbox/a", true),
            ("b/../inbox/a", true),
            ("~/w/inbox/a", true),
            ("/v/inbox/a", true),
            ("~/inboxes", false),
            ("a", false),
            ("b/inbox/a", false),
        ] {
            assert_eq!(is_in_inbox(path, &workspace), is, "{path}");
        }
    }
}
