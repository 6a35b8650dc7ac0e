//! Sends files, on a thread of their own: an upload may take an hour, and other chats go on meanwhile.

use std::io::{ErrorKind, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use fs_err::File;
use serde_json::Value;

use super::api::{Api, Failure, send_styled};
use crate::cancel::Cancel;
use crate::log::{Level, Sink};
use crate::markdown::Piece;
use crate::outbox::{Item, Outbox, Pending};
use crate::text::one_line;
use crate::wire::ImageKind;

/// The most bytes of a photo (Bot API, `sendPhoto`).
const MAX_PHOTO: u64 = 10 << 20;

pub(super) struct Upload {
    pub api: Arc<Api>,
    pub outbox: Outbox,
    pub caption: Option<Piece>,
    /// The chat.
    pub params: Value,
    pub whole: Cancel,
    pub log: Sink,
}

impl Upload {
    /// Sends the file on a new thread, which holds `lock` and reports the result, and whether the outbox knows it.
    pub(super) fn spawn(
        self,
        pending: Pending,
        lock: Arc<Mutex<()>>,
        report: impl FnOnce(Box<Pending>, Result<(), Failure>, bool) + Send + 'static,
    ) -> Result<(), Failure> {
        let work = move || {
            let lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let result = self.send(&pending.item);
            // Recorded here because nobody may listen any more when the program ends.
            let is_recorded = result.is_ok() && self.outbox.done(&pending.id).is_ok();
            drop(lock);
            report(Box::new(pending), result, is_recorded);
        };
        Builder::new().spawn(work).map(drop).map_err(|e| Failure::Passing(e.to_string()))
    }

    /// Sends the file of a message: a picture as a photo, if Telegram accepts it as one.
    pub(super) fn send(&self, item: &Item) -> Result<(), Failure> {
        let path = self.outbox.file(&item.file);
        let open = || {
            File::open(&path).map_err(|e| match e.kind() {
                ErrorKind::NotFound => Failure::Refused(0, "the file no longer exists".to_owned()),
                _ => Failure::Passing(e.to_string()),
            })
        };
        let send = |method: &str, field: &str| {
            send_styled("caption", self.caption.as_ref(), self.params.clone(), &|params| {
                self.api.upload(method, &params, (field, &item.name, open()?), &self.whole)
            })
        };
        if is_photo(open()?) {
            match send("sendPhoto", "photo") {
                // Too wide, too high, or not what it seems to be.
                Err(Failure::Refused(400 | 413, why)) => {
                    (self.log)(Level::Info, &format!("sending {} as a file: {why}", one_line(&item.name, 80)));
                }
                result => return result,
            }
        }
        send("sendDocument", "document")
    }
}

fn is_photo(mut file: File) -> bool {
    let mut start = [0; 12];
    let is_small = file.metadata().is_ok_and(|meta| meta.len() <= MAX_PHOTO);
    let kind = file.read(&mut start).ok().and_then(|read| ImageKind::of(&start[..read]));
    is_small && matches!(kind, Some(ImageKind::Png | ImageKind::Jpeg | ImageKind::Webp))
}
