//! The tools that access the web: one fetches a page, one searches.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{CallContext, Function, Risk, ToolOutput, ToolSpec, text};
use crate::config::Loaded;
use crate::config::keys;
use crate::config::proxy::http_settings;
use crate::error::Result;
use crate::http::{self, Client};
use crate::ssrf::AddressGuard;
use crate::text::{fenced, foreign, foreign_line, whole_words};
use crate::web::{Content, Page, Search, Web};
use crate::worker::Workers;

/// Maximum number of search results per call.
const MAX_RESULTS: u64 = 20;

pub(crate) fn web_fetch_tool(loaded: &Arc<Loaded>, workers: &Arc<Workers>) -> Function {
    let spec = ToolSpec::built_in(
        "web_fetch",
        Risk::Safe,
        "Fetch a web page as Markdown, or another text.",
        concat!(
            r#"{"type":"object","properties":{"url":{"type":"string"},"#,
            r#""max_chars":{"type":"integer","minimum":1},"#,
            r#""pages":{"type":"string"}},"required":["url"]}"#
        ),
    );
    let (loaded, workers) = (loaded.clone(), workers.clone());
    Function::built_in(spec, &["url"], move |args, turn| {
        fetch(&loaded, &workers, args, turn)
    })
}

/// Fetches a page, cut after `tools.web.fetch.max_chars` characters.
fn fetch(
    loaded: &Loaded,
    workers: &Workers,
    args: &Value,
    turn: &CallContext,
) -> Result<ToolOutput> {
    let settings = &loaded.config.tools.web.fetch;
    let guard = AddressGuard::new(settings.allow_private);
    let connect = |url: &str| {
        Client::new(http::Settings {
            guard: Some(guard.clone()),
            ..http_settings(url, "", &loaded.env)
        })
    };
    let max = args["max_chars"]
        .as_u64()
        .and_then(|max| max.try_into().ok());
    let max_chars = max.unwrap_or(settings.max_chars).min(settings.max_chars);
    let web = Web {
        connect: &connect,
        read: &|job, pieces, cancel| workers.read(job, pieces, cancel),
        timeout: Duration::from_secs(settings.timeout),
        cancel: turn.cancel,
    };
    let mut page = web.fetch(text(args, "url"), max_chars)?;
    if let Content::Pdf(bytes) = &mut page.content {
        let bytes = std::mem::take(bytes);
        let pages = text(args, "pages");
        let text = workers.read_pdf(bytes, pages, max_chars, turn.cancel)?;
        page.content = Content::Text(text);
    }
    Ok(describe(page))
}

/// Describes a page to the model.
fn describe(page: Page) -> ToolOutput {
    let mut output = ToolOutput {
        failed: !(200..300).contains(&page.status),
        ..ToolOutput::default()
    };
    let head = format!("[status {} from {}]", page.status, page.asked);
    let mut theirs = String::new();
    if page.address != page.asked {
        theirs.push_str(&format!("[redirected to {}]\n", page.address));
    }
    if !page.told.unknown_encoding.is_empty() {
        let name = foreign_line(&page.told.unknown_encoding, 40);
        theirs.push_str(&format!(
            "[its character encoding {name} is unknown: read as UTF-8]\n"
        ));
    }
    output.text = match page.content {
        Content::Text(_) if !page.told.other.is_empty() => {
            foreign(&format!("{head} {}", page.told.other), &theirs)
        }
        Content::Text(content) => {
            if !page.told.title.is_empty()
                && !content.starts_with(&format!("# {}\n", page.told.title))
            {
                theirs.push_str(&format!("# {}\n\n", page.told.title));
            }
            theirs.push_str(&content);
            let cut = if page.told.is_cut {
                format!("\n[cut after {} characters]", content.chars().count())
            } else {
                String::new()
            };
            foreign(&head, &theirs) + &cut
        }
        // The PDF has been converted to text.
        Content::Pdf(_) => foreign(&head, &theirs),
        Content::Image(image) => {
            output.images.push(image);
            foreign(&format!("{head} an image"), &theirs)
        }
    };
    output
}

pub(crate) fn web_search_tool(loaded: &Arc<Loaded>, workers: &Arc<Workers>) -> Function {
    let mut spec = ToolSpec::built_in(
        "web_search",
        Risk::Safe,
        "Search the web. Read a page with web_fetch.",
        concat!(
            r#"{"type":"object","properties":{"query":{"type":"string"},"#,
            r#""count":{"type":"integer","minimum":1,"description":"Default COUNT"}},"required":["query"]}"#
        ),
    );
    let count = loaded.config.tools.web.search.max_results.to_string();
    spec.schema = spec.schema.replace("COUNT", &count).into();
    let (loaded, workers) = (loaded.clone(), workers.clone());
    Function::built_in(spec, &["query"], move |args, turn| {
        search(&loaded, &workers, args, turn)
    })
}

fn search(
    loaded: &Loaded,
    workers: &Workers,
    args: &Value,
    turn: &CallContext,
) -> Result<ToolOutput> {
    let settings = &loaded.config.tools.web.search;
    let count = args["count"].as_u64().unwrap_or(settings.max_results);
    let engines = Search {
        web: Web {
            connect: &|url| Client::new(http_settings(url, "", &loaded.env)),
            read: &|job, pieces, cancel| workers.read(job, pieces, cancel),
            timeout: Duration::from_secs(loaded.config.tools.web.fetch.timeout),
            cancel: turn.cancel,
        },
        provider: &settings.provider,
        key: keys::known(&settings.api_key, &loaded.env).unwrap_or_default(),
        env: &loaded.env,
        base_url: &settings.base_url,
    };
    let count = usize::try_from(count.min(MAX_RESULTS)).unwrap_or(1);
    let hits = engines.search(text(args, "query"), count)?;
    if hits.is_empty() {
        return Ok(ToolOutput::text("no results"));
    }
    let lines = hits.iter().zip(1..).map(|(hit, n)| {
        let snippet = foreign_line(&hit.snippet, 400);
        let snippet = if snippet.is_empty() {
            snippet
        } else {
            format!("\n   {snippet}")
        };
        format!(
            "{n}. {}\n   {}{snippet}",
            foreign_line(&hit.title, 200),
            whole_words(&hit.address, 2_000)
        )
    });
    Ok(ToolOutput::text(fenced(
        &lines.collect::<Vec<_>>().join("\n"),
    )))
}
