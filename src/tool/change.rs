//! What a call of a file tool changes, as a person reads it.

use serde_json::Value;

/// The lines that a call takes away, with `-` before them, and those that it adds, with `+`. None for a tool that changes no file.
pub(super) fn lines(tool: &str, args: &Value) -> Vec<String> {
    let text = |name: &str| args.get(name).and_then(Value::as_str).unwrap_or_default();
    let (old, new) = match tool {
        "edit_file" => (text("old_text"), text("new_text")),
        "write_file" | "append_file" => ("", text("content")),
        _ => return Vec::new(),
    };
    let old: Vec<&str> = old.lines().collect();
    let new: Vec<&str> = new.lines().collect();
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(old, new)| old == new).count()
    };
    let start = same(&mut old.iter().zip(&new));
    let (old, new) = (&old[start..], &new[start..]);
    let end = same(&mut old.iter().rev().zip(new.iter().rev()));
    let removed = &old[..old.len() - end];
    let added = &new[..new.len() - end];
    let removed = removed.iter().map(|line| format!("-{line}"));
    removed
        .chain(added.iter().map(|line| format!("+{line}")))
        .collect()
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
}
