//! Ranks the lines of notes by how well they match a query.

use std::cmp::Reverse;

use super::notes::Note;

/// The most words of a query that count: one bit each.
const MAX_TERMS: usize = 32;

/// A line that contains some of the words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// Which note, and which line of it, from 0.
    pub(super) note: usize,
    pub(super) line: usize,
    /// Where in the line, in bytes.
    pub(super) at: usize,
    score: u32,
}

/// The lines that contain any of the words, best first: those with more and rarer words, then those of newer notes. A
/// note's key counts as part of its first line.
pub(super) fn rank(notes: &[Note], terms: &[String]) -> Vec<Match> {
    // The words of each line, as bits, until it is known how rare each is.
    let mut matches = Vec::new();
    let (mut occurrences, mut lines) = (vec![0_u32; terms.len()], 0_u32);
    for (number, note) in notes.iter().enumerate() {
        let key = note.key.to_lowercase();
        for (n, line) in note.text.lines().enumerate() {
            lines += 1;
            let lower = line.to_lowercase();
            let (mut score, mut at) = (0, line.len());
            for (bit, term) in terms.iter().enumerate() {
                let found = find_word(term, &lower);
                if found.is_some() || n == 0 && find_word(term, &key).is_some() {
                    score |= 1 << bit;
                    occurrences[bit] += 1;
                    at = at.min(found.unwrap_or(0));
                }
            }
            if score != 0 {
                // Letters that change their length with their case shift what follows.
                let at = if lower.len() == line.len() && line.is_char_boundary(at) {
                    at
                } else {
                    0
                };
                matches.push(Match {
                    note: number,
                    line: n,
                    at,
                    score,
                });
            }
        }
    }
    for found in &mut matches {
        let words = (0..terms.len()).filter(|bit| found.score & (1 << bit) != 0);
        found.score = words
            .map(|bit| 1 + (lines / occurrences[bit]).ilog2())
            .sum();
    }
    let rank = |found: &Match| (found.score, notes[found.note].modified);
    matches.sort_by_key(|found| Reverse(rank(found)));
    matches
}

/// The words of a query in lower case. Scripts without spaces between words are split into pairs of characters.
pub(super) fn terms(query: &str) -> Vec<String> {
    let mut terms: Vec<String> = Vec::new();
    for word in query.to_lowercase().split(|c: char| !c.is_alphanumeric()) {
        let letters: Vec<char> = word.chars().collect();
        for run in letters.chunk_by(|a, b| is_unspaced(*a) == is_unspaced(*b)) {
            let len = if is_unspaced(run[0]) {
                run.len().min(2)
            } else {
                run.len()
            };
            for piece in run.windows(len).map(String::from_iter) {
                if !terms.contains(&piece) && terms.len() < MAX_TERMS {
                    terms.push(piece);
                }
            }
        }
    }
    terms
}

/// Thai and its neighbours, Chinese, Japanese and Korean, by their Unicode blocks. (Korean has spaces, but its words end
/// in many ways.)
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{2e80}'..='\u{d7ff}'
        | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9d}' | '\u{20000}'..='\u{3ffff}')
}

/// Where a term begins a word of `line`; a term of one or two letters has to be the whole word.
fn find_word(term: &str, line: &str) -> Option<usize> {
    let unspaced = term.chars().all(is_unspaced);
    let whole = term.chars().count() < 3;
    let continues = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() && !is_unspaced(c));
    line.match_indices(term).map(|(at, _)| at).find(|at| {
        let (before, after) = (
            line[..*at].chars().next_back(),
            line[at + term.len()..].chars().next(),
        );
        unspaced || !(continues(before) || whole && continues(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// Notes, the oldest first.
    fn notes(texts: &[(&str, &str)]) -> Vec<Note> {
        let modified = |n: u64| Some(UNIX_EPOCH + Duration::from_secs(n));
        let note = |(n, (key, text)): (u64, &(&str, &str))| Note {
            key: (*key).into(),
            modified: modified(n),
            len: 0,
            text: (*text).into(),
        };
        (0..).zip(texts).map(note).collect()
    }

    /// The lines that a query finds, best first: `KEY:LINE`.
    fn found(texts: &[(&str, &str)], query: &str) -> Vec<String> {
        let notes = notes(texts);
        let hits = rank(&notes, &terms(query));
        hits.iter()
            .map(|hit| format!("{}:{}", notes[hit.note].key, hit.line + 1))
            .collect()
    }

    #[test]
    fn words_are_found_in_any_case_and_at_the_beginning_of_longer_ones() {
        let texts = [
            ("a", "The Tomatoes want water.\nunwatered\nIt is so."),
            ("b", "ÄPFEL und Birnen"),
        ];
        assert_eq!(found(&texts, "tomato"), ["a:1"]);
        assert_eq!(found(&texts, "WATER"), ["a:1"]);
        assert_eq!(found(&texts, "äpfel"), ["b:1"]);
        assert_eq!(found(&texts, "s is"), ["a:3"]);
        assert_eq!(found(&texts, "nothing"), [""; 0]);
        assert_eq!(terms("  ?!, -- "), [""; 0]);
    }

    #[test]
    fn more_and_rarer_words_come_first_and_then_what_is_newer() {
        let texts = [
            ("old", "cat food\ncat\ncat\ncat"),
            ("new", "cat\nfood\nquince"),
            ("quince", "jam\ncat"),
        ];
        assert_eq!(found(&texts, "cat food")[0], "old:1");
        // A key is a part of its note's first line.
        assert_eq!(found(&texts, "cat quince")[..2], ["quince:1", "new:3"]);
        let cats = ["quince:2", "new:1", "old:1", "old:2", "old:3", "old:4"];
        assert_eq!(found(&texts, "cat"), cats);
    }

    #[test]
    fn text_without_spaces_is_found_by_its_parts() {
        let texts = [
            ("a", "明日は東京タワーに行く\n京都は遠い"),
            ("b", "오늘은 서울에서 회의\nวันนี้ประชุมที่กรุงเทพ"),
        ];
        assert_eq!(terms("東京タワー"), ["東京", "京タ", "タワ", "ワー"]);
        assert_eq!(found(&texts, "東京タワー")[0], "a:1");
        assert_eq!(found(&texts, "京都"), ["a:2"]);
        assert_eq!(found(&texts, "서울"), ["b:1"]);
        assert_eq!(found(&texts, "ประชุม")[0], "b:2");
        assert_eq!(terms("iPhone15を買う"), ["iphone15", "を買", "買う"]);
    }
}
