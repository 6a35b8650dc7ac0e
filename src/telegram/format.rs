//! Answers as messages: Markdown in, pieces of Telegram's HTML out.
//!
//! A message may have 4096 characters "after entities parsing" (Bot API, `sendMessage`), and a character is a UTF-16 code
//! unit, as in offsets of entities: what counts is the text that people see, not the tags around it. The server has two more
//! limits that are not in the documentation and were found by trying, so they may be others today: it refuses a very long
//! source ("text is too long", which is not the error for a long message; 32 KiB), and it ignores all but the first hundred
//! entities of a message. Within these a piece is as long as a good place to cut allows.
//!
//! By "Formatting options" of the Bot API tags must be nested properly, code has no other styles in it, links and quotes have
//! none of their own kind in them. Tags are written from a stack here, and the styles that may not meet are sorted out before,
//! so that the rules hold whatever the Markdown was.

use super::blocks;
use super::characters::{Graphemes, is_invisible};
use super::rich::{BOLD, CODE, ITALIC, LINK, PRE, QUOTE, Rich, SPOILER, STRIKE, Style, WHOLE};

/// The most that a message may have of text, in UTF-16 code units.
pub const LIMIT: usize = 4096;
/// The most that a message may have of source, in bytes; room is left for the tags that close.
const LONGEST_SOURCE: usize = 30_000;
/// The most entities that a message may have.
const MOST_ENTITIES: usize = 100;

/// A message, written twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// For `parse_mode` `HTML`.
    pub html: String,
    /// The same text without any styles: for when the server cannot parse the other.
    pub plain: String,
}

/// The messages that show `markdown`, in their order; none if there is nothing to see. Together they have all of its text,
/// but for white space where it was cut.
pub fn pieces(markdown: &str) -> Vec<Piece> {
    let rich = blocks::read(markdown);
    let mut pieces = Vec::new();
    let mut place = Place { at: 0, run: 0 };
    while place.at < rich.text.len() {
        let (piece, next) = piece(&rich, place);
        pieces.extend(piece);
        place = next;
    }
    pieces
}

/// A place in the text, and the run of styles that it is in.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    run: usize,
}

/// The piece of the text up to its last character that is not white space.
#[derive(Clone, Copy)]
struct Solid {
    /// Where that character ends.
    end: usize,
    /// The length of the HTML.
    html: usize,
    /// The tags that are open.
    tags: Tags,
}

/// A place where the piece could end.
#[derive(Clone, Copy)]
struct Cut {
    solid: Solid,
    /// Where the next piece begins.
    next: Place,
    /// How long the piece has been up to here, in UTF-16 code units.
    units: usize,
}

/// Kinds of places to cut, best first. From `CHARACTER` on they are not good to cut at.
const PARAGRAPH: usize = 0;
const LINE: usize = 1;
const SENTENCE: usize = 2;
const WORD: usize = 3;
const CHARACTER: usize = 4;
/// Between the words of something that should stay whole, and within them.
const INNER_WORD: usize = 5;
const INNER_CHARACTER: usize = 6;

/// The piece that begins at `place`, if it has anything to see, and where the next begins.
fn piece(rich: &Rich, place: Place) -> (Option<Piece>, Place) {
    let place = skip_space(rich, place);
    let mut run = place.run;
    let mut html = String::new();
    let mut tags = Tags::default();
    let (mut units, mut entities) = (0, 0);
    let mut solid = Solid { end: place.at, html: 0, tags };
    let mut cuts: [Option<Cut>; 7] = [None; 7];
    let mut graphemes = Graphemes::default();
    let mut before = Style::default();
    let mut visible = false;
    let mut end = Cut { solid, next: Place { at: rich.text.len(), run: rich.runs.len() }, units: 0 };
    for (at, c) in rich.text[place.at..].char_indices() {
        let at = at + place.at;
        while rich.runs[run].0 <= at {
            run += 1;
        }
        let style = rich.runs[run].1;
        let may_cut = graphemes.next(c);
        if !c.is_whitespace() && may_cut && solid.end > place.at {
            let gap = &rich.text[solid.end..at];
            let kind = kind_of_cut(rich.text[..solid.end].chars().next_back(), gap, before, style);
            let indented = gap.rfind('\n').filter(|_| style.has(PRE)).map(|feed| solid.end + feed + 1);
            cuts[kind] = Some(Cut { solid, next: Place { at: indented.unwrap_or(at), run: place.run }, units });
        }
        entities += tags.turn(style, &rich.targets, &mut html);
        escape(c, &mut html);
        units += c.len_utf16();
        before = style;
        if c.is_whitespace() {
            continue;
        }
        if units > LIMIT || entities > MOST_ENTITIES || html.len() > LONGEST_SOURCE {
            let forced = Cut { solid, next: Place { at, run: place.run }, units };
            end = best(&cuts, units).unwrap_or(forced);
            break;
        }
        visible = visible || !is_invisible(c);
        solid = Solid { end: at + c.len_utf8(), html: html.len(), tags };
        end.solid = solid;
    }
    while end.next.run < rich.runs.len() && rich.runs[end.next.run].0 <= end.next.at {
        end.next.run += 1;
    }
    html.truncate(end.solid.html);
    end.solid.tags.close(0, &mut html);
    let plain = rich.text[place.at..end.solid.end].to_owned();
    (visible.then_some(Piece { html, plain }), end.next)
}

/// Code keeps its indentation; everything else begins with what is seen.
fn skip_space(rich: &Rich, mut place: Place) -> Place {
    for (at, c) in rich.text[place.at..].char_indices() {
        let at = at + place.at;
        while rich.runs[place.run].0 <= at {
            place.run += 1;
        }
        if c != '\n' && (!c.is_whitespace() || rich.runs[place.run].1.has(PRE)) {
            return Place { at, ..place };
        }
    }
    Place { at: rich.text.len(), ..place }
}

/// What kind of place is between the character `last` and the next that is not white space, with `gap` between them.
fn kind_of_cut(last: Option<char>, gap: &str, before: Style, after: Style) -> usize {
    let feeds = gap.bytes().filter(|b| *b == b'\n').count();
    let both = |marks: u16| before.has(marks) && after.has(marks) && before.of == after.of;
    if both(LINK) || feeds == 0 && both(CODE | WHOLE | PRE) {
        return if gap.is_empty() { INNER_CHARACTER } else { INNER_WORD };
    }
    let ends_sentence = |c: char| matches!(c, '。' | '！' | '？' | '…') || !gap.is_empty() && ".!?".contains(c);
    match feeds {
        0 if last.is_some_and(ends_sentence) => SENTENCE,
        0 if gap.is_empty() => CHARACTER,
        0 => WORD,
        1 => LINE,
        _ => PARAGRAPH,
    }
}

/// The best of the places for a piece that could have been so long: the best kind that fills it at least by half.
fn best(cuts: &[Option<Cut>; 7], units: usize) -> Option<Cut> {
    let half = |cut: &Cut| cut.units * 2 >= units;
    cuts[..=CHARACTER].iter().flatten().find(|cut| half(cut)).or_else(|| cuts.iter().flatten().next()).copied()
}

fn escape(c: char, html: &mut String) {
    match c {
        '&' => html.push_str("&amp;"),
        '<' => html.push_str("&lt;"),
        '>' => html.push_str("&gt;"),
        '"' => html.push_str("&quot;"),
        c => html.push(c),
    }
}

/// The tags of the styles, the outermost first.
const TAGS: [(u16, &str); 8] = [
    (QUOTE, "blockquote"),
    (LINK, "a"),
    (SPOILER, "tg-spoiler"),
    (BOLD, "b"),
    (ITALIC, "i"),
    (STRIKE, "s"),
    (CODE, "code"),
    (PRE, "pre"),
];

/// The tags that are open, the outermost first.
#[derive(Clone, Copy, Default)]
struct Tags {
    open: [Tag; TAGS.len()],
    len: usize,
}

#[derive(Clone, Copy, Default, PartialEq)]
struct Tag {
    /// Its row in [`TAGS`].
    row: usize,
    /// The address or the language.
    of: usize,
    /// It is a `pre` with a `code` in it, for the language.
    named: bool,
}

impl Tags {
    /// Closes and opens what must be so that `style` comes next. Says how many tags it opened.
    fn turn(&mut self, style: Style, targets: &[String], html: &mut String) -> usize {
        let wanted = |row: usize| {
            let mark = TAGS[row].0;
            let allowed = match style.marks {
                marks if marks & PRE != 0 => QUOTE | PRE,
                marks if marks & CODE != 0 && marks & LINK == 0 => QUOTE | CODE,
                _ => !CODE,
            };
            let of = if mark & (LINK | PRE) != 0 { style.of } else { 0 };
            let named = mark == PRE && targets.get(of).is_some_and(|language| !language.is_empty());
            (style.marks & allowed & mark != 0).then_some(Tag { row, of, named })
        };
        let stays = self.open[..self.len].iter().take_while(|tag| wanted(tag.row) == Some(**tag)).count();
        self.close(stays, html);
        for tag in (0..TAGS.len()).filter_map(wanted) {
            if !self.open[..stays].contains(&tag) {
                self.open(tag, targets, html);
            }
        }
        self.len - stays
    }

    fn open(&mut self, tag: Tag, targets: &[String], html: &mut String) {
        html.push('<');
        html.push_str(TAGS[tag.row].1);
        if TAGS[tag.row].0 == LINK {
            html.push_str(" href=\"");
            targets[tag.of].chars().for_each(|c| escape(c, html));
            html.push('"');
        }
        html.push('>');
        if tag.named {
            html.push_str("<code class=\"language-");
            html.push_str(&targets[tag.of]);
            html.push_str("\">");
        }
        self.open[self.len] = tag;
        self.len += 1;
    }

    /// Closes all but the first so many.
    fn close(&mut self, stays: usize, html: &mut String) {
        while self.len > stays {
            self.len -= 1;
            let tag = self.open[self.len];
            html.push_str(if tag.named { "</code></" } else { "</" });
            html.push_str(TAGS[tag.row].1);
            html.push('>');
        }
    }
}
