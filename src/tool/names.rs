//! Names of tools and arguments that models know from other programs.

use serde_json::Value;

/// Tools, and their names in other programs. docs/coming-from.md has the same table.
const TOOLS: &str = "\
exec: bash sh shell terminal command run_command run_shell_command execute_command execute_bash run_terminal_cmd \
local_shell python glob find
read_file: read file_read view view_file cat open_file
write_file: write file_write create_file write_to_file save_file
edit_file: edit file_edit replace str_replace str_replace_editor str_replace_based_edit_tool replace_in_file \
search_replace apply_patch multi_edit
list_dir: ls file_list list_files list_directory tree
grep: grep_search search_files search_file_content file_search codebase_search ripgrep
web_search: search google_search google_web_search
web_fetch: fetch http_get fetch_url read_url browse
subagent: task agent spawn run_skill create_subagent spawn_agent delegate_task
memory: save_memory remember recall memory_search
message: send_message notify send_file
cron: schedule schedule_task reminder
skill: use_skill load_skill";

/// Arguments, and their names in other programs.
const ARGUMENTS: &str = "\
path: file_path file filename
working_dir: cwd workdir
command: cmd
content: text contents file_text
old_text: old_string old_str
new_text: new_string new_str
key: name";

/// Arguments that comment on a call without effect.
const COMMENTS: [&str; 4] = ["description", "explanation", "reason", "justification"];

/// Returns the rows of a table: a name, and its names in other programs.
fn rows(table: &'static str) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let rows = table.lines().filter_map(|line| line.split_once(": "));
    rows.map(|(name, others)| (name, others.split(' ').collect()))
}

/// Returns the tool for a name from another program.
pub(crate) fn known_elsewhere(name: &str) -> Option<&'static str> {
    let is_known = |others: &[&str]| others.iter().any(|other| other.eq_ignore_ascii_case(name));
    let row = rows(TOOLS).find(|(_, others)| is_known(others));
    row.map(|(tool, _)| tool)
}

/// Whether a key of a call is this argument's name in another program.
pub(super) fn is_argument(key: &str, name: &str) -> bool {
    let others = rows(ARGUMENTS).filter(|(known, _)| *known == name);
    let mut names = others.flat_map(|(_, others)| others);
    names.any(|name| has_same_letters(key, name))
}

/// Whether an argument comments on its call without effect.
pub(super) fn is_comment(name: &str, value: &Value) -> bool {
    value.is_null() || COMMENTS.contains(&name)
}

/// Whether two names differ only in style: `filePath`, `file-path` and `file_path`.
pub(super) fn has_same_letters(a: &str, b: &str) -> bool {
    fn letters(name: &str) -> impl Iterator<Item = char> {
        let chars = name.chars().filter(|c| !matches!(c, '_' | '-'));
        chars.map(|c| c.to_ascii_lowercase())
    }
    letters(a).eq(letters(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_newcomers_has_the_names_of_the_table() {
        let page = include_str!("../../docs/coming-from.md");
        for (tool, others) in rows(TOOLS) {
            let names: Vec<String> = others.iter().map(|name| format!("`{name}`")).collect();
            let row = format!("| `{tool}` | {} |", names.join(" "));
            assert!(page.contains(&row), "docs/coming-from.md lacks: {row}");
        }
    }

    #[test]
    fn names_differ_in_style_or_by_program() {
        for (key, name) in [("filePath", "path"), ("Old-String", "old_text")] {
            assert!(is_argument(key, name), "{key}");
        }
        assert!(!is_argument("append", "path") && !is_argument("path", "content"));
        assert!(!has_same_letters("город", "улица"));
    }
}
