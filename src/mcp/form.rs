//! What a server asks of the user in the middle of a call (`elicitation/create`, forms only): a message and a few fields.
//!
//! The answer comes from a person who sees all of it, never from the model.

use serde_json::{Map, Number, Value};

use crate::text::{clip, one_line};

/// What a person reads before the first field, and the most fields and choices that they are asked about.
const MAX_MESSAGE: usize = 2_000;
const MAX_FIELDS: usize = 20;
const MAX_CHOICES: usize = 100;
/// The longest name of a field and the longest text of a choice or a default, in bytes.
const MAX_WORDS: usize = 200;

/// Asks a person until the call is over; the text is the server's name.
pub(crate) type Ask = dyn Fn(&str, &Form, &dyn Fn() -> bool) -> Reply + Send + Sync;

/// A form as a server wants it to be filled in.
pub(crate) struct Form {
    pub message: String,
    pub fields: Vec<Field>,
}

/// What becomes of it.
#[derive(Debug, PartialEq)]
pub(crate) enum Reply {
    /// The person has agreed that this is sent.
    Accept(Map<String, Value>),
    /// They have said no.
    Decline,
    /// They have not said anything.
    Cancel,
}

impl Reply {
    /// As the protocol has it.
    pub(super) fn into_result(self) -> Value {
        let (action, content) = match self {
            Self::Accept(content) => ("accept", Some(content)),
            Self::Decline => ("decline", None),
            Self::Cancel => ("cancel", None),
        };
        let mut result = Map::new();
        result.insert("action".to_owned(), action.into());
        if let Some(content) = content {
            result.insert("content".to_owned(), content.into());
        }
        result.into()
    }
}

/// One value of a form.
pub(crate) struct Field {
    pub name: String,
    /// What the server says of it, in one line.
    pub about: String,
    pub is_required: bool,
    /// What an empty line stands for.
    pub default: Option<Value>,
    takes: Takes,
}

enum Takes {
    Text {
        least: u64,
        most: u64,
    },
    Number {
        is_whole: bool,
        least: f64,
        most: f64,
    },
    Flag,
    One(Vec<Choice>),
    Several {
        of: Vec<Choice>,
        least: u64,
        most: u64,
    },
}

struct Choice {
    value: String,
    title: String,
}

impl Form {
    /// # Errors
    /// Why it cannot be asked, in words for the server.
    pub(super) fn read(params: &Value) -> Result<Self, String> {
        let mode = params["mode"].as_str().unwrap_or("form");
        if mode != "form" {
            return Err(format!("mode {} is not offered", one_line(mode, 40)));
        }
        let schema = &params["requestedSchema"];
        let required: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let properties = schema["properties"].as_object();
        let fields = properties
            .into_iter()
            .flatten()
            .map(|(name, schema)| Field::read(name, schema, required.contains(&name.as_str())))
            .collect::<Result<Vec<Field>, String>>()?;
        if fields.len() > MAX_FIELDS {
            return Err(format!("a form has at most {MAX_FIELDS} fields here"));
        }
        let message = params["message"].as_str().unwrap_or_default().trim();
        Ok(Self {
            message: clip(message, MAX_MESSAGE).to_owned(),
            fields,
        })
    }
}

impl Field {
    fn read(name: &str, schema: &Value, is_required: bool) -> Result<Self, String> {
        let takes = Takes::read(schema)
            .filter(|_| !name.is_empty() && name.len() <= MAX_WORDS)
            .ok_or_else(|| format!("the field {} cannot be asked for here", one_line(name, 80)))?;
        let text = |key: &str| schema[key].as_str().unwrap_or_default().trim();
        let about = match (text("title"), text("description")) {
            ("", about) => about.to_owned(),
            (title, "") => title.to_owned(),
            (title, about) => format!("{title}: {about}"),
        };
        let is_short = |default: &&Value| shown(default).len() <= MAX_MESSAGE;
        let default = Some(&schema["default"]).filter(|default| takes.fits(default));
        let default = default.filter(is_short);
        Ok(Self {
            name: name.to_owned(),
            about: one_line(&about, 500),
            is_required,
            default: default.cloned(),
            takes,
        })
    }

    /// What may be typed, in a few words.
    pub(crate) fn takes(&self) -> String {
        match &self.takes {
            Takes::Text { .. } => String::new(),
            Takes::Number { is_whole: true, .. } => "a whole number".to_owned(),
            Takes::Number { .. } => "a number".to_owned(),
            Takes::Flag => "yes or no".to_owned(),
            Takes::One(choices) => format!("one of {}", listed(choices)),
            Takes::Several { of, .. } => format!("some of {}, with commas", listed(of)),
        }
    }

    /// The value that was typed; `None` if the field is left out.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn value(&self, typed: &str) -> Result<Option<Value>, String> {
        let typed = typed.trim();
        if typed.is_empty() {
            return match &self.default {
                None if self.is_required => Err("this field is required".to_owned()),
                default => Ok(default.clone()),
            };
        }
        let value = self.takes.parse(typed);
        value
            .filter(|value| self.takes.fits(value))
            .map(Some)
            .ok_or_else(|| self.takes.wanted())
    }
}

/// A value as a person types it.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(", "),
        value => value.to_string(),
    }
}

fn listed(choices: &[Choice]) -> String {
    let shown = choices.iter().map(|Choice { value, title }| {
        if title.is_empty() {
            one_line(value, MAX_WORDS)
        } else {
            one_line(&format!("{value} ({title})"), MAX_WORDS)
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

impl Takes {
    /// `None` for what the protocol does not have in a form.
    fn read(schema: &Value) -> Option<Self> {
        let whole = |key: &str| schema[key].as_u64();
        let number = |key: &str| schema[key].as_f64();
        Some(match schema["type"].as_str()? {
            "string" => match choices(schema, "oneOf")? {
                Some(choices) => Self::One(choices),
                None => Self::Text {
                    least: whole("minLength").unwrap_or(0),
                    most: whole("maxLength").unwrap_or(u64::MAX),
                },
            },
            kind @ ("number" | "integer") => Self::Number {
                is_whole: kind == "integer",
                least: number("minimum").unwrap_or(f64::NEG_INFINITY),
                most: number("maximum").unwrap_or(f64::INFINITY),
            },
            "boolean" => Self::Flag,
            "array" => Self::Several {
                of: choices(&schema["items"], "anyOf")??,
                least: whole("minItems").unwrap_or(0),
                most: whole("maxItems").unwrap_or(u64::MAX),
            },
            _ => return None,
        })
    }

    fn parse(&self, typed: &str) -> Option<Value> {
        match self {
            Self::Text { .. } => Some(typed.into()),
            Self::Number { is_whole: true, .. } => typed.parse::<i64>().ok().map(Value::from),
            Self::Number { .. } => typed
                .parse()
                .ok()
                .and_then(Number::from_f64)
                .map(Value::from),
            Self::Flag => match typed.to_ascii_lowercase().as_str() {
                "y" | "yes" | "true" => Some(true.into()),
                "n" | "no" | "false" => Some(false.into()),
                _ => None,
            },
            Self::One(choices) => chosen(choices, typed).map(Value::from),
            Self::Several { of, .. } => typed
                .split(',')
                .map(|one| chosen(of, one.trim()).map(Value::from))
                .collect(),
        }
    }

    fn fits(&self, value: &Value) -> bool {
        let is_choice = |choices: &[Choice], value: &Value| {
            choices.iter().any(|choice| *value == *choice.value)
        };
        match self {
            Self::Text { least, most } => value.as_str().is_some_and(|text| {
                let length = text.chars().count() as u64;
                *least <= length && length <= *most
            }),
            Self::Number {
                is_whole,
                least,
                most,
            } => {
                let is_kind = !is_whole || value.is_i64() || value.is_u64();
                is_kind && value.as_f64().is_some_and(|n| *least <= n && n <= *most)
            }
            Self::Flag => value.is_boolean(),
            Self::One(choices) => is_choice(choices, value),
            Self::Several { of, least, most } => value.as_array().is_some_and(|values| {
                let count = values.len() as u64;
                *least <= count && count <= *most && values.iter().all(|one| is_choice(of, one))
            }),
        }
    }

    fn wanted(&self) -> String {
        match self {
            Self::Text { least, most } => match (least, most) {
                (0, most) => format!("at most {most} characters"),
                (least, &u64::MAX) => format!("at least {least} characters"),
                (least, most) => format!("{least} to {most} characters"),
            },
            Self::Number { least, most, .. } => {
                let mut wanted = "it has to be a number".to_owned();
                if least.is_finite() {
                    wanted.push_str(&format!(", at least {least}"));
                }
                if most.is_finite() {
                    wanted.push_str(&format!(", at most {most}"));
                }
                wanted
            }
            Self::Flag => "yes or no".to_owned(),
            Self::One(choices) => format!("one of {}", listed(choices)),
            Self::Several { of, .. } => format!("some of {}, with commas between", listed(of)),
        }
    }
}

/// The value of a choice that was typed as it is, or by its title.
fn chosen(choices: &[Choice], typed: &str) -> Option<String> {
    let by_value = choices.iter().find(|choice| choice.value == typed);
    let is_named = |choice: &&Choice| {
        choice.value.eq_ignore_ascii_case(typed) || choice.title.eq_ignore_ascii_case(typed)
    };
    by_value
        .or_else(|| choices.iter().find(is_named))
        .map(|choice| choice.value.clone())
}

/// `Some(None)` for a schema that leaves the choice free, and `None` for one whose choices cannot be shown.
#[allow(clippy::option_option)]
fn choices(schema: &Value, titled: &str) -> Option<Option<Vec<Choice>>> {
    let (plain, titled) = (schema["enum"].as_array(), schema[titled].as_array());
    let names = schema["enumNames"].as_array();
    let Some(found) = plain.or(titled) else {
        return Some(None);
    };
    let choice = |(n, found): (usize, &Value)| {
        let value = found.as_str().or(found["const"].as_str())?;
        let name = names.and_then(|names| names.get(n)).and_then(Value::as_str);
        let title = found["title"].as_str().or(name).unwrap_or_default();
        (value.len() <= MAX_WORDS).then(|| Choice {
            value: value.to_owned(),
            title: clip(title, MAX_WORDS).to_owned(),
        })
    };
    let choices: Vec<Choice> = found
        .iter()
        .enumerate()
        .map(choice)
        .collect::<Option<_>>()?;
    (1..=MAX_CHOICES)
        .contains(&choices.len())
        .then_some(Some(choices))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(schema: &Value) -> Field {
        Field::read("x", schema, true).unwrap()
    }

    #[test]
    fn what_is_typed_becomes_a_value_of_the_kind_that_is_asked_for() {
        let titled = json!({"type": "string", "oneOf": [{"const": "a", "title": "Apple"}]});
        let several = json!({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1});
        for (schema, typed, expected) in [
            (json!({"type": "string"}), " hi ", Some(json!("hi"))),
            (json!({"type": "string", "minLength": 3}), "hi", None),
            (json!({"type": "integer"}), "7", Some(json!(7))),
            (json!({"type": "integer"}), "7.5", None),
            (
                json!({"type": "number", "maximum": 8}),
                "7.5",
                Some(json!(7.5)),
            ),
            (json!({"type": "number", "maximum": 7}), "7.5", None),
            (json!({"type": "number"}), "inf", None),
            (json!({"type": "boolean"}), "No", Some(json!(false))),
            (json!({"type": "boolean"}), "maybe", None),
            (
                json!({"type": "string", "enum": ["a", "b"]}),
                "b",
                Some(json!("b")),
            ),
            (json!({"type": "string", "enum": ["a", "b"]}), "c", None),
            (titled, "apple", Some(json!("a"))),
            (several.clone(), "b, a", Some(json!(["b", "a"]))),
            (several, "b, c", None),
        ] {
            let found = field(&schema).value(typed).ok().flatten();
            assert_eq!(found, expected, "{schema} {typed}");
        }
    }

    #[test]
    fn an_empty_line_is_the_default_and_a_default_of_the_wrong_kind_is_none() {
        let of = |default: Value| field(&json!({"type": "integer", "default": default}));
        assert_eq!(of(json!(30)).value(""), Ok(Some(json!(30))));
        assert!(of(json!("30")).value("").is_err());
        let optional = Field::read("x", &json!({"type": "string"}), false).unwrap();
        assert_eq!(optional.value(""), Ok(None));
    }

    #[test]
    fn what_nobody_could_be_asked_is_refused() {
        let property = |schema: Value| json!({"requestedSchema": {"properties": {"x": schema}}});
        for params in [
            json!({"mode": "url", "url": "https://site.example"}),
            property(json!({"type": "object"})),
            property(json!({"type": "string", "enum": []})),
            property(json!({"type": "string", "enum": [1]})),
            property(json!({})),
        ] {
            assert!(Form::read(&params).is_err(), "{params}");
        }
        assert!(Form::read(&json!({"message": "Go on?"})).is_ok());
    }
}
