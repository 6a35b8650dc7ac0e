//! Gives a model's arguments the form of their schema, and checks them.

use serde_json::{Map, Value};

use super::Owner;
use super::names::{has_same_letters, is_argument, is_comment};
use super::schema::{Schema, has_type, whole_number, words};
use crate::json::parse_json;

/// Keywords that a foreign program checks itself, because its patterns could take minutes here, and its references never end.
const LEFT_TO_OWNER: &str = "$ref allOf anyOf oneOf not pattern uniqueItems";

/// Returns the arguments in the form of the schema, or a description of the error.
///
/// Models write `"5"` for 5, a string for a list, `null` for omitted values, `oldText` for `old_text`, and objects as strings.
/// These are unambiguous, so they are corrected without another request, and comments on the call are left out.
pub(super) fn fit_arguments(mut schema: Value, args: Value, owner: Owner) -> Result<Value, String> {
    let is_foreign = owner.checks_arguments();
    if !is_foreign {
        close(&mut schema);
    }
    let mut args = fit(&schema, args);
    let fields = schema["properties"].as_object().zip(args.as_object_mut());
    if let (Some((declared, given)), false) = (fields, is_foreign) {
        given.retain(|name, value| declared.contains_key(name) || !is_comment(name, value));
    }
    let schema = Schema {
        root: schema,
        unchecked: if is_foreign { LEFT_TO_OWNER } else { "" },
    };
    schema.check(&args)?;
    Ok(args)
}

/// Refuses undeclared fields, because a call runs with all of its arguments or not at all.
fn close(schema: &mut Value) {
    let Some(rules) = schema.as_object_mut() else {
        return;
    };
    if let Some(items) = rules.get_mut("items") {
        close(items);
    }
    let fields = rules.get_mut("properties").and_then(Value::as_object_mut);
    if let Some(fields) = fields {
        fields.values_mut().for_each(close);
        rules
            .entry("additionalProperties")
            .or_insert(Value::Bool(false));
    }
}

/// Gives a value the form of its schema, as far as its meaning is clear.
fn fit(schema: &Value, value: Value) -> Value {
    let types = words(&schema["type"]);
    let value = if is_of(&types, &value) {
        value
    } else {
        let mut kinds = types.iter();
        let converted = kinds.find_map(|kind| convert(&value, kind, &schema["items"]));
        converted.unwrap_or(value)
    };
    match value {
        Value::Object(given) => fit_fields(schema, given).into(),
        Value::Array(list) => {
            let list = list.into_iter();
            list.map(|item| fit(&schema["items"], item)).collect()
        }
        Value::String(word) => fit_choice(schema, word),
        // Tools read an integer from 5, not from 5.0.
        number if types.contains(&"integer") && number.is_f64() => {
            whole_number(&number).unwrap_or(number)
        }
        other => other,
    }
}

/// Whether a value has one of these types, or any if there are none.
fn is_of(types: &[&str], value: &Value) -> bool {
    types.is_empty() || types.iter().any(|kind| has_type(value, kind))
}

/// Names the fields as the schema does. A `null` where the schema allows none is no value; a missing value is the default.
fn fit_fields(schema: &Value, mut given: Map<String, Value>) -> Map<String, Value> {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let required = words(&schema["required"]);
    let mut fitted = Map::new();
    for (name, own) in properties {
        let types = words(&own["type"]);
        let may_be_null = types.is_empty() || types.contains(&"null");
        let is_needed = required.contains(&name.as_str());
        let default = is_needed.then(|| own.get("default")).flatten();
        let value = take(&mut given, name, schema);
        let value = value.filter(|value| !value.is_null() || may_be_null);
        if let Some(value) = value.or(default.cloned()) {
            fitted.insert(name.clone(), fit(own, value));
        }
    }
    let more = &schema["additionalProperties"];
    let given = given.into_iter();
    fitted.extend(given.map(|(name, value)| (name, fit(more, value))));
    fitted
}

/// Removes and returns the field `name`, also from a key in another style, or with its name in another program if the schema
/// refuses that key.
fn take(given: &mut Map<String, Value>, name: &str, schema: &Value) -> Option<Value> {
    let is_closed = schema["additionalProperties"] == false;
    let means = |key: &str| has_same_letters(key, name) || is_closed && is_argument(key, name);
    let same = |key: &&String| schema["properties"].get(*key).is_none() && means(key);
    let key = match given.get(name) {
        Some(_) => name.to_owned(),
        None => given.keys().find(same)?.clone(),
    };
    given.remove(&key)
}

/// Returns the choice that a word means, which may differ in case.
fn fit_choice(schema: &Value, word: String) -> Value {
    let choices = words(&schema["enum"]);
    let same = |choice: &&&str| choice.eq_ignore_ascii_case(word.trim());
    match choices.iter().find(same) {
        Some(choice) if !choices.contains(&word.as_str()) => (*choice).into(),
        _ => word.into(),
    }
}

/// Converts a value of the wrong type, if its meaning is clear.
fn convert(value: &Value, kind: &str, items: &Value) -> Option<Value> {
    // Models write JSON in a string for every type except strings.
    let decoded = value.as_str().and_then(|text| parse_json(text.trim()).ok());
    let decoded = decoded.filter(|decoded| has_type(decoded, kind));
    match kind {
        "string" if value.is_number() || value.is_boolean() => Some(value.to_string().into()),
        "boolean" => {
            let word = value.as_str()?.trim().to_ascii_lowercase();
            word.parse::<bool>().ok().map(Value::Bool)
        }
        "integer" | "number" | "object" => decoded,
        "array" if decoded.is_none() && !value.is_null() => {
            let item = fit(items, value.clone());
            is_of(&words(&items["type"]), &item).then(|| vec![item].into())
        }
        "array" => decoded,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SCHEMA: &str = r#"{"type": "object", "properties": {
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
        "odd": {"type": "string", "pattern": "(?=x)"}}}"#;

    fn value(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    fn fit(schema: &Value, args: Value, owner: Owner) -> Result<Value, String> {
        fit_arguments(schema.clone(), args, owner)
    }

    #[test]
    fn obvious_mistakes_are_corrected() {
        for row in r#"
{"limit": "5"} | {"limit": 5}
{"limit": 5.0} | {"limit": 5}
{"limit": " 5.0 "} | {"limit": 5}
{"ratio": "0.5"} | {"ratio": 0.5}
{"ratio": 2} | {"ratio": 2}
{"deep": "True"} | {"deep": true}
{"path": 7} | {"path": "7"}
{"tags": "a"} | {"tags": ["a"]}
{"tags": "[\"a\", 2]"} | {"tags": ["a", "2"]}
{"tags": 3} | {"tags": ["3"]}
{"tags": null, "limit": null} | {}
{"old_text": null} | {"old_text": null}
{"mode": " Add"} | {"mode": "add"}
{"where": "{\"line\": \"3\"}"} | {"where": {"line": 3}}
{"edits": {"to": "x"}} | {"edits": [{"to": "x"}]}
{"oldText": "x"} | {"old_text": "x"}
{"file_path": "a", "reason": "why", "note": null} | {"path": "a"}
{"any": [{"x": null}]} | {"any": [{"x": null}]}
{"odd": "y"} | {"odd": "y"}
"{\"path\": \"p\"}" | {"path": "p"}
"#
        .trim()
        .lines()
        {
            let (given, taken) = row.split_once(" | ").unwrap();
            let fitted = fit(&value(SCHEMA), value(given), Owner::Program);
            assert_eq!(fitted, Ok(value(taken)), "{row}");
        }
    }

    #[test]
    fn schema_error_names_the_argument() {
        for row in r#"
{"limit": "many"} | "limit" must be an integer, not "many"
{"limit": 2.5} | "limit" must be an integer, not 2.5
{"limit": 1e300} | "limit" must be at most 100, not 1e+300
{"limit": "500"} | "limit" must be at most 100, not 500
{"path": {"a": 1}} | "path" must be a string, not {"a":1}
{"tags": {"a": 1}} | "tags" must be an array, not {"a":1}
{"tags": ["a", []]} | "tags[1]" must be a string, not []
{"mode": "ad"} | "mode" must be one of "add", "remove", not "ad"
{"path": "a", "file_path": "b"} | unknown field "file_path": known here are any, deep, edits, limit, mode, odd, old_text, path, ratio, tags, where
{"where": {}} | "where.line" is missing
{"edits": [{"to": "x"}, {}]} | "edits[1].to" is missing
{"edits": [{"to": "x", "at": 1}]} | unknown field "edits[0].at": known here are to
[1] | it must be an object, not [1]
"#
        .trim()
        .lines()
        {
            let (given, says) = row.split_once(" | ").unwrap();
            let said = fit(&value(SCHEMA), value(given), Owner::Program);
            assert_eq!(said, Err(says.to_owned()));
        }
    }

    #[test]
    fn what_a_server_checks_itself_is_left_to_it() {
        let slow = "(?:(?:(?:[a-z ]{1,60}){1,60}){1,20})b$";
        let schema = json!({
            "type": "object",
            "properties": {
                "type": {"type": "string", "default": "png"},
                "name": {"type": "string", "pattern": slow},
                "tree": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
            },
            "required": ["type"],
        });
        let long = json!({"name": "a".repeat(60_000), "nmae": "x", "tree": 1, "type": "jpg"});
        assert_eq!(fit(&schema, long.clone(), Owner::Server), Ok(long));
        assert_eq!(
            fit(&schema, json!({}), Owner::Server),
            Ok(json!({"type": "png"}))
        );
        let wrong = fit(&schema, json!({"name": {}}), Owner::Server);
        assert!(wrong.unwrap_err().contains("\"name\" must be a string"));
        let open = json!({"properties": {"path": {}, "key": {}}});
        let theirs = json!({"file": "a", "name": "b"});
        assert_eq!(fit(&open, theirs.clone(), Owner::Client), Ok(theirs));
        let mut closed = schema;
        closed["additionalProperties"] = false.into();
        let refused = fit(&closed, json!({"why": "x"}), Owner::Server);
        assert!(refused.unwrap_err().contains("unknown field \"why\""));
    }
}
