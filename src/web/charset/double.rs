//! The encodings of Chinese, Japanese and Korean pages: one or two bytes a character.

use super::code_point;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Encoding {
    /// And GB 18030 as far as it has two bytes: with four it writes rare characters.
    Gbk,
    Big5,
    ShiftJis,
    /// Without the rare characters of JIS X 0212.
    EucJp,
    Iso2022Jp,
    EucKr,
}

use Encoding::{Big5, EucJp, EucKr, Gbk, Iso2022Jp, ShiftJis};

/// The labels of each, as in [`super::SINGLE`].
const LABELS: [(Encoding, &str); 6] = [
    (Gbk, "gbk gb2312 gb18030 xgbk cp936 gb231280 chinese"),
    (Big5, "big5 big5hkscs cnbig5 xxbig5 cp950"),
    (ShiftJis, "shiftjis sjis xsjis windows31j ms932 mskanji cp932"),
    (EucJp, "eucjp xeucjp"),
    (Iso2022Jp, "iso2022jp"),
    (EucKr, "euckr ksc56011987 ksc5601 ksx1001 windows949 cp949 korean"),
];
/// The lengths of the tables of GBK, Big5 and JIS X 0208; EUC-KR's is the rest.
const GBK: usize = 126 * 190;
const BIG5: usize = 126 * 157;
const JIS: usize = 60 * 188;

impl Encoding {
    pub(super) fn of(label: &str) -> Option<Self> {
        LABELS.iter().find(|(_, labels)| labels.split(' ').any(|known| known == label)).map(|(encoding, _)| *encoding)
    }

    pub(super) fn decode(self, bytes: &[u8], tables: &[u16]) -> String {
        let (gbk, rest) = tables.split_at(GBK);
        let (big5, rest) = rest.split_at(BIG5);
        let (jis, korean) = rest.split_at(JIS);
        let table = match self {
            Gbk => gbk,
            Big5 => big5,
            ShiftJis | EucJp | Iso2022Jp => jis,
            EucKr => korean,
        };
        let (mut text, mut rest, mut is_shifted) = (String::with_capacity(bytes.len()), bytes, false);
        while let Some((&first, after)) = rest.split_first() {
            let second = after.first().copied().unwrap_or_default();
            let (character, len) = match first {
                0x1b if self == Iso2022Jp && rest.len() > 2 => {
                    is_shifted = second == b'$';
                    (None, 3)
                }
                0..0x80 if !is_shifted || first < 0x21 => (Some(char::from(first)), 1),
                _ => match self.alone(first, second) {
                    Some((code, len)) => (Some(code_point(code)), len),
                    None => {
                        let code =
                            self.pointer(first, second).and_then(|at| table.get(at).copied()).unwrap_or_default();
                        // What is no second byte may begin something else.
                        let is_pair = code > 0 || second >= 0x80 || is_shifted;
                        (Some(code_point(code)), if is_pair { 2 } else { 1 })
                    }
                },
            };
            text.extend(character);
            rest = rest.get(len..).unwrap_or_default();
        }
        text
    }

    /// The character of a byte that stands alone or has a meaning of its own, and how many bytes it takes.
    fn alone(self, first: u8, second: u8) -> Option<(u16, usize)> {
        match (self, first) {
            (Gbk, 0x80) => Some((0x20ac, 1)),
            // Four bytes of GB 18030.
            (Gbk, _) if second.is_ascii_digit() => Some((0, 4)),
            (ShiftJis, 0x80) => Some((0x80, 1)),
            // Half-width katakana.
            (ShiftJis, 0xa1..=0xdf) => Some((0xff61 + u16::from(first - 0xa1), 1)),
            (EucJp, 0x8e) if matches!(second, 0xa1..=0xdf) => Some((0xff61 + u16::from(second - 0xa1), 2)),
            (EucJp, 0x8f) => Some((0, 3)),
            _ => None,
        }
    }

    /// Where two bytes are in the table.
    fn pointer(self, first: u8, second: u8) -> Option<usize> {
        // The lead's and the trail's first value, and trails a lead.
        let (lead, trail, trails) = match (self, second) {
            (Gbk, 0x40..=0x7e) => (0x81, 0x40, 190),
            (Gbk, 0x80..=0xfe) => (0x81, 0x41, 190),
            (Big5, 0x40..=0x7e) => (0x81, 0x40, 157),
            (Big5, 0xa1..=0xfe) => (0x81, 0x62, 157),
            (ShiftJis, 0x40..=0x7e) => (if first < 0xa0 { 0x81 } else { 0xc1 }, 0x40, 188),
            (ShiftJis, 0x80..=0xfc) => (if first < 0xa0 { 0x81 } else { 0xc1 }, 0x41, 188),
            (EucJp, 0xa1..=0xfe) => (0xa1, 0xa1, 94),
            (Iso2022Jp, 0x21..=0x7e) => (0x21, 0x21, 94),
            (EucKr, 0x41..=0xfe) => (0x81, 0x41, 190),
            _ => return None,
        };
        Some(usize::from(first.checked_sub(lead)?) * trails + usize::from(second - trail))
    }
}
