//! Telegram's HTML, as read by its server and as documented.
//!
//! [`parse`] follows the server's parser, including leniencies and error texts (`TDLib`, `td/telegram/MessageEntity.cpp`,
//! `parse_html`). [`strict`] also requires the rules of "Formatting options" in the Bot API.

/// A style of a part of the text. Offsets and lengths are in UTF-16 code units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entity {
    pub tag: String,
    pub argument: String,
    pub from: usize,
    pub to: usize,
    /// Enclosing tags, outermost first.
    pub within: Vec<String>,
}

/// Text as displayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    pub text: String,
    /// Styles, in the order in which they end.
    pub entities: Vec<Entity>,
}

/// Maximum length of a message, in UTF-16 code units.
const LIMIT: usize = 4096;
/// Maximum size of the source that the server parses, in bytes.
const LONGEST_SOURCE: usize = 1 << 15;

const TAGS: &str =
    "a b strong i em s strike del u ins tg-spoiler tg-emoji span pre code blockquote";

/// Returns the length of `text` as counted by Telegram.
pub fn units(text: &str) -> usize {
    text.encode_utf16().count()
}

struct Open {
    tag: String,
    argument: String,
    from: usize,
}

/// Returns the text and the styles of `html`, or the description of the server's error, without its prefix.
pub fn parse(html: &str) -> Result<Parsed, String> {
    let mut parsed = Parsed::default();
    let mut stack: Vec<Open> = Vec::new();
    let mut offset = 0;
    let mut at = 0;
    while let Some(c) = html[at..].chars().next() {
        if c == '&' {
            if let Some((c, len)) = character_reference(&html[at..]) {
                parsed.text.push(c);
                offset += c.len_utf16();
                at += len;
                continue;
            }
        }
        if c != '<' {
            parsed.text.push(c);
            offset += c.len_utf16();
            at += c.len_utf8();
            continue;
        }
        let rest = &html[at + 1..];
        if let Some(rest) = rest.strip_prefix('/') {
            let Some(open) = stack.last() else {
                return Err(format!("Unexpected end tag at byte offset {at}"));
            };
            let len = rest
                .find(|c: char| c.is_ascii_whitespace() || c == '>')
                .unwrap_or(rest.len());
            let after = rest[len..].trim_start();
            if !after.starts_with('>') {
                return Err(format!("Unclosed end tag at byte offset {at}"));
            }
            let name = rest[..len].to_ascii_lowercase();
            if !name.is_empty() && name != open.tag {
                let tag = &open.tag;
                return Err(format!(
                    "Unmatched end tag at byte offset {at}, expected \"</{tag}>\", found \"</{name}>\""
                ));
            }
            let open = stack.pop().unwrap();
            let within = stack.iter().map(|open| open.tag.clone()).collect();
            let Open {
                tag,
                argument,
                from,
            } = open;
            parsed.entities.push(Entity {
                tag,
                argument,
                from,
                to: offset,
                within,
            });
            at = html.len() - after.len() + 1;
        } else {
            let (tag, argument, len) = start_tag(rest, at)?;
            stack.push(Open {
                tag,
                argument,
                from: offset,
            });
            at += 1 + len;
        }
    }
    match stack.pop() {
        Some(open) => Err(format!(
            "Can't find end tag corresponding to start tag \"{}\"",
            open.tag
        )),
        None => Ok(parsed),
    }
}

/// Returns the name, the relevant argument and the length of the start tag at `at`.
fn start_tag(rest: &str, at: usize) -> Result<(String, String, usize), String> {
    let unclosed = || format!("Unclosed start tag at byte offset {at}");
    let space = |c: char| c.is_ascii_whitespace();
    let len = rest
        .find(|c: char| space(c) || c == '>')
        .ok_or_else(unclosed)?;
    let tag = rest[..len].to_ascii_lowercase();
    if !TAGS.split(' ').any(|known| known == tag) {
        return Err(format!(
            "Unsupported start tag \"{tag}\" at byte offset {at}"
        ));
    }
    let mut argument = String::new();
    let mut left = rest[len..].trim_start_matches(space);
    while !left.starts_with('>') {
        let len = left
            .find(|c: char| space(c) || "=>/\"'".contains(c))
            .ok_or_else(unclosed)?;
        let (name, after) = left.split_at(len);
        if name.is_empty() {
            return Err(format!(
                "Empty attribute name in the tag \"{tag}\" at byte offset {at}"
            ));
        }
        let Some(value) = after.trim_start_matches(space).strip_prefix('=') else {
            left = after.trim_start_matches(space);
            continue;
        };
        let value = value.trim_start_matches(space);
        let quote = value.chars().next().ok_or_else(unclosed)?;
        let text;
        if quote == '"' || quote == '\'' {
            let len = value[1..].find(quote).ok_or_else(unclosed)?;
            text = unescaped(&value[1..=len]);
            left = value[len + 2..].trim_start_matches(space);
        } else {
            let token = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
            let len = value.find(|c| !token(c)).ok_or_else(unclosed)?;
            if !value[len..].starts_with(|c| space(c) || c == '>') {
                return Err(format!("Unexpected end of name token at byte offset {at}"));
            }
            text = value[..len].to_ascii_lowercase();
            left = value[len..].trim_start_matches(space);
        }
        match (tag.as_str(), name) {
            ("a", "href") | ("tg-emoji", "emoji-id") => argument = text,
            ("code", "class") if text.starts_with("language-") => {
                argument = text["language-".len()..].to_owned();
            }
            ("span", "class") if text.starts_with("tg-") => {
                argument = text["tg-".len()..].to_owned();
            }
            _ => {}
        }
        if left.is_empty() {
            return Err(unclosed());
        }
    }
    if tag == "span" && argument != "spoiler" {
        return Err(format!(
            "Tag \"span\" must have class \"tg-spoiler\" at byte offset {at}"
        ));
    }
    Ok((tag, argument, rest.len() - left.len() + 1))
}

fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let (c, len) = if c == '&' {
            character_reference(&text[at..])
        } else {
            None
        }
        .unwrap_or((c, c.len_utf8()));
        out.push(c);
        at += len;
    }
    out
}

/// Returns the character of a reference such as `&lt;` or `&#60;`, and its length. Unknown references remain as they are.
fn character_reference(text: &str) -> Option<(char, usize)> {
    let rest = &text[1..];
    let (c, len) = if let Some(number) = rest.strip_prefix('#') {
        let (digits, radix) = number
            .strip_prefix('x')
            .map_or((number, 10), |hex| (hex, 16));
        let len = digits
            .find(|c: char| !c.is_digit(radix))
            .unwrap_or(digits.len());
        let c = u32::from_str_radix(&digits[..len], radix)
            .ok()
            .and_then(char::from_u32)?;
        (c, text.len() - digits.len() + len)
    } else {
        let len = rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        let names = [("lt", '<'), ("gt", '>'), ("amp", '&'), ("quot", '"')];
        (
            names.iter().find(|(name, _)| *name == &rest[..len])?.1,
            len + 1,
        )
    };
    let end = usize::from(text[len..].starts_with(';'));
    (c != '\0').then_some((c, len + end))
}

/// Returns the result of [`parse`] for a message that follows all rules, or the first broken rule.
pub fn strict(html: &str) -> Result<Parsed, String> {
    let parsed = parse(html)?;
    let check = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
    check(units(&parsed.text) <= LIMIT, "over 4096 UTF-16 code units")?;
    check(html.len() <= LONGEST_SOURCE, "over 32 KiB of source")?;
    check(
        parsed.text.chars().any(|c| !c.is_whitespace()),
        "nothing to see",
    )?;
    check(
        parsed.text.trim_end() == parsed.text,
        "white space at the end",
    )?;
    check(
        !parsed
            .text
            .contains(|c: char| c.is_control() && c != '\n' && c != '\t'),
        "a control character",
    )?;
    let mut at = 0;
    while let Some(found) = html[at..].find(['&', '<', '>']) {
        at += found;
        let rest = &html[at..];
        at += match &rest[..1] {
            "&" => {
                let known = ["&lt;", "&gt;", "&amp;", "&quot;"]
                    .into_iter()
                    .find(|name| rest.starts_with(name));
                known.ok_or("an ampersand that is not escaped")?.len()
            }
            "<" => written_tag(rest)?,
            _ => return Err("a > that is not escaped".to_owned()),
        };
    }
    let mut counted = 0;
    for entity in &parsed.entities {
        let Entity {
            tag,
            argument,
            from,
            to,
            within,
        } = entity;
        let inside = |other: &str| within.iter().any(|tag| tag == other);
        check(from < to, "an empty entity")?;
        let language = tag == "code" && within.last().is_some_and(|tag| tag == "pre");
        if language {
            let outer = parsed
                .entities
                .iter()
                .any(|outer| outer.tag == "pre" && (outer.from, outer.to) == (*from, *to));
            check(
                outer && !argument.is_empty(),
                "a code in a pre that is not its language",
            )?;
            continue;
        }
        counted += 1;
        check(
            !inside("pre") && !inside("code"),
            "something inside of code",
        )?;
        let is_code = tag == "code" || tag == "pre";
        check(
            !is_code || within.iter().all(|tag| tag == "blockquote"),
            "code inside of something else",
        )?;
        check(!(tag == "a" && inside("a")), "a link in a link")?;
        check(
            tag != "a" || linkable(argument),
            "a link that leads where none may",
        )?;
        check(
            tag != "blockquote" || within.is_empty(),
            "a quote inside of something",
        )?;
        check(!within.contains(tag), "a style within itself")?;
    }
    check(counted <= 100, "over 100 entities")?;
    Ok(parsed)
}

fn linkable(address: &str) -> bool {
    let address = address.to_ascii_lowercase();
    ["http://", "https://", "tg://", "mailto:"]
        .iter()
        .any(|scheme| address.starts_with(scheme))
}

/// Returns the length of a tag that is written exactly as documented.
fn written_tag(rest: &str) -> Result<usize, String> {
    let end = rest.find('>').ok_or("a tag without an end")?;
    let inside = &rest[1..end];
    let simple = ["b", "i", "s", "tg-spoiler", "code", "pre", "blockquote"];
    let fine = match inside.split_once(' ') {
        None => simple.contains(&inside.trim_start_matches('/')) || inside == "/a",
        Some(("a", href)) => {
            href.starts_with("href=\"") && href.len() > 7 && href.matches('"').count() == 2
        }
        Some(("code", class)) => {
            let language = class
                .strip_prefix("class=\"language-")
                .and_then(|class| class.strip_suffix('"'));
            language.is_some_and(|name| !name.is_empty() && !name.contains(['"', '<', '&', ' ']))
        }
        Some(_) => false,
    };
    if fine {
        Ok(end + 1)
    } else {
        Err(format!("<{inside}> is not how it is documented"))
    }
}
