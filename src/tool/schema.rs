//! Checks arguments against a tool's JSON Schema: corrects harmless mistakes, and describes the others in one sentence.
//!
//! Supported: `type` (one or a list), `properties`, `required`, `additionalProperties`, `items`, `enum`, `minimum`, `maximum`,
//! `pattern`, `minLength`, `maxLength`, `minItems`, `maxItems`. Other keywords are ignored, because a server that uses them
//! also checks them.

use regex_lite::Regex;
use serde_json::{Map, Value};

use super::Owner;
use crate::json::parse_json;
use crate::text::{nearest, to_single_line};

/// Maximum number of errors in a sentence, because one error often causes others.
const MAX_ERRORS: usize = 3;

/// Returns the arguments in the form of the schema, or a description of the errors.
///
/// Models write `"5"` for 5, a string for a list, `null` for omitted values, `oldText` for `old_text`, and objects as strings.
/// These are unambiguous, so they are corrected without another request.
pub(super) fn check(schema: &Value, args: Value, owner: Owner) -> Result<Value, String> {
    checked(schema, args, "", owner)
}

/// Checks a value. `path` names the parameter, such as `edits[2].old_text`; it is empty for all arguments.
fn checked(schema: &Value, value: Value, path: &str, owner: Owner) -> Result<Value, String> {
    let types = types(schema);
    let value = if types.is_empty() || types.iter().any(|kind| has_type(&value, kind)) {
        value
    } else {
        let coerced = types.iter().find_map(|kind| coerce(&value, kind, schema));
        coerced.ok_or_else(|| mismatch(path, &value, &expected(schema)))?
    };
    match constrained(schema, value, path, owner)? {
        Value::Object(map) => object(schema, map, path, owner).map(Value::Object),
        Value::Array(list) => {
            let items = schema.get("items").unwrap_or(&Value::Null);
            let list = list.into_iter().enumerate();
            list.map(|(n, value)| checked(items, value, &format!("{path}[{n}]"), owner))
                .collect()
        }
        other => Ok(other),
    }
}

/// Checks the limits of a value of the right type. A choice in different case is corrected.
fn constrained(schema: &Value, value: Value, path: &str, owner: Owner) -> Result<Value, String> {
    if let Some(choices) = schema
        .get("enum")
        .and_then(Value::as_array)
        .filter(|list| !list.contains(&value))
    {
        let word = value.as_str().unwrap_or_default().trim();
        let same = |choice: &&Value| {
            choice
                .as_str()
                .is_some_and(|choice| choice.eq_ignore_ascii_case(word))
        };
        let names: Vec<String> = choices.iter().map(Value::to_string).collect();
        let one_of = || {
            mismatch(
                path,
                &value,
                &format!("one of {}", to_single_line(&names.join(", "), 400)),
            )
        };
        return choices.iter().find(same).cloned().ok_or_else(one_of);
    }
    let bound = |keyword| {
        schema
            .get(keyword)
            .and_then(Value::as_f64)
            .zip(value.as_f64())
    };
    match (bound("minimum"), bound("maximum")) {
        (Some((min, number)), _) if number < min => {
            Err(mismatch(path, &value, &format!("at least {min}")))
        }
        (_, Some((max, number))) if number > max => {
            Err(mismatch(path, &value, &format!("at most {max}")))
        }
        _ => sized(schema, &value, path, owner).map(|()| value),
    }
}

/// Checks the length of a text or list, and the pattern of a text.
fn sized(schema: &Value, value: &Value, path: &str, owner: Owner) -> Result<(), String> {
    let (length, least, most, unit) = match value {
        Value::String(text) => (text.chars().count(), "minLength", "maxLength", "characters"),
        Value::Array(list) => (list.len(), "minItems", "maxItems", "items"),
        _ => return Ok(()),
    };
    let bound = |keyword| schema.get(keyword).and_then(Value::as_u64);
    if let Some(least) = bound(least).filter(|least| (length as u64) < *least) {
        return Err(mismatch(
            path,
            value,
            &format!("at least {least} {unit} long"),
        ));
    }
    if let Some(most) = bound(most).filter(|most| length as u64 > *most) {
        return Err(mismatch(
            path,
            value,
            &format!("at most {most} {unit} long"),
        ));
    }
    // The server checks its own patterns, because they could take minutes here.
    if owner.checks_arguments() {
        return Ok(());
    }
    let pattern = schema.get("pattern").and_then(Value::as_str);
    let (Some(pattern), Some(text)) = (pattern, value.as_str()) else {
        return Ok(());
    };
    // Patterns that this engine does not support, such as look-around, are left to the tool.
    match Regex::new(pattern) {
        Ok(regex) if !regex.is_match(text) => Err(mismatch(
            path,
            value,
            &format!("of the pattern {}", to_single_line(pattern, 200)),
        )),
        _ => Ok(()),
    }
}

/// Valid types of a schema.
pub(super) const TYPES: [&str; 7] = [
    "object", "array", "string", "integer", "number", "boolean", "null",
];

fn object(
    schema: &Value,
    mut given: Map<String, Value>,
    path: &str,
    owner: Owner,
) -> Result<Map<String, Value>, String> {
    let none = Map::new();
    let properties = schema
        .get("properties")
        .and_then(Value::as_object)
        .unwrap_or(&none);
    let join = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    let mut taken = Map::new();
    for (name, schema) in properties {
        let Some(value) = take(&mut given, name, properties) else {
            continue;
        };
        let types = types(schema);
        let is_absent = value.is_null() && !types.is_empty() && !types.contains(&"null");
        if !is_absent {
            taken.insert(name.clone(), checked(schema, value, &join(name), owner)?);
        }
    }
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    // A tool with a default needs no value, even if its schema requires one.
    let has_default = |name: &str| {
        properties
            .get(name)
            .is_some_and(|property| property.get("default").is_some())
    };
    let missing = required.filter(|name| {
        !taken.contains_key(*name) && !given.contains_key(*name) && !has_default(name)
    });
    let expected = |name| properties.get(name).map_or("a value".to_owned(), expected);
    let mut wrong: Vec<String> = missing
        .map(|name| format!("\"{}\" is missing: {}", join(name), expected(name)))
        .collect();
    let more = schema.get("additionalProperties").unwrap_or(&Value::Null);
    let is_open = more.is_null() && (properties.is_empty() || owner.checks_arguments());
    if more.is_object() || *more == Value::Bool(true) || is_open {
        for (name, value) in given {
            let value = checked(more, value, &join(&to_single_line(&name, 40)), owner)?;
            taken.insert(name, value);
        }
    } else {
        for name in given.keys() {
            let absent = properties
                .keys()
                .map(String::as_str)
                .filter(|name| !taken.contains_key(*name));
            let near = nearest(name, absent)
                .map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
            wrong.push(format!(
                "unknown argument \"{}\"{near}",
                to_single_line(name, 40)
            ));
        }
    }
    wrong.truncate(MAX_ERRORS);
    if wrong.is_empty() {
        Ok(taken)
    } else {
        Err(wrong.join("; "))
    }
}

fn mismatch(path: &str, value: &Value, expected: &str) -> String {
    let what = if path.is_empty() {
        "the arguments".to_owned()
    } else {
        format!("\"{path}\"")
    };
    format!(
        "{what} must be {expected}, not {}",
        to_single_line(&value.to_string(), 80)
    )
}

/// Removes and returns the argument `name`, also from a key in another style (`filePath`, `File-Path`).
fn take(
    given: &mut Map<String, Value>,
    name: &str,
    properties: &Map<String, Value>,
) -> Option<Value> {
    let letters = |word: &str| word.replace(['_', '-'], "").to_ascii_lowercase();
    let same = |key: &&String| !properties.contains_key(*key) && letters(key) == letters(name);
    let key = if given.contains_key(name) {
        name.to_owned()
    } else {
        given.keys().find(same)?.clone()
    };
    given.remove(&key)
}

/// Returns the types that a schema allows; empty for any.
fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn has_type(value: &Value, kind: &str) -> bool {
    match kind {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        // Types unknown to JSON are not checked.
        _ => true,
    }
}

/// Converts a value of the wrong type, if its meaning is clear.
fn coerce(value: &Value, kind: &str, schema: &Value) -> Option<Value> {
    // Models write JSON in a string for every type except strings.
    let decoded = value.as_str().and_then(|text| parse_json(text.trim()).ok());
    match kind {
        "string" if value.is_number() || value.is_boolean() => Some(value.to_string().into()),
        "boolean" => value
            .as_str()?
            .trim()
            .to_ascii_lowercase()
            .parse::<bool>()
            .ok()
            .map(Value::Bool),
        "integer" => match decoded.as_ref().unwrap_or(value) {
            number if has_type(number, kind) => Some(number.clone()),
            // Accepts 5.0; a fraction does not parse.
            number => number
                .as_f64()?
                .to_string()
                .parse::<i64>()
                .ok()
                .map(Value::from),
        },
        "number" | "object" => decoded.filter(|decoded| has_type(decoded, kind)),
        "array" if !value.is_null() => decoded.filter(Value::is_array).or_else(|| {
            let items = schema.get("items").unwrap_or(&Value::Null);
            let types = types(items);
            let fits = |kind: &&str| has_type(value, kind) || coerce(value, kind, items).is_some();
            (types.is_empty() || types.iter().any(fits)).then(|| Value::Array(vec![value.clone()]))
        }),
        _ => None,
    }
}

/// Describes the expected type of a schema.
fn expected(schema: &Value) -> String {
    let describe = |kind: &str| match kind {
        "array" => "a list".to_owned(),
        "null" => "null".to_owned(),
        "integer" | "object" => format!("an {kind}"),
        kind => format!("a {kind}"),
    };
    let types: Vec<String> = types(schema).into_iter().map(describe).collect();
    if types.is_empty() {
        "a value".to_owned()
    } else {
        types.join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: &Value, args: Value) -> Result<Value, String> {
        super::check(schema, args, Owner::Program)
    }

    #[test]
    fn self_checking_tool_gets_plausible_arguments() {
        let schema = json!({
            "type": "object",
            "properties": {
                "type": {"type": "string", "default": "png"},
                "name": {"type": "string"},
            },
            "required": ["type"],
        });
        for given in [json!({}), json!({"type": "png"})] {
            assert_eq!(check(&schema, given.clone()), Ok(given));
        }
        let unnamed = json!({"nmae": "x", "deep": {"a": 1}});
        assert_eq!(
            super::check(&schema, unnamed.clone(), Owner::Server),
            Ok(unnamed)
        );
        let slow = json!({"properties": {"text": {"type": "string", "pattern": "(?:(?:(?:[a-z ]{1,60}){1,60}){1,20})b$"}}});
        let long = json!({"text": "a".repeat(60_000)});
        assert_eq!(super::check(&slow, long.clone(), Owner::Server), Ok(long));
        let wrong = super::check(&schema, json!({"name": {}}), Owner::Server);
        assert!(wrong.unwrap_err().contains("\"name\" must be a string"));
        let mut closed = schema;
        closed["additionalProperties"] = false.into();
        let refused = super::check(&closed, json!({"why": "x"}), Owner::Server);
        assert!(refused.unwrap_err().contains("unknown argument \"why\""));
    }

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
    fn lenient_values_are_coerced() {
        for (given, taken) in [
            (json!({"limit": "5"}), json!({"limit": 5})),
            (json!({"limit": 5.0}), json!({"limit": 5})),
            (json!({"limit": " 5.0 "}), json!({"limit": 5})),
            (json!({"ratio": "0.5"}), json!({"ratio": 0.5})),
            (json!({"ratio": 2}), json!({"ratio": 2})),
            (json!({"deep": "True"}), json!({"deep": true})),
            (json!({"path": 7}), json!({"path": "7"})),
            (json!({"tags": "a"}), json!({"tags": ["a"]})),
            (
                json!({"tags": "[\"a\", \"b\"]"}),
                json!({"tags": ["a", "b"]}),
            ),
            (json!({"tags": 3}), json!({"tags": ["3"]})),
            (json!({"tags": [1, "b"]}), json!({"tags": ["1", "b"]})),
            (json!({"tags": null, "limit": null}), json!({})),
            (json!({"old_text": null}), json!({"old_text": null})),
            (json!({"mode": " Add"}), json!({"mode": "add"})),
            (
                json!({"where": "{\"line\": \"3\"}"}),
                json!({"where": {"line": 3}}),
            ),
            (
                json!({"edits": {"to": "x"}}),
                json!({"edits": [{"to": "x"}]}),
            ),
            (
                json!({"edits": "[{\"to\": \"x\"}]"}),
                json!({"edits": [{"to": "x"}]}),
            ),
            (json!({"oldText": "x"}), json!({"old_text": "x"})),
            (json!({"any": [{"x": null}]}), json!({"any": [{"x": null}]})),
        ] {
            assert_eq!(
                check(&schema(), with(given.clone())),
                Ok(with(taken)),
                "{given}"
            );
        }
    }

    #[test]
    fn schema_error_names_the_argument() {
        for (given, says) in [
            (
                json!({"limit": "many"}),
                "\"limit\" must be an integer, not \"many\"",
            ),
            (
                json!({"limit": 2.5}),
                "\"limit\" must be an integer, not 2.5",
            ),
            (
                json!({"limit": 1e300}),
                "\"limit\" must be an integer, not 1e+300",
            ),
            (json!({"limit": 0}), "\"limit\" must be at least 1, not 0"),
            (
                json!({"limit": "500"}),
                "\"limit\" must be at most 100, not 500",
            ),
            (
                json!({"deep": "perhaps"}),
                "\"deep\" must be a boolean, not \"perhaps\"",
            ),
            (
                json!({"path": {"a": 1}}),
                "\"path\" must be a string, not {\"a\":1}",
            ),
            (
                json!({"tags": {"a": 1}}),
                "\"tags\" must be a list, not {\"a\":1}",
            ),
            (
                json!({"tags": ["a", []]}),
                "\"tags[1]\" must be a string, not []",
            ),
            (
                json!({"old_text": []}),
                "\"old_text\" must be a string or null, not []",
            ),
            (
                json!({"mode": "ad"}),
                "\"mode\" must be one of \"add\", \"remove\", not \"ad\"",
            ),
            (
                json!({"where": {}}),
                "\"where.line\" is missing: an integer",
            ),
            (
                json!({"edits": [{"to": "x"}, {}]}),
                "\"edits[1].to\" is missing: a string",
            ),
        ] {
            assert_eq!(check(&schema(), with(given)), Err(says.to_owned()));
        }
        assert_eq!(
            check(&schema(), json!({"file": "p", "limit": 5})),
            Err("\"path\" is missing: a string; unknown argument \"file\"".to_owned())
        );
        assert_eq!(
            check(&schema(), json!({"limt": 5, "path": "p"})),
            Err("unknown argument \"limt\"; did you mean \"limit\"?".to_owned())
        );
        assert_eq!(
            check(&schema(), json!([1])),
            Err("the arguments must be an object, not [1]".to_owned())
        );
        assert_eq!(
            check(&schema(), json!({"path": null})),
            Err("\"path\" is missing: a string".to_owned())
        );
    }

    #[test]
    fn a_fault_is_short_whatever_was_given() {
        let long = json!({"path": ["x".repeat(100_000)], "limit": "y".repeat(100_000), "tags": vec![json!({}); 10_000]});
        let says = check(&schema(), long).unwrap_err();
        assert!(says.len() < 600 && !says.contains('\n'), "{says}");
    }

    #[test]
    fn strangers_are_kept_where_the_schema_lets_them_in() {
        let open = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}});
        assert_eq!(
            check(&open, json!({"a": [], "b": "2"})).unwrap(),
            json!({"a": [], "b": 2})
        );
        assert!(check(&open, json!({"b": "two"})).is_err());
        let open = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": true});
        assert_eq!(
            check(&open, json!({"b": "two"})).unwrap(),
            json!({"b": "two"})
        );
        assert_eq!(
            check(&json!({"type": "object"}), json!({"b": 2})).unwrap(),
            json!({"b": 2})
        );
        assert_eq!(check(&json!({}), json!({"b": 2})).unwrap(), json!({"b": 2}));
    }

    #[test]
    fn arguments_that_are_an_object_in_a_string_are_that_object() {
        assert_eq!(
            check(&schema(), json!("{\"path\": \"p\"}")).unwrap(),
            json!({"path": "p"})
        );
        assert!(check(&schema(), json!("p")).is_err());
    }

    #[test]
    fn lengths_and_patterns_are_checked_as_far_as_they_are_understood() {
        let schema = json!({"properties": {
            "code": {"type": "string", "pattern": "^[A-Z]{2}$", "minLength": 2, "maxLength": 3},
            "list": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
            "odd": {"type": "string", "pattern": "(?=x)"},
        }});
        for good in [
            json!({"code": "AB"}),
            json!({"list": ["a"]}),
            json!({"odd": "y"}),
        ] {
            assert_eq!(check(&schema, good.clone()), Ok(good));
        }
        for (bad, says) in [
            (json!({"code": "ÄB"}), "of the pattern ^[A-Z]{2}$, not"),
            (json!({"code": "A"}), "at least 2 characters long"),
            (json!({"code": "ABCD"}), "at most 3 characters long"),
            (json!({"list": []}), "at least 1 items long"),
            (json!({"list": ["a", "b", "c"]}), "at most 2 items long"),
        ] {
            let said = check(&schema, bad.clone()).unwrap_err();
            assert!(said.contains(says), "{bad}: {said}");
        }
    }
}
