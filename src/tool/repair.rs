//! Converts foreign schemas to a form that every host accepts.

use serde_json::{Map, Value};

use super::schema::TYPES;

/// Repairs a schema of arguments, because some hosts refuse a whole request for one odd schema. The root becomes an object with
/// `properties`, including those of `anyOf`, `oneOf` and `allOf`. Keywords with values of the wrong kind are removed.
pub(super) fn repair(mut schema: Value) -> Value {
    let mut root = std::mem::take(&mut schema)
        .as_object_mut()
        .map(std::mem::take)
        .unwrap_or_default();
    let mut properties = match root.remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    for keyword in ARMS {
        let Some(Value::Array(arms)) = root.remove(keyword) else {
            continue;
        };
        for arm in arms {
            let more = arm.get("properties").and_then(Value::as_object);
            for (name, schema) in more.into_iter().flatten() {
                properties
                    .entry(name.clone())
                    .or_insert_with(|| schema.clone());
            }
        }
    }
    root.retain(|keyword, _| !NOT_AT_ROOT.contains(&keyword.as_str()));
    root.insert("type".to_owned(), "object".into());
    root.insert("properties".to_owned(), properties.into());
    let mut schema = Value::Object(root);
    repair_level(&mut schema);
    schema
}

/// Keywords whose value is a list of schemas.
const ARMS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that hosts refuse in the root.
const NOT_AT_ROOT: [&str; 6] = ["not", "enum", "const", "if", "then", "else"];

fn repair_level(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else {
        *schema = Map::new().into();
        return;
    };
    fields.retain(|keyword, value| is_of_its_kind(keyword, value));
    match fields.get("type").and_then(Value::as_str) {
        Some("object") => drop(
            fields
                .entry("properties")
                .or_insert_with(|| Map::new().into()),
        ),
        Some("array") => drop(fields.entry("items").or_insert_with(|| Map::new().into())),
        _ => {}
    }
    for keyword in ["properties", "$defs", "definitions"] {
        if let Some(Value::Object(schemas)) = fields.get_mut(keyword) {
            schemas.values_mut().for_each(repair_level);
        }
    }
    for keyword in ARMS {
        if let Some(Value::Array(schemas)) = fields.get_mut(keyword) {
            schemas.iter_mut().for_each(repair_level);
        }
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(schema) = fields.get_mut(keyword).filter(|value| !value.is_boolean()) {
            repair_level(schema);
        }
    }
    let names: Vec<String> = fields
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|properties| properties.keys().cloned())
        .collect();
    if let Some(Value::Array(required)) = fields.get_mut("required") {
        required.retain(|name| {
            name.as_str()
                .is_some_and(|name| names.iter().any(|known| known == name))
        });
    }
}

/// Whether hosts accept the kind of a keyword's value.
fn is_of_its_kind(keyword: &str, value: &Value) -> bool {
    let is_type = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
    match keyword {
        "type" => match value {
            Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(is_type),
            kind => is_type(kind),
        },
        "properties" | "$defs" | "definitions" | "items" => value.is_object(),
        "additionalProperties" => value.is_object() || value.is_boolean(),
        "required" | "enum" | "allOf" | "anyOf" | "oneOf" => value.is_array(),
        "description" | "title" | "pattern" | "format" => value.is_string(),
        "minimum" | "maximum" | "minLength" | "maxLength" | "minItems" | "maxItems" => {
            value.is_number()
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns why strict hosts refuse a schema, in the words of their errors.
    fn refused_by_strict_hosts(schema: &Value) -> Option<&'static str> {
        fn level(schema: &Value) -> Option<&'static str> {
            let Some(fields) = schema.as_object() else {
                return Some("a schema is no object");
            };
            if !fields
                .iter()
                .all(|(keyword, value)| is_of_its_kind(keyword, value))
            {
                return Some("a keyword is of the wrong kind");
            }
            match schema["type"].as_str() {
                Some("object") if !schema["properties"].is_object() => {
                    return Some("object schema missing properties");
                }
                Some("array") if !schema["items"].is_object() => {
                    return Some("array schema missing items");
                }
                _ => {}
            }
            let required = schema["required"].as_array().into_iter().flatten();
            let mut names = required.filter_map(Value::as_str);
            if names.any(|name| schema["properties"].get(name).is_none()) {
                return Some("required names no property");
            }
            let properties = schema["properties"].as_object().into_iter().flatten();
            let arms = ARMS
                .iter()
                .filter_map(|keyword| schema[*keyword].as_array());
            let items = Some(&schema["items"]).filter(|items| !items.is_null());
            let mut below = properties
                .map(|(_, schema)| schema)
                .chain(arms.flatten())
                .chain(items);
            below.find_map(level)
        }
        if schema["type"] != "object" {
            return Some("the root is no object");
        }
        let at_root = ARMS.iter().chain(&NOT_AT_ROOT);
        if at_root
            .into_iter()
            .any(|keyword| schema.get(*keyword).is_some())
        {
            return Some("a keyword is not allowed at the top level");
        }
        level(schema)
    }

    #[test]
    fn an_odd_schema_is_repaired_for_strict_hosts() {
        let a = json!({"type": "string"});
        let cases = [
            (json!({}), json!({})),
            (json!(null), json!({})),
            (json!(true), json!({})),
            (json!([]), json!({})),
            (json!("object"), json!({})),
            (json!({"type": "object"}), json!({})),
            (json!({"type": null}), json!({})),
            (json!({"type": "string"}), json!({})),
            (json!({"type": ["object", "null"]}), json!({})),
            (json!({"properties": null}), json!({})),
            (json!({"properties": []}), json!({})),
            (json!({"properties": {"a": a}}), json!({"a": a})),
            (
                json!({"anyOf": [{"properties": {"a": a}}, {"properties": {"b": a}}]}),
                json!({"a": a, "b": a}),
            ),
            (
                json!({"oneOf": [{"required": ["a"]}], "properties": {"a": a}}),
                json!({"a": a}),
            ),
            (
                json!({"allOf": [{"properties": {"a": a}}], "properties": {"b": a}}),
                json!({"a": a, "b": a}),
            ),
            (json!({"allOf": "x"}), json!({})),
            (
                json!({"not": {}, "enum": [1], "const": 1, "if": {}, "then": {}, "else": {}}),
                json!({}),
            ),
            (json!({"properties": {"a": 5}}), json!({"a": {}})),
            (json!({"properties": {"a": true}}), json!({"a": {}})),
            (json!({"properties": {"a": null}}), json!({"a": {}})),
            (
                json!({"properties": {"a": {"type": "text"}}}),
                json!({"a": {}}),
            ),
            (json!({"properties": {"a": {"type": []}}}), json!({"a": {}})),
            (
                json!({"properties": {"a": {"type": "string", "required": true}}}),
                json!({"a": a}),
            ),
            (
                json!({"properties": {"a": {"enum": "x"}}}),
                json!({"a": {}}),
            ),
            (
                json!({"properties": {"a": {"type": "array"}}}),
                json!({"a": {"type": "array", "items": {}}}),
            ),
            (
                json!({"properties": {"a": {"type": "array", "items": [a]}}}),
                json!({"a": {"type": "array", "items": {}}}),
            ),
            (
                json!({"properties": {"a": {"type": "array", "items": true}}}),
                json!({"a": {"type": "array", "items": {}}}),
            ),
            (
                json!({"properties": {"a": {"type": "object"}}}),
                json!({"a": {"type": "object", "properties": {}}}),
            ),
            (
                json!({"properties": {"a": {"anyOf": [{"type": "array"}, 1]}}}),
                json!({"a": {"anyOf": [{"type": "array", "items": {}}, {}]}}),
            ),
            (
                json!({"properties": {"a": {"type": "string", "description": 5, "minimum": "1"}}}),
                json!({"a": a}),
            ),
            (
                json!({"properties": {"a": {"type": "object", "properties": {"b": {"type": "list"}}}}}),
                json!({"a": {"type": "object", "properties": {"b": {}}}}),
            ),
            (
                json!({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": 1}}),
                json!({"a": {"$ref": "#/$defs/x"}}),
            ),
        ];
        assert!(cases.len() >= 30);
        for (odd, properties) in cases {
            let repaired = repair(odd.clone());
            assert_eq!(repaired["properties"], properties, "{odd}");
            assert_eq!(
                refused_by_strict_hosts(&repaired),
                None,
                "{odd}: {repaired}"
            );
            assert_eq!(repair(repaired.clone()), repaired, "{odd}");
        }
        let odd = json!({"properties": {"a": a}, "required": ["a", "b", 5]});
        assert_eq!(repair(odd)["required"], json!(["a"]));
    }
}
