//! Web search: a table of engines, and their selection.

use std::time::Instant;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::tokens::{Token, tokens};
use super::{Web, page};
use crate::config::Env;
use crate::error::{Error, Result};
use crate::http::{self, Outgoing};
use crate::json::{from_json as from_json_text, parse_json};
use crate::secret::Secret;
use crate::text::whole_words;
use crate::worker::protocol::Reading;

/// Maximum size of a part of a result, in bytes.
const MAX_PART: usize = 4_000;

/// One result of a search.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hit {
    pub title: String,
    pub address: String,
    /// Excerpt of the page, or empty.
    pub snippet: String,
}

struct Engine {
    /// Name in `tools.web.search.provider`.
    name: &'static str,
    /// Base address; empty for the user's server in `tools.web.search.base_url`.
    base: &'static str,
    /// Path after the base, with the placeholders `{query}` and `{count}`.
    path: &'static str,
    /// Fields of the query and of the number of results in a JSON body; empty for none.
    body: [&'static str; 2],
    /// Header of the key, prefix of the key in the header, prefix of the engine's keys, which identifies the engine of a
    /// configured key, and environment variable. Empty for no key.
    key: [&'static str; 4],
    /// JSON pointer to the results, and the fields for title, address and snippet. Empty for an answer that is a page of
    /// `DuckDuckGo`.
    results: [&'static str; 4],
}

/// Engines in the order of `auto`. Formats follow the engines' API references of November 2026.
const ENGINES: [Engine; 5] = [
    Engine {
        name: "searxng",
        base: "",
        path: "/search?q={query}&format=json",
        body: [""; 2],
        key: [""; 4],
        results: ["/results", "title", "url", "content"],
    },
    Engine {
        name: "tavily",
        base: "https://api.tavily.com",
        path: "/search",
        body: ["query", "max_results"],
        key: ["authorization", "Bearer ", "tvly-", "TAVILY_API_KEY"],
        results: ["/results", "title", "url", "content"],
    },
    Engine {
        name: "brave",
        base: "https://api.search.brave.com",
        path: "/res/v1/web/search?q={query}&count={count}",
        body: [""; 2],
        key: ["x-subscription-token", "", "BSA", "BRAVE_API_KEY"],
        results: ["/web/results", "title", "url", "description"],
    },
    Engine {
        name: "serper",
        base: "https://google.serper.dev",
        path: "/search",
        body: ["q", "num"],
        key: ["x-api-key", "", "", "SERPER_API_KEY"],
        results: ["/organic", "title", "link", "snippet"],
    },
    Engine {
        name: "duckduckgo",
        base: "https://html.duckduckgo.com",
        path: "/html/?q={query}",
        body: [""; 2],
        key: [""; 4],
        results: [""; 4],
    },
];

/// Configuration of a search.
pub(crate) struct Search<'a> {
    pub web: Web<'a>,
    /// Name of an engine, or `auto`.
    pub provider: &'a str,
    /// Configured key; it takes precedence over environment variables.
    pub key: Secret,
    /// May have the keys of engines.
    pub env: &'a Env,
    /// Base address instead of the engine's default; with `auto`, the address of a SearXNG.
    pub base_url: &'a str,
}

impl Search<'_> {
    /// Asks one engine after another until one succeeds.
    ///
    /// # Errors
    /// Lists the errors of all engines.
    pub(crate) fn search(&self, query: &str, count: usize) -> Result<Vec<Hit>> {
        let mut failures = Vec::new();
        for engine in ENGINES.iter().filter(|engine| self.is_asked(engine)) {
            match self.ask(engine, query, count) {
                Ok(hits) => return Ok(hits),
                Err(e) if self.web.cancel.reason().is_some() => return Err(e),
                Err(e) => failures.push(format!("{}: {e}", engine.name)),
            }
        }
        Err(Error::failed(failures.join("; "))
            .hint("choose another search engine in tools.web.search of config.json"))
    }

    fn is_asked(&self, engine: &Engine) -> bool {
        match engine.name {
            name if self.provider != "auto" => name == self.provider,
            "searxng" => !self.base_url.is_empty(),
            "duckduckgo" => true,
            _ => self.key_of(engine).is_some(),
        }
    }

    /// Returns the key of an engine: the configured key if it is for this engine, else the variable's.
    fn key_of(&self, engine: &Engine) -> Option<Secret> {
        let key = self.key.reveal();
        let is_owner = |one: &&Engine| !one.key[0].is_empty() && key.starts_with(one.key[2]);
        // The last engine with a key takes any key.
        let owner = ENGINES.iter().find(is_owner).map(|owner| owner.name);
        let is_its = self.provider == engine.name || owner == Some(engine.name);
        if is_its && !key.is_empty() {
            return Some(self.key.clone());
        }
        let key = self.env.get(engine.key[3])?.trim();
        (!key.is_empty()).then(|| Secret::new(key))
    }

    fn ask(&self, engine: &Engine, query: &str, count: usize) -> Result<Vec<Hit>> {
        let is_own = self.provider != "auto" || engine.base.is_empty();
        let base = match self.base_url.trim_end_matches('/') {
            base if is_own && !base.is_empty() => base,
            _ => engine.base,
        };
        if base.is_empty() {
            return Err(Error::failed("tools.web.search.base_url is not set"));
        }
        let encoded = utf8_percent_encode(query, NON_ALPHANUMERIC).to_string();
        let path = engine.path.replace("{count}", &count.to_string());
        let path = path.replace("{query}", &encoded);
        let [of_query, of_count] = engine.body;
        let body = (!of_query.is_empty())
            .then(|| http::Body::json(&json!({of_query: query, of_count: count})));
        let accepted = Secret::new("application/json,text/html");
        let mut headers = vec![("accept".to_owned(), accepted)];
        let [header, before, _, variable] = engine.key;
        if !header.is_empty() {
            let missing = format!("tools.web.search.api_key is not set, nor is {variable}");
            let key = self.key_of(engine).ok_or_else(|| Error::failed(missing))?;
            let key = Secret::new(format!("{before}{}", key.reveal()));
            headers.push((header.to_owned(), key));
        }
        let url = format!("{base}{path}");
        let until = Instant::now() + self.web.timeout;
        let response = self.web.send(Outgoing { url, headers, body }, until)?;
        let status = response.head.status;
        let is_json = !engine.results[0].is_empty();
        let what = Reading::Hits {
            names: is_json.then(|| engine.results.map(str::to_owned)),
            count,
        };
        let told = self.web.read(response, what)?;
        let hits: Option<Vec<Hit>> = from_json_text(told.into_text()?)?;
        let why = match (status, hits) {
            // `DuckDuckGo` answers suspected robots with 202.
            (200, Some(hits)) => return Ok(hits.into_iter().take(count).collect()),
            (200, None) => "unexpected response: the engine may have changed or may be asking for a CAPTCHA".to_owned(),
            (403, _) if engine.base.is_empty() => "it refuses this request (status 403): add json to search.formats in the settings.yml of this SearXNG".to_owned(),
            (202 | 403 | 429, _) => format!("the engine refuses this request (status {status}): there were too many, or it blocked bantam as a bot"),
            _ => format!("the engine answered {status}"),
        };
        Err(Error::failed(why))
    }
}

pub(super) fn from_json(
    answer: &str,
    [list, title, address, snippet]: &[String; 4],
    count: usize,
) -> Option<Vec<Hit>> {
    let answer: Value = parse_json(answer).ok()?;
    // Engines without results may omit the list, but not the object around it.
    let Some(list) = answer.pointer(list) else {
        return answer.is_object().then(Vec::new);
    };
    let text = |hit: &Value, name: &str| {
        let written = hit[name].as_str().unwrap_or_default();
        page::convert(whole_words(written, MAX_PART), "").markdown
    };
    let hit = |hit: &Value| {
        let address = whole_words(hit[address].as_str()?, MAX_PART).to_owned();
        Some(Hit {
            title: text(hit, title),
            address,
            snippet: text(hit, snippet),
        })
    };
    let hits = list.as_array()?.iter().filter_map(hit);
    let hits: Vec<Hit> = hits.take(count).collect();
    // Engines that failed to answer a SearXNG.
    let failed = answer["unresponsive_engines"].as_array();
    let has_answered = failed.is_none_or(Vec::is_empty);
    (!hits.is_empty() || has_answered).then_some(hits)
}

/// Parses the results on a page of `DuckDuckGo`; `None` for any other page.
pub(super) fn from_page(page: &str, count: usize) -> Option<Vec<Hit>> {
    let mut hits: Vec<Hit> = Vec::new();
    let (mut is_results, mut is_advertisement) = (false, false);
    // The part of a result that the next text belongs to.
    let mut part = "";
    for token in tokens(page) {
        match token {
            Token::Start { attributes, .. } => {
                let attribute = |name: &str| attributes.get(name).map_or("", String::as_str);
                let class = attribute("class");
                let has_class = |name| class.split_whitespace().any(|word| word == name);
                is_results |= attribute("id") == "links" || class.contains("no-results");
                if has_class("result__a") {
                    let address = target(whole_words(attribute("href"), MAX_PART));
                    is_advertisement = address.contains("duckduckgo.com/y.js");
                    if is_advertisement {
                        continue;
                    }
                    if hits.len() == count {
                        break;
                    }
                    part = "title";
                    hits.push(Hit {
                        address,
                        ..Hit::default()
                    });
                } else if has_class("result__snippet") && !is_advertisement {
                    part = "snippet";
                }
            }
            Token::End(name) if name == "a" => part = "",
            Token::End(_) => {}
            Token::Text(text) => {
                let Some(hit) = hits.last_mut() else { continue };
                let written = match part {
                    "title" => &mut hit.title,
                    "snippet" => &mut hit.snippet,
                    _ => continue,
                };
                written.push_str(whole_words(&text, MAX_PART.saturating_sub(written.len())));
            }
        }
    }
    (is_results || !hits.is_empty()).then_some(hits)
}

/// Returns the target of a `DuckDuckGo` link: `//duckduckgo.com/l/?uddg=ADDRESS&rut=..`.
fn target(link: &str) -> String {
    match link.split_once("uddg=") {
        Some((_, rest)) => percent_decode_str(rest.split('&').next().unwrap_or_default())
            .decode_utf8_lossy()
            .into_owned(),
        None => link.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cancel::Cancel;
    use crate::http::{Client, Settings};

    /// Returns the engines that `auto` asks with this key and these variables.
    fn list_engines(key: &str, variables: &[&str]) -> Vec<(&'static str, Option<String>)> {
        let env = variables
            .iter()
            .map(|name| ((*name).to_owned(), format!("{name}-fake")))
            .collect();
        let search = Search {
            web: Web {
                connect: &|_| Client::new(Settings::default()),
                read: &|_, _, _| Err(Error::failed("nothing is read here")),
                timeout: Duration::from_secs(1),
                cancel: &Cancel::default(),
            },
            provider: "auto",
            key: Secret::new(key),
            env: &env,
            base_url: "",
        };
        let key = |engine: &Engine| search.key_of(engine).map(|key| key.reveal().to_owned());
        ENGINES
            .iter()
            .filter(|engine| search.is_asked(engine))
            .map(|engine| (engine.name, key(engine)))
            .collect()
    }

    #[test]
    fn a_key_is_found_in_the_variable_of_its_engine() {
        let none = ("duckduckgo", None);
        let of = |name, key: &str| (name, Some(key.to_owned()));
        assert_eq!(
            list_engines("", &["BRAVE_API_KEY"]),
            [of("brave", "BRAVE_API_KEY-fake"), none.clone()]
        );
        assert_eq!(list_engines("", &[]).last(), Some(&none));
        assert_eq!(
            list_engines("tvly-x", &["SERPER_API_KEY", "TAVILY_API_KEY"]),
            [
                of("tavily", "tvly-x"),
                of("serper", "SERPER_API_KEY-fake"),
                none
            ]
        );
    }
}
