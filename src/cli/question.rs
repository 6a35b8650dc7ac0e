//! The question of `bantam agent`, a message made from words, standard input, a template and files.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::Path;

use super::args::Args;
use super::attach::{self, STDIN};
use super::input;
use super::ui::Ui;
use crate::access;
use crate::agent::Request;
use crate::app::media::Attachment;
use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};
use crate::message::{MAX_FILE, Media};
use crate::paths::Home;
use crate::redact::Redactor;
use crate::session::MAX_TITLE;
use crate::template;
use crate::text::{fenced, not_found, to_single_line};

/// Flags of a single question, with which no conversation opens.
const ONE_SHOT: [&str; 9] = [
    "message", "no-stdin", "json", "events", "dry-run", "attach", "template", "to", "schema",
];

/// Reads the question, whose title is the typed text if a template changed it. `None` if there is none and a terminal to open a
/// conversation.
pub(super) fn read(
    args: &Args,
    home: &Home,
    ui: &Ui,
    deadline: Option<&Cancel>,
) -> Result<Option<Request>> {
    let asked = asked(args)?;
    let is_attached = args.values("attach").any(|path| path == "-");
    let piped = if args.has("no-stdin") || is_attached {
        Attachment::Text(String::new())
    } else {
        piped(ui, deadline)?
    };
    let (piped, media) = match piped {
        Attachment::Text(text) => (text, Vec::new()),
        Attachment::Media(media) => (String::new(), vec![media]),
    };
    let input = match (asked.trim().is_empty(), piped.trim().is_empty()) {
        (true, true) => {
            let is_one_shot = ONE_SHOT.iter().any(|flag| args.has(flag));
            if io::stdin().is_terminal() && !is_one_shot {
                return Ok(None);
            }
            String::new()
        }
        (false, true) => asked,
        (true, false) => piped,
        (false, false) => format!("{asked}\n\n{}", fenced(&piped)),
    };
    let (title, text) = match args.value("template") {
        Some(name) => {
            let text = fill(name, &find_template(name, home)?, &params(args)?, &input)?;
            (to_single_line(&input, MAX_TITLE), text)
        }
        None if args.has("param") => {
            let hint = "name the template with `-t`";
            return Err(Error::usage("--param without --template").hint(hint));
        }
        None => (String::new(), input),
    };
    if text.trim().is_empty() {
        let hint = "run `bantam \"a question\"`, also with `-a FILE` or `<FILE`, or pipe one in";
        return Err(Error::usage("no question").hint(hint));
    }
    let request = Request::new(text, "");
    Ok(Some(Request {
        title,
        media,
        ..request
    }))
}

/// Returns the typed question; empty if there is none, or `-` for standard input.
pub(super) fn asked(args: &Args) -> Result<String> {
    if args.has("attach") {
        // `-a *.png` attaches the first file, and the shell makes the others words.
        if let Some(file) = args.words.first().filter(|word| Path::new(word).is_file()) {
            let shown = to_single_line(file, 80);
            let example = shell_words::quote(&shown);
            return Err(Error::usage(format!("{shown} is a file, but not attached"))
                .hint(format!("put -a before each file: `-a {example}`")));
        }
    }
    let words = Some(args.words.join(" ")).filter(|words| !matches!(&**words, "" | "-"));
    let mut given = args.values("message").map(str::to_owned).chain(words);
    let asked = given.next().unwrap_or_default();
    let Some(other) = given.next() else {
        return Ok(asked);
    };
    let shown = to_single_line(&other, 40);
    Err(
        Error::usage(format!("question given twice: -m and \"{shown}\""))
            .hint("put quotes around all of it: -m \"...\""),
    )
}

/// Adds an attached file. Known secrets are redacted, because tools may have written them into it.
pub(super) fn attach(request: &mut Request, file: Attachment, redactor: &Redactor) {
    match file {
        Attachment::Text(text) => {
            let text = redactor.redact(text);
            request.input.push_str(&format!("\n\n{text}"));
        }
        Attachment::Media(media) => request.media.push(Media {
            text: redactor.redact(media.text),
            ..media
        }),
    }
}

fn params(args: &Args) -> Result<BTreeMap<&str, &str>> {
    let mut params = BTreeMap::new();
    for pair in args.values("param") {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            Error::usage(format!("--param {}: no = in it", to_single_line(pair, 40)))
                .hint("write `-p KEY=VALUE`")
        })?;
        params.insert(key, value);
    }
    Ok(params)
}

/// Returns the user's template, or else the built-in one.
fn find_template(name: &str, home: &Home) -> Result<String> {
    let file = format!("prompts/{name}.md");
    let own = access::read_untrusted(&home.agent(), &file);
    let own = own.doing(format_args!(
        "reading the template {}",
        home.agent().join(&file).display()
    ))?;
    if let Some(text) = own.or_else(|| template::text(&format!("agent/{file}"))) {
        return Ok(text);
    }
    let built_in = template::names("agent/prompts").into_iter();
    let built_in = built_in.filter_map(|file| file.strip_suffix(".md"));
    let list = format!("ls {}", home.agent().join("prompts").display());
    Err(not_found("template", name, built_in, &list))
}

/// Fills in the values once, so that a value with `{{key}}` is unchanged.
fn fill<'a>(
    name: &str,
    template: &'a str,
    params: &BTreeMap<&'a str, &'a str>,
    input: &'a str,
) -> Result<String> {
    let mut values = params.clone();
    if !input.trim().is_empty() {
        values.insert("input", input.trim_end());
    }
    let mut used = Vec::new();
    let filled = crate::text::fill(template, |key| {
        used.push(key);
        values.get(key).copied()
    });
    let out = filled.map_err(|key| match key {
        "input" => Error::usage(format!("the template {name} needs a text")).hint(format!(
            "run `bantam agent -t {name} -m \"the text\"`, or pipe it in"
        )),
        _ => Error::usage(format!("the template {name} needs a value for {key}"))
            .hint(format!("add -p {key}=...")),
    })?;
    if let Some(unused) = params.keys().find(|key| !used.contains(key)) {
        return Err(Error::usage(format!(
            "the template {name} has no {{{{{}}}}}",
            to_single_line(unused, 40)
        ))
        .hint(match used[..] {
            [] => "leave out -p".to_owned(),
            _ => format!("use one of its placeholders: {}", used.join(", ")),
        }));
    }
    // Text is appended if the template has no {{input}}.
    match values.get("input") {
        Some(text) if !used.contains(&"input") => Ok(format!("{}\n\n{text}", out.trim_end())),
        _ => Ok(out),
    }
}

/// Returns the text or the file of standard input; an empty text from a terminal.
fn piped(ui: &Ui, deadline: Option<&Cancel>) -> Result<Attachment> {
    if io::stdin().is_terminal() {
        return Ok(Attachment::Text(String::new()));
    }
    attach::of_bytes(&input::read_stdin(MAX_FILE, deadline)?, STDIN, ui)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_filled_once_or_names_what_it_lacks() {
        let filled = |template, params: &[(&'static str, &'static str)], input| {
            let filled = fill("t", template, &params.iter().copied().collect(), input);
            filled.unwrap_or_else(|e| e.to_string())
        };
        for (template, params, input, expected) in [
            (
                "{{a}}, {{ b:3 }}{{c:, 4}}, {{not a key}}, {{input}} {{",
                &[("a", "{{b}} {{input}}"), ("b", "2")][..],
                "x {{a}}\n",
                "{{b}} {{input}}, 2, 4, {{not a key}}, x {{a}} {{",
            ),
            ("Sum this up:\n", &[], "text\n", "Sum this up:\n\ntext"),
            ("Say hello.", &[], "", "Say hello."),
            (
                "{{language}}",
                &[],
                "",
                "the template t needs a value for language",
            ),
            ("{{input}}", &[], "", "the template t needs a text"),
            ("Hello.", &[("a", "b")], "", "the template t has no {{a}}"),
        ] {
            assert_eq!(filled(template, params, input), expected);
        }
    }
}
