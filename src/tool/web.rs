//! The tools that access the web: one fetches a page, one searches.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{CallContext, Function, Risk, ToolOutput, ToolSpec, arguments, text};
use crate::config::Loaded;
use crate::config::keys;
use crate::config::proxy::http_settings;
use crate::error::Result;
use crate::http::{self, Client};
use crate::ssrf::AddressGuard;
use crate::text::{fenced, foreign, foreign_line, whole_words};
use crate::web::{Content, Page, Search, Told, Web};
use crate::worker::Workers;

/// Maximum number of search results.
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
    let max_chars = arguments(&args["max_chars"]).unwrap_or(usize::MAX);
    let max_chars = max_chars.min(settings.max_chars);
    let web = Web {
        connect: &connect,
        read: &|job, pieces, cancel| workers.read(job, pieces, cancel),
        timeout: Duration::from_secs(settings.timeout),
        cancel: turn.cancel,
    };
    let page = web.fetch(text(args, "url"), max_chars)?;
    describe(page, |pdf| {
        workers.read_pdf(pdf, text(args, "pages"), max_chars, turn.cancel)
    })
}

/// Describes a page to the model.
fn describe(page: Page, read_pdf: impl FnOnce(Vec<u8>) -> Result<String>) -> Result<ToolOutput> {
    let mut output = ToolOutput {
        failed: !(200..300).contains(&page.status),
        ..ToolOutput::default()
    };
    let Told {
        mut other,
        title,
        is_cut,
    } = page.told;
    let content = match page.content {
        Content::Text(content) => content,
        Content::Pdf(pdf) => read_pdf(pdf)?,
        Content::Image(image) => {
            output.images.push(image);
            "an image".clone_into(&mut other);
            String::new()
        }
    };
    let mut theirs = String::new();
    if page.address != page.asked {
        theirs.push_str(&format!("[redirected to {}]\n", page.address));
    }
    if !title.is_empty() && !content.starts_with(&format!("# {title}\n")) {
        theirs.push_str(&format!("# {title}\n\n"));
    }
    theirs.push_str(&content);
    let head = format!("[status {} from {}] {other}", page.status, page.asked);
    output.text = foreign(head.trim_end(), &theirs);
    if is_cut {
        let count = content.chars().count();
        (output.text).push_str(&format!("\n[cut after {count} characters]"));
    }
    Ok(output)
}

pub(crate) fn web_search_tool(loaded: &Arc<Loaded>, workers: &Arc<Workers>) -> Function {
    let spec = ToolSpec::built_in(
        "web_search",
        Risk::Safe,
        "Search the web. Read a page with web_fetch.",
        r#"{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}"#,
    );
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
    let count = usize::try_from(settings.max_results.min(MAX_RESULTS)).unwrap_or(1);
    let hits = engines.search(text(args, "query"), count)?;
    if hits.is_empty() {
        return Ok(ToolOutput::text("no results"));
    }
    let lines = hits.iter().zip(1..).map(|(hit, n)| {
        let title = foreign_line(&hit.title, 200);
        let snippet = foreign_line(&hit.snippet, 400);
        let address = whole_words(&hit.address, 2_000);
        let hit = format!("{n}. {title}\n   {address}\n   {snippet}");
        hit.trim_end().to_owned()
    });
    Ok(ToolOutput::text(fenced(
        &lines.collect::<Vec<_>>().join("\n"),
    )))
}
