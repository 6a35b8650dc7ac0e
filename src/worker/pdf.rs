//! The text of a PDF that came from outside the workspace.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Workers;
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::json::from_json;
use crate::message::Media;
use crate::worker::protocol::{PdfPart, Reading, ReadingJob};

/// The most bytes of text that go with a message.
const MAX_TEXT: usize = 100 << 10;

impl Workers {
    /// Adds the text of a PDF to it, or the reason why there is none. Returns the pages that are left, as `read_file` takes
    /// them: empty if there are none.
    pub(crate) fn read_pdf(&self, pdf: &mut Media, cancel: &Cancel) -> String {
        match self.text_of(pdf, cancel) {
            Ok((part, text)) => {
                text.trim_end().clone_into(&mut pdf.text);
                part.more
            }
            Err(e) => {
                pdf.text = format!("[its text cannot be read: {}]", e.message);
                String::new()
            }
        }
    }

    fn text_of(&self, pdf: &Media, cancel: &Cancel) -> Result<(PdfPart, String)> {
        let mut bytes = STANDARD.decode(&pdf.base64).ok();
        let job = ReadingJob::new(Reading::Pdf { most: MAX_TEXT }, false);
        let told = self
            .read(job, &mut || Ok(bytes.take()), cancel)?
            .into_text()?;
        let (part, text) = told.split_once('\n').unwrap_or((&told, ""));
        let part = from_json(part).doing("reading what was read of the PDF")?;
        Ok((part, text.to_owned()))
    }
}
