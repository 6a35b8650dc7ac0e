//! What must be known of single characters to cut and to align text. A small part of Unicode's tables, by hand: the
//! marks of the common scripts, emoji and flags; an exotic script may be cut between a letter and its mark.

/// Marks that belong to the character before them (Unicode's `Grapheme_Extend` and `SpacingMark`, the common blocks).
const EXTEND: &[(u32, u32)] = &[
    (0x0300, 0x036F),
    (0x0483, 0x0489),
    (0x0591, 0x05BD),
    (0x05BF, 0x05C7),
    (0x0610, 0x061A),
    (0x064B, 0x065F),
    (0x0670, 0x0670),
    (0x06D6, 0x06DC),
    (0x06DF, 0x06E4),
    (0x06E7, 0x06ED),
    (0x0900, 0x0903),
    (0x093A, 0x093C),
    (0x093E, 0x094F),
    (0x0951, 0x0957),
    (0x0962, 0x0963),
    (0x0981, 0x0983),
    (0x09BC, 0x09D7),
    (0x0A01, 0x0A03),
    (0x0A3C, 0x0A51),
    (0x0A81, 0x0A83),
    (0x0ABC, 0x0ACD),
    (0x0B01, 0x0B03),
    (0x0B3C, 0x0B57),
    (0x0BBE, 0x0BCD),
    (0x0C00, 0x0C04),
    (0x0C3E, 0x0C56),
    (0x0CBC, 0x0CD6),
    (0x0D3B, 0x0D4D),
    (0x0E31, 0x0E31),
    (0x0E33, 0x0E3A),
    (0x0E47, 0x0E4E),
    (0x0EB1, 0x0EBC),
    (0x0F71, 0x0F84),
    (0x102B, 0x103E),
    (0x1160, 0x11FF),
    (0x17B4, 0x17D3),
    (0x1AB0, 0x1AFF),
    (0x1DC0, 0x1DFF),
    (0x200C, 0x200D),
    (0x20D0, 0x20FF),
    (0x302A, 0x302F),
    (0x3099, 0x309A),
    (0xFE00, 0xFE0F),
    (0xFE20, 0xFE2F),
    (0x1_F3FB, 0x1_F3FF),
    (0xE_0020, 0xE_007F),
    (0xE_0100, 0xE_01EF),
];

/// Characters two columns wide (Unicode's `East_Asian_Width` W and F, and emoji).
const WIDE: &[(u32, u32)] = &[
    (0x1100, 0x115F),
    (0x231A, 0x231B),
    (0x23E9, 0x23EC),
    (0x2705, 0x2705),
    (0x274C, 0x274C),
    (0x2753, 0x2757),
    (0x2B50, 0x2B50),
    (0x2E80, 0x303E),
    (0x3041, 0xA4CF),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE6F),
    (0xFF00, 0xFF60),
    (0xFFE0, 0xFFE6),
    (0x1_F300, 0x1_F64F),
    (0x1_F680, 0x1_F6FF),
    (0x1_F7E0, 0x1_F7EB),
    (0x1_F900, 0x1_FAFF),
    (0x2_0000, 0x3_FFFD),
];

fn is_in(table: &[(u32, u32)], c: char) -> bool {
    let c = u32::from(c);
    let after = table.partition_point(|range| range.0 <= c);
    after > 0 && c <= table[after - 1].1
}

fn is_flag_letter(c: char) -> bool {
    matches!(c, '\u{1F1E6}'..='\u{1F1FF}')
}

/// Walks over text and tells where one character, as people see it, ends (the rules of Unicode's UAX #29 that matter).
#[derive(Clone, Copy, Default)]
pub struct Graphemes {
    before: Option<char>,
    /// The last character was the first half of a flag.
    half_a_flag: bool,
}

impl Graphemes {
    /// Takes the next character; says whether one may cut before it.
    pub fn next(&mut self, c: char) -> bool {
        let before = self.before.replace(c);
        let flag = is_flag_letter(c);
        let second = flag && self.half_a_flag;
        self.half_a_flag = flag && !second;
        let Some(before) = before else { return true };
        // After a joiner or a virama the cluster goes on.
        let goes_on = before == '\u{200D}'
            || matches!(u32::from(before), 0x094D | 0x09CD | 0x0A4D | 0x0ACD | 0x0B4D | 0x0C4D | 0x0CCD | 0x0D4D)
                && c.is_alphabetic();
        !(second || goes_on || c >= '\u{0300}' && is_in(EXTEND, c))
    }
}

/// How many columns `text` takes in a fixed-width font.
pub fn width(text: &str) -> usize {
    text.chars()
        .map(|c| match c {
            ' '..='~' => 1,
            c if is_in(EXTEND, c) => 0,
            c => 1 + usize::from(is_in(WIDE, c) || is_flag_letter(c)),
        })
        .sum()
}

/// Whether nobody would see it. Telegram refuses a message of such characters as empty.
pub fn is_invisible(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c, '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}')
        || matches!(c, '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202F}' | '\u{205F}'..='\u{206F}')
        || matches!(c, '\u{2800}' | '\u{3164}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFFC}')
}
