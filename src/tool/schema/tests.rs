//! Tables of schemas, values and the errors about them.

use super::*;
use serde_json::json;

#[test]
fn each_keyword_lets_in_what_fits_and_names_what_does_not() {
    // A schema, a value that fits, one that does not, and the complaint.
    for row in r##"
{"type": "integer"} | 2.0 | "2" | an integer, not "2"
{"type": ["string", "null"]} | null | 1 | a string or a null
{"enum": ["a", 1]} | 1 | "A" | one of "a", 1
{"const": "ok"} | "ok" | "OK" | must be "ok"
{"minimum": 1} | 1 | 0 | at least 1
{"maximum": 1} | 1 | 2 | at most 1
{"exclusiveMinimum": 1} | 1.5 | 1 | more than 1
{"exclusiveMaximum": 1} | 0 | 1 | less than 1
{"minLength": 2} | "äö" | "ä" | at least 2 characters
{"maxLength": 1} | "ä" | "äö" | at most 1 characters
{"pattern": "^a+$"} | "aa" | "b" | pattern
{"minItems": 1} | [1] | [] | at least 1 items
{"maxItems": 1} | [1] | [1, 2] | at most 1 items
{"uniqueItems": true} | [1, 2] | [1, 1] | twice
{"items": {"type": "string"}} | ["a"] | ["a", 1] | "[1]"
{"required": ["a"]} | {"a": 1} | {} | "a" is missing
{"properties": {"a": false}} | {"b": 1} | {"a": 1} | absent
{"additionalProperties": {"type": "null"}} | {"a": null} | {"a": 1} | "a"
{"not": {"type": "null"}} | 1 | null | another form
{"oneOf": [{"minimum": 1}, {"maximum": 2}]} | 0 | 1 | oneOf
{"allOf": [{"minimum": 1}, {"maximum": 2}]} | 2 | 3 | at most 2
{"anyOf": [{"const": 1}, {"const": 2}]} | 2 | 3 | anyOf
{"properties": {"a": {}, "b": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "additionalProperties": false} | {"b": {"b": null}} | {"c": 2} | unknown field "c": known here are a, b
{"properties": {"rows": {"items": {"required": ["n"]}}}} | {"rows": []} | {"rows": [{}]} | "rows[0].n" is missing
"##
    .trim()
    .lines()
    {
        let cells: Vec<&str> = row.split(" | ").collect();
        let value = |n: usize| serde_json::from_str::<Value>(cells[n]).unwrap();
        let schema = Schema::of_answer(value(0)).unwrap();
        assert_eq!(schema.check(&value(1)), Ok(()), "{row}");
        let said = schema.check(&value(2)).unwrap_err();
        assert!(said.contains(cells[3]), "{row}: {said}");
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
