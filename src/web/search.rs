//! Web search: a table of engines, and which of them to ask.

use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};

use super::tokens::{Token, tokens};
use super::{Connect, error, html, left, read};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::http::{Body, Outgoing};
use crate::secret::Secret;

/// One result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub title: String,
    pub address: String,
    /// Some words of the page, or empty.
    pub snippet: String,
}

/// How an engine is asked.
enum Method {
    /// The query is part of the address.
    Get,
    /// The names of the query and of the number of results in a JSON body.
    Post(&'static str, &'static str),
}

/// Where an engine's answer holds the results.
enum Answer {
    /// A path to the list, and the names of title, address and snippet in each of its objects.
    Json(&'static str, [&'static str; 3]),
    /// An HTML page of `DuckDuckGo`.
    Page,
}

struct Engine {
    /// As in `tools.web.search.provider`.
    name: &'static str,
    /// Empty: the user's own server, from `tools.web.search.base_url`.
    base: &'static str,
    /// What follows the base, with places for `{query}` and `{count}`.
    path: &'static str,
    method: Method,
    /// The header that carries the key, and what stands before the key in it. Empty: no key.
    key: (&'static str, &'static str),
    /// How keys of this engine begin, to tell whose a key is.
    prefix: &'static str,
    answer: Answer,
}

/// In the order in which `auto` asks them. The shapes are those of the engines' API references, of November 2026.
const ENGINES: [Engine; 5] = [
    Engine {
        name: "searxng",
        path: "/search?q={query}&format=json",
        base: "",
        method: Method::Get,
        key: ("", ""),
        prefix: "",
        answer: Answer::Json("/results", ["title", "url", "content"]),
    },
    Engine {
        name: "tavily",
        path: "/search",
        base: "https://api.tavily.com",
        method: Method::Post("query", "max_results"),
        key: ("authorization", "Bearer "),
        prefix: "tvly-",
        answer: Answer::Json("/results", ["title", "url", "content"]),
    },
    Engine {
        name: "brave",
        path: "/res/v1/web/search?q={query}&count={count}",
        base: "https://api.search.brave.com",
        method: Method::Get,
        key: ("x-subscription-token", ""),
        prefix: "BSA",
        answer: Answer::Json("/web/results", ["title", "url", "description"]),
    },
    Engine {
        name: "serper",
        path: "/search",
        base: "https://google.serper.dev",
        method: Method::Post("q", "num"),
        key: ("x-api-key", ""),
        prefix: "",
        answer: Answer::Json("/organic", ["title", "link", "snippet"]),
    },
    Engine {
        name: "duckduckgo",
        path: "/html/?q={query}",
        base: "https://html.duckduckgo.com",
        method: Method::Get,
        key: ("", ""),
        prefix: "",
        answer: Answer::Page,
    },
];

/// The engines to ask, in order, and how.
pub(crate) struct Search {
    pub connect: Box<Connect>,
    /// The name of an engine, or `auto`.
    pub provider: String,
    pub key: Secret,
    /// In the place of the engine's own; with `auto`, that of a SearXNG.
    pub base_url: String,
    pub timeout: Duration,
}

impl Search {
    /// Asks one engine after another until one has results.
    ///
    /// # Errors
    /// What each of them said.
    pub(crate) fn search(&self, query: &str, count: usize, cancel: &Cancel) -> Result<Vec<Hit>> {
        let mut failures = Vec::new();
        for engine in self.engines() {
            match self.ask(engine, query, count, cancel) {
                Ok(hits) => return Ok(hits),
                Err(e) if cancel.why().is_some() => return Err(e),
                Err(e) => failures.push(format!("{}: {e}", engine.name)),
            }
        }
        Err(Error::failed(failures.join("; ")).hint("tools.web.search in config.json names another search engine"))
    }

    fn engines(&self) -> Vec<&'static Engine> {
        if self.provider != "auto" {
            return ENGINES.iter().filter(|engine| engine.name == self.provider).collect();
        }
        let key = self.key.reveal();
        let of_key = ENGINES.iter().filter(|engine| !engine.key.0.is_empty());
        let of_key = of_key
            .clone()
            .find(|engine| !engine.prefix.is_empty() && key.starts_with(engine.prefix))
            .or(of_key.clone().next_back());
        let is_ready = |engine: &&Engine| match engine.name {
            "searxng" => !self.base_url.is_empty(),
            "duckduckgo" => true,
            name => !key.is_empty() && of_key.is_some_and(|engine| engine.name == name),
        };
        ENGINES.iter().filter(is_ready).collect()
    }

    fn ask(&self, engine: &Engine, query: &str, count: usize, cancel: &Cancel) -> Result<Vec<Hit>> {
        let own = self.provider != "auto" || engine.base.is_empty();
        let base = if own && !self.base_url.is_empty() { self.base_url.trim_end_matches('/') } else { engine.base };
        if base.is_empty() {
            return Err(Error::failed("tools.web.search.base_url is not set"));
        }
        let encoded = utf8_percent_encode(query, NON_ALPHANUMERIC).to_string();
        let path = engine.path.replace("{count}", &count.to_string()).replace("{query}", &encoded);
        let body = match engine.method {
            Method::Get => None,
            Method::Post(of_query, of_count) => Some(Body::json(&json!({of_query: query, of_count: count}))),
        };
        let mut headers = vec![("accept".to_owned(), Secret::new("application/json,text/html"))];
        if !engine.key.0.is_empty() {
            if self.key.reveal().is_empty() {
                return Err(Error::failed("tools.web.search.api_key is not set"));
            }
            headers.push((engine.key.0.to_owned(), Secret::new(format!("{}{}", engine.key.1, self.key.reveal()))));
        }
        let until = Instant::now() + self.timeout;
        let url = format!("{base}{path}");
        let mut exchange = (self.connect)(&url).send(Outgoing { url, headers, body }, cancel)?;
        let head = exchange.head(left(until)).map_err(|fault| error(fault, self.timeout))?;
        let (bytes, _) = read(&mut exchange, &head, until, self.timeout)?;
        let answer = String::from_utf8_lossy(&bytes);
        let found = match engine.answer {
            Answer::Json(list, names) => from_json(&answer, list, names),
            Answer::Page => from_page(&answer),
        };
        match (head.status, found) {
            // DuckDuckGo answers 202 to what it takes for a robot.
            (200, Some(mut hits)) => {
                hits.truncate(count);
                Ok(hits)
            }
            (200, None) => Err(Error::failed(
                "the answer is not what it should be: the engine may have changed, or ask for a proof that you are human",
            )),
            (202 | 403 | 429, _) => Err(Error::failed(format!(
                "the engine refuses this request (status {}): too many, or taken for a robot's",
                head.status
            ))),
            (status, _) => Err(Error::failed(format!("the engine answered {status}"))),
        }
    }
}

fn from_json(answer: &str, list: &str, [title, address, snippet]: [&str; 3]) -> Option<Vec<Hit>> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    // Engines that found nothing may leave the list out, but not what is around it.
    let Some(list) = answer.pointer(list) else { return answer.is_object().then(Vec::new) };
    let text = |hit: &Value, name: &str| html::convert(hit[name].as_str().unwrap_or_default(), "").markdown;
    let hit = |hit: &Value| {
        let address = hit[address].as_str()?.to_owned();
        Some(Hit { title: text(hit, title), address, snippet: text(hit, snippet) })
    };
    Some(list.as_array()?.iter().filter_map(hit).collect())
}

/// The results on a page of `DuckDuckGo`; `None` if it is not such a page.
fn from_page(page: &str) -> Option<Vec<Hit>> {
    let mut hits: Vec<Hit> = Vec::new();
    let mut is_results = false;
    // What the text that comes belongs to.
    let mut part = "";
    for token in tokens(page) {
        match token {
            Token::Start { attributes, .. } => {
                let attribute = |name: &str| attributes.get(name).map_or("", String::as_str);
                let class = attribute("class");
                is_results |= attribute("id") == "links" || class.contains("no-results");
                if class.split_whitespace().any(|word| word == "result__a") {
                    let address = target(attribute("href"));
                    hits.push(Hit { title: String::new(), address, snippet: String::new() });
                    part = "title";
                } else if class.split_whitespace().any(|word| word == "result__snippet") {
                    part = "snippet";
                }
            }
            Token::End(name) if name == "a" => part = "",
            Token::End(_) => {}
            Token::Text(text) => match (part, hits.last_mut()) {
                ("title", Some(hit)) => hit.title.push_str(&text),
                ("snippet", Some(hit)) => hit.snippet.push_str(&text),
                _ => {}
            },
        }
    }
    hits.retain(|hit| !hit.address.contains("duckduckgo.com/y.js"));
    (is_results || !hits.is_empty()).then_some(hits)
}

/// The address behind a link of `DuckDuckGo`: `//duckduckgo.com/l/?uddg=ADDRESS&rut=..`.
fn target(link: &str) -> String {
    match link.split_once("uddg=") {
        Some((_, rest)) => {
            percent_decode_str(rest.split('&').next().unwrap_or_default()).decode_utf8_lossy().into_owned()
        }
        None => link.to_owned(),
    }
}
