//! The text that is edited, and what keys do to it. Knows no terminal.

use crate::markdown::begins_cluster;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Motion {
    Left,
    Right,
    WordLeft,
    WordRight,
    LineStart,
    LineEnd,
    Up,
    Down,
}

#[derive(Default)]
pub(super) struct Buffer {
    text: String,
    /// In bytes, between characters that people see as one.
    cursor: usize,
    /// What was cut out last.
    cut: String,
}

impl Buffer {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn cursor(&self) -> usize {
        self.cursor
    }

    pub(super) fn before(&self) -> &str {
        &self.text[..self.cursor]
    }

    /// Replaces the text; the cursor goes to its end.
    pub(super) fn set(&mut self, text: String) {
        (self.cursor, self.text) = (text.len(), text);
    }

    pub(super) fn take(&mut self) -> String {
        self.cursor = 0;
        std::mem::take(&mut self.text)
    }

    pub(super) fn insert(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    /// Replaces what stands between `start` and the cursor.
    pub(super) fn replace_from(&mut self, start: usize, text: &str) {
        self.text.replace_range(start..self.cursor, text);
        self.cursor = start + text.len();
    }

    /// Moves the cursor; `false` if it cannot go there.
    pub(super) fn go(&mut self, motion: Motion) -> bool {
        let target = self.target(motion);
        let moved = target != self.cursor;
        self.cursor = target;
        moved
    }

    pub(super) fn delete(&mut self, motion: Motion) {
        let (at, target) = (self.cursor, self.target(motion));
        self.text.drain(at.min(target)..at.max(target));
        self.cursor = at.min(target);
    }

    /// Deletes, for [`Buffer::paste`]. At the end of a line, cutting to its end cuts the line feed.
    pub(super) fn cut(&mut self, motion: Motion) {
        let at = self.cursor;
        let target = match self.target(motion) {
            end if end == at && motion == Motion::LineEnd => self.target(Motion::Right),
            end => end,
        };
        if target != at {
            self.cut = self.text.drain(at.min(target)..at.max(target)).collect();
            self.cursor = at.min(target);
        }
    }

    pub(super) fn paste(&mut self) {
        let cut = self.cut.clone();
        self.insert(&cut);
    }

    fn target(&self, motion: Motion) -> usize {
        let (before, after) = self.text.split_at(self.cursor);
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let end = self.cursor + after.find('\n').unwrap_or(after.len());
        match motion {
            Motion::Left => self
                .starts()
                .take_while(|at| *at < self.cursor)
                .last()
                .unwrap_or(0),
            Motion::Right => self
                .starts()
                .find(|at| *at > self.cursor)
                .unwrap_or(self.text.len()),
            Motion::WordLeft => {
                let end = before.trim_end_matches(|c: char| !c.is_alphanumeric());
                end.trim_end_matches(char::is_alphanumeric).len()
            }
            Motion::WordRight => {
                let start = after.trim_start_matches(|c: char| !c.is_alphanumeric());
                self.text.len() - start.trim_start_matches(char::is_alphanumeric).len()
            }
            Motion::LineStart => start,
            Motion::LineEnd => end,
            Motion::Up if start > 0 => self.same_column(
                before[..start - 1].rfind('\n').map_or(0, |at| at + 1),
                start,
            ),
            Motion::Down if end < self.text.len() => self.same_column(end + 1, start),
            Motion::Up | Motion::Down => self.cursor,
        }
    }

    /// The place in the line that begins at `line` that is as far from its start as the cursor is from `start`.
    fn same_column(&self, line: usize, start: usize) -> usize {
        let column = self.text[start..self.cursor].chars().count();
        let mut places = self.text[line..].char_indices();
        let place = places
            .by_ref()
            .take_while(|(_, c)| *c != '\n')
            .nth(column)
            .map(|(at, _)| line + at);
        let end = self.text[line..]
            .find('\n')
            .map_or(self.text.len(), |at| line + at);
        let place = place.unwrap_or(end);
        self.starts()
            .take_while(|at| *at <= place)
            .last()
            .filter(|_| place < self.text.len())
            .unwrap_or(place)
    }

    /// Where characters that people see as one begin.
    fn starts(&self) -> impl Iterator<Item = usize> {
        let mut before = None;
        self.text
            .char_indices()
            .filter(move |(_, c)| begins_cluster(before.replace(*c), *c))
            .map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer with the cursor at `|`.
    fn at(text: &str) -> Buffer {
        let cursor = text.find('|').unwrap();
        Buffer {
            text: text.replacen('|', "", 1),
            cursor,
            cut: "cut".to_owned(),
        }
    }

    #[track_caller]
    fn is(buffer: &Buffer, text: &str) {
        assert_eq!(
            format!("{}|{}", buffer.before(), &buffer.text[buffer.cursor..]),
            text
        );
    }

    #[test]
    fn the_cursor_moves_by_what_people_see_as_one_character() {
        use Motion::*;
        for (from, motion, to) in [
            ("a|b", Left, "|ab"),
            ("|ab", Left, "|ab"),
            ("ab|", Right, "ab|"),
            ("世|界", Right, "世界|"),
            ("e\u{301}|x", Left, "|e\u{301}x"),
            (
                "|👨\u{200d}👩\u{200d}👧!",
                Right,
                "👨\u{200d}👩\u{200d}👧|!",
            ),
            ("one two,  three|", WordLeft, "one two,  |three"),
            ("one two,  |three", WordLeft, "one |two,  three"),
            ("|  one two", WordRight, "  one| two"),
            ("grüße|", WordLeft, "|grüße"),
            ("one\ntw|o\n", LineStart, "one\n|two\n"),
            ("one\nt|wo\n", LineEnd, "one\ntwo|\n"),
            ("one\ntw|o", Up, "on|e\ntwo"),
            ("one\n\ntwo|", Up, "one\n|\ntwo"),
            ("on|e\nt", Down, "one\nt|"),
            ("o|ne\ntwo", Down, "one\nt|wo"),
            ("o|ne", Up, "o|ne"),
            ("ab|\ne\u{301}e\u{301}", Down, "ab\ne\u{301}|e\u{301}"),
        ] {
            let mut buffer = at(from);
            assert_eq!(buffer.go(motion), from != to, "{from}");
            is(&buffer, to);
        }
    }

    #[test]
    fn text_is_deleted_cut_and_put_back() {
        let mut buffer = at("one e\u{301}|x two");
        buffer.delete(Motion::Left);
        is(&buffer, "one |x two");
        buffer.delete(Motion::Right);
        is(&buffer, "one | two");
        buffer.cut(Motion::WordLeft);
        is(&buffer, "| two");
        buffer.go(Motion::LineEnd);
        buffer.paste();
        is(&buffer, " twoone |");
        let mut lines = at("one|\ntwo");
        lines.cut(Motion::LineEnd);
        is(&lines, "one|two");
        lines.cut(Motion::LineStart);
        lines.paste();
        is(&lines, "one|two");
        lines.replace_from(1, "NE ");
        is(&lines, "oNE |two");
    }
}
