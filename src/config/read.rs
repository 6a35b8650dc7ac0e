//! Reads JSON text straight into the structs of [`super::settings`]: each value into its field, over what is there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::Config;
use super::setting::Type;
use crate::child::{Network, Sandbox};
use crate::redact::Redact;
use crate::secret::Secret;

/// Reads `text` into `config`. Returns whether it has names that are no settings.
pub(super) fn read(text: &str, config: &mut Config) -> serde_json::Result<bool> {
    let is_unknown = Cell::new(false);
    let mut json = serde_json::Deserializer::from_slice(text.as_bytes());
    let fill = Fill {
        place: config,
        is_unknown: &is_unknown,
    };
    fill.deserialize(&mut json)?;
    json.end()?;
    Ok(is_unknown.get())
}

/// A struct of settings and sections.
pub(super) trait Section: Default {
    /// Reads the next value of `members` into the field of this name, in any spelling.
    fn read<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        members: &mut Members<'_, A>,
    ) -> Result<(), A::Error>;
}

/// The members of an object.
pub(super) struct Members<'a, A> {
    json: A,
    is_unknown: &'a Cell<bool>,
}

impl<'de, A: MapAccess<'de>> Members<'_, A> {
    /// The next value, as a setting of this type; `None` for null, which stands for the default.
    pub(super) fn setting(&mut self, kind: Type) -> Result<Option<Value>, A::Error> {
        let value: Value = self.json.next_value()?;
        if value.is_null() {
            return Ok(None);
        }
        let checked = kind.check(value);
        checked
            .map(Some)
            .ok_or_else(|| A::Error::custom("a value is of another kind"))
    }

    /// Reads the next value into a section, a list or a map of sections.
    pub(super) fn section<T>(&mut self, place: &mut T) -> Result<(), A::Error>
    where
        for<'b> Fill<'b, T>: DeserializeSeed<'de, Value = ()>,
    {
        let is_unknown = self.is_unknown;
        self.json.next_value_seed(Fill { place, is_unknown })
    }

    pub(super) fn unknown(&mut self) -> Result<(), A::Error> {
        self.is_unknown.set(true);
        self.json.next_value::<IgnoredAny>().map(drop)
    }
}

/// Reads the next JSON value into `place`.
pub(super) struct Fill<'a, T> {
    place: &'a mut T,
    is_unknown: &'a Cell<bool>,
}

impl<'de, T: Section> DeserializeSeed<'de> for Fill<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, T: Section> Visitor<'de> for Fill<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    /// Null stands for the defaults.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, json: A) -> Result<(), A::Error> {
        let is_unknown = self.is_unknown;
        let mut members = Members { json, is_unknown };
        while let Some(name) = members.json.next_key::<String>()? {
            self.place.read(&name, &mut members)?;
        }
        Ok(())
    }
}

impl<'de, T: Section> DeserializeSeed<'de> for Fill<'_, Vec<T>> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(Entries(self))
    }
}

impl<'de, T: Section> DeserializeSeed<'de> for Fill<'_, BTreeMap<String, T>> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(Entries(self))
    }
}

/// Reads a list or a map of sections.
struct Entries<'a, T>(Fill<'a, T>);

impl<'de, T: Section> Visitor<'de> for Entries<'_, Vec<T>> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut json: A) -> Result<(), A::Error> {
        let Fill { place, is_unknown } = self.0;
        loop {
            let mut entry = T::default();
            let fill = Fill {
                place: &mut entry,
                is_unknown,
            };
            if json.next_element_seed(fill)?.is_none() {
                return Ok(());
            }
            place.push(entry);
        }
    }
}

impl<'de, T: Section> Visitor<'de> for Entries<'_, BTreeMap<String, T>> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut json: A) -> Result<(), A::Error> {
        let Fill { place, is_unknown } = self.0;
        while let Some(name) = json.next_key::<String>()? {
            let place = place.entry(name).or_default();
            json.next_value_seed(Fill { place, is_unknown })?;
        }
        Ok(())
    }
}

/// The type of a setting's field.
pub(super) trait Field: Sized {
    /// The value, which [`Type::check`] has accepted.
    fn from_checked(value: Value) -> Self;
}

impl Field for String {
    fn from_checked(value: Value) -> Self {
        match value {
            Value::String(text) => text,
            _ => Self::new(),
        }
    }
}

impl Field for Secret {
    fn from_checked(value: Value) -> Self {
        Self::new(String::from_checked(value))
    }
}

impl Field for bool {
    fn from_checked(value: Value) -> Self {
        value.as_bool().unwrap_or_default()
    }
}

impl Field for Option<bool> {
    fn from_checked(value: Value) -> Self {
        value.as_bool()
    }
}

impl Field for u64 {
    fn from_checked(value: Value) -> Self {
        value.as_u64().unwrap_or_default()
    }
}

impl Field for u32 {
    fn from_checked(value: Value) -> Self {
        Self::try_from(u64::from_checked(value)).unwrap_or(Self::MAX)
    }
}

impl Field for usize {
    fn from_checked(value: Value) -> Self {
        Self::try_from(u64::from_checked(value)).unwrap_or(Self::MAX)
    }
}

impl Field for f64 {
    fn from_checked(value: Value) -> Self {
        value.as_f64().unwrap_or_default()
    }
}

impl Field for Option<f64> {
    fn from_checked(value: Value) -> Self {
        value.as_f64()
    }
}

impl Field for Network {
    fn from_checked(value: Value) -> Self {
        match value.as_str() {
            Some("full") => Self::Full,
            Some("guarded") => Self::Guarded,
            _ => Self::None,
        }
    }
}

impl Field for Sandbox {
    fn from_checked(value: Value) -> Self {
        match value.as_str() {
            Some("auto") => Self::Auto,
            Some("off") => Self::Off,
            _ => Self::Require,
        }
    }
}

impl Field for Redact {
    fn from_checked(value: Value) -> Self {
        match value.as_str() {
            Some("keys") => Self::Keys,
            Some("off") => Self::Off,
            _ => Self::Secrets,
        }
    }
}

impl<T: Field> Field for Vec<T> {
    fn from_checked(value: Value) -> Self {
        match value {
            Value::Array(items) => items.into_iter().map(T::from_checked).collect(),
            _ => Self::new(),
        }
    }
}

impl<T: Field> Field for BTreeMap<String, T> {
    fn from_checked(value: Value) -> Self {
        let members = Map::from_checked(value).into_iter();
        members
            .map(|(name, value)| (name, T::from_checked(value)))
            .collect()
    }
}

impl Field for Map<String, Value> {
    fn from_checked(value: Value) -> Self {
        match value {
            Value::Object(members) => members,
            _ => Self::new(),
        }
    }
}
