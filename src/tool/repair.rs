//! Converts foreign schemas to a form that every host accepts.

use serde_json::{Map, Value};

use super::schema::{LISTS, MAPS, SINGLE, is_of_its_kind, is_one_of, words};

/// Keywords that hosts refuse in the root.
const NOT_AT_ROOT: [&str; 9] = [
    "allOf", "anyOf", "oneOf", "not", "enum", "const", "if", "then", "else",
];

/// Repairs a schema of arguments, because some hosts refuse a whole request for one odd schema. The root becomes an object with
/// `properties`, including those of `anyOf`, `oneOf` and `allOf`. Keywords with values of the wrong kind are removed.
pub(super) fn repair(schema: Value) -> Value {
    let mut root = match schema {
        Value::Object(root) => root,
        _ => Map::new(),
    };
    let mut properties = match root.remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    for keyword in NOT_AT_ROOT {
        let Some(Value::Array(arms)) = root.remove(keyword) else {
            continue;
        };
        for mut arm in arms {
            if let Some(Value::Object(mut more)) = arm.get_mut("properties").map(Value::take) {
                more.append(&mut properties);
                properties = more;
            }
        }
    }
    root.insert("type".to_owned(), "object".into());
    root.insert("properties".to_owned(), properties.into());
    let mut schema = Value::Object(root);
    repair_level(&mut schema);
    schema
}

/// Repairs a schema, and those that stand in it.
fn repair_level(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else {
        *schema = Map::new().into();
        return;
    };
    fields.retain(|keyword, rule| {
        is_of_its_kind(keyword, rule) != Some(false) && (keyword != "items" || rule.is_object())
    });
    let types = fields.get("type").cloned().unwrap_or_default();
    for (kind, keyword) in [("object", "properties"), ("array", "items")] {
        if words(&types).contains(&kind) && !fields.contains_key(keyword) {
            fields.insert(keyword.to_owned(), Map::new().into());
        }
    }
    for (keyword, rule) in fields.iter_mut() {
        let keyword = keyword.as_str();
        match rule {
            Value::Object(schemas) if is_one_of(MAPS, keyword) => {
                schemas.values_mut().for_each(repair_level);
            }
            Value::Array(schemas) if is_one_of(LISTS, keyword) => {
                schemas.iter_mut().for_each(repair_level);
            }
            schema if is_one_of(SINGLE, keyword) && !schema.is_boolean() => repair_level(schema),
            _ => {}
        }
    }
    let properties = fields.get("properties").cloned().unwrap_or_default();
    if let Some(Value::Array(required)) = fields.get_mut("required") {
        required.retain(|name| {
            name.as_str()
                .is_some_and(|name| properties.get(name).is_some())
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_odd_schema_is_repaired_for_strict_hosts() {
        for row in r##"
null | {}
[] | {}
{"type": "string"} | {}
{"type": ["object", "null"]} | {}
{"properties": []} | {}
{"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}}]} | {"a": {"type": "string"}, "b": {}}
{"allOf": [{"properties": {"a": 1}}], "properties": {"a": {"type": "string"}}} | {"a": {"type": "string"}}
{"allOf": "x", "not": {}, "enum": [1], "if": {}, "then": {}} | {}
{"properties": {"a": 5, "b": true, "c": null}} | {"a": {}, "b": {}, "c": {}}
{"properties": {"a": {"type": "text"}}} | {"a": {}}
{"properties": {"a": {"type": []}}} | {"a": {}}
{"properties": {"a": {"type": "string", "required": true, "enum": "x"}}} | {"a": {"type": "string"}}
{"properties": {"a": {"type": "string", "description": 5, "minimum": "1"}}} | {"a": {"type": "string"}}
{"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": 1}} | {"a": {"$ref": "#/$defs/x"}}
"##
        .trim()
        .lines()
        {
            let (odd, properties) = row.split_once(" | ").unwrap();
            let value = |json: &str| serde_json::from_str::<Value>(json).unwrap();
            let (odd, properties) = (value(odd), value(properties));
            let repaired = repair(odd.clone());
            assert_eq!(repaired["properties"], properties, "{odd}");
            assert_eq!(repaired["type"], "object", "{odd}");
            let mut at_root = NOT_AT_ROOT.iter();
            assert!(
                at_root.all(|keyword| repaired.get(keyword).is_none()),
                "{repaired}"
            );
            assert_eq!(repair(repaired.clone()), repaired, "{odd}");
        }
        let odd = json!({"properties": {"a": {}}, "required": ["a", "b", 5]});
        assert_eq!(repair(odd)["required"], json!(["a"]));
    }

    #[test]
    fn a_schema_is_repaired_wherever_it_stands() {
        let maps = MAPS
            .split(' ')
            .map(|keyword| (json!({ keyword: {"x": 0} }), format!("/{keyword}/x")));
        let lists = LISTS
            .split(' ')
            .map(|keyword| (json!({ keyword: [0] }), format!("/{keyword}/0")));
        let single = SINGLE
            .split(' ')
            .map(|keyword| (json!({ keyword: 0 }), format!("/{keyword}")));
        for (outer, inner) in maps.chain(lists).chain(single) {
            for (odd, needed) in [
                (json!({"type": ["array", "null"]}), "items"),
                (json!({"type": "array", "items": [{}]}), "items"),
                (
                    json!({"type": ["null", "object"], "properties": 1}),
                    "properties",
                ),
            ] {
                let mut outer = outer.clone();
                *outer.pointer_mut(&inner).unwrap() = odd;
                let schema = repair(json!({"properties": {"a": outer}}));
                let repaired = &schema["properties"]["a"].pointer(&inner).unwrap()[needed];
                assert_eq!(*repaired, json!({}), "{schema}");
            }
        }
    }
}
