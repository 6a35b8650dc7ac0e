//! Reads the settings from JSON, and notes unknown names and the value that is refused.

use std::borrow::Cow;
use std::cell::RefCell;

use serde::de::value::{MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{Deserialize, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

use super::Config;
use super::check::{BadValue, INVALID, one_of};
use super::path::join;

/// Reads the settings. Returns also the paths of unknown names.
pub(super) fn read(json: &Value) -> Result<(Config, Vec<Vec<String>>), BadValue> {
    let (unknown, refused) = (RefCell::default(), RefCell::default());
    let read = Config::deserialize(Place {
        json,
        name: Cow::default(),
        above: None,
        unknown: &unknown,
        refused: &refused,
    });
    match (read, refused.into_inner()) {
        (Err(_), Some(bad)) => Err(bad),
        (read, _) => Ok((read.unwrap_or_default(), unknown.into_inner())),
    }
}

/// A value and its place in the settings.
struct Place<'a> {
    json: &'a Value,
    name: Cow<'a, str>,
    above: Option<&'a Self>,
    /// Paths of unknown names.
    unknown: &'a RefCell<Vec<Vec<String>>>,
    /// The innermost value that was refused.
    refused: &'a RefCell<Option<BadValue>>,
}

impl<'a> Place<'a> {
    fn below(&'a self, name: Cow<'a, str>, json: &'a Value) -> Self {
        let above = Some(self);
        Self {
            json,
            name,
            above,
            ..*self
        }
    }

    fn path(&self) -> Vec<String> {
        let mut path = self.above.map_or(Vec::new(), Self::path);
        path.extend(self.above.map(|_| self.name.clone().into_owned()));
        path
    }

    fn members(&'a self) -> impl Iterator<Item = (&'a str, Self)> {
        let members = self.json.as_object().into_iter().flatten();
        members.map(|(name, value)| (name.as_str(), self.below(name.into(), value)))
    }

    fn items(&'a self) -> impl Iterator<Item = Self> {
        let items = self.json.as_array().into_iter().flatten().enumerate();
        items.map(|(n, value)| self.below(n.to_string().into(), value))
    }

    /// Notes that the value is refused. The value itself is left out, because it may be a misplaced key.
    fn refuse(&self, what: &str, hint: String) -> Error {
        let (path, what) = (join(&self.path()), what.to_owned());
        let bad = BadValue { path, what, hint };
        self.refused.borrow_mut().get_or_insert(bad);
        Error::custom("")
    }

    fn wrong_type(&self, kind: &str) -> Error {
        self.refuse("has the wrong type", format!("use {kind}"))
    }

    /// Reads the value, which should be a `kind`.
    fn read<'de, V: Visitor<'de>>(&self, kind: &str, visitor: V) -> Result<V::Value, Error> {
        let read = match self.json {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_str(text),
            Value::Array(_) => visitor.visit_seq(SeqDeserializer::new(self.items())),
            Value::Object(_) => visitor.visit_map(MapDeserializer::new(self.members())),
        };
        read.map_err(|_| self.wrong_type(kind))
    }
}

impl IntoDeserializer<'_, Error> for Place<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Declares methods that read a value, with the words for what it should be.
macro_rules! kinds {
    ($($kind:literal: $($method:ident)*;)*) => {$($(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.read($kind, visitor)
        }
    )*)*};
}

impl<'de> Deserializer<'de> for Place<'_> {
    type Error = Error;

    kinds! {
        "true or false, without quotes": deserialize_bool;
        "an integer, 0 or more, without quotes": deserialize_u32 deserialize_u64;
        "a number, without quotes": deserialize_f64;
        "a list in brackets: [\"a\", \"b\"]": deserialize_seq;
        "an object in braces": deserialize_map;
        "another value": deserialize_any;
    }

    /// A number stands for its digits, such as the id of a user.
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.json {
            Value::Number(number) => visitor.visit_string(number.to_string()),
            _ => self.read("a string in double quotes", visitor),
        }
    }

    /// A list is refused, because a derived struct would take its items as fields.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &str,
        _: &[&str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.json {
            Value::Array(_) => Err(self.wrong_type("an object in braces")),
            _ => self.read("an object in braces", visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &str,
        known: &[&str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let word = StrDeserializer::new(self.json.as_str().unwrap_or_default());
        let read = visitor.visit_enum(word);
        read.map_err(|_: Error| self.refuse(INVALID, one_of(known)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.json {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    /// Called for names without a field.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.unknown.borrow_mut().push(self.path());
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 u8 u16 f32 char str bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct identifier
    }
}
