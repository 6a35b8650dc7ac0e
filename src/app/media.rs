//! Converts attachments that some models do not accept: adds the text of a PDF, and transcribes recordings.

use std::sync::Arc;

use super::{App, ledger};
use crate::cancel::Cancel;
use crate::config::Loaded;
use crate::config::vendors::Protocol;
use crate::error::{Context, Error, Kind, Result};
use crate::message::{Media, MediaKind};
use crate::provider::catalog;
use crate::provider::endpoint::ModelEndpoint;
use crate::text::{fenced, to_single_line};
use crate::tool::files::Transcribe;
use crate::usage::Budget;

/// Returns the model of a setting for other purposes than chat; `None` if it is empty.
pub(super) fn endpoint(
    setting: &'static str,
    name: &str,
    loaded: &Loaded,
) -> Result<Option<ModelEndpoint>> {
    if name.is_empty() {
        return Ok(None);
    }
    let model = loaded.config.named(name, &loaded.env);
    let kind = Kind::Config;
    let model = model.map_err(|e| Error { kind, ..e }).doing(setting)?;
    if model.id.is_empty() {
        let what = format!("{setting}: \"{name}\" names no model");
        return Err(Error::config(what).hint(format!("write {name}/MODEL")));
    }
    if matches!(model.protocol, Protocol::Anthropic | Protocol::Demo) {
        let what = format!("{setting}: the provider of {name} has only a chat API");
        return Err(Error::config(what).hint("name a model whose provider has the OpenAI API"));
    }
    let host = catalog::host(model, loaded);
    Ok(Some(ModelEndpoint { setting, host }))
}

/// Returns why models for other purposes than chat cannot be used.
pub(crate) fn unusable(loaded: &Loaded) -> impl Iterator<Item = Error> {
    let config = &loaded.config;
    let models = [
        ("tools.transcribe.model", &config.tools.transcribe.model),
        ("memory.embedding_model", &config.memory.embedding_model),
    ];
    let error = |(setting, name): (_, &String)| endpoint(setting, name, loaded).err();
    models.into_iter().filter_map(error)
}

/// Makes a function that transcribes recordings.
pub(crate) fn transcriber(loaded: &Loaded) -> Result<Option<Arc<Transcribe>>> {
    let name = &loaded.config.tools.transcribe.model;
    let endpoint = endpoint("tools.transcribe.model", name, loaded)?;
    let redactor = loaded.redactor();
    Ok(endpoint.map(|endpoint| -> Arc<Transcribe> {
        Arc::new(move |recording, cancel, budget| {
            let words = endpoint.transcribe(recording, cancel, budget)?;
            Ok(redactor.redact_known(words))
        })
    }))
}

/// An attachment: a file sent to the model, or a text for the message.
pub(crate) enum Attachment {
    Media(Media),
    Text(String),
}

/// Converts an attachment to a form that the model accepts.
pub(crate) fn convert(app: &App, path: &str, attachment: Attachment) -> Result<Attachment> {
    let Attachment::Media(mut media) = attachment else {
        return Ok(attachment);
    };
    let loaded = app.loaded()?;
    let (cancel, name) = (Cancel::new(None), to_single_line(path, 200));
    match media.kind() {
        MediaKind::Image => {}
        MediaKind::Pdf => {
            super::make_workspace(loaded)?;
            app.workers()?.add_text(&mut media, &cancel);
        }
        MediaKind::Audio => match transcriber(loaded)? {
            Some(transcribe) => {
                // Only the daily budget limits a user's attachments.
                let ledger = Arc::new(ledger(loaded, app.local_time.clone()));
                let budget = Budget::new(Some(ledger), "", "cli");
                let words = transcribe(&media, &cancel, &budget);
                let words = fenced(&words.doing(format_args!("attaching {name}"))?);
                let text = format!("[transcript of {name}]\n{words}");
                return Ok(Attachment::Text(text));
            }
            None if media.audio_format().is_none() => {
                return Err(Error::usage(format!("attaching {name}: audio that is neither WAV nor MP3"))
                    .hint("set tools.transcribe.model, such as groq/whisper-large-v3-turbo, or convert it"));
            }
            None => {}
        },
    }
    Ok(Attachment::Media(media))
}
