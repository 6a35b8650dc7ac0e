//! House rules, checked on the source text: which modules may use which, and which files alone may do certain things.
//!
//! A module is a file or directory directly in `src/`. The table [`RANKS`] is the one in the code map of `src/lib.rs`. The text
//! is read line by line, without comments and test modules; a string that looks like code would be mistaken for code, which has
//! not happened yet. Visibility (`pub(crate)` and private modules) enforces the rest.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Every module and its rank. A module may use modules of lower ranks. Modules of ranks 0 and 1 may also use one another, but
/// not in a circle.
const RANKS: &[(usize, &str)] = &[
    (6, "main cli"),
    (5, "gateway doctor"),
    (4, "app"),
    (3, "agent"),
    (2, "provider tool telegram http_api"),
    (
        1,
        "web mcp config http worker sandbox files proxy session skills usage cron outbox markdown",
    ),
    (
        0,
        "message bus cancel child sync text paths storage log sse error json secret redact access sys ssrf template timezone notify test_speed tries inflate worker/protocol",
    ),
];

/// Code that only a few files may contain: its text, these files, and the reason.
const OWNED: &[(&[&str], &[&str], &str)] = &[
    (
        &["filter(|_|"],
        &[],
        "a condition or a match says when a value counts",
    ),
    (&["ureq::"], &["http/"], "http makes every request"),
    (
        &["Command::new"],
        &["child.rs"],
        "child builds the environment of every process",
    ),
    (
        &[
            "fs::write",
            "File::create",
            "OpenOptions",
            "fs::rename",
            "fs::remove_",
            "fs::create_dir",
            "renameat",
            "unlinkat",
        ],
        &["storage/", "files/", "worker/", "sandbox/"],
        "storage knows modes, atomic replacement and syncing; files and sandbox work in a process of their own",
    ),
    (
        &["env::var"],
        &["config/", "test_speed.rs"],
        "config knows where each value came from",
    ),
    (
        &["unsafe ", "allow(unsafe_code)"],
        &["sys.rs"],
        "rustix or std has a safe way, or sys says why not",
    ),
    (
        &["PoisonError"],
        &["sync.rs"],
        "sync locks, and says why a panic of another thread does not matter",
    ),
    (
        &["eprint", "println!", "stdout()", "stderr()"],
        &["cli/ui/", "log.rs", "worker/process.rs"],
        "cli/ui keeps both streams and the cursor in order",
    ),
    (
        &["allow(dead_code)", "todo!(", "dbg!(", "async fn", ".await"],
        &[],
        "nobody does",
    ),
];

/// Maximum number of lines in a file, tests included.
const LINES: usize = 750;

/// Most lines of code, and most items that are `pub` or `pub(crate)`, of each module. A line of code is neither blank nor a
/// comment and is outside tests. A row only falls; the body of a commit that raises one says why.
const BUDGET: &[(&str, usize, usize)] = &[
    ("access", 598, 41),
    ("agent", 2642, 56),
    ("app", 1370, 72),
    ("bus", 735, 48),
    ("cancel", 153, 15),
    ("child", 42, 8),
    ("cli", 4857, 1),
    ("config", 1798, 72),
    ("cron", 1067, 48),
    ("doctor", 541, 19),
    ("error", 139, 13),
    ("files", 1254, 9),
    ("gateway", 1800, 12),
    ("http", 768, 22),
    ("http_api", 1247, 13),
    ("inflate", 34, 2),
    ("json", 138, 9),
    ("lib", 87, 0),
    ("log", 70, 8),
    ("main", 7, 0),
    ("markdown", 1242, 9),
    ("mcp", 1100, 21),
    ("message", 584, 55),
    ("notify", 47, 5),
    ("outbox", 266, 17),
    ("paths", 176, 32),
    ("provider", 4100, 69),
    ("proxy", 274, 5),
    ("redact", 430, 11),
    ("sandbox", 1269, 13),
    ("secret", 29, 4),
    ("session", 1746, 66),
    ("skills", 640, 19),
    ("sse", 83, 5),
    ("ssrf", 239, 7),
    ("storage", 1037, 57),
    ("sync", 24, 4),
    ("sys", 262, 16),
    ("telegram", 2448, 43),
    ("template", 50, 6),
    ("test_speed", 6, 1),
    ("text", 289, 27),
    ("timezone", 273, 14),
    ("tool", 2449, 73),
    ("tries", 56, 10),
    ("usage", 382, 26),
    ("web", 1227, 16),
    ("worker", 1865, 52),
];

/// Files, types and functions that were removed and must not return, each with its module: a file ends in `.rs`.
const GONE: &[&str] = &[
    "agent/ask.rs",
    "agent/calls.rs",
    "agent/compact.rs",
    "agent/turn.rs",
    "agent/turn_context.rs",
    "agent/turn_end.rs",
    "agent::Answer",
    "agent::CallRunner",
    "agent::Compaction",
    "agent::Failure",
    "agent::HeldWorkspace",
    "agent::Keep",
    "agent::ReceivedMessage",
    "agent::Tools",
    "agent::TurnContext",
    "agent::TurnEnd",
    "app/factory.rs",
    "app/home.rs",
    "app::AgentFactory",
    "app::ConfiguredModels",
    "app::GatewayHandler",
    "app::Options",
    "app::Parts",
    "app::Place",
    "app::Ready",
    "app::Startup",
    "bus/events.rs",
    "bus/pair.rs",
    "bus::Answer",
    "bus::EventLog",
    "bus::MessageStore",
    "bus::Next",
    "bus::OtherWork",
    "bus::Outbound",
    "bus::Running",
    "bus::Shared",
    "cli/gateway_status.rs",
    "cli/json_schema.rs",
    "cli/printer.rs",
    "cli/term/ask.rs",
    "cli/term/screen.rs",
    "cli/turn.rs",
    "cli::ModelHost",
    "cli::Needs",
    "cli::Printer",
    "cli::Screen",
    "cli::Setup",
    "cli::fn hung",
    "cli::fn tell",
    "config::Origin",
    "config::Parts",
    "gateway/ask.rs",
    "gateway/drain.rs",
    "gateway/poster.rs",
    "gateway/queue.rs",
    "gateway/semaphore.rs",
    "gateway/tasks.rs",
    "gateway::Asker",
    "gateway::Clock",
    "gateway::CommandReply",
    "gateway::Current",
    "gateway::EndpointTurns",
    "gateway::GatewayHandler",
    "gateway::Handler",
    "gateway::HttpChannel",
    "gateway::HttpEndpoint",
    "gateway::Monitor",
    "gateway::OneAgent",
    "gateway::Owner",
    "gateway::Place",
    "gateway::Poster",
    "gateway::Resources",
    "gateway::Startup",
    "gateway::TurnIds",
    "http_api/output.rs",
    "http_api::Answer",
    "http_api::Ask",
    "http_api::Turns",
    "markdown::Look",
    "mcp::Background",
    "mcp::Era",
    "mcp::ListStore",
    "mcp::Listed",
    "mcp::Unknown",
    "mcp::Wait",
    "mcp::fn generation",
    "outbox/deliveries.rs",
    "outbox::DeliveryState",
    "outbox::TriedMessage",
    "provider/code.rs",
    "provider/host_facts.rs",
    "provider/lenient.rs",
    "provider/outgoing.rs",
    "provider/waits.rs",
    "provider::HostOffers",
    "provider::Named",
    "provider::fn clear",
    "session::Loaded",
    "session::Locks",
    "session::Position",
    "session::Replayed",
    "session::Transcript",
    "skills::Copying",
    "telegram/choice.rs",
    "telegram/held.rs",
    "telegram::HeldRecords",
    "telegram::ModelLists",
    "telegram::SenderState",
    "test_dir.rs",
    "tool/pages.rs",
    "tool::FirstPage",
    "tool::Long",
    "tool::Pages",
    "tool::Sender",
    "tool::Workshop",
    "web/page/buffer.rs",
    "web/page/links.rs",
    "web::Keys",
    "worker::Dropped",
    "worker::LastLine",
];

/// Most characters of a line of code on average, and most lines of over 100 characters in a thousand. Fewer lines are worth
/// nothing if each holds more.
const DENSITY: (usize, usize) = (36, 5);

/// Most names of types that several files define: a name that needs its path to be understood is two names.
const DOUBLE_NAMES: usize = 43;

struct Source {
    /// Path relative to `src/`.
    path: String,
    text: String,
    /// Code without comments and test modules.
    code: String,
}

/// An item of Rust: its keyword and its name.
struct Item<'a> {
    kind: &'a str,
    name: &'a str,
    is_public: bool,
}

impl<'a> Item<'a> {
    /// Reads an item that begins on a line.
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| !word.is_empty())
            .peekable();
        let is_pub = words.next_if_eq(&"pub").is_some();
        let is_of_parent = is_pub && words.next_if_eq(&"super").is_some();
        let is_public = is_pub && !is_of_parent;
        words.next_if_eq(&"crate");
        let mut kind = words.next()?;
        while matches!(kind, "const" | "unsafe") && words.peek().is_some_and(|next| *next == "fn") {
            kind = words.next()?;
        }
        let kinds = ["fn", "struct", "enum", "trait", "type", "const", "static"];
        if !kinds.contains(&kind) {
            return None;
        }
        let name = words.next()?;
        Some(Self {
            kind,
            name,
            is_public,
        })
    }

    fn is_type(&self) -> bool {
        matches!(self.kind, "struct" | "enum" | "trait" | "type")
    }
}

impl Source {
    /// Returns the lines of code: neither blank nor a comment, and before the tests, which end a file.
    fn lines(&self) -> Vec<&str> {
        let is_test = self.path.ends_with("tests.rs") || self.path.contains("/tests/");
        let tests = "\n#[cfg(test)]\nmod ";
        let end = self
            .text
            .match_indices(tests)
            .find(|(at, _)| {
                self.text[*at + tests.len()..]
                    .lines()
                    .next()
                    .unwrap()
                    .ends_with('{')
            })
            .map_or(self.text.len(), |(at, _)| at);
        let lines = self.text[..if is_test { 0 } else { end }].lines();
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        lines.filter(is_code).collect()
    }

    fn items(&self) -> Vec<Item<'_>> {
        self.lines().into_iter().filter_map(Item::parse).collect()
    }

    /// Returns the file or directory directly in `src/`, which has a budget.
    fn room(&self) -> &str {
        let path = self.path.trim_end_matches(".rs");
        path.split('/').next().unwrap()
    }

    fn new(path: &str, text: String) -> Self {
        let names = ["tests.rs", "/fuzz.rs"];
        let is_test = names.iter().any(|name| path.ends_with(name)) || path.contains("/tests/");
        let body = if is_test {
            String::new()
        } else {
            without_tests(&text)
        };
        let code = body
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n");
        Self {
            path: path.to_owned(),
            text,
            code,
        }
    }

    /// Returns its module: the file or directory directly in `src/`, or a file that [`RANKS`] names with its directory.
    fn module(&self) -> &str {
        let path = self.path.trim_end_matches(".rs");
        rank(path).map_or_else(|| path.split('/').next().unwrap(), |_| path)
    }

    /// Returns the modules that it names, by `crate::MODULE` or in a list after `crate::`.
    fn used(&self) -> BTreeSet<String> {
        let name = |text: &str| {
            text.chars()
                .take_while(|&c| c.is_alphanumeric() || c == '_')
                .collect::<String>()
        };
        let word = |text: &str| {
            let module = name(text);
            let after = text[module.len()..].strip_prefix("::").unwrap_or("");
            let file = format!("{module}/{}", name(after));
            if rank(&file).is_some() { file } else { module }
        };
        let mut used = BTreeSet::new();
        for after in self
            .code
            .split("crate::")
            .skip(1)
            .chain(self.code.split("bantam::").skip(1))
        {
            let Some(list) = after.strip_prefix('{') else {
                used.insert(word(after));
                continue;
            };
            let mut depth = 0;
            let end = list.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth < 0
            });
            let mut depth = 0;
            let top = list[..end.unwrap()].split(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth == 0 && c == ','
            });
            used.extend(top.map(|item| word(item.trim())));
        }
        used.retain(|name| rank(name).is_some() && name != self.module());
        used
    }
}

/// Removes test modules. A test module ends its file, unless it has a separate file.
fn without_tests(text: &str) -> String {
    let mut parts = text.split("#[cfg(test)]\nmod ");
    let mut code = parts.next().unwrap().to_owned();
    for part in parts {
        let end = part.find([';', '{']).unwrap();
        if part[end..].starts_with('{') {
            break;
        }
        code.push_str(&part[end + 1..]);
    }
    code
}

fn rank(module: &str) -> Option<usize> {
    RANKS
        .iter()
        .find(|(_, modules)| modules.split(' ').any(|name| name == module))
        .map(|(rank, _)| *rank)
}

fn sources() -> Vec<Source> {
    fn collect(root: &Path, dir: &Path, into: &mut Vec<Source>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(root).unwrap().display().to_string();
                into.push(Source::new(&below, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    collect(&root, &root, &mut found);
    found
}

/// Fails with all complaints, so that one run shows all the work.
#[track_caller]
fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n\n{}\n", complaints.join("\n"));
}

#[test]
fn modules_use_only_lower_modules() {
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| source.module() != "lib") {
        let Some(own) = rank(source.module()) else {
            complaints.push(format!(
                "src/{}: give its module a rank here and a line in src/lib.rs",
                source.path
            ));
            continue;
        };
        for other in source.used() {
            let is_fine = rank(&other).is_some_and(|rank| rank < own || (rank == own && own <= 1));
            // `main` may use only `cli`.
            if !is_fine && source.module() != "main" {
                complaints.push(format!(
                    "src/{} uses `{other}`, which is not below it",
                    source.path
                ));
            }
        }
    }
    none(&complaints);
}

#[test]
fn modules_keep_to_their_budgets() {
    let sources = sources();
    let mut rooms: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in &sources {
        rooms.entry(source.room()).or_default().push(source);
    }
    let mut complaints = Vec::new();
    for (room, files) in &mut rooms {
        files.sort_by_key(|file| std::cmp::Reverse(file.lines().len()));
        let lines: usize = files.iter().map(|file| file.lines().len()).sum();
        let items = files.iter().flat_map(|file| file.items());
        let public = items.filter(|item| item.is_public).count();
        let longest: Vec<String> = files
            .iter()
            .take(5)
            .map(|file| format!("{} {}", file.path, file.lines().len()))
            .collect();
        let longest = longest.join(", ");
        match BUDGET.iter().find(|(name, ..)| name == room) {
            None => complaints.push(format!("(\"{room}\", {lines}, {public}), // give it a row")),
            Some((_, most, _)) if lines > *most => complaints.push(format!(
                "{room}: {lines} lines of code, its limit is {most}; longest files: {longest}"
            )),
            Some((_, _, most)) if public > *most => complaints.push(format!(
                "{room}: {public} public items, its limit is {most}; longest files: {longest}"
            )),
            Some(_) => {}
        }
    }
    let rows = BUDGET.iter().map(|(name, ..)| *name);
    let left = rows.filter(|name| !rooms.contains_key(name));
    complaints.extend(left.map(|name| format!("{name}: a row without a module")));
    none(&complaints);
}

#[test]
fn removed_files_types_and_functions_do_not_return() {
    let mut complaints = Vec::new();
    for source in sources() {
        let types = source.items().into_iter().filter(Item::is_type);
        let names = types.map(|item| format!("{}::{}", source.room(), item.name));
        let lines = source.lines();
        let functions = lines
            .iter()
            .filter_map(|line| line.split_once("fn ")?.1.split(['(', '<']).next());
        let functions = functions.map(|name| format!("{}::fn {name}", source.room()));
        let found = names.chain(functions).chain([source.path.clone()]);
        complaints.extend(found.filter(|name| GONE.contains(&name.as_str())));
    }
    none(&complaints);
}

#[test]
fn test_modules_end_their_files() {
    let mut complaints = Vec::new();
    for source in sources() {
        let parts = source.text.split_once("\n#[cfg(test)]\nmod tests {\n");
        let after = parts.and_then(|(_, tests)| tests.split_once("\n}\n"));
        if after.is_some_and(|(_, after)| !after.trim().is_empty()) {
            complaints.push(format!("src/{}: code after its tests", source.path));
        }
    }
    none(&complaints);
}

#[test]
fn lines_hold_no_more_than_before() {
    let sources = sources();
    let lines: Vec<&str> = sources.iter().flat_map(Source::lines).collect();
    let characters: usize = lines.iter().map(|line| line.chars().count()).sum();
    let long = lines
        .iter()
        .filter(|line| line.chars().count() > 100)
        .count();
    let (average, thousandths) = (characters / lines.len(), long * 1000 / lines.len());
    let (most_average, most_thousandths) = DENSITY;
    assert!(
        average <= most_average && thousandths <= most_thousandths,
        "{average} characters a line, its limit is {most_average}; {long} of {} lines are over 100 characters",
        lines.len()
    );
}

#[test]
fn types_have_names_of_their_own() {
    let sources = sources();
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in &sources {
        for item in source.items().into_iter().filter(Item::is_type) {
            files.entry(item.name).or_default().insert(&source.path);
        }
    }
    files.retain(|_, paths| paths.len() > 1);
    assert!(
        files.len() <= DOUBLE_NAMES,
        "{} names of types stand in several files, the limit is {DOUBLE_NAMES}: {files:#?}",
        files.len()
    );
}

#[test]
fn module_uses_form_no_circle() {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources().iter().filter(|source| source.module() != "lib") {
        uses.entry(source.module().to_owned())
            .or_default()
            .extend(source.used());
    }
    // A module without remaining dependencies cannot be in a circle.
    while let Some(free) = uses
        .iter()
        .find(|(_, used)| used.iter().all(|name| !uses.contains_key(name)))
    {
        let free = free.0.clone();
        uses.remove(&free);
    }
    assert!(
        uses.is_empty(),
        "each of these uses another of these: {uses:?}"
    );
}

#[test]
fn owned_calls_appear_only_in_owners() {
    let mut complaints = Vec::new();
    for source in sources() {
        for (signs, owners, why) in OWNED {
            if owners.iter().any(|owner| source.path.starts_with(owner)) {
                continue;
            }
            for sign in signs.iter().filter(|sign| source.code.contains(**sign)) {
                complaints.push(format!("src/{}: `{sign}`: {why}", source.path));
            }
        }
    }
    none(&complaints);
}

#[test]
fn every_file_is_short_and_says_what_it_is_for() {
    let mut complaints = Vec::new();
    for Source { path, text, .. } in sources() {
        if text.lines().count() > LINES {
            complaints.push(format!(
                "src/{path}: over {LINES} lines; it has more than one job, so split it"
            ));
        }
        if !text.starts_with("//!") {
            complaints.push(format!(
                "src/{path}: begin it with `//!` and a sentence that says what it is for"
            ));
        }
    }
    none(&complaints);
}

#[test]
fn the_code_map_has_every_module_at_its_rank() {
    let sources = sources();
    let map = &sources
        .iter()
        .find(|source| source.path == "lib.rs")
        .unwrap()
        .text;
    let mut mapped = BTreeSet::new();
    for row in map.lines().filter(|line| line.starts_with("// | ")) {
        let cells: Vec<&str> = row.split('|').collect();
        if let Ok(rank) = cells[1].trim().parse::<usize>() {
            mapped.extend(
                cells[2]
                    .split('`')
                    .skip(1)
                    .step_by(2)
                    .map(|module| (module.to_owned(), rank)),
            );
        }
    }
    let modules = sources
        .iter()
        .map(Source::module)
        .filter(|module| *module != "lib");
    let ranked: BTreeSet<(String, usize)> = modules
        .map(|module| (module.to_owned(), rank(module).unwrap_or(99)))
        .collect();
    assert_eq!(
        mapped, ranked,
        "left: src/lib.rs; right: the files, with the ranks of tests/house.rs"
    );
}

/// Text cut before redaction may end in half of a key, which is not recognized.
#[test]
fn words_of_others_are_redacted_before_they_are_cut() {
    let readers = [
        "web/",
        "tool/web.rs",
        "tool/mcp.rs",
        "mcp/list.rs",
        "provider/response.rs",
    ];
    let cuts = |source: &Source| {
        let is_reader = readers.iter().any(|reader| source.path.starts_with(reader));
        let code = source
            .code
            .split(|c: char| !c.is_alphanumeric() && c != '_');
        is_reader
            && code
                .into_iter()
                .any(|word| word == "clip" || word == "to_single_line")
    };
    let cutting: Vec<String> = sources().into_iter().filter(cuts).map(|s| s.path).collect();
    let instead = "Redactor::foreign, or text::whole_words and foreign_line";
    assert!(cutting.is_empty(), "{cutting:?} cut texts: use {instead}");
}

/// Checks paths, and items said to be in a file: "`configured` of `app/tools.rs`".
#[test]
fn code_map_names_exist() {
    let text = include_str!("../src/lib.rs");
    let map = text.split_once("// # Code map\n").unwrap().1;
    let lines = map.lines().take_while(|line| line.starts_with("//"));
    let lines: Vec<&str> = lines.map(|line| line[2..].trim()).collect();
    let map = lines.join(" ");
    // Odd parts are between backticks.
    let parts: Vec<&str> = map.split('`').collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut files, mut missing) = (0, Vec::new());
    for (at, path) in parts.iter().enumerate().skip(1).step_by(2) {
        let is_file = path.ends_with(".rs");
        if path.contains(' ') || !(is_file || path.contains('/')) {
            continue;
        }
        let places = [
            format!("src/{path}"),
            format!("src/{path}.rs"),
            (*path).to_owned(),
        ];
        let Some(place) = places
            .iter()
            .map(|place| root.join(place))
            .find(|place| place.exists())
        else {
            missing.push((*path).to_owned());
            continue;
        };
        if !is_file || !matches!(parts[at - 1], " of " | " in ") {
            continue;
        }
        files += 1;
        let name = parts[at - 2];
        let code = fs::read_to_string(place).unwrap();
        let kinds = ["const", "static", "fn", "struct", "enum", "trait"];
        let is_there = kinds.iter().any(|kind| {
            let item = format!("{kind} {name}");
            let mut rests = code.split(&item).skip(1);
            rests.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        });
        if !is_there {
            missing.push(format!("{name} of {path}"));
        }
    }
    assert!(files >= 2, "{files}");
    assert!(missing.is_empty(), "src/lib.rs names {missing:?}");
}

#[test]
fn the_tests_that_the_architecture_names_exist() {
    let page = include_str!("../docs/architecture.md");
    let table = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let names = table.flat_map(|line| {
        line.rsplit_once(" | ")
            .unwrap()
            .1
            .split('`')
            .skip(1)
            .step_by(2)
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 10, "{names:?}");
    let mut tests = String::new();
    for folder in ["tests/it", "tests/root", "tests/jail"] {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                tests += &fs::read_to_string(path).unwrap();
            }
        }
    }
    tests += include_str!("house.rs");
    let missing: Vec<&&str> = names
        .iter()
        .filter(|name| !tests.contains(&format!("fn {name}(")))
        .collect();
    assert!(missing.is_empty(), "there are no tests named {missing:?}");
}

#[test]
fn the_threat_model_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join(".github/SECURITY.md")).unwrap();
    let named: Vec<(&str, &str)> = text
        .split('`')
        .filter_map(|word| word.split_once("::"))
        .collect();
    assert!(
        named.len() > 20,
        "the names are written in another way: {named:?}"
    );
    let is_missing = |(file, name): &&(&str, &str)| {
        let tests = fs::read_to_string(root.join(format!("tests/{file}.rs"))).unwrap_or_default();
        !tests.contains(&format!("fn {name}()"))
    };
    let missing: Vec<_> = named.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn readme_size_is_measured_and_within_limit() {
    fn number(text: &str, before: &str, end: char) -> f64 {
        let digits = text
            .split_once(before)
            .unwrap()
            .1
            .split(end)
            .next()
            .unwrap();
        digits.replace(',', "").trim().parse().unwrap()
    }
    let measured = number(include_str!("../docs/figures.md"), "| bantam | ", '|');
    let limit = number(include_str!("size"), "x86_64) limit=", ' ');
    assert!(
        measured <= limit,
        "docs/figures.md: {measured} bytes, tests/size allows {limit}: run tests/bench/figures"
    );
    let told = format!("\n| bantam | {:.1} MB |", measured / 1e6);
    assert!(
        include_str!("../README.md").contains(&told),
        "README.md does not say{told}"
    );
}

/// Returns the public items with their fields, variants and methods. Items that are only `pub` are reachable from outside,
/// because a lint refuses any others.
fn public_items() -> String {
    let kinds = ["fn", "struct", "enum", "trait", "type", "mod", "use"];
    let mut items = Vec::new();
    for Source { path, code, .. } in sources() {
        for (at, _) in code.match_indices("pub ") {
            let rest = &code[at..];
            let is_first = code[..at].rsplit('\n').next().unwrap().trim().is_empty();
            let kind = rest.split(' ').nth(1).unwrap_or_default();
            if !is_first || !kinds.contains(&kind) {
                continue;
            }
            let end: &[char] = if kind == "use" { &[';'] } else { &['{', ';'] };
            let head = rest.split(end).next().unwrap();
            let has_body = rest[head.len()..].starts_with('{');
            let lines = rest[head.len()..].split("\n}").next().unwrap().lines();
            let body: Vec<&str> = match kind {
                "struct" if has_body => lines.filter(|line| line.starts_with("    pub ")).collect(),
                "enum" => lines.skip(1).collect(),
                _ => Vec::new(),
            };
            let whole = format!("{head} {}", body.join(" "));
            let words: Vec<&str> = whole.split_whitespace().collect();
            items.push(format!("{path}: {}\n", words.join(" ")));
            if kind == "trait" {
                let methods = rest.split("\n}").next().unwrap().split("\n    fn ").skip(1);
                for method in methods {
                    let method = method.split(['{', ';']).next().unwrap();
                    let words: Vec<&str> = method.split_whitespace().collect();
                    items.push(format!("{path}: {head}: fn {}\n", words.join(" ")));
                }
            }
        }
    }
    items.sort_unstable();
    items.concat()
}

#[test]
fn a_change_of_the_public_items_is_seen() {
    let listed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api.txt");
    let items = public_items();
    if std::env::var_os("BANTAM_BLESS").is_some() {
        fs::write(&listed, &items).unwrap();
    }
    let known = fs::read_to_string(listed).unwrap();
    let changed = |from: &str, to: &str| -> Vec<String> {
        let lines = from
            .lines()
            .filter(|line| !to.lines().any(|other| other == *line));
        lines.map(str::to_owned).collect()
    };
    let (new, gone) = (changed(&items, &known), changed(&known, &items));
    assert!(
        new.is_empty() && gone.is_empty(),
        "programs use these: BANTAM_BLESS=1 cargo test --test house\nnew: {new:#?}\ngone: {gone:#?}"
    );
}

/// Otherwise the binary would have a second way to run turns and to serve homes.
#[test]
fn the_binary_uses_an_agent_as_other_programs_do() {
    let only_here = |what: &str| -> Vec<String> {
        let found = sources()
            .into_iter()
            .filter(|source| source.code.contains(what));
        let mut paths: Vec<String> = found.map(|source| source.path).collect();
        paths.sort_unstable();
        paths
    };
    assert_eq!(only_here("Agent::builder()"), ["app/mod.rs"]);
    assert_eq!(
        only_here("home.lock(\"gateway\")"),
        ["gateway/serving.rs", "notify.rs"]
    );
    let mut private = Vec::new();
    for Source { path, code, .. } in sources() {
        let of_agent = code.split("\nimpl Agent {\n").skip(1);
        for methods in of_agent.filter_map(|rest| rest.split("\n}\n").next()) {
            let names = methods.split("pub(crate) fn ").skip(1);
            private
                .extend(names.map(|rest| format!("{path}: {}", rest.split('(').next().unwrap())));
        }
    }
    private.sort_unstable();
    let known = ["models_for"].map(|name| format!("agent/mod.rs: {name}"));
    assert_eq!(private, known);
}

/// A new item needs a sentence in docs/embedding.md. The command line's items belong only to the binary.
#[test]
fn process_wide_state_is_listed() {
    let kinds = [
        "Mutex", "OnceLock", "Atomic", "RefCell", ": Cell", "LazyLock",
    ];
    let mut shared = Vec::new();
    for Source { path, code, .. } in sources() {
        let lines = code.lines().map(str::trim).filter(|line| {
            let is_static = line.split(' ').take(2).any(|word| word == "static");
            is_static && kinds.iter().any(|kind| line.contains(kind))
        });
        let names = lines.map(|line| {
            line.split_once("static ")
                .unwrap()
                .1
                .split(':')
                .next()
                .unwrap()
        });
        shared.extend(names.map(|name| format!("{path} {name}")));
    }
    shared.retain(|item| !item.starts_with("cli/"));
    shared.sort_unstable();
    let told = [
        "http/half_closed.rs WRITE_FAILED",
        "http/tls.rs PROVIDER",
        "paths.rs LAST",
        "session/lock.rs LOCKED",
        "worker/mod.rs BEGUN",
        "worker/mod.rs CHOSEN",
    ];
    assert_eq!(shared, told);
}

/// docs/embedding.md states this about its programs.
#[test]
fn the_first_eleven_programs_are_short() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let text = fs::read_to_string(docs.join("embedding.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ["));
    let programs = rows.filter_map(|row| row.split_once(".rs](examples/"));
    let first: Vec<&str> = programs.map(|(name, _)| name).take(11).collect();
    assert_eq!((first.len(), first[0], first[10]), (11, "ask", "channel"));
    for name in first {
        let program = fs::read_to_string(docs.join(format!("examples/{name}.rs"))).unwrap();
        assert!(program.lines().count() <= 40, "{name}");
    }
}

/// Returns README's text about the downloads made by `.github/release`; empty without a repository.
fn downloads(manifest: &str) -> String {
    let value = |name: &str| {
        let lines = manifest
            .lines()
            .take_while(|line| *line != "[dependencies]");
        let mut values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        values.find_map(|value| value.strip_suffix('"'))
    };
    let (Some(place), Some(version)) = (value("repository"), value("version")) else {
        return String::new();
    };
    let name = format!("bantam-{version}-$(uname -m)-unknown-linux-musl");
    format!(
        "Binaries for x86-64 and aarch64 are at <{place}/releases>. They need nothing else:\n\n    \
         curl -fL {place}/releases/download/v{version}/{name}.tar.gz | tar xz\n    \
         sudo install {name}/bantam /usr/local/bin\n\n\
         Or build it yourself:\n"
    )
}

#[test]
fn readme_has_download_link_when_published() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let (readme, manifest) = (read("README.md"), read("Cargo.toml"));
    let (before, rest) = readme.split_once("<!-- downloads: ").unwrap();
    let (how, rest) = rest.split_once(" -->\n").unwrap();
    let (written, after) = rest.split_once("<!-- end of downloads -->").unwrap();
    let due = downloads(&manifest);
    if written != due && std::env::var_os("BANTAM_BLESS").is_some() {
        let text =
            format!("{before}<!-- downloads: {how} -->\n{due}<!-- end of downloads -->{after}");
        fs::write(root.join("README.md"), text).unwrap();
    } else {
        assert_eq!(written, due, "BANTAM_BLESS=1 cargo test --test house");
    }
    let manifest = "[package]\nversion = \"1.2.3\"\nrepository = \"https://example.org/bantam\"\n";
    let line = "curl -fL https://example.org/bantam/releases/download/v1.2.3/bantam-1.2.3-$(uname -m)-unknown-linux-musl.tar.gz";
    assert!(
        downloads(manifest).contains(line),
        "{}",
        downloads(manifest)
    );
}

/// First words of hints, which say what to do.
const VERBS: &str = "add allow ask attach change check choose convert correct create export free give install keep leave make move \
                     name open paste pass put quote raise remove rename repair rephrase run send set shorten start try type unset \
                     update use wait write";

#[test]
fn hints_begin_with_a_verb_and_quote_their_commands() {
    const COMMANDS: [&str; 6] = [
        "bantam config",
        "bantam help",
        "bantam agent",
        "bantam mcp",
        "bantam models",
        "bantam onboard",
    ];
    let mut complaints = Vec::new();
    for source in sources() {
        for after in source.code.split(".hint(").skip(1) {
            let start = after.trim_start().trim_start_matches("format!(");
            let Some(text) = start.trim_start().strip_prefix('"') else {
                continue;
            };
            let hint = text.split('"').next().unwrap();
            let first = hint.split(' ').next().unwrap();
            let is_verb = VERBS.split(' ').any(|verb| verb == first) || first.starts_with('`');
            let unquoted: String = hint.split('`').step_by(2).collect();
            let is_bare = COMMANDS.iter().any(|command| unquoted.contains(command));
            if !is_verb || is_bare || hint.contains("for example") {
                complaints.push(format!(
                    "src/{}: a hint begins with a verb, has its command in backticks, and no \"for example\": {hint}",
                    source.path
                ));
            }
        }
    }
    none(&complaints);
}
