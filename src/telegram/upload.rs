//! Sends files; an image is sent as a photo if Telegram accepts it.

use std::io::{ErrorKind, Read};

use fs_err::File;
use serde_json::Value;

use super::api::Failure;
use super::send::MessageSender;
use crate::log::Level;
use crate::message::image_type;
use crate::outbox::Item;
use crate::text::to_single_line;

/// Maximum size of a photo, in bytes (Bot API, `sendPhoto`).
const MAX_PHOTO: u64 = 10 << 20;

impl MessageSender {
    /// Sends the file of a message to the chat in `params`, with an HTML caption.
    pub(super) fn upload(
        &self,
        item: &Item,
        caption: Option<&str>,
        mut params: Value,
    ) -> Result<(), Failure> {
        let path = self.outbox.file(&item.file);
        let open = || {
            File::open(&path).map_err(|e| match e.kind() {
                ErrorKind::NotFound => Failure::Refused(0, "the file no longer exists".to_owned()),
                _ => Failure::Failing(e.to_string()),
            })
        };
        if let Some(caption) = caption {
            params["caption"] = caption.into();
            params["parse_mode"] = "HTML".into();
        }
        let send = |method: &str, field: &str| {
            let file = (field, item.name.as_str(), open()?);
            self.api.upload(method, &params, file, &self.whole)
        };
        if is_photo(open()?) {
            match send("sendPhoto", "photo") {
                // The image is too wide, too high, or invalid.
                Err(Failure::Refused(400 | 413, why)) => {
                    let name = to_single_line(&item.name, 80);
                    (self.log)(Level::Info, &format!("sending {name} as a file: {why}"));
                }
                result => return result.map(drop),
            }
        }
        send("sendDocument", "document").map(drop)
    }
}

fn is_photo(mut file: File) -> bool {
    let mut start = [0; 12];
    let is_small = file.metadata().is_ok_and(|meta| meta.len() <= MAX_PHOTO);
    let kind = file
        .read(&mut start)
        .ok()
        .and_then(|read| image_type(&start[..read]));
    is_small && matches!(kind, Some("image/png" | "image/jpeg" | "image/webp"))
}
