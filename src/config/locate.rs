//! Finds positions in JSON text, for error messages.
//!
//! `serde_json` knows the position of a syntax error but not the key, and no positions of values. Text that is not JSON is
//! walked as far as it makes sense.

/// Line and column, from 1, of the value at `path`.
pub(super) fn position(text: &str, path: &[String]) -> Option<(usize, usize)> {
    let mut found = None;
    walk(text, &mut |at, here| {
        if found.is_none() && here == path {
            found = Some(at);
        }
    });
    let before = &text[..found?];
    let line_start = before.rfind('\n').map_or(0, |n| n + 1);
    Some((before.matches('\n').count() + 1, before[line_start..].chars().count() + 1))
}

/// The path of the last value that begins before a line and column.
pub(super) fn last_path_before(text: &str, line: usize, column: usize) -> String {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let end = start + column;
    let mut last = String::new();
    walk(text, &mut |at, here| {
        if at < end {
            last = here.join(".");
        }
    });
    last
}

/// Calls `visit` with the offset and the path of each value.
fn walk(text: &str, visit: &mut dyn FnMut(usize, &[String])) {
    let bytes = text.as_bytes();
    // One entry for each open bracket; in an object the last part of the path is the key read last.
    let mut path: Vec<String> = Vec::new();
    let mut open: Vec<u8> = Vec::new();
    let mut wants_key = false;
    let mut at = 0;
    while at < bytes.len() {
        let b = bytes[at];
        match b {
            b'{' | b'[' => {
                visit(at, &path);
                open.push(b);
                wants_key = b == b'{';
                path.push(if wants_key { String::new() } else { "0".to_owned() });
                at += 1;
            }
            b'}' | b']' => {
                open.pop();
                path.pop();
                wants_key = false;
                at += 1;
            }
            b',' => {
                wants_key = open.last() == Some(&b'{');
                if let (false, Some(index)) = (wants_key, path.last_mut()) {
                    *index = (index.parse::<usize>().unwrap_or(0) + 1).to_string();
                }
                at += 1;
            }
            b'"' => {
                let end = string_end(bytes, at);
                if wants_key {
                    let name = serde_json::from_str(&text[at..end]).unwrap_or_else(|_| text[at..end].to_owned());
                    if let Some(last) = path.last_mut() {
                        *last = name;
                    }
                    wants_key = false;
                } else {
                    visit(at, &path);
                }
                at = end;
            }
            b':' | b' ' | b'\t' | b'\r' | b'\n' => at += 1,
            _ => {
                visit(at, &path);
                at += 1;
                while at < bytes.len() && !matches!(bytes[at], b',' | b']' | b'}' | b'"' | b' ' | b'\n' | b'\r' | b'\t')
                {
                    at += 1;
                }
                // Never stop inside a character.
                while !text.is_char_boundary(at) {
                    at += 1;
                }
            }
        }
    }
}

/// The offset after the string that begins at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < bytes.len() {
        match bytes[end] {
            b'\\' => end += 2,
            b'"' => return end + 1,
            _ => end += 1,
        }
    }
    // Unclosed.
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_paths_are_found() {
        let text = "{\"a\": [1, {\"b\\\"c\": \"é\"},\n [true]],\n\"d\": null}";
        let at = |path: &[&str]| position(text, &path.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>());
        assert_eq!(at(&["a"]), Some((1, 7)));
        assert_eq!(at(&["a", "1", "b\"c"]), Some((1, 20)));
        assert_eq!(at(&["a", "2", "0"]), Some((2, 3)));
        assert_eq!(at(&["d"]), Some((3, 6)));
        assert_eq!(at(&["x"]), None);
        assert_eq!(last_path_before(text, 2, 3), "a.2.0");
    }

    #[test]
    fn nonsense_is_walked_without_harm() {
        for text in ["", "]]}}", "\"", "\"\\", "{\"a", "日本{é", "[,,,", "{:}"] {
            walk(text, &mut |_, _| ());
            assert_eq!(position(text, &["nothing".to_owned()]), None);
        }
    }
}
