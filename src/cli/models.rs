//! `bantam models`: lists the models of the configured hosts.

use serde_json::{Value, json};

use super::args::Args;
use super::ui::Ui;
use super::{error_json, print, report, table};
use crate::app::App;
use crate::error::{Error, Result};
use crate::http::authority;
use crate::provider::catalog::{self, Offer};
use crate::text::counted;

pub(super) fn run(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let loaded = app.loaded()?;
    let hosts = catalog::hosts(loaded, given.words.first().map(String::as_str))?;
    if hosts.is_empty() {
        return Err(Error::config("no model configured and no API key found")
            .hint("name a provider, such as `bantam models ollama`"));
    }
    let mut code = 0;
    for model in hosts {
        let (host, offers) = (authority(&model.base), catalog::offers(&model, loaded));
        if given.has("json") {
            print(&format!("{}\n", object(host, &offers)))?;
        }
        match &offers {
            Err(e) => code = report(e),
            Ok(_) if given.has("json") => {}
            Ok(offers) => print(&page(host, offers))?,
        }
    }
    Ok(code)
}

fn page(host: &str, offers: &[Offer]) -> String {
    let row = |offer: &Offer| [display_name(offer).to_owned(), offer.abilities()];
    let rows: Vec<_> = offers.iter().map(row).collect();
    let count = counted(offers.len(), "model");
    format!("{host}: {count}\n{}", table(&[], &rows))
}

fn display_name(offer: &Offer) -> &str {
    match offer.name.as_str() {
        "" => &offer.id,
        name => name,
    }
}

fn object(host: &str, offers: &Result<Vec<Offer>>) -> Value {
    let models = offers.iter().flatten().map(|offer| {
        json!({
            "model": display_name(offer),
            "window": offer.window,
            "tools": offer.tools,
            "images": offer.images,
        })
    });
    json!({
        "host": host,
        "models": models.collect::<Value>(),
        "error": offers.as_ref().err().map(error_json),
    })
}
