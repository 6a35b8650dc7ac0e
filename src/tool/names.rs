//! Names of tools and arguments that models know from other programs.

use serde_json::{Map, Value};

use super::Owner;

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

/// Arguments of built-in tools, and their names in other programs.
const ARGUMENTS: &str = "\
path: file_path absolute_path target_file file filename dir directory dir_path folder
working_dir: cwd workdir working_directory dir directory path
command: cmd script
content: text contents file_text file_content body data note message
old_text: old_string old_str old search find
new_text: new_string new_str new replace replacement
pattern: query regex regexp search
glob: include file_pattern include_pattern
max: max_results max_matches limit head_limit
offset: start_line
limit: max_lines num_lines
timeout: timeout_seconds
query: q search_query
count: num_results max_results limit
url: uri link
max_chars: max_length
key: name title file filename path
task: prompt instructions goal
skill: skill_name
background: run_in_background is_background
message: prompt task text content
every_seconds: interval
cron_expr: cron schedule expression
file: path file_path attachment
at: time run_at
job_id: id
chat_id: chat to";

/// Arguments that comment on a call without effect.
const COMMENTS: [&str; 4] = ["description", "explanation", "reason", "justification"];

/// Returns the rows of a table: a name, and its names in other programs.
fn rows(table: &'static str) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let rows = table.lines().filter_map(|line| line.split_once(": "));
    rows.map(|(name, others)| (name, others.split(' ').collect()))
}

/// Removes text that models write around a tool's name: chat templates, parentheses, a number.
pub(crate) fn bare_name(name: &str) -> &str {
    let name = name.split("<|").next().unwrap_or_default();
    let name = name.trim().trim_end_matches("()");
    match name.rsplit_once(':') {
        Some((name, number)) if number.parse::<u32>().is_ok() => name,
        _ => name,
    }
}

/// Returns the tool for a name from another program.
pub(crate) fn known_elsewhere(name: &str) -> Option<&'static str> {
    let is_known = |others: &[&str]| others.iter().any(|other| other.eq_ignore_ascii_case(name));
    let row = rows(TOOLS).find(|(_, others)| is_known(others));
    row.map(|(tool, _)| tool)
}

/// Gives arguments their names in the schema, and leaves out comments. The schema refuses the others.
pub(super) fn translate(
    given: Map<String, Value>,
    schema: &Value,
    owner: Owner,
) -> Map<String, Value> {
    let properties = schema["properties"].as_object();
    let own = || properties.into_iter().flat_map(Map::keys);
    let is_own = |name: &str| own().any(|own| has_same_letters(own, name));
    let (mut named, others): (Map<_, _>, Map<_, _>) =
        given.into_iter().partition(|(name, _)| is_own(name));
    for (name, value) in others {
        let meant = rows(ARGUMENTS).find(|(known, others)| {
            owner == Owner::BuiltIn
                && others.iter().any(|other| has_same_letters(other, &name))
                && own().any(|own| own == known)
                && !named.contains_key(*known)
        });
        match meant {
            Some((known, _)) => drop(named.insert(known.to_owned(), value)),
            None if value.is_null() || COMMENTS.contains(&name.as_str()) => {}
            None => drop(named.insert(name, value)),
        }
    }
    if owner == Owner::BuiltIn {
        join_words(&mut named);
    }
    named
}

/// Joins a list of words to a command.
fn join_words(args: &mut Map<String, Value>) {
    let Some(Value::Array(list)) = args.get("command") else {
        return;
    };
    let words: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
    if let Some(words) = words {
        let command = shell_words::join(words);
        args.insert("command".to_owned(), command.into());
    }
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
    use serde_json::json;

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
    fn arguments_get_their_names() {
        let schema = json!({"properties": {
            "path": {}, "content": {}, "max": {}, "limit": {}
        }});
        let read = |given: &Value, schema: &Value, owner| {
            let given = given.as_object().cloned().unwrap();
            Value::Object(translate(given, schema, owner))
        };
        for (given, args) in [
            (
                json!({"file_path": "a", "fileText": "x"}),
                json!({"path": "a", "content": "x"}),
            ),
            (json!({"path": "a", "reason": "why"}), json!({"path": "a"})),
            (
                json!({"directory": "a", "limit": 1}),
                json!({"path": "a", "limit": 1}),
            ),
        ] {
            assert_eq!(read(&given, &schema, Owner::BuiltIn), args, "{given}");
        }
        for given in [
            json!({"path": "a", "append": true}),
            json!({"path": "a", "filename": "b"}),
        ] {
            assert_eq!(read(&given, &schema, Owner::BuiltIn), given);
        }
        assert!(!has_same_letters("город", "улица"));
        let exec = json!({"properties": {"command": {}}});
        let words = json!({"cmd": ["ls", "a b"]});
        let args = read(&words, &exec, Owner::BuiltIn);
        assert_eq!(args, json!({"command": "ls 'a b'"}));
        assert_eq!(read(&words, &exec, Owner::Program), words);
    }
}
