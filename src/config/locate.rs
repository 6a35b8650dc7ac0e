//! Finds positions in JSON text, for error messages: `serde_json` knows those of syntax errors, but not those of values.

use serde_json::{Deserializer, Value};

/// Line and column, from 1, of the value at `path` in valid JSON.
pub(super) fn position(text: &str, path: &[&str]) -> Option<(usize, usize)> {
    let at = path
        .iter()
        .try_fold(value_after(text, 0), |at, name| member(text, at, name))?;
    let line_start = text[..at].rfind('\n').map_or(0, |n| n + 1);
    Some((
        text[..at].matches('\n').count() + 1,
        text[line_start..at].chars().count() + 1,
    ))
}

/// The offset of a member of the object or list at `at`.
fn member(text: &str, at: usize, name: &str) -> Option<usize> {
    let is_object = text[at..].starts_with('{');
    let mut at = value_after(text, at + 1);
    for index in 0_usize.. {
        if text[at..].starts_with([']', '}']) {
            break;
        }
        let mut key = index.to_string();
        if is_object {
            let (name, end) = read(text, at)?;
            (key, at) = (name.as_str()?.to_owned(), value_after(text, end));
        }
        if name == key {
            return Some(at);
        }
        at = value_after(text, read(text, at)?.1);
    }
    None
}

/// The value at `at`, and the offset of its end.
fn read(text: &str, at: usize) -> Option<(Value, usize)> {
    let mut values = Deserializer::from_slice(&text.as_bytes()[at..]).into_iter();
    let value = values.next()?.ok()?;
    Some((value, at + values.byte_offset()))
}

/// The offset of the next value or key.
fn value_after(text: &str, at: usize) -> usize {
    let is_between = |c: char| c.is_ascii_whitespace() || matches!(c, ',' | ':');
    text.len() - text[at..].trim_start_matches(is_between).len()
}

/// The last key before a line and a column, which count from 1.
pub(super) fn key_before(text: &str, line: usize, column: usize) -> Option<&str> {
    let start: usize = text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    let (before, _) = text.get(..start + column)?.rsplit_once("\":")?;
    before.rsplit('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_keys_are_found() {
        let text = "{\"a\": [1, {\"b\\\"c\": \"é\"},\n [true]],\n\"d\": null}";
        let at = |path: &[&str]| position(text, path);
        assert_eq!(at(&["a"]), Some((1, 7)));
        assert_eq!(at(&["a", "1", "b\"c"]), Some((1, 20)));
        assert_eq!(at(&["a", "2", "0"]), Some((2, 3)));
        assert_eq!(at(&["d"]), Some((3, 6)));
        assert_eq!(at(&["x"]), None);
        assert_eq!(
            (key_before(text, 3, 8), key_before(text, 1, 3)),
            (Some("d"), None)
        );
    }
}
