//! Arguments against a tool's JSON Schema: what is wrong becomes one sentence, what is harmless is put right.
//!
//! The subset that tools use: `type` (one or a list), `properties`, `required`, `additionalProperties`, `items`, `enum`,
//! `minimum`, `maximum`. Other keywords are ignored: a server that has them checks them itself.

use serde_json::{Map, Number, Value};

use crate::text::{nearest, one_line};

/// Arguments that a tool can take.
#[derive(Debug, PartialEq)]
pub struct Fitted {
    pub args: Value,
    /// What the model should know about them though the call is run: a parameter that was ignored and looks misspelt.
    pub notes: Vec<String>,
}

/// A sentence is read when it is short, and one fault often brings others.
const MOST_FAULTS: usize = 3;

/// Makes `args` fit `schema`.
///
/// Models write `"5"` for 5, one string where a list belongs, `null` for what they leave out, `oldText` for `old_text`, and
/// objects as strings. None of that leaves a doubt about what is meant, so it is not worth another request.
pub fn fit(schema: &Value, args: Value) -> Result<Fitted, String> {
    let mut fitting = Fitting::default();
    let args = fitting.value(schema, args, "");
    if fitting.faults.is_empty() { Ok(Fitted { args, notes: fitting.notes }) } else { Err(fitting.faults.join("; ")) }
}

#[derive(Default)]
struct Fitting {
    faults: Vec<String>,
    notes: Vec<String>,
}

impl Fitting {
    /// `at` is the parameter's name, as a path: `edits[2].old_text`.
    fn value(&mut self, schema: &Value, value: Value, at: &str) -> Value {
        let kinds = kinds(schema);
        let value = if kinds.is_empty() || kinds.iter().any(|kind| is(kind, &value)) {
            value
        } else if let Some(meant) = kinds.iter().find_map(|kind| meant(kind, &value, schema)) {
            meant
        } else {
            self.fault(at, &value, &format!("should be {}", wanted(schema)));
            return value;
        };
        match self.choice(schema, value, at) {
            Value::Object(map) => Value::Object(self.object(schema, map, at)),
            Value::Array(list) => match schema.get("items").filter(|items| items.is_object()) {
                Some(items) => {
                    list.into_iter().enumerate().map(|(n, v)| self.value(items, v, &format!("{at}[{n}]"))).collect()
                }
                None => Value::Array(list),
            },
            Value::Number(number) => {
                self.range(schema, &number, at);
                Value::Number(number)
            }
            other => other,
        }
    }

    fn object(&mut self, schema: &Value, mut map: Map<String, Value>, at: &str) -> Map<String, Value> {
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let path = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        let mut fitted = Map::new();
        for (name, schema) in properties {
            let Some(value) = take(&mut map, name, properties) else { continue };
            let kinds = kinds(schema);
            let left_out = value.is_null() && !kinds.is_empty() && !kinds.contains(&"null");
            if !left_out {
                fitted.insert(name.clone(), self.value(schema, value, &path(name)));
            }
        }
        // What is left has no name that the tool knows.
        let absent = || properties.keys().map(String::as_str).filter(|name| !fitted.contains_key(*name));
        let strangers: Vec<(String, Option<String>)> =
            map.keys().map(|name| (one_line(name, 40), nearest(name, absent()).map(str::to_owned))).collect();
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let missing: Vec<&str> =
            required.filter(|name| !fitted.contains_key(*name) && !map.contains_key(*name)).collect();
        for name in &missing {
            let wanted = properties.get(*name).map_or("given".to_owned(), wanted);
            let given: Vec<String> = strangers.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            let given = match given.as_slice() {
                [] => String::new(),
                [one] => format!(" ({one} was given, which is no parameter)"),
                several => format!(" ({} were given, which are no parameters)", one_line(&several.join(", "), 200)),
            };
            self.complain(format!("\"{}\" is missing and should be {wanted}{given}", path(name)));
        }
        if missing.is_empty() {
            self.notes.extend(strangers.iter().filter_map(|(name, near)| {
                Some(format!("\"{name}\" is no parameter and was ignored; did you mean \"{}\"?", near.as_ref()?))
            }));
        }
        match schema.get("additionalProperties") {
            Some(more) if more.is_object() => {
                fitted.extend(map.into_iter().map(|(name, v)| {
                    let v = self.value(more, v, &path(&one_line(&name, 40)));
                    (name, v)
                }));
            }
            Some(Value::Bool(true)) => fitted.extend(map),
            None if properties.is_empty() => fitted.extend(map),
            _ => {}
        }
        fitted
    }

    /// Holds a value against `enum`; a choice in other letters is that choice.
    fn choice(&mut self, schema: &Value, value: Value, at: &str) -> Value {
        let Some(choices) = schema.get("enum").and_then(Value::as_array) else {
            return value;
        };
        if choices.contains(&value) {
            return value;
        }
        let word = value.as_str().map(str::trim);
        let same =
            |choice: &&Value| choice.as_str().zip(word).is_some_and(|(choice, w)| choice.eq_ignore_ascii_case(w));
        if let Some(choice) = choices.iter().find(same) {
            return choice.clone();
        }
        let names: Vec<String> = choices.iter().map(Value::to_string).collect();
        let near = word.and_then(|word| nearest(word, choices.iter().filter_map(Value::as_str)));
        let near = near.map_or(String::new(), |near| format!(" (did you mean \"{near}\"?)"));
        self.fault(at, &value, &format!("should be one of {}{near}", one_line(&names.join(", "), 400)));
        value
    }

    fn range(&mut self, schema: &Value, number: &Number, at: &str) {
        let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
        let value = number.as_f64().unwrap_or(f64::NAN);
        match (bound("minimum"), bound("maximum")) {
            (Some(least), _) if value < least => {
                self.fault(at, &Value::Number(number.clone()), &format!("should be at least {least}"));
            }
            (_, Some(most)) if value > most => {
                self.fault(at, &Value::Number(number.clone()), &format!("should be at most {most}"));
            }
            _ => {}
        }
    }

    fn fault(&mut self, at: &str, value: &Value, should: &str) {
        let what = match value {
            Value::Null => "null".to_owned(),
            Value::Object(_) | Value::Array(_) => format!("{} ({})", kind_of(value), one_line(&value.to_string(), 60)),
            other => one_line(&other.to_string(), 80),
        };
        let who = if at.is_empty() { "the whole".to_owned() } else { format!("\"{at}\"") };
        self.complain(format!("{who} was {what} and {should}"));
    }

    fn complain(&mut self, fault: String) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(fault);
        }
    }
}

/// Takes the argument for the parameter `name`, also where it is spelt in another fashion (`filePath`, `File-Path`).
fn take(map: &mut Map<String, Value>, name: &str, properties: &Map<String, Value>) -> Option<Value> {
    if let Some(value) = map.remove(name) {
        return Some(value);
    }
    let letters = |word: &str| -> String { word.chars().filter(|c| !matches!(c, '_' | '-')).collect() };
    let plain = letters(name);
    let spelt = map.keys().find(|k| !properties.contains_key(*k) && letters(k).eq_ignore_ascii_case(&plain))?.clone();
    map.remove(&spelt)
}

/// The types that a schema allows; none: any.
fn kinds(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        // A type that JSON does not have: nothing to hold the value against.
        _ => true,
    }
}

/// What a value of the wrong type plainly stands for.
fn meant(kind: &str, value: &Value, schema: &Value) -> Option<Value> {
    // JSON inside a string, which models write for every type but this one.
    let decoded = || value.as_str().and_then(|text| serde_json::from_str::<Value>(text.trim()).ok());
    match kind {
        "integer" => whole(&decoded().unwrap_or_else(|| value.clone())),
        "number" => decoded().filter(Value::is_number),
        "boolean" => match value.as_str()?.trim().to_ascii_lowercase().as_str() {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ => None,
        },
        "string" if value.is_number() || value.is_boolean() => Some(value.to_string().into()),
        "object" => decoded().filter(Value::is_object),
        "array" if value.is_null() => None,
        "array" => decoded().filter(Value::is_array).or_else(|| {
            let items = schema.get("items").unwrap_or(&Value::Null);
            let kinds = kinds(items);
            let fits = |kind: &&str| is(kind, value) || meant(kind, value, items).is_some();
            (kinds.is_empty() || kinds.iter().any(fits)).then(|| Value::Array(vec![value.clone()]))
        }),
        _ => None,
    }
}

/// A number that is whole, as an integer. Beyond 2^53 a float no longer says which integer it means.
fn whole(value: &Value) -> Option<Value> {
    if value.is_i64() || value.is_u64() {
        return Some(value.clone());
    }
    let float = value.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9_007_199_254_740_992.0)?;
    #[allow(clippy::cast_possible_truncation)] // whole, and small enough
    Some(Value::from(float as i64))
}

/// What a schema wants, in words.
fn wanted(schema: &Value) -> String {
    let names: Vec<String> = kinds(schema)
        .iter()
        .map(|kind| match *kind {
            "integer" => "an integer".to_owned(),
            "array" => match schema.get("items").map(kinds).as_deref() {
                Some(&[one]) => format!("a list of {one}s"),
                _ => "a list".to_owned(),
            },
            "object" => "an object".to_owned(),
            "null" => "null".to_owned(),
            other => format!("a {other}"),
        })
        .collect();
    if names.is_empty() { "given".to_owned() } else { names.join(" or ") }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 100},
                "ratio": {"type": "number"},
                "deep": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "old_text": {"type": ["string", "null"]},
                "mode": {"type": "string", "enum": ["add", "remove"]},
                "where": {"type": "object", "properties": {"line": {"type": "integer"}}, "required": ["line"]},
                "edits": {"type": "array", "items": {"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}}},
                "any": {},
            },
            "required": ["path"],
        })
    }

    fn with(mut more: Value) -> Value {
        if more.get("path").is_none() {
            more["path"] = "p".into();
        }
        more
    }

    #[test]
    fn what_is_plainly_meant_is_taken() {
        for (given, taken) in [
            (json!({"limit": "5"}), json!({"limit": 5})),
            (json!({"limit": 5.0}), json!({"limit": 5})),
            (json!({"limit": " 5.0 "}), json!({"limit": 5})),
            (json!({"ratio": "0.5"}), json!({"ratio": 0.5})),
            (json!({"ratio": 2}), json!({"ratio": 2})),
            (json!({"deep": "True"}), json!({"deep": true})),
            (json!({"path": 7}), json!({"path": "7"})),
            (json!({"tags": "a"}), json!({"tags": ["a"]})),
            (json!({"tags": "[\"a\", \"b\"]"}), json!({"tags": ["a", "b"]})),
            (json!({"tags": 3}), json!({"tags": ["3"]})),
            (json!({"tags": [1, "b"]}), json!({"tags": ["1", "b"]})),
            (json!({"tags": null, "limit": null}), json!({})),
            (json!({"old_text": null}), json!({"old_text": null})),
            (json!({"mode": " Add"}), json!({"mode": "add"})),
            (json!({"where": "{\"line\": \"3\"}"}), json!({"where": {"line": 3}})),
            (json!({"edits": {"to": "x"}}), json!({"edits": [{"to": "x"}]})),
            (json!({"edits": "[{\"to\": \"x\"}]"}), json!({"edits": [{"to": "x"}]})),
            (json!({"oldText": "x"}), json!({"old_text": "x"})),
            (json!({"any": [{"x": null}]}), json!({"any": [{"x": null}]})),
            (json!({"reason": "because"}), json!({})),
        ] {
            assert_eq!(fit(&schema(), with(given.clone())), Ok(Fitted { args: with(taken), notes: vec![] }), "{given}");
        }
    }

    #[test]
    fn what_is_wrong_is_one_sentence_that_names_it() {
        for (given, says) in [
            (json!({"limit": "many"}), "\"limit\" was \"many\" and should be an integer"),
            (json!({"limit": 2.5}), "\"limit\" was 2.5 and should be an integer"),
            (json!({"limit": 1e300}), "\"limit\" was 1e+300 and should be an integer"),
            (json!({"limit": 0}), "\"limit\" was 0 and should be at least 1"),
            (json!({"limit": "500"}), "\"limit\" was 500 and should be at most 100"),
            (json!({"deep": "perhaps"}), "\"deep\" was \"perhaps\" and should be a boolean"),
            (json!({"path": {"a": 1}}), "\"path\" was an object ({\"a\":1}) and should be a string"),
            (json!({"tags": {"a": 1}}), "\"tags\" was an object ({\"a\":1}) and should be a list of strings"),
            (json!({"tags": ["a", []]}), "\"tags[1]\" was a list ([]) and should be a string"),
            (json!({"old_text": []}), "\"old_text\" was a list ([]) and should be a string or null"),
            (
                json!({"mode": "ad"}),
                "\"mode\" was \"ad\" and should be one of \"add\", \"remove\" (did you mean \"add\"?)",
            ),
            (json!({"where": {}}), "\"where.line\" is missing and should be an integer"),
            (json!({"edits": [{"to": "x"}, {}]}), "\"edits[1].to\" is missing and should be a string"),
        ] {
            assert_eq!(fit(&schema(), with(given)), Err(says.to_owned()));
        }
        assert_eq!(
            fit(&schema(), json!({"file": "p", "limit": []})),
            Err("\"limit\" was a list ([]) and should be an integer; \
                 \"path\" is missing and should be a string (\"file\" was given, which is no parameter)"
                .to_owned())
        );
        assert_eq!(fit(&schema(), json!([1])), Err("the whole was a list ([1]) and should be an object".to_owned()));
        assert_eq!(fit(&schema(), json!({"path": null})), Err("\"path\" is missing and should be a string".to_owned()));
    }

    #[test]
    fn a_fault_is_short_whatever_was_given() {
        let long =
            json!({"path": ["x".repeat(100_000)], "limit": "y".repeat(100_000), "tags": vec![json!({}); 10_000]});
        let says = fit(&schema(), long).unwrap_err();
        assert!(says.len() < 600 && !says.contains('\n'), "{says}");
    }

    #[test]
    fn a_stranger_is_mentioned_only_when_it_looks_like_a_slip() {
        let fitted = fit(&schema(), with(json!({"limt": 5, "explanation": "x"}))).unwrap();
        assert_eq!(fitted.args, with(json!({})));
        assert_eq!(fitted.notes, ["\"limt\" is no parameter and was ignored; did you mean \"limit\"?"]);
        // Next to the right name it is no slip.
        assert!(fit(&schema(), with(json!({"limt": 5, "limit": 5}))).unwrap().notes.is_empty());
    }

    #[test]
    fn strangers_are_kept_where_the_schema_lets_them_in() {
        let open = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}});
        assert_eq!(fit(&open, json!({"a": [], "b": "2"})).unwrap().args, json!({"a": [], "b": 2}));
        assert!(fit(&open, json!({"b": "two"})).is_err());
        let open = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": true});
        assert_eq!(fit(&open, json!({"b": "two"})).unwrap().args, json!({"b": "two"}));
        assert_eq!(fit(&json!({"type": "object"}), json!({"b": 2})).unwrap().args, json!({"b": 2}));
        assert_eq!(fit(&json!({}), json!({"b": 2})).unwrap().args, json!({"b": 2}));
    }

    #[test]
    fn arguments_that_are_an_object_in_a_string_are_that_object() {
        assert_eq!(fit(&schema(), json!("{\"path\": \"p\"}")).unwrap().args, json!({"path": "p"}));
        assert!(fit(&schema(), json!("p")).is_err());
    }
}
