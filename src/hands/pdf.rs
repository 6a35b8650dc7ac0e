//! The text of a PDF, by `pdftotext` of Poppler where it is installed. A PDF is a program of a stranger's: it is read in a jail.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Hands;
use crate::cancel::Cancel;
use crate::message::Media;
use crate::text::clip;
use crate::wire::{ExecJob, Header, Job, Reply, Termination};

/// The most bytes of text.
const MAX_TEXT: usize = 100 << 10;

impl Hands {
    /// Adds the text of a PDF to it, if it has any and it can be read.
    pub(crate) fn read_pdf(&self, pdf: &mut Media, cancel: &Cancel) {
        let job = Job::Exec(ExecJob {
            command: "pdftotext -q -enc UTF-8 - - 2>/dev/null".to_owned(),
            working_dir: ".".to_owned(),
            timeout_secs: 60,
            input: STANDARD.decode(&pdf.base64).unwrap_or_default(),
            ..ExecJob::default()
        });
        let Ok(Reply { header, body }) = self.call(&job, cancel) else {
            return;
        };
        if matches!(
            header,
            Header::Exited {
                end: Termination::Code(0),
                ..
            }
        ) {
            clip(String::from_utf8_lossy(&body).trim(), MAX_TEXT).clone_into(&mut pdf.text);
        }
    }
}
