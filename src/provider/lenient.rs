//! Reads responses that deviate from the API: a text in parts, a number as text, a value of the wrong type.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// How a [`Lossy`] reads a value of the wrong type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// As an error, which is faster.
    Strict,
    /// As absent.
    Lenient,
    /// As absent, after broken JSON (such as an unpaired UTF-16 surrogate), an object or a list was dropped.
    Lost,
}

thread_local! {
    static READING: Cell<Reading> = const { Cell::new(Reading::Strict) };
}

/// Reads JSON text; `None` unless the whole text is readable.
pub(super) fn read_all<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    if let Ok(read) = serde_json::from_str(json) {
        return Some(read);
    }
    let (read, has_lost) = read_leniently(json);
    if has_lost { None } else { read.ok() }
}

/// Reads JSON text and skips its unreadable parts.
pub(super) fn read_some<'a, T: Deserialize<'a>>(json: &'a str) -> serde_json::Result<T> {
    read_leniently(json).0
}

/// Also returns whether broken JSON, an object or a list was dropped.
fn read_leniently<'a, T: Deserialize<'a>>(json: &'a str) -> (serde_json::Result<T>, bool) {
    READING.set(Reading::Lenient);
    let read = serde_json::from_str(json);
    (read, READING.replace(Reading::Strict) == Reading::Lost)
}

/// A value that counts as absent if it has the wrong type. In lenient mode it is first read as raw text, so that each type has
/// one reader: visitors for every JSON type made the binary 90 KB larger.
#[derive(Debug)]
pub(super) struct Lossy<T>(pub Option<T>);

impl<T> Default for Lossy<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Lossy<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if READING.get() == Reading::Strict {
            return Option::deserialize(deserializer).map(Self);
        }
        let raw = <&RawValue>::deserialize(deserializer)?;
        let read = serde_json::from_str(raw.get());
        let is_broken = read.as_ref().is_err_and(serde_json::Error::is_syntax);
        if is_broken || read.is_err() && raw.get().starts_with(['{', '[']) {
            READING.set(Reading::Lost);
        }
        Ok(Self(read.ok()))
    }
}

/// A text: a string, a list of parts, or empty. Some parts are thoughts.
#[derive(Debug, Default)]
pub(super) struct Text<'a> {
    pub text: Cow<'a, str>,
    pub thought: String,
}

/// A part of a text; its text may consist of parts again.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Part<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    thinking: Text<'a>,
}

impl Text<'_> {
    fn add(&mut self, text: &str) {
        if !text.is_empty() {
            self.text.to_mut().push_str(text);
        }
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text {
            text: Cow::Owned(text.to_owned()),
            thought: String::new(),
        })
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text {
            text: Cow::Borrowed(text),
            thought: String::new(),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let part = Part::deserialize(MapAccessDeserializer::new(map))?;
        let mut text = part.text;
        text.thought.push_str(&part.thinking.text);
        Ok(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut whole = Text::default();
        while let Some(part) = seq.next_element::<Text>()? {
            whole.add(&part.text);
            whole.thought.push_str(&part.thought);
        }
        Ok(whole)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Text::default())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Text::default())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

/// A count, written as an integer, a float or a text. A negative count is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count(pub Option<u64>);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // casts to int saturate
        let count = Amount::deserialize(deserializer)?
            .0
            .map(|amount| amount.max(0.0) as u64);
        Ok(Self(count))
    }
}

/// An amount, written as an integer, a float or a text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Amount(pub Option<f64>);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Text(String),
        }
        let written = Lossy::<Written>::deserialize(deserializer)?.0;
        Ok(Self(written.and_then(|written| match written {
            Written::Number(number) => Some(number),
            Written::Text(text) => serde_json::from_str(text.trim()).ok(),
        })))
    }
}
