//! Configurations written for other programs: picoclaw (all versions), nanobot, `SmartBot` and their kin.
//!
//! They are read as they are. Before the values are checked, what those programs keep elsewhere is moved to where the
//! table has it; the file itself is never touched. What is moved remembers where it stood, for messages. A value that
//! stands in our own place always wins over one that would be moved there.

use serde_json::{Map, Value, json};

use super::routes::{self, Routes};
use super::shapes::{MOVES, positive};
use super::table::alike;

/// The highest `version` whose shape is known. The number is picoclaw's, whose files are the most common; a format of
/// our own that is not read by this program will carry a higher one.
pub const VERSION: u64 = 3;

/// Searchers that picoclaw has a block for and we know, the best first, each with the value that makes it usable.
const SEARCHERS: [(&str, &str); 3] = [("brave", "api_key"), ("tavily", "api_key"), ("searxng", "base_url")];

/// The parsed file, in the making.
pub struct Foreign {
    tree: Value,
    places: Places,
}

impl Foreign {
    /// Moves everything to its place.
    pub fn read(object: Map<String, Value>) -> Self {
        let mut foreign = Self { tree: Value::Object(object), places: Places::default() };
        foreign.named_channel();
        for step in MOVES {
            if let Some((written, value)) = take(&mut foreign.tree, step.from) {
                foreign.put(step.to, (step.turn)(&value), &written);
            }
        }
        foreign.searcher();
        foreign.servers();
        foreign.models();
        foreign
    }

    /// The tree, with every name in its place, and what tells where in the file a path of it stands.
    pub fn finish(self) -> (Map<String, Value>, Places) {
        match self.tree {
            Value::Object(tree) => (tree, self.places),
            _ => (Map::new(), self.places),
        }
    }

    /// Puts a value where nothing stands yet.
    fn put(&mut self, path: &str, value: Value, written: &[String]) {
        if value.is_null() {
            return;
        }
        let mut place = Vec::new();
        let mut at = &mut self.tree;
        for name in path.split('.') {
            if at.is_null() {
                *at = json!({});
            }
            let Value::Object(object) = at else { return };
            let name = spelled(object, name).unwrap_or_else(|| name.to_owned());
            place.push(name.clone());
            at = object.entry(name).or_insert(Value::Null);
        }
        if at.is_null() {
            *at = value;
            self.places.add(place, written);
        }
    }

    /// picoclaw 3 lets a channel have a name of its own.
    fn named_channel(&mut self) {
        let Some(Value::Object(list)) = find(&mut self.tree, "channel_list") else { return };
        let is_telegram = |channel: &Value| channel.get("type").is_some_and(|kind| kind == "telegram");
        if spelled(list, "telegram").is_some() {
            return;
        }
        let Some(name) = list.iter().find(|(_, channel)| is_telegram(channel)).map(|(name, _)| name.clone()) else {
            return;
        };
        if let Some(channel) = list.remove(&name) {
            list.insert("telegram".to_owned(), channel);
            let [place, written] = ["telegram", name.as_str()].map(|name| path(&["channel_list", name]));
            self.places.add(place, &written);
        }
    }

    /// picoclaw has a block for each searcher.
    fn searcher(&mut self) {
        for (name, field) in SEARCHERS {
            let Some((written, mut block)) = take(&mut self.tree, &format!("tools.web.{name}")) else { continue };
            if take(&mut block, "enabled").is_some_and(|(_, on)| on == json!(false)) {
                continue;
            }
            let several = take(&mut block, "api_keys").and_then(|(name, keys)| Some((name, keys.get(0)?.clone())));
            let value = take(&mut block, field).filter(|(_, value)| filled(value)).or(several);
            let Some((place, value)) = value.filter(|(_, value)| filled(value)) else { continue };
            self.put("tools.web.search.provider", name.into(), &written);
            self.put(&format!("tools.web.search.{field}"), value, &[written.clone(), place].concat());
            if let Some((place, most)) = take(&mut block, "max_results") {
                self.put("tools.web.search.max_results", positive(&most), &[written, place].concat());
            }
        }
    }

    /// MCP servers: picoclaw's place for them, and those that are switched off.
    fn servers(&mut self) {
        if let Some((mut written, mut mcp)) = take(&mut self.tree, "tools.mcp") {
            let off = take(&mut mcp, "enabled").is_some_and(|(_, on)| on == json!(false));
            if let Some((name, servers)) = take(&mut mcp, "servers").filter(|(_, s)| s.is_object() && !off) {
                written.extend(name);
                self.put("mcpServers", servers, &written);
            }
        }
        if let Some(Value::Object(servers)) = find(&mut self.tree, "mcpServers") {
            servers.retain(|_, server| !is(server, "enabled", false) && !is(server, "disabled", true));
        }
    }

    /// Which model answers, and where the keys are: see [`routes`].
    fn models(&mut self) {
        self.list();
        let providers = take(&mut self.tree, "providers");
        let provider = take(&mut self.tree, "agents.defaults.provider").map(|(_, provider)| provider);
        let theirs = take(&mut self.tree, "agents.defaults.model");
        let foreign = providers.is_some() || provider.is_some() || theirs.is_some();
        let (mut model, mut fallbacks) = (None, take(&mut self.tree, "agents.defaults.model_fallbacks"));
        match theirs {
            Some((written, Value::Object(mut choice))) => {
                let more = choice.remove("fallbacks").map(|more| (written.clone(), more));
                fallbacks = fallbacks.or(more);
                model = choice.remove("primary").map(|name| (written, name));
            }
            Some(named) => model = Some(named),
            None => {}
        }
        let ours = take(&mut self.tree, "agents.defaults.model_name");
        let model = ours.filter(|(_, name)| filled(name)).or(model);
        let listed = self.listed();
        // picoclaw lets an entry of the list name its own fallbacks.
        let fallbacks = fallbacks.or_else(|| {
            let entry = listed.iter().position(|(name, _)| model.as_ref().is_some_and(|(_, m)| m == name))?;
            let (name, more) = take(find(&mut self.tree, "model_list")?.get_mut(entry)?, "fallbacks")?;
            Some(([path(&["model_list", &entry.to_string()]), name].concat(), more))
        });
        let known = listed.into_iter().flat_map(|(name, model)| [name, model]).collect();
        let (written, providers) = providers.unwrap_or_default();
        let routes = Routes::new(providers, provider.as_ref(), known);
        let name = |name: Value| if foreign { routes.name(name) } else { name };
        if let Some((written, model)) = model {
            self.put("agents.defaults.model_name", name(model), &written);
        }
        if let Some((written, value)) = fallbacks {
            let value = match value {
                Value::Array(names) => names.into_iter().map(name).collect(),
                other => other,
            };
            self.put("agents.defaults.model_fallbacks", value, &written);
        }
        self.append(routes.entries, &written);
    }

    /// picoclaw's model list: entries that are switched off go, the others are tidied.
    fn list(&mut self) {
        let Some(Value::Array(list)) = find(&mut self.tree, "model_list") else { return };
        for (at, mut entry) in std::mem::take(list).into_iter().enumerate() {
            if is(&mut entry, "enabled", false) {
                continue;
            }
            routes::tidy(&mut entry);
            let [place, written] = [list.len(), at].map(|at| path(&["model_list", &at.to_string()]));
            list.push(entry);
            self.places.add(place, &written);
        }
    }

    /// Name and model of each entry of the list.
    fn listed(&mut self) -> Vec<(String, String)> {
        let Some(Value::Array(list)) = find(&mut self.tree, "model_list") else { return Vec::new() };
        let text =
            |entry: &mut Value, name: &str| find(entry, name).and_then(|v| v.as_str()).unwrap_or_default().to_owned();
        list.iter_mut().map(|entry| (text(entry, "model_name"), text(entry, "model"))).collect()
    }

    /// The providers become entries of the list that serve every model of theirs.
    fn append(&mut self, entries: Vec<routes::Entry>, written: &[String]) {
        if entries.is_empty() {
            return;
        }
        self.put("model_list", json!([]), written);
        let Some(Value::Array(list)) = find(&mut self.tree, "model_list") else { return };
        for entry in entries {
            let place = path(&["model_list", &list.len().to_string()]);
            for (ours, theirs) in entry.fields {
                let written = [written.to_vec(), vec![entry.name.clone(), theirs]].concat();
                self.places.add([place.clone(), vec![ours.to_owned()]].concat(), &written);
            }
            list.push(entry.value);
        }
    }
}

fn path(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Where in the file the paths of a rewritten tree stand: for each that something was moved to, where it was.
#[derive(Default)]
pub struct Places(Vec<(Vec<String>, Vec<String>)>);

impl Places {
    /// The path in the file.
    pub fn written(&self, path: &[String]) -> Vec<String> {
        let fits = |(place, _): &&(Vec<String>, Vec<String>)| path.starts_with(place);
        match self.0.iter().rev().filter(fits).max_by_key(|(place, _)| place.len()) {
            Some((place, from)) => [from, &path[place.len()..]].concat(),
            None => path.to_vec(),
        }
    }

    /// What is moved for the second time stands where it stood first.
    fn add(&mut self, place: Vec<String>, from: &[String]) {
        let from = self.written(from);
        self.0.push((place, from));
    }
}

/// The name in an object that is `name` but for its spelling.
fn spelled(object: &Map<String, Value>, name: &str) -> Option<String> {
    object.keys().find(|k| alike(k, name)).cloned()
}

fn is(entry: &mut Value, name: &str, value: bool) -> bool {
    find(entry, name).is_some_and(|found| *found == json!(value))
}

/// The value at a path, in any spelling.
pub fn find<'a>(tree: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut at = tree;
    for name in path.split('.') {
        let object = at.as_object_mut()?;
        let name = spelled(object, name)?;
        at = object.get_mut(&name)?;
    }
    Some(at)
}

/// Takes the value at a path out, with the path as it is spelled.
pub fn take(tree: &mut Value, path: &str) -> Option<(Vec<String>, Value)> {
    let mut written = Vec::new();
    let mut at = tree;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        let object = at.as_object_mut()?;
        let name = spelled(object, name)?;
        written.push(name.clone());
        if names.peek().is_none() {
            return object.remove(&name).map(|value| (written, value));
        }
        at = object.get_mut(&name)?;
    }
    None
}

/// Neither null nor empty nor what an example file has in a key's place.
pub fn filled(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => {
            let text = text.trim();
            !text.is_empty() && !text.to_ascii_uppercase().starts_with("YOUR_") && !text.ends_with("xxx")
        }
        Value::Array(items) => items.iter().any(filled),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::{Tree, load};

    fn read(text: &str) -> Tree {
        load(Some(("c", text)), &std::collections::BTreeMap::new(), Vec::new()).unwrap()
    }

    #[test]
    fn everything_of_a_picoclaw_3_finds_its_place() {
        let tree = read(include_str!("../../tests/it/configs/picoclaw-v3.json"));
        assert!(tree.warnings.is_empty(), "{:?}", tree.warnings);
        let value = |path: &str| path.split('.').fold(&tree.value, |at, name| &at[name]).clone();
        for (path, want) in [
            ("agents.defaults.max_retries", json!(1)),
            ("agents.defaults.retry_initial_delay", json!(0)),
            ("session.compact_at", json!(0.75)),
            ("channels.telegram.token", json!("123456:fake")),
            ("channels.telegram.allow_from", json!(["123456789"])),
            ("channels.telegram.streaming", json!(true)),
            ("channels.telegram.group_trigger", json!("mention")),
            ("tools.read_paths", json!(["/usr/share/"])),
            ("tools.exec.timeout", json!(60)),
            ("tools.web.search.provider", json!("brave")),
            ("tools.web.search.api_key", json!("brave-fake-key-0000")),
            ("tools.web.search.max_results", json!(4)),
            ("tools.web.fetch.max_chars", json!(65536)),
            ("mcpServers.files.command", json!("/usr/bin/files-mcp")),
            ("mcpServers.off", Value::Null),
            ("heartbeat.interval_minutes", json!(30)),
            ("log.level", json!("warn")),
        ] {
            assert_eq!(value(path), want, "{path}");
        }
        for key in ["gateway.host", "hooks", "voice", "channel_list", "model_list.1.rpm", "mcpServers.files.type"] {
            assert!(tree.passed_over.iter().any(|passed| passed.ends_with(key.rsplit('.').next().unwrap())), "{key}");
        }
    }

    #[test]
    fn the_other_shapes_find_their_place_too() {
        let nanobot = read(include_str!("../../tests/it/configs/nanobot.json"));
        assert!(nanobot.warnings.is_empty(), "{:?}", nanobot.warnings);
        assert_eq!(nanobot.value["channels"]["telegram"]["allow_from"], json!(["123456789"]));
        assert_eq!(nanobot.value["agents"]["defaults"]["context_window"], 65536);
        assert_eq!(nanobot.value["mcpServers"]["files"]["command"], "/usr/bin/files-mcp");
        assert_eq!(nanobot.value["heartbeat"]["interval_minutes"], 30);
        let nullclaw = r#"{"channels":{"telegram":{"accounts":{"main":{"bot_token":"t","allow_from":["1"]}}}}}"#;
        assert_eq!(read(nullclaw).value["channels"]["telegram"]["token"], "t");
        let named = r#"{"channel_list":{"mine":{"type":"telegram","enabled":true,"settings":{"token":"t"}}}}"#;
        let telegram = &read(named).value["channels"]["telegram"];
        assert_eq!((&telegram["token"], &telegram["enabled"]), (&json!("t"), &json!(true)));
    }

    #[test]
    fn what_stands_in_our_own_place_wins() {
        let both = r#"{"max_tokens":5,"agents":{"defaults":{"max_tokens":7,"model":"a/b","model_name":"c/d"}},
            "channels":{"telegram":{"bot_token":"theirs","token":"ours"}}}"#;
        let tree = read(both);
        assert_eq!(tree.value["channels"]["telegram"]["token"], "ours");
        assert_eq!(tree.value["agents"]["defaults"]["max_tokens"], 7);
        assert_eq!(tree.value["agents"]["defaults"]["model_name"], "c/d");
    }

    #[test]
    fn what_a_tool_may_touch_is_not_guessed_from_a_pattern() {
        let tree = read(r#"{"tools":{"allow_read_paths":["^/usr/share/","/srv/.*","^/etc/(a|b)$","relative"]}}"#);
        assert_eq!(tree.value["tools"]["read_paths"], json!(["/usr/share/"]));
    }

    #[test]
    fn fallbacks_of_the_list_are_those_of_the_agent() {
        let text = r#"{"agents":{"defaults":{"model":"a"}},"model_list":[{"model_name":"x","enabled":false},
            {"model_name":"a","model":"openai/a","fallbacks":["b","claude-x"]},{"model_name":"b","model":"openai/b"}]}"#;
        let tree = read(text);
        assert_eq!(tree.value["agents"]["defaults"]["model_fallbacks"], json!(["b", "anthropic/claude-x"]));
        let text = r#"{"agents":{"defaults":{"model":{"primary":"gpt-5","fallbacks":["z/y"]}}}}"#;
        let defaults = &read(text).value["agents"]["defaults"];
        assert_eq!((&defaults["model_name"], &defaults["model_fallbacks"][0]), (&json!("openai/gpt-5"), &json!("z/y")));
    }
}
