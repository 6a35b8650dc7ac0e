//! What each byte is to the C library: a letter, a digit, white space. Its own tables, without what comes with them.
//!
//! glibc keeps these tables together with those that write any character in ASCII for output in another character set,
//! 50 KB which a program without a locale has no use for.
//!
//! The tests compile the tables too and compare them with the C library's.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)] // all small numbers

/// A value for each byte, as an `unsigned char` and as a `signed char`, from -128 to 255.
type Table<T> = [T; 384];

/// Where the table of glibc has the byte 0.
const ZERO: usize = 128;

/// The bits of glibc's <ctype.h>, which on a little-endian machine begin in the second byte.
const UPPER: u16 = 0x100;
const LOWER: u16 = 0x200;
const ALPHABETIC: u16 = 0x400;
const DIGIT: u16 = 0x800;
const HEX_DIGIT: u16 = 0x1000;
const SPACE: u16 = 0x2000;
const PRINTED: u16 = 0x4000;
const GRAPHIC: u16 = 0x8000;
const BLANK: u16 = 0x1;
const CONTROL: u16 = 0x2;
const PUNCTUATION: u16 = 0x4;
const ALPHANUMERIC: u16 = 0x8;

const fn class(byte: u8) -> u16 {
    match byte {
        b'\t' => CONTROL | SPACE | BLANK,
        b'\n'..=b'\r' => CONTROL | SPACE,
        b' ' => PRINTED | SPACE | BLANK,
        b'0'..=b'9' => PRINTED | GRAPHIC | ALPHANUMERIC | DIGIT | HEX_DIGIT,
        b'A'..=b'F' => PRINTED | GRAPHIC | ALPHANUMERIC | ALPHABETIC | UPPER | HEX_DIGIT,
        b'a'..=b'f' => PRINTED | GRAPHIC | ALPHANUMERIC | ALPHABETIC | LOWER | HEX_DIGIT,
        b'G'..=b'Z' => PRINTED | GRAPHIC | ALPHANUMERIC | ALPHABETIC | UPPER,
        b'g'..=b'z' => PRINTED | GRAPHIC | ALPHANUMERIC | ALPHABETIC | LOWER,
        b'!'..=b'~' => PRINTED | GRAPHIC | PUNCTUATION,
        0..=31 | 127 => CONTROL,
        128.. => 0,
    }
}

#[cfg_attr(bantam_dist, unsafe(export_name = "_nl_C_LC_CTYPE_class"))]
static CLASS: Table<u16> = {
    let mut table = [0; 384];
    let mut byte = 0;
    while byte < 128 {
        table[ZERO + byte] = class(byte as u8);
        byte += 1;
    }
    table
};

/// Each byte in the other case, or itself. The byte -1 is itself in both its places: it is EOF too.
const fn in_case(upper: bool) -> Table<i32> {
    let mut table = [0; 384];
    let mut i = 0;
    while i < 384 {
        let byte = i as i32 - ZERO as i32;
        table[i] = match byte {
            0..=127 if upper => (byte as u8).to_ascii_uppercase() as i32,
            0..=127 => (byte as u8).to_ascii_lowercase() as i32,
            -128..=-2 => byte + 256,
            _ => byte,
        };
        i += 1;
    }
    table
}

#[cfg_attr(bantam_dist, unsafe(export_name = "_nl_C_LC_CTYPE_toupper"))]
static UPPER_CASE: Table<i32> = in_case(true);

#[cfg_attr(bantam_dist, unsafe(export_name = "_nl_C_LC_CTYPE_tolower"))]
static LOWER_CASE: Table<i32> = in_case(false);

unsafe extern "C" {
    fn __ctype_b_loc() -> *mut *const u16;
    fn __ctype_toupper_loc() -> *mut *const i32;
    fn __ctype_tolower_loc() -> *mut *const i32;
}

/// What glibc calls at the start of each thread. Its own asks the locale for the tables.
#[cfg(bantam_dist)]
#[unsafe(no_mangle)]
extern "C" fn __ctype_init() {
    // SAFETY: each gives this thread's own place for the address of the byte 0, and the tables live for ever.
    unsafe {
        *__ctype_b_loc() = &raw const CLASS[ZERO];
        *__ctype_toupper_loc() = &raw const UPPER_CASE[ZERO];
        *__ctype_tolower_loc() = &raw const LOWER_CASE[ZERO];
    }
}

/// The locale "C" as far as it is about characters. Only its address is used: what else would read it is left out (`slim`).
/// Larger than in any version of glibc, and empty.
#[cfg(bantam_dist)]
#[unsafe(export_name = "_nl_C_LC_CTYPE")]
static LOCALE: [usize; 128] = [0; 128];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_those_of_the_c_library() {
        // The test runs with the C library's own tables, in the locale "C" that each program starts with.
        let mut theirs: (Vec<u16>, Vec<i32>, Vec<i32>) = (vec![], vec![], vec![]);
        // SAFETY: each points to the byte 0 of a table from -128 to 255.
        unsafe {
            for byte in -128..256 {
                theirs.0.push(*(*__ctype_b_loc()).offset(byte));
                theirs.1.push(*(*__ctype_toupper_loc()).offset(byte));
                theirs.2.push(*(*__ctype_tolower_loc()).offset(byte));
            }
        }
        assert_eq!(CLASS[..], theirs.0);
        assert_eq!(UPPER_CASE[..], theirs.1);
        assert_eq!(LOWER_CASE[..], theirs.2);
    }
}
