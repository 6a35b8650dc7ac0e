//! The properties of characters that cutting and aligning text need: a small part of Unicode's tables, with emoji and the marks
//! of the common scripts. A text of thousands of characters without a space may be cut within a flag, or within a syllable of a
//! rarer script.

/// Marks that belong to the character before them (`Grapheme_Extend` and `SpacingMark`), as an inversion list: each number
/// begins a range, alternately inside and outside of the set.
const EXTEND: &[u32] = &[
    0x0300, 0x0370, 0x0483, 0x048A, 0x0591, 0x05BE, 0x05BF, 0x05C8, 0x0610, 0x061B, 0x064B, 0x0660, 0x0670, 0x0671,
    0x06D6, 0x06DD, 0x06DF, 0x06E5, 0x06E7, 0x06EE, 0x0900, 0x0904, 0x093A, 0x093D, 0x093E, 0x0950, 0x0951, 0x0958,
    0x0962, 0x0964, 0x0981, 0x0984, 0x09BC, 0x09D8, 0x0A01, 0x0A04, 0x0A3C, 0x0A52, 0x0A81, 0x0A84, 0x0ABC, 0x0ACE,
    0x0B01, 0x0B04, 0x0B3C, 0x0B58, 0x0BBE, 0x0BCE, 0x0C00, 0x0C05, 0x0C3E, 0x0C57, 0x0CBC, 0x0CD7, 0x0D3B, 0x0D4E,
    0x0E31, 0x0E32, 0x0E33, 0x0E3B, 0x0E47, 0x0E4F, 0x0EB1, 0x0EBD, 0x0F71, 0x0F85, 0x102B, 0x103F, 0x1160, 0x1200,
    0x17B4, 0x17D4, 0x1AB0, 0x1B00, 0x1DC0, 0x1E00, 0x200C, 0x200E, 0x20D0, 0x2100, 0x302A, 0x3030, 0x3099, 0x309B,
    0xFE00, 0xFE10, 0xFE20, 0xFE30, 0x1_F3FB, 0x1_F400, 0xE_0020, 0xE_0080, 0xE_0100, 0xE_01F0,
];

/// Characters two columns wide (`East_Asian_Width` W and F, and emoji), as an inversion list.
const WIDE: &[u32] = &[
    0x1100, 0x1160, 0x231A, 0x231C, 0x23E9, 0x23ED, 0x2705, 0x2706, 0x274C, 0x274D, 0x2753, 0x2758, 0x2B50, 0x2B51,
    0x2E80, 0x303F, 0x3041, 0xA4D0, 0xAC00, 0xD7A4, 0xF900, 0xFB00, 0xFE30, 0xFE70, 0xFF00, 0xFF61, 0xFFE0, 0xFFE7,
    0x1_F300, 0x1_F650, 0x1_F680, 0x1_F700, 0x1_F7E0, 0x1_F7EC, 0x1_F900, 0x1_FB00, 0x2_0000, 0x3_FFFE,
];

fn contains(set: &[u32], c: char) -> bool {
    c >= '\u{300}' && set.partition_point(|bound| *bound <= u32::from(c)) % 2 == 1
}

/// Whether a character that people see as one begins with `c`, which stands behind `before`.
pub(super) fn begins_cluster(before: Option<char>, c: char) -> bool {
    const ZERO_WIDTH_JOINER: char = '\u{200D}';
    before != Some(ZERO_WIDTH_JOINER) && !contains(EXTEND, c)
}

/// The columns that `text` takes in a fixed-width font.
pub(super) fn width(text: &str) -> usize {
    let width = |c| match c {
        ' '..='~' => 1,
        c if contains(EXTEND, c) => 0,
        c => 1 + usize::from(contains(WIDE, c)),
    };
    text.chars().map(width).sum()
}

/// Whether Telegram shows nothing for it: a message of such characters alone is refused as empty.
pub(super) fn is_invisible(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c, '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}')
        || matches!(c, '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202F}' | '\u{205F}'..='\u{206F}')
        || matches!(c, '\u{2800}' | '\u{3164}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFFC}')
}
