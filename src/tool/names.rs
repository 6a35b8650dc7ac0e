//! Names of tools and arguments that models know from other programs. A call is executed with all of its arguments or refused.

use serde_json::{Map, Value};

use super::schema::words;
use super::{Owner, Registry};

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
key: name note title file filename path
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

/// Suggests the equivalent tool, with its arguments, to a model that used a name from another program.
pub(super) fn suggest(name: &str, registry: &Registry) -> Option<String> {
    let tool = known_elsewhere(name)?;
    let schema = registry.schema(tool)?;
    let mut arguments = words(&schema["required"]);
    let properties = schema["properties"].as_object().into_iter();
    let optional: Vec<String> = properties
        .flat_map(Map::keys)
        .filter(|name| !arguments.contains(&name.as_str()))
        .map(|name| format!("{name}?"))
        .collect();
    arguments.extend(optional.iter().map(String::as_str));
    Some(format!("use {tool} {{{}}}", arguments.join(", ")))
}

/// Renames the arguments to the names of the schema. Also returns the omitted comments.
///
/// # Errors
/// Returns a sentence for the model about an unknown argument or two values for one.
pub(super) fn rename(
    tool: &str,
    given: Map<String, Value>,
    schema: &Value,
    owner: Owner,
) -> Result<(Map<String, Value>, Vec<String>), String> {
    let properties = schema["properties"].as_object().into_iter();
    let properties: Vec<&str> = properties.flat_map(Map::keys).map(String::as_str).collect();
    let given = given.into_iter().filter(|(_, value)| !value.is_null());
    let (mut named, others): (Map<_, _>, Map<_, _>) =
        given.partition(|(name, _)| properties.contains(&name.as_str()));
    let mut ignored = Vec::new();
    for (name, value) in others {
        let meant = meant_by(&name, &properties, owner);
        let mut absent = meant.iter().filter(|known| !named.contains_key(**known));
        match (absent.next(), absent.next()) {
            (Some(known), None) => drop(named.insert((*known).to_owned(), value)),
            (None, _) if meant.iter().any(|known| named.get(*known) == Some(&value)) => {}
            (None, _) if !meant.is_empty() => {
                let known = meant[0];
                return Err(format!(
                    "\"{name}\" and \"{known}\" are one argument with two values; nothing was run"
                ));
            }
            _ if COMMENTS.contains(&name.as_str()) => ignored.push(name),
            _ => {
                let takes = match properties.join(", ") {
                    names if names.is_empty() => "nothing".to_owned(),
                    names => names,
                };
                return Err(format!(
                    "unknown argument \"{name}\": {tool} takes {takes}; nothing was run"
                ));
            }
        }
    }
    if owner == Owner::BuiltIn {
        join_words(&mut named);
    }
    Ok((named, ignored))
}

/// Returns the properties that a name may mean: one in another style, or those that other programs call so.
fn meant_by<'a>(name: &str, properties: &[&'a str], owner: Owner) -> Vec<&'a str> {
    let same = properties
        .iter()
        .find(|known| has_same_letters(known, name));
    match same {
        Some(known) => vec![*known],
        None if owner == Owner::BuiltIn => rows(ARGUMENTS)
            .filter(|(_, others)| others.iter().any(|other| has_same_letters(other, name)))
            .filter_map(|(known, _)| properties.iter().find(|property| **property == known))
            .copied()
            .collect(),
        None => Vec::new(),
    }
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
    fn each_argument_is_renamed_counted_or_refused() {
        let schema = json!({"properties": {
            "path": {}, "content": {}, "max": {}, "limit": {}, "working_dir": {}
        }});
        let read = |given: Value| {
            let given = given.as_object().cloned().unwrap();
            rename("try", given, &schema, Owner::BuiltIn)
        };
        let renamed = |given: Value| read(given).map(|(args, _)| Value::Object(args));
        for (given, args) in [
            (json!({"file_path": "a"}), json!({"path": "a"})),
            (
                json!({"Path": "a", "fileText": "x"}),
                json!({"path": "a", "content": "x"}),
            ),
            (json!({"workingDir": "a"}), json!({"working_dir": "a"})),
            (json!({"path": "a", "filename": "a"}), json!({"path": "a"})),
            (
                json!({"body": "x", "cwd": "y"}),
                json!({"content": "x", "working_dir": "y"}),
            ),
            // `directory` means the path or the working directory.
            (
                json!({"path": "a", "directory": "b"}),
                json!({"path": "a", "working_dir": "b"}),
            ),
        ] {
            assert_eq!(renamed(given.clone()), Ok(args), "{given}");
        }
        for (given, word) in [
            (
                json!({"path": "a", "append": true}),
                "unknown argument \"append\": try takes",
            ),
            (json!({"directory": "b"}), "unknown argument"),
            (json!({"path": "a", "filename": "b"}), "two values"),
            (json!({"path": "a", "PATH": "b"}), "two values"),
        ] {
            let e = renamed(given.clone()).unwrap_err();
            assert!(
                e.contains(word) && e.contains("nothing was run"),
                "{given}: {e}"
            );
        }
        let (_, ignored) = read(json!({"path": "a", "reason": "because"})).unwrap();
        assert_eq!(ignored, ["reason"]);
        assert!(!has_same_letters("город", "улица"));
        let exec = json!({"properties": {"command": {}}});
        let words = json!({"cmd": ["ls", "a b"]}).as_object().cloned().unwrap();
        let (args, _) = rename("try", words.clone(), &exec, Owner::BuiltIn).unwrap();
        assert_eq!(args["command"], "ls 'a b'");
        assert!(rename("try", words, &exec, Owner::Program).is_err());
    }
}
