//! Checks an answer against a JSON Schema (draft 2020-12). Schemas with unsupported keywords are refused.

use regex_lite::Regex;
use serde_json::{Map, Value};

use crate::text::to_single_line;

/// Keywords that describe a value without restricting it.
const REMARKS: [&str; 12] = [
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
    "$anchor",
];
/// Maximum nesting depth of an answer and the references of its schema. JSON is parsed to a depth of 128.
const MAX_DEPTH: usize = 256;

/// A schema that uses only supported keywords.
pub(super) struct JsonSchema(Value);

impl JsonSchema {
    /// Creates a schema.
    ///
    /// # Errors
    /// Returns a description of the error, or of the unsupported keyword.
    pub(super) fn new(schema: Value) -> Result<Self, String> {
        if !schema.is_object() {
            return Err("it is not a JSON object".to_owned());
        }
        refuse_unknown(&schema, &schema)?;
        Ok(Self(schema))
    }

    pub(super) fn value(&self) -> &Value {
        &self.0
    }

    /// Checks an answer.
    ///
    /// # Errors
    /// Returns the first error, with its path, such as `"items[2].n" must be an integer, not "2"`.
    pub(super) fn check(&self, answer: &Value) -> Result<(), String> {
        let at = Place {
            root: &self.0,
            path: String::new(),
            depth: 0,
        };
        at.check(&self.0, answer)
    }
}

/// Returns an error for an unsupported keyword, an unknown reference, or an invalid pattern.
fn refuse_unknown(root: &Value, schema: &Value) -> Result<(), String> {
    let rules = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(rules) => rules,
        other => {
            return Err(format!(
                "{} is no schema",
                to_single_line(&other.to_string(), 80)
            ));
        }
    };
    for (keyword, rule) in rules {
        let is_understood = match keyword.as_str() {
            "properties" | "$defs" | "definitions" => {
                let mut schemas = rule.as_object().into_iter().flat_map(Map::values);
                schemas.try_for_each(|schema| refuse_unknown(root, schema))?;
                rule.is_object()
            }
            "anyOf" | "oneOf" | "allOf" => {
                let mut schemas = rule.as_array().into_iter().flatten();
                schemas.try_for_each(|schema| refuse_unknown(root, schema))?;
                rule.is_array()
            }
            "items" | "additionalProperties" | "not" => {
                refuse_unknown(root, rule)?;
                true
            }
            "$ref" => find_schema(root, rule).is_some(),
            "pattern" => rule.as_str().is_some_and(|rule| Regex::new(rule).is_ok()),
            "type" => type_names(rule).is_some(),
            "enum" | "required" => rule.is_array(),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => rule.is_number(),
            "minLength" | "maxLength" | "minItems" | "maxItems" => rule.is_u64(),
            "uniqueItems" => rule.is_boolean(),
            "const" => true,
            keyword => REMARKS.contains(&keyword),
        };
        if !is_understood {
            return Err(format!(
                "\"{}\": {} cannot be checked",
                to_single_line(keyword, 40),
                to_single_line(&rule.to_string(), 80)
            ));
        }
    }
    Ok(())
}

/// Resolves a `$ref` into the same file: `#`, or a JSON pointer such as `#/$defs/Item`.
fn find_schema<'a>(root: &'a Value, reference: &Value) -> Option<&'a Value> {
    root.pointer(reference.as_str()?.strip_prefix('#')?)
}

/// Returns the types of a `type`; `None` if one is not a JSON type.
fn type_names(rule: &Value) -> Option<Vec<&str>> {
    let names = match rule {
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        name => name.as_str().map(|name| vec![name]),
    };
    let is_type = |name: &&str| {
        matches!(
            *name,
            "object" | "array" | "string" | "integer" | "number" | "boolean" | "null"
        )
    };
    names.filter(|names: &Vec<&str>| names.iter().all(is_type))
}

/// Location of a value in the answer.
struct Place<'a> {
    root: &'a Value,
    /// Path, such as `items[2].n`; empty for the whole answer.
    path: String,
    depth: usize,
}

impl Place<'_> {
    /// Checks the value at this place.
    fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        if self.depth > MAX_DEPTH {
            return Err("the schema refers to itself without end".to_owned());
        }
        match schema {
            Value::Object(rules) => {
                let mut rules_of_value = rules.iter();
                rules_of_value
                    .try_for_each(|(keyword, rule)| self.check_rule(rules, (keyword, rule), value))
            }
            Value::Bool(false) => Err(self.wrong("absent", value)),
            _ => Ok(()),
        }
    }

    fn check_rule(
        &self,
        rules: &Map<String, Value>,
        (keyword, rule): (&str, &Value),
        value: &Value,
    ) -> Result<(), String> {
        let schemas = || rule.as_array().into_iter().flatten();
        let fits = |schema: &&Value| self.same().check(schema, value).is_ok();
        match (keyword, value) {
            ("$ref", _) => {
                let schema = find_schema(self.root, rule).unwrap_or(&Value::Null);
                self.same().check(schema, value)
            }
            ("allOf", _) => schemas().try_for_each(|schema| self.same().check(schema, value)),
            ("anyOf", _) if !schemas().any(|schema| fits(&schema)) => {
                Err(self.wrong("of one of the forms of \"anyOf\"", value))
            }
            ("oneOf", _) if schemas().filter(fits).count() != 1 => {
                Err(self.wrong("of exactly one of the forms of \"oneOf\"", value))
            }
            ("not", _) if fits(&rule) => Err(self.wrong("of another form", value)),
            ("required", Value::Object(given)) => {
                let mut names = schemas().filter_map(Value::as_str);
                match names.find(|name| !given.contains_key(*name)) {
                    Some(name) => Err(format!("\"{}\" is missing", self.field(name).path)),
                    None => Ok(()),
                }
            }
            ("properties", Value::Object(given)) => given.iter().try_for_each(|(name, value)| {
                let schema = rule.get(name).unwrap_or(&Value::Null);
                self.field(name).check(schema, value)
            }),
            ("additionalProperties", Value::Object(given)) => {
                let named = rules.get("properties").and_then(Value::as_object);
                let is_more = |name: &str| !named.is_some_and(|named| named.contains_key(name));
                let mut more = given.iter().filter(|(name, _)| is_more(name));
                more.try_for_each(|(name, value)| self.field(name).check(rule, value))
            }
            ("items", Value::Array(list)) => {
                let mut items = list.iter().enumerate();
                items.try_for_each(|(n, value)| self.at(&format!("[{n}]")).check(rule, value))
            }
            _ => match expected(keyword, rule, value) {
                Some(expected) => Err(self.wrong(&expected, value)),
                None => Ok(()),
            },
        }
    }

    /// Returns this place, one reference or choice deeper.
    fn same(&self) -> Self {
        self.at("")
    }

    /// Returns the place of a field of this object.
    fn field(&self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.at(&format!("{dot}{}", to_single_line(name, 40)))
    }

    fn at(&self, below: &str) -> Self {
        Self {
            root: self.root,
            path: format!("{}{below}", self.path),
            depth: self.depth + 1,
        }
    }

    fn wrong(&self, expected: &str, value: &Value) -> String {
        let what = match self.path.as_str() {
            "" => "the answer".to_owned(),
            path => format!("\"{path}\""),
        };
        let value = to_single_line(&value.to_string(), 80);
        format!("{what} must be {expected}, not {value}")
    }
}

/// Returns the requirement of a keyword that the value does not meet.
fn expected(keyword: &str, rule: &Value, value: &Value) -> Option<String> {
    let (number, limit) = (value.as_f64(), rule.as_f64());
    let is_number = |is_wrong: fn(&f64, &f64) -> bool| {
        number
            .zip(limit)
            .is_some_and(|(number, limit)| is_wrong(&number, &limit))
    };
    let characters = value.as_str().map(|text| text.chars().count() as u64);
    let items = value.as_array().map(|list| list.len() as u64);
    let size = rule.as_u64().unwrap_or_default();
    let expected = match keyword {
        "type" if !type_names(rule)?.iter().any(|name| has_type(value, name)) => {
            format!("of the type {}", type_names(rule)?.join(" or "))
        }
        "enum" if !rule.as_array()?.contains(value) => {
            format!("one of {}", to_single_line(&rule.to_string(), 400))
        }
        "const" if rule != value => to_single_line(&rule.to_string(), 400),
        "minimum" if is_number(f64::lt) => format!("at least {rule}"),
        "maximum" if is_number(f64::gt) => format!("at most {rule}"),
        "exclusiveMinimum" if is_number(f64::le) => format!("more than {rule}"),
        "exclusiveMaximum" if is_number(f64::ge) => format!("less than {rule}"),
        "minLength" if characters? < size => format!("at least {size} characters long"),
        "maxLength" if characters? > size => format!("at most {size} characters long"),
        "minItems" if items? < size => format!("at least {size} items long"),
        "maxItems" if items? > size => format!("at most {size} items long"),
        "uniqueItems" if *rule == Value::Bool(true) && has_twins(value.as_array()?) => {
            "without an item that comes twice".to_owned()
        }
        "pattern" if !Regex::new(rule.as_str()?).ok()?.is_match(value.as_str()?) => {
            format!("of the pattern {}", to_single_line(rule.as_str()?, 200))
        }
        _ => return None,
    };
    Some(expected)
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        // 2.0 is also an integer.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => value.is_null(),
    }
}

fn has_twins(list: &[Value]) -> bool {
    (1..)
        .zip(list)
        .any(|(next, item)| list[next..].contains(item))
}

#[cfg(test)]
mod tests {
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
        for (schema, good, bad, says) in [
            (
                json!({"type": "integer"}),
                json!(2.0),
                json!("2"),
                "type integer",
            ),
            (
                json!({"type": ["string", "null"]}),
                json!(null),
                json!(1),
                "string or null",
            ),
            (
                json!({"enum": ["a", 1]}),
                json!(1),
                json!("b"),
                "one of [\"a\",1]",
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
                "\"a\" must be absent",
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
            (
                tree.clone(),
                json!({"n": 1, "next": {"n": 2, "next": null}}),
                json!({"n": 1, "m": 2}),
                "\"m\"",
            ),
        ] {
            let schema = JsonSchema::new(schema).unwrap();
            assert_eq!(schema.check(&good), Ok(()), "{}", schema.value());
            let said = schema.check(&bad).unwrap_err();
            assert!(said.contains(says), "{}: {said}", schema.value());
        }
        let below = json!({"properties": {"rows": {"items": {"required": ["n"]}}}});
        let below = JsonSchema::new(below).unwrap();
        let said = below.check(&json!({"rows": [{}]}));
        assert_eq!(said, Err("\"rows[0].n\" is missing".to_owned()));
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
            (json!({"$ref": "#/$defs/none"}), "$ref"),
            (json!({"$ref": "https://example.com/schema"}), "$ref"),
            (json!({"pattern": "(?=x)"}), "pattern"),
            (json!({"type": "text"}), "type"),
            (json!({"minimum": "1"}), "minimum"),
            (json!({"items": [{}]}), "no schema"),
            (json!([]), "not a JSON object"),
        ] {
            let said = JsonSchema::new(schema.clone()).err().unwrap_or_default();
            assert!(said.contains(word), "{schema}: {said}");
        }
        let endless = JsonSchema::new(json!({"$ref": "#"})).unwrap();
        let said = endless.check(&json!(1)).unwrap_err();
        assert!(said.contains("without end"), "{said}");
    }
}
