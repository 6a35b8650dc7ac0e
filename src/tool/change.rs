//! Changes that a call of a file tool makes, formatted for people.

use serde_json::Value;

use crate::text::{counted, size};

/// Maximum number of lines shown of a replaced file.
const MOST_REPLACED: usize = 12;

/// Returns the lines that a call removes, prefixed with `-`, and adds, prefixed with `+`. Empty for other tools.
pub(super) fn lines(tool: &str, args: &Value) -> Vec<String> {
    let text = |name: &str| args.get(name).and_then(Value::as_str).unwrap_or_default();
    let (old, new) = match tool {
        "edit_file" => (text("old_text"), text("new_text")),
        "write_file" | "append_file" => ("", text("content")),
        _ => return Vec::new(),
    };
    let (removed, added) = differing(old, new);
    marked(&removed, &added)
}

/// Returns the changes of a call that replaces a file with the content `old`, of which up to [`MOST_REPLACED`] lines are shown.
pub(super) fn replacing(old: &[u8], args: &Value) -> Vec<String> {
    let new = args.get("content").and_then(Value::as_str).unwrap_or("");
    let text = std::str::from_utf8(old).ok();
    let Some(text) = text.filter(|text| !text.contains('\0')) else {
        let removed = format!("[{}, not text]", size(old.len() as u64));
        return marked(&[&removed], &new.lines().collect::<Vec<_>>());
    };
    let (mut removed, added) = differing(text, new);
    let hidden = removed.len().saturating_sub(MOST_REPLACED);
    let more = format!("[and {}]", counted(hidden, "more line"));
    if hidden > 1 {
        removed.truncate(MOST_REPLACED);
        removed.push(&more);
    }
    marked(&removed, &added)
}

/// Returns the changes of a call that replaces a file which cannot be shown.
pub(super) fn unseen(why: &str, args: &Value) -> Vec<String> {
    let new = args.get("content").and_then(Value::as_str).unwrap_or("");
    let removed = format!("[the file that is there, not shown: {why}]");
    marked(&[&removed], &new.lines().collect::<Vec<_>>())
}

fn marked(removed: &[&str], added: &[&str]) -> Vec<String> {
    let removed = removed.iter().map(|line| format!("-{line}"));
    removed
        .chain(added.iter().map(|line| format!("+{line}")))
        .collect()
}

/// Returns the lines of both texts without their common start and end.
fn differing<'a>(old: &'a str, new: &'a str) -> (Vec<&'a str>, Vec<&'a str>) {
    let old: Vec<&str> = old.lines().collect();
    let new: Vec<&str> = new.lines().collect();
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(old, new)| old == new).count()
    };
    let start = same(&mut old.iter().zip(&new));
    let (old, new) = (&old[start..], &new[start..]);
    let end = same(&mut old.iter().rev().zip(new.iter().rev()));
    (
        old[..old.len() - end].to_vec(),
        new[..new.len() - end].to_vec(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_is_what_differs() {
        let edit =
            json!({"path": "a", "old_text": "one\ntwo\nthree", "new_text": "one\n2\n2b\nthree"});
        assert_eq!(lines("edit_file", &edit), ["-two", "+2", "+2b"]);
        let same = json!({"path": "a", "old_text": "x\nx", "new_text": "x\nx\nx"});
        assert_eq!(lines("edit_file", &same), ["+x"]);
        let write = json!({"path": "a", "content": "one\ntwo\n"});
        assert_eq!(lines("write_file", &write), ["+one", "+two"]);
        assert!(lines("read_file", &write).is_empty());
    }

    #[test]
    fn a_replaced_file_is_shown_up_to_a_limit() {
        let write = json!({"path": "a", "content": "one\n2\nthree\n"});
        assert_eq!(replacing(b"one\ntwo\nthree\n", &write), ["-two", "+2"]);
        assert_eq!(replacing(b"\xff\xff", &write)[0], "-[2 bytes, not text]");
        let new = json!({"path": "a", "content": "new"});
        let lines = replacing("old\n".repeat(100).as_bytes(), &new);
        assert_eq!(lines.len(), 14, "{lines:?}");
        assert_eq!(&lines[11..], ["-old", "-[and 88 more lines]", "+new"]);
    }
}
