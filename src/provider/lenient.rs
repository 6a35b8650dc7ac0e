//! What hosts send where the API says something else: a text in parts, a number as text, a value of the wrong kind.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor};

thread_local! {
    /// Whether a [`Lossy`] has dropped an object or a list on this thread, which may have been broken JSON.
    static HAS_LOST: Cell<bool> = const { Cell::new(false) };
}

/// The result of reading JSON text, if all of it was read.
pub(super) fn complete<T, E>(result: Result<T, E>) -> Option<T> {
    let has_lost = HAS_LOST.take();
    result.ok().filter(|_| !has_lost)
}

/// A value; one of the wrong kind counts as absent.
#[derive(Debug)]
pub(super) struct Lossy<T>(pub Option<T>);

impl<T> Default for Lossy<T> {
    fn default() -> Self {
        Self(None)
    }
}

struct LossyVisitor<T>(PhantomData<T>);

/// Passes a scalar on.
macro_rules! scalar {
    ($name:ident, $kind:ty) => {
        fn $name<E: Error>(self, value: $kind) -> Result<Self::Value, E> {
            let value: Result<T, E> = T::deserialize(value.into_deserializer());
            Ok(Lossy(value.ok()))
        }
    };
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for LossyVisitor<T> {
    type Value = Lossy<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }

    scalar!(visit_bool, bool);
    scalar!(visit_i64, i64);
    scalar!(visit_u64, u64);
    scalar!(visit_f64, f64);
    scalar!(visit_str, &str);

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Self::Value, E> {
        let value: serde::de::value::BorrowedStrDeserializer<E> =
            serde::de::value::BorrowedStrDeserializer::new(value);
        Ok(Lossy(T::deserialize(value).ok()))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Lossy(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let value = T::deserialize(MapAccessDeserializer::new(&mut map));
        if value.is_err() {
            HAS_LOST.set(true);
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        }
        Ok(Lossy(value.ok()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let value = T::deserialize(SeqAccessDeserializer::new(&mut seq));
        if value.is_err() {
            HAS_LOST.set(true);
            while seq.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(Lossy(value.ok()))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Lossy<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LossyVisitor(PhantomData))
    }
}

/// A text: a string, parts of one, or nothing. Some parts are thoughts.
#[derive(Debug, Default)]
pub(super) struct Text<'a> {
    pub text: Cow<'a, str>,
    pub thought: String,
}

/// A part of a text; the text of one may have parts again.
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

/// A count, written as a number of either kind or as text. A negative one is 0.
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

/// An amount, written likewise.
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
