//! Checks arguments and answers against a JSON Schema (draft 2020-12).
//!
//! Errors quote values whole, because the caller removes secrets before it cuts.

use regex_lite::Regex;
use serde_json::{Map, Value};

/// Types of JSON.
const TYPES: [&str; 7] = [
    "object", "array", "string", "integer", "number", "boolean", "null",
];
/// Keywords whose value is an object of schemas by name.
pub(super) const MAPS: &str = "properties patternProperties dependentSchemas $defs definitions";
/// Keywords whose value is a list of schemas.
pub(super) const LISTS: &str = "allOf anyOf oneOf prefixItems";
/// Keywords whose value is a schema.
pub(super) const SINGLE: &str = "items additionalItems unevaluatedItems contains additionalProperties \
    unevaluatedProperties propertyNames not if then else";
/// Maximum nesting depth of a value and the references of its schema. JSON is parsed to a depth of 128.
const MAX_DEPTH: usize = 256;

/// Whether a list of keywords has this one.
pub(super) fn is_one_of(list: &str, keyword: &str) -> bool {
    list.split(' ').any(|other| other == keyword)
}

/// A schema, and what it describes.
pub(crate) struct Schema {
    pub(super) root: Value,
    /// Keywords that are not checked.
    pub(super) unchecked: &'static str,
}

impl Schema {
    /// Creates the schema of an answer.
    ///
    /// # Errors
    /// Returns a description of the error, or of the unsupported keyword.
    pub(crate) fn of_answer(schema: Value) -> Result<Self, String> {
        if !schema.is_object() {
            return Err("it is not a JSON object".to_owned());
        }
        refuse_unknown(&schema, &schema)?;
        Ok(Self {
            root: schema,
            unchecked: "",
        })
    }

    pub(crate) fn value(&self) -> &Value {
        &self.root
    }

    /// Checks a value.
    ///
    /// # Errors
    /// Returns the first error, with its path, such as `"items[2].n" must be an integer, not "2"`.
    pub(crate) fn check(&self, value: &Value) -> Result<(), String> {
        let whole = Place {
            schema: self,
            path: String::new(),
            depth: 0,
        };
        whole.check(&self.root, value)
    }
}

/// Returns an error for an unsupported keyword, an unknown reference, or an invalid pattern.
fn refuse_unknown(root: &Value, schema: &Value) -> Result<(), String> {
    let rules = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(rules) => rules,
        other => return Err(format!("{other} is no schema")),
    };
    for (keyword, rule) in rules {
        let keyword = keyword.as_str();
        let is_found = match keyword {
            "$ref" => find_schema(root, rule).is_some(),
            "pattern" => rule.as_str().is_some_and(|rule| Regex::new(rule).is_ok()),
            _ => true,
        };
        if !is_found || is_of_its_kind(keyword, rule) != Some(true) {
            return Err(format!("\"{keyword}\": {rule} cannot be checked"));
        }
        let inner = match rule {
            Value::Object(schemas) if is_one_of(MAPS, keyword) => schemas.values().collect(),
            Value::Array(schemas) if is_one_of(LISTS, keyword) => schemas.iter().collect(),
            schema if is_one_of(SINGLE, keyword) => vec![schema],
            _ => Vec::new(),
        };
        inner
            .into_iter()
            .try_for_each(|schema| refuse_unknown(root, schema))?;
    }
    Ok(())
}

/// Whether the value of a keyword is of the right kind; `None` for a keyword that is not checked here.
pub(super) fn is_of_its_kind(keyword: &str, rule: &Value) -> Option<bool> {
    Some(match keyword {
        "type" => is_type(rule),
        "properties" | "$defs" | "definitions" => rule.is_object(),
        "allOf" | "anyOf" | "oneOf" | "enum" | "required" => rule.is_array(),
        "items" | "additionalProperties" | "not" => rule.is_object() || rule.is_boolean(),
        "$ref" | "pattern" | "format" | "title" | "description" | "$comment" => rule.is_string(),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => rule.is_number(),
        "minLength" | "maxLength" | "minItems" | "maxItems" => rule.is_u64(),
        "uniqueItems" => rule.is_boolean(),
        "const" | "default" | "examples" | "deprecated" | "readOnly" | "writeOnly" | "$schema"
        | "$id" | "$anchor" => true,
        _ => return None,
    })
}

/// Resolves a `$ref` into the same schema: `#`, or a JSON pointer such as `#/$defs/Item`.
fn find_schema<'a>(root: &'a Value, reference: &Value) -> Option<&'a Value> {
    root.pointer(reference.as_str()?.strip_prefix('#')?)
}

/// Whether a value of `type` is a type of JSON, or a list of them.
fn is_type(rule: &Value) -> bool {
    let is_name = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
    match rule {
        Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(is_name),
        kind => is_name(kind),
    }
}

/// Location of a value.
struct Place<'a> {
    schema: &'a Schema,
    /// Path, such as `items[2].n`; empty for the whole value.
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
            Value::Object(rules) => rules
                .iter()
                .filter(|(keyword, _)| !is_one_of(self.schema.unchecked, keyword))
                .try_for_each(|(keyword, _)| self.check_keyword(rules, keyword, value)),
            Value::Bool(false) => Err(self.wrong("absent", value)),
            _ => Ok(()),
        }
    }

    fn check_keyword(
        &self,
        rules: &Map<String, Value>,
        keyword: &str,
        value: &Value,
    ) -> Result<(), String> {
        let rule = &rules[keyword];
        let schemas = || rule.as_array().into_iter().flatten();
        let fits = |schema: &&Value| self.at("").check(schema, value).is_ok();
        match (keyword, value) {
            ("$ref", _) => {
                let schema = find_schema(&self.schema.root, rule).unwrap_or(&Value::Null);
                self.at("").check(schema, value)
            }
            ("allOf", _) => schemas().try_for_each(|schema| self.at("").check(schema, value)),
            ("anyOf", _) if !schemas().any(|schema| fits(&schema)) => {
                Err(self.wrong("of one of the forms of \"anyOf\"", value))
            }
            ("oneOf", _) if schemas().filter(fits).count() != 1 => {
                Err(self.wrong("of exactly one of the forms of \"oneOf\"", value))
            }
            ("not", _) if fits(&rule) => Err(self.wrong("of another form", value)),
            ("required", Value::Object(given)) => self.check_required(rules, given),
            ("properties", Value::Object(given)) => given.iter().try_for_each(|(name, value)| {
                let schema = rule.get(name).unwrap_or(&Value::Null);
                self.field(name).check(schema, value)
            }),
            ("additionalProperties", Value::Object(given)) => self.check_more(rules, given),
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

    fn check_required(
        &self,
        rules: &Map<String, Value>,
        given: &Map<String, Value>,
    ) -> Result<(), String> {
        let mut missing = words(&rules["required"]);
        missing.retain(|name| !given.contains_key(*name));
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.into_iter();
        let missing = missing.map(|name| format!("\"{}\" is missing", self.field(name).path));
        Err(missing.collect::<Vec<_>>().join("; "))
    }

    /// Checks the fields that `properties` does not declare.
    fn check_more(
        &self,
        rules: &Map<String, Value>,
        given: &Map<String, Value>,
    ) -> Result<(), String> {
        let rule = &rules["additionalProperties"];
        let declared = rules.get("properties").and_then(Value::as_object);
        for (name, value) in given {
            if declared.is_some_and(|declared| declared.contains_key(name)) {
                continue;
            }
            let field = self.field(name);
            if *rule != Value::Bool(false) {
                field.check(rule, value)?;
                continue;
            }
            let known = declared.into_iter().flat_map(Map::keys).cloned();
            let known = known.collect::<Vec<_>>().join(", ");
            let path = field.path;
            return Err(format!("unknown field \"{path}\": known here are {known}"));
        }
        Ok(())
    }

    /// Returns the place of a field of this object.
    fn field(&self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.at(&format!("{dot}{name}"))
    }

    /// Returns a place in this one; with an empty path, this place in a reference or a choice.
    fn at(&self, below: &str) -> Self {
        Self {
            schema: self.schema,
            path: format!("{}{below}", self.path),
            depth: self.depth + 1,
        }
    }

    fn wrong(&self, expected: &str, value: &Value) -> String {
        match self.path.as_str() {
            "" => format!("it must be {expected}, not {value}"),
            path => format!("\"{path}\" must be {expected}, not {value}"),
        }
    }
}

/// Returns the requirement of a keyword that the value does not meet.
fn expected(keyword: &str, rule: &Value, value: &Value) -> Option<String> {
    let numbers = value.as_f64().zip(rule.as_f64());
    let is_number =
        |is_wrong: fn(&f64, &f64) -> bool| numbers.is_some_and(|(n, limit)| is_wrong(&n, &limit));
    let characters = value.as_str().map(|text| text.chars().count() as u64);
    let items = value.as_array().map(|list| list.len() as u64);
    let size = rule.as_u64();
    let expected = match keyword {
        "type" if is_type(rule) && !words(rule).iter().any(|kind| has_type(value, kind)) => {
            let described = |kind: &&str| match *kind {
                "array" | "integer" | "object" => format!("an {kind}"),
                kind => format!("a {kind}"),
            };
            let kinds: Vec<String> = words(rule).iter().map(described).collect();
            kinds.join(" or ")
        }
        "enum" if !rule.as_array()?.contains(value) => {
            let choices: Vec<String> = rule.as_array()?.iter().map(Value::to_string).collect();
            format!("one of {}", choices.join(", "))
        }
        "const" if rule != value => rule.to_string(),
        "minimum" if is_number(f64::lt) => format!("at least {rule}"),
        "maximum" if is_number(f64::gt) => format!("at most {rule}"),
        "exclusiveMinimum" if is_number(f64::le) => format!("more than {rule}"),
        "exclusiveMaximum" if is_number(f64::ge) => format!("less than {rule}"),
        "minLength" if characters? < size? => format!("at least {rule} characters long"),
        "maxLength" if characters? > size? => format!("at most {rule} characters long"),
        "minItems" if items? < size? => format!("at least {rule} items long"),
        "maxItems" if items? > size? => format!("at most {rule} items long"),
        "uniqueItems" if *rule == Value::Bool(true) && has_twins(value.as_array()?) => {
            "without an item that comes twice".to_owned()
        }
        // A pattern that this engine does not support, such as look-around, is left to the tool.
        "pattern" if !Regex::new(rule.as_str()?).ok()?.is_match(value.as_str()?) => {
            format!("of the pattern {}", rule.as_str()?)
        }
        _ => return None,
    };
    Some(expected)
}

pub(super) fn has_type(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64() || whole_number(value).is_some(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => value.is_null(),
    }
}

/// Returns a number without a fraction, such as 5.0, as an integer.
pub(super) fn whole_number(value: &Value) -> Option<Value> {
    let number = value.as_f64()?.to_string().parse::<i64>().ok()?;
    Some(number.into())
}

fn has_twins(list: &[Value]) -> bool {
    (1..)
        .zip(list)
        .any(|(next, item)| list[next..].contains(item))
}

/// Returns a word or a list of words, such as the value of `type` or `required`.
pub(super) fn words(rule: &Value) -> Vec<&str> {
    match rule {
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect(),
        word => word.as_str().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests;
