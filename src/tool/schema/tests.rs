//! Tables of schemas, values and the errors about them.

use super::*;
use serde_json::json;

#[test]
fn each_keyword_lets_in_what_fits_and_names_what_does_not() {
    let tree = json!({
        "$defs": {"node": {
            "properties": {"n": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["n"], "additionalProperties": false,
        }},
        "$ref": "#/$defs/node",
    });
    let node = json!({"n": 1, "next": {"n": 2, "next": null}});
    let rows = json!({"properties": {"rows": {"items": {"required": ["n"]}}}});
    for (schema, good, bad, says) in [
        (
            json!({"type": "integer"}),
            json!(2.0),
            json!("2"),
            "an integer, not \"2\"",
        ),
        (
            json!({"type": ["string", "null"]}),
            json!(null),
            json!(1),
            "a string or null",
        ),
        (
            json!({"enum": ["a", 1]}),
            json!(1),
            json!("A"),
            "one of \"a\", 1",
        ),
        (
            json!({"const": "ok"}),
            json!("ok"),
            json!("OK"),
            "must be \"ok\"",
        ),
        (json!({"minimum": 1}), json!(1), json!(0), "at least 1"),
        (json!({"maximum": 1}), json!(1), json!(2), "at most 1"),
        (
            json!({"exclusiveMinimum": 1}),
            json!(1.5),
            json!(1),
            "more than 1",
        ),
        (
            json!({"exclusiveMaximum": 1}),
            json!(0),
            json!(1),
            "less than 1",
        ),
        (
            json!({"minLength": 2}),
            json!("äö"),
            json!("ä"),
            "at least 2 characters",
        ),
        (
            json!({"maxLength": 1}),
            json!("ä"),
            json!("äö"),
            "at most 1 characters",
        ),
        (
            json!({"pattern": "^a+$"}),
            json!("aa"),
            json!("b"),
            "pattern",
        ),
        (
            json!({"minItems": 1}),
            json!([1]),
            json!([]),
            "at least 1 items",
        ),
        (
            json!({"maxItems": 1}),
            json!([1]),
            json!([1, 2]),
            "at most 1 items",
        ),
        (
            json!({"uniqueItems": true}),
            json!([1, 2]),
            json!([1, 1]),
            "twice",
        ),
        (
            json!({"items": {"type": "string"}}),
            json!(["a"]),
            json!(["a", 1]),
            "\"[1]\"",
        ),
        (
            json!({"required": ["a"]}),
            json!({"a": 1}),
            json!({}),
            "\"a\" is missing",
        ),
        (
            json!({"properties": {"a": false}}),
            json!({"b": 1}),
            json!({"a": 1}),
            "absent",
        ),
        (
            json!({"additionalProperties": {"type": "null"}}),
            json!({"a": null}),
            json!({"a": 1}),
            "\"a\"",
        ),
        (
            json!({"not": {"type": "null"}}),
            json!(1),
            json!(null),
            "another form",
        ),
        (
            json!({"oneOf": [{"minimum": 1}, {"maximum": 2}]}),
            json!(0),
            json!(1),
            "oneOf",
        ),
        (
            json!({"allOf": [{"minimum": 1}, {"maximum": 2}]}),
            json!(2),
            json!(3),
            "at most 2",
        ),
        (
            json!({"anyOf": [{"const": 1}, {"const": 2}]}),
            json!(2),
            json!(3),
            "anyOf",
        ),
        (tree, node, json!({"n": 1, "m": 2}), "unknown field \"m\""),
        (
            rows,
            json!({"rows": []}),
            json!({"rows": [{}]}),
            "\"rows[0].n\" is missing",
        ),
    ] {
        let schema = Schema::of_answer(schema).unwrap();
        assert_eq!(schema.check(&good), Ok(()), "{}", schema.value());
        let said = schema.check(&bad).unwrap_err();
        assert!(said.contains(says), "{}: {said}", schema.value());
    }
}

#[test]
fn schema_that_cannot_be_checked_is_refused() {
    for (schema, word) in [
        (json!({"if": {}}), "if"),
        (
            json!({"properties": {"a": {"patternProperties": {}}}}),
            "patternProperties",
        ),
        (json!({"anyOf": [{"contains": {}}]}), "contains"),
        (json!({"$ref": "https://example.com/schema"}), "$ref"),
        (json!({"pattern": "(?=x)"}), "pattern"),
        (json!({"type": "text"}), "type"),
        (json!({"minimum": "1"}), "minimum"),
        (json!({"items": [{}]}), "items"),
        (json!({"anyOf": [1]}), "no schema"),
        (json!([]), "not a JSON object"),
    ] {
        let said = Schema::of_answer(schema.clone()).err().unwrap_or_default();
        assert!(said.contains(word), "{schema}: {said}");
    }
    let endless = Schema::of_answer(json!({"$ref": "#"})).unwrap();
    assert!(endless.check(&json!(1)).is_err());
}
