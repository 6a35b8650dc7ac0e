//! Limits the images and other media that the tools of a turn may show, and keeps pictures that a model made.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::turn::Turn;
use crate::bus::Event;
use crate::message::{MAX_FILE, MAX_IMAGE, MAX_IMAGES, MAX_MEDIA};
use crate::message::{Media, MediaKind, Reply, ToolResult};
use crate::text::{clip, rfc3339, size};
use crate::worker::protocol::{FileAction, FileJob, Reply as Kept};

/// Media shown by the tools of a turn.
#[derive(Default)]
pub(super) struct Shown {
    files: usize,
    /// Size in base64, because media remain in memory and are sent with every request for several turns.
    bytes: usize,
}

impl Shown {
    /// Replaces media beyond a limit by an explanation.
    pub(super) fn limit(&mut self, result: &mut ToolResult) {
        let content = &mut result.content;
        result.images.retain(|media| match self.admit(media) {
            Ok(()) => true,
            Err(why) => {
                content.push_str(&format!("\n{}", media.replacement(&why)));
                false
            }
        });
    }

    /// Counts one more file, or returns why it is not shown.
    fn admit(&mut self, media: &Media) -> Result<(), String> {
        let most = match media.kind() {
            MediaKind::Image => MAX_IMAGE,
            MediaKind::Pdf | MediaKind::Audio => MAX_FILE,
        } as u64;
        if media.bytes() > most {
            return Err(format!("larger than {}", size(most)));
        }
        if self.files == MAX_IMAGES {
            return Err(format!("a turn shows {MAX_IMAGES} at most"));
        }
        if self.bytes + media.base64.len() > MAX_MEDIA {
            let most = size(MAX_MEDIA as u64);
            return Err(format!("what a turn shows has {most} at most"));
        }
        self.files += 1;
        self.bytes += media.base64.len();
        Ok(())
    }
}

impl Turn<'_> {
    /// Stores the pictures that a model made in the workspace, and adds their paths to its text, so that the user finds them and
    /// the model knows of them. Sends them to the chat of a bot, whose user cannot open a path.
    pub(super) fn keep_pictures(&mut self, reply: &mut Reply) {
        let turn = self.shared;
        let pictures = reply.images.iter().map(|picture| {
            let Some(workers) = &turn.agent.workers else {
                return "shown by the program".to_owned();
            };
            let day = rfc3339(SystemTime::now());
            let name = format!("picture.{}", picture.mime.trim_start_matches("image/"));
            let job = FileJob {
                path: format!("pictures/{}", clip(&day, 10)),
                action: FileAction::TakeFile { name },
                content: STANDARD.decode(&picture.base64).unwrap_or_default(),
            };
            match workers.call(job, turn.cancel).and_then(Kept::into_text) {
                Ok(path) => {
                    self.send_file(&path);
                    workers.workspace().path.join(path).display().to_string()
                }
                Err(e) => format!("could not be kept: {}", e.message),
            }
        });
        for picture in pictures.collect::<Vec<_>>() {
            let gap = if reply.text.is_empty() { "" } else { "\n\n" };
            let line = format!("{gap}[picture: {picture}]");
            (turn.events)(Event::Delta(line.clone()));
            reply.text.push_str(&line);
        }
    }
}
