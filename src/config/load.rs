//! Overrides config.json with variables and flags, and reads the result into the settings.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::path::{self, parse_at, shape, suggest};
use super::{Config, Env, check, shown};
use crate::error::{Error, Result};
use crate::json::{explain as explain_json, parse_json};
use crate::paths::Home;
use crate::redact::Redactor;

/// A value of a variable or a flag, which overrides the file.
#[derive(Clone)]
pub(crate) struct Override {
    pub path: Vec<String>,
    pub value: Value,
    /// Name of the variable or the flag.
    pub name: String,
}

impl Override {
    pub(crate) fn new(name: &str, path: &str, value: impl Into<Value>) -> Self {
        let (path, value, name) = (path::split(path), value.into(), name.to_owned());
        Self { path, value, name }
    }

    pub(crate) fn is_flag(&self) -> bool {
        self.name.starts_with('-')
    }
}

/// A home with its environment and its valid settings, from which agents, bots and requests are made.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub home: Home,
    pub env: Arc<Env>,
    pub config: Arc<Config>,
    /// One sentence for each unknown name.
    pub warnings: Vec<String>,
    /// Overrides in ascending precedence.
    pub overrides: Vec<Override>,
    /// config.json, with the names of settings spelled as in [`Config`].
    pub file: Value,
}

impl Loaded {
    /// Merges the layers. `file` is the name and the text of config.json. Errors have the kind Config, or Usage for a flag's
    /// value.
    pub(crate) fn read(
        home: &Home,
        env: &Arc<Env>,
        file: Option<(&str, &str)>,
        flags: Vec<Override>,
    ) -> Result<Self> {
        let (name, mut value) = match file {
            Some((name, text)) => (name, parse(name, text)?),
            None => ("config.json", json!({})),
        };
        let mut overrides = variables(env);
        overrides.extend(flags);
        let (mut config, unknown) = read_layers(name, &mut value, &overrides)?;
        let unknown = unknown.iter().map(|path| {
            let near = suggest(&shape(), path);
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            format!("{name}: unknown setting {}{near}", shown(&path::join(path)))
        });
        let mut warnings: Vec<String> = unknown.collect();
        config.has_file = file.is_some();
        // A flag also overrides a model's own entry.
        for set in overrides.iter().filter(|set| set.is_flag()) {
            for entry in &mut config.model_list {
                match set.path.last().map(String::as_str) {
                    Some("max_tokens") => entry.max_tokens = 0,
                    Some("temperature") => entry.temperature = None,
                    _ => {}
                }
            }
        }
        for (n, entry) in config.model_list.iter().enumerate() {
            if entry.price.input.is_some() && entry.price.output.is_none() {
                let path = format!("model_list[{n}].price.output");
                let free = "is not set, so output counts as free";
                warnings.push(format!("{name}: {path} {free}"));
            }
        }
        Ok(Self {
            home: home.clone(),
            env: env.clone(),
            config: Arc::new(config),
            warnings,
            overrides,
            file: value,
        })
    }

    /// Returns this home and environment with other settings.
    pub(crate) fn with(&self, config: Config) -> Self {
        Self {
            config: Arc::new(config),
            ..self.clone()
        }
    }

    /// Returns a redactor that knows the keys of the settings.
    pub(crate) fn redactor(&self) -> Redactor {
        let mut redactor: Redactor = self.config.secrets(&self.env).into_iter().collect();
        redactor.level = self.config.tools.redact;
        redactor
    }

    /// Returns the override that decides about a path.
    pub(crate) fn override_of(&self, path: &[String]) -> Option<&Override> {
        find_override(&self.overrides, path)
    }
}

fn find_override<'a>(overrides: &'a [Override], path: &[String]) -> Option<&'a Override> {
    let mut overrides = overrides.iter().rev();
    overrides.find(|set| path.starts_with(&set.path))
}

/// Reads the value of a file with its overrides, and corrects its names. Returns also the paths of unknown names.
fn read_layers(
    name: &str,
    file: &mut Value,
    overrides: &[Override],
) -> Result<(Config, Vec<Vec<String>>)> {
    let merge = |file: &Value| {
        let mut json = file.clone();
        for set in overrides {
            drop(path::set(&mut json, &set.path, set.value.clone()));
        }
        json
    };
    let (mut json, mut unknown) = (merge(file), Vec::new());
    let mut config = Config::deserialize(&json);
    if config.is_err() {
        let shape = shape();
        let twice = |path: Vec<String>| repeated(name, &path::join(&path));
        path::correct(&shape, file, &mut Vec::new(), &mut Vec::new()).map_err(twice)?;
        json = merge(file);
        path::correct(&shape, &mut json, &mut Vec::new(), &mut unknown).map_err(twice)?;
        path::read_numbers(&shape, &mut json);
        for path in &unknown {
            path::remove(&mut json, path)?;
        }
        config = Config::deserialize(&json);
    }
    let bad = match (check::out_of_range(&json), config) {
        (Some(bad), _) => Some(bad),
        (None, Ok(config)) if check::list_for_section(&json, &[]).is_none() => {
            return Ok((config, unknown));
        }
        (None, _) => check::wrong_type(&json),
    };
    let bad = bad.ok_or_else(|| Error::config(format!("{name} cannot be read")))?;
    // The value is not named, because it may be a misplaced key.
    let set = find_override(overrides, &path::split(&bad.path));
    let message = match set {
        Some(set) => format!("{} {}", set.name, bad.what),
        None => format!("{name}: {} {}", bad.path, bad.what),
    };
    if set.is_some_and(Override::is_flag) {
        return Err(Error::usage(message).hint(bad.hint));
    }
    Err(Error::config(message).hint(bad.hint))
}

fn repeated(name: &str, path: &str) -> Error {
    Error::config(format!("{name}: {} is given twice", shown(path))).hint("remove one of them")
}

/// Returns the overrides of variables, in ascending precedence.
fn variables(env: &Env) -> Vec<Override> {
    let mut found = Vec::new();
    let token = "TELEGRAM_BOT_TOKEN";
    if let Some(set) = env.get(token).filter(|text| !text.is_empty()) {
        let path = "channels.telegram.token";
        found.push(Override::new(token, path, set.as_str()));
    }
    let ours = env.range("BANTAM_".to_owned()..);
    let mut ours = ours
        .take_while(|(name, _)| name.starts_with("BANTAM_"))
        .filter(|(name, text)| *name != "BANTAM_HOME" && !text.is_empty())
        .peekable();
    if ours.peek().is_none() {
        return found;
    }
    let shape = shape();
    let known = path::variables(&shape);
    for (name, text) in ours {
        if let Some(path) = known.get(&name.to_ascii_uppercase()) {
            let value = parse_at(&shape, path, text);
            found.push(Override::new(name, &path.join("."), value));
        }
    }
    found
}

/// Parses the text of a file, which must be an object.
pub(super) fn parse(name: &str, text: &str) -> Result<Value> {
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let error = |what: &str, hint: &str| Err(Error::config(format!("{name}{what}")).hint(hint));
    match parse_json(text) {
        Ok(value) if value.is_object() => match find_repeated(text) {
            Some(path) => Err(repeated(name, &path)),
            None => Ok(value),
        },
        Ok(_) => error(" is not a JSON object", "begin it with { and end it with }"),
        Err(_) if text.trim().is_empty() => {
            error(" is empty", "delete it and run `bantam onboard`")
        }
        Err(e) => error(
            &format!(", {}", explain_json(&e)),
            "run `bantam config edit`; correct that line or the one before; JSON needs double quotes, and no comma after the last entry",
        ),
    }
}

/// Returns the path of the first name that stands twice in an object of this valid JSON.
fn find_repeated(text: &str) -> Option<String> {
    // The names of each open object, the current one last.
    let mut open: Vec<Vec<&str>> = Vec::new();
    let (mut start, mut is_escaped, mut last) = (None, false, "");
    for (at, c) in text.char_indices() {
        match (c, start) {
            (_, Some(_)) if is_escaped => is_escaped = false,
            ('\\', Some(_)) => is_escaped = true,
            ('"', Some(from)) => {
                last = &text[from..at];
                start = None;
            }
            (_, Some(_)) => {}
            ('"', None) => start = Some(at + 1),
            ('{', None) => open.push(Vec::new()),
            ('}', None) => drop(open.pop()),
            (':', None) => {
                let names = open.last_mut()?;
                let is_repeated = names.contains(&last);
                names.push(last);
                if is_repeated {
                    let path = open.iter().filter_map(|names| names.last().copied());
                    return Some(path.collect::<Vec<_>>().join("."));
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn file(text: &str) -> Result<Loaded> {
        Config::load(Some(("config.json", text)), &Env::new(), Vec::new())
    }

    /// Files with one unknown name, its path, and the suggestion.
    const UNKNOWN: &str = r#"
{"agents":{"defaults":{"max_tokns":1}}}         | agents.defaults.max_tokns     | agents.defaults.max_tokens
{"agents":{"defaults":{"model":"x"}}}           | agents.defaults.model         | agents.defaults.model_name
{"agents":{"model_name":"x"}}                   | agents.model_name             | agents.defaults.model_name
{"model_list":[{"modle":"x"}]}                  | model_list[0].modle           | model_list[0].model
{"model_list":[{"extra_body":{"a":{"b":1}},"x":1}]} | model_list[0].x           |
{"mcpServers":{"x":{"comand":"y"}}}             | mcpServers.x.comand           | mcpServers.x.command
{"mcpServers":{"x":{"cmd":"y"}}}                | mcpServers.x.cmd              | mcpServers.x.command
{"telegram":{"token":"x"}}                      | telegram                      | channels.telegram
{"mcp":{"servers":{}}}                          | mcp                           | mcpServers
{"tools":{"mcp":{"servers":{}}}}                | tools.mcp                     | mcpServers
{"providers":{"openai":{}}}                     | providers                     | model_list
{"channel_list":{}}                             | channel_list                  | channels
{"telegram":{"token":"x"}}                      | telegram                      | channels.telegram
{"channels":{"telegram":{"botToken":"x"}}}      | channels.telegram.botToken    | channels.telegram.token
{"channels":{"telegram":{"allowedUsers":[]}}}   | channels.telegram.allowedUsers | channels.telegram.allow_from
{"tools":{"web_search":{}}}                     | tools.web_search              | tools.web.search
{"tools":{"web":{"brave":{"api_key":"x"}}}}     | tools.web.brave               | tools.web.search
{"zzzz":{"a":1}}                                | zzzz                          |
"#;

    #[test]
    fn unknown_settings_are_named_with_the_nearest() {
        for row in UNKNOWN.trim().lines() {
            let cells: Vec<&str> = row.split(" |").map(str::trim).collect();
            let near = match cells[2] {
                "" => String::new(),
                near => format!("; did you mean {near}?"),
            };
            let expected = format!("config.json: unknown setting {}{near}", cells[1]);
            assert_eq!(file(cells[0]).unwrap().warnings, [expected], "{row}");
        }
    }

    /// Files that cannot be read, words of the error, and a word of its hint.
    const WRONG: &str = r#"
{"a": {"b": 5,,}}                                    | line 1, column 15                            | correct that line
                                                     | is empty                                     | onboard
[]                                                   | not a JSON object                            | begin it
{"tools":{"exec":{"sandbox":"hush"}}}                | tools.exec.sandbox has an invalid value      | `auto`, `require`, `off`
{"tools":{"exec":{"sandbox":5}}}                     | tools.exec.sandbox has an invalid value      | `auto`, `require`, `off`
{"tools":{"exec":{"sandbox":false}}}                 | tools.exec.sandbox has an invalid value      | `auto`, `require`, `off`
{"agents":{"defaults":{"timeout":"hush"}}}           | agents.defaults.timeout has the wrong type   | use an integer, 0 or more, without quotes
{"agents":{"defaults":{"timeout":-1}}}               | agents.defaults.timeout is -1                | use 1 or more
{"agents":{"defaults":{"timeout":0}}}                | agents.defaults.timeout is 0                 | use 1 or more
{"agents":[]}                                         | agents has the wrong type                    | an object
{"channels":[{"telegram":{}}]}                       | channels has the wrong type                  | an object
{"agents":{"defaults":[[]]}}                         | agents.defaults has the wrong type           | an object
{"mcpServers":{"a":[]}}                              | mcpServers.a has the wrong type              | an object
{"model_list":[{"model":"a/b"},{"price":[1]}]}       | model_list[1].price has the wrong type       | an object
{"agents":null}                                      | agents has the wrong type                    | an object
{"tools":{"confirm":"exec"}}                         | tools.confirm has the wrong type             | a list
{"model_list":{}}                                    | model_list has the wrong type                | a list
{"model_list":["openai/x"]}                          | model_list has the wrong type                | a list of objects
{"agents":{"defaults":{"temperature":"hush"}}}       | agents.defaults.temperature has the wrong    | use a number
{"channels":{"telegram":{"enabled":"hush"}}}         | channels.telegram.enabled has the wrong type | use true or false
{"model_list":[{},3]}                                | model_list[1] has the wrong type             | an object
{"model_list":[{"api_key":["hush"]}]}                | model_list[0].api_key has the wrong type     | a string in double quotes
{"agents":{"defaults":{"max_retries":-1}}}           | agents.defaults.max_retries has the wrong    | an integer, 0 or more
{"model_list":[{"price":{"input":"hush"}}]}          | model_list[0].price.input has the wrong type | without quotes
{"model_list":[{"reasoning_effort":"hush"}]}         | model_list[0].reasoning_effort has an invalid | minimal
{"tools":{"web":{"search":{"provider":"hush"}}}}     | tools.web.search.provider has an invalid     | brave
{"model_list":[{"api_key":"hush","apiKey":"x"}]}     | model_list[0].api_key is given twice         | remove one
{"log":{"json":true,"json":false}}                   | log.json is given twice                      | remove one
{"model_list":[{"headers":{"a":"x","a":"y"}}]}       | model_list.headers.a is given twice          | remove one
{"session":{"compact_at":7}}                         | session.compact_at is 7                      | 0.1 to 1
"#;

    #[test]
    fn a_wrong_value_is_named_by_its_path_and_never_shown() {
        for row in WRONG.trim_matches('\n').lines() {
            let cells: Vec<&str> = row.split(" |").map(str::trim).collect();
            let error = file(cells[0]).err().unwrap_or_else(|| panic!("{row}"));
            assert_eq!(error.kind, Kind::Config, "{row}");
            let hint = error.hint.unwrap_or_default();
            assert!(
                error.message.contains(cells[1]) && hint.contains(cells[2]),
                "{row}: {}; {hint}",
                error.message
            );
            assert!(
                !format!("{}{hint}", error.message).contains("hush"),
                "{row}"
            );
        }
    }
}
