//! Tables of schemas, values and the errors about them.

use super::*;
use serde_json::json;

fn fit(schema: &Value, args: Value, owner: Owner) -> Result<Value, String> {
    Schema::of_arguments(schema.clone(), owner).fit(args)
}

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
            "odd": {"type": "string", "pattern": "(?=x)"},
        },
    })
}

#[test]
fn obvious_mistakes_are_corrected() {
    for (given, taken) in [
        (json!({"limit": "5"}), json!({"limit": 5})),
        (json!({"limit": 5.0}), json!({"limit": 5})),
        (json!({"limit": " 5.0 "}), json!({"limit": 5})),
        (json!({"ratio": "0.5"}), json!({"ratio": 0.5})),
        (json!({"ratio": 2}), json!({"ratio": 2})),
        (json!({"deep": "True"}), json!({"deep": true})),
        (json!({"path": 7}), json!({"path": "7"})),
        (json!({"tags": "a"}), json!({"tags": ["a"]})),
        (json!({"tags": "[\"a\", 2]"}), json!({"tags": ["a", "2"]})),
        (json!({"tags": 3}), json!({"tags": ["3"]})),
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
        (json!({"oldText": "x"}), json!({"old_text": "x"})),
        (json!({"any": [{"x": null}]}), json!({"any": [{"x": null}]})),
        (json!({"odd": "y"}), json!({"odd": "y"})),
        (json!("{\"path\": \"p\"}"), json!({"path": "p"})),
    ] {
        assert_eq!(
            fit(&schema(), given.clone(), Owner::Program),
            Ok(taken),
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
            "\"limit\" must be at most 100, not 1e+300",
        ),
        (
            json!({"limit": "500"}),
            "\"limit\" must be at most 100, not 500",
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
        (
            json!({"edits": [{"to": "x", "at": 1}]}),
            "unknown argument \"edits[0].at\"",
        ),
        (
            json!({"limt": 5}),
            "unknown argument \"limt\"; did you mean \"limit\"?",
        ),
        (json!([1]), "the arguments must be an object, not [1]"),
    ] {
        let said = fit(&schema(), given, Owner::Program);
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
    let mut closed = schema;
    closed["additionalProperties"] = false.into();
    let refused = fit(&closed, json!({"why": "x"}), Owner::Server);
    assert!(refused.unwrap_err().contains("unknown argument \"why\""));
}
