//! The C library's functions for C strings, as plain loops, in its place in the dist build.
//!
//! glibc has each of them several times, for each generation of processors, in long stretches of assembly: 120 KB on
//! x86-64. Rust code does not call them. What does is the C library itself, for a few short strings now and then: the
//! lines of /etc/hosts, the names in the environment. (`strlen`, `memchr` and `memcpy` are called all the time, and stay.)
//!
//! The tests compile them too, under their Rust names, and compare them with the C library's.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // C passes a char as an int

use libc::{c_char, c_int, c_void};

/// How `a` and `b` compare within their first `most` bytes, each byte taken through `fold`.
unsafe fn compare(a: *const c_char, b: *const c_char, most: usize, fold: fn(&u8) -> u8) -> c_int {
    for i in 0..most {
        // SAFETY: the callers have two C strings, and no end has been seen yet in either.
        let (x, y) = unsafe { (fold(&*a.add(i).cast()), fold(&*b.add(i).cast())) };
        if x != y || x == 0 {
            return c_int::from(x) - c_int::from(y);
        }
    }
    0
}

/// Where in `s` the first byte is that is `wanted` or, if `or_end`, its end. Null when there is none.
unsafe fn find(s: *const c_char, wanted: c_int, or_end: bool) -> *mut c_char {
    let mut at = s;
    // SAFETY: the callers have a C string, and its end has not been seen yet.
    unsafe {
        while *at != wanted as c_char {
            if *at == 0 {
                return if or_end { at.cast_mut() } else { std::ptr::null_mut() };
            }
            at = at.add(1);
        }
    }
    at.cast_mut()
}

/// Makes each a function of the C library, with the C library's promises about its arguments.
macro_rules! in_place_of {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $(
            #[cfg_attr(bantam_dist, unsafe(no_mangle))]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: whoever calls these passes C strings, and room enough for what is to be written.
                unsafe { $body }
            }
        )*
    };
}

in_place_of! {
    strcmp(a: *const c_char, b: *const c_char) -> c_int {
        compare(a, b, usize::MAX, u8::clone)
    }
    strncmp(a: *const c_char, b: *const c_char, most: usize) -> c_int {
        compare(a, b, most, u8::clone)
    }
    __strcasecmp(a: *const c_char, b: *const c_char) -> c_int {
        compare(a, b, usize::MAX, u8::to_ascii_lowercase)
    }
    __strncasecmp(a: *const c_char, b: *const c_char, most: usize) -> c_int {
        compare(a, b, most, u8::to_ascii_lowercase)
    }
    strchr(s: *const c_char, wanted: c_int) -> *mut c_char {
        find(s, wanted, false)
    }
    __strchrnul(s: *const c_char, wanted: c_int) -> *mut c_char {
        find(s, wanted, true)
    }
    __rawmemchr(s: *const c_void, wanted: c_int) -> *mut c_void {
        let mut at = s.cast::<c_char>();
        while *at != wanted as c_char {
            at = at.add(1);
        }
        at.cast_mut().cast()
    }
    strrchr(s: *const c_char, wanted: c_int) -> *mut c_char {
        let mut at = s.add(libc::strlen(s));
        while *at != wanted as c_char {
            if at == s {
                return std::ptr::null_mut();
            }
            at = at.sub(1);
        }
        at.cast_mut()
    }
    strstr(s: *const c_char, wanted: *const c_char) -> *mut c_char {
        let mut at = s;
        while strncmp(at, wanted, libc::strlen(wanted)) != 0 {
            if *at == 0 {
                return std::ptr::null_mut();
            }
            at = at.add(1);
        }
        at.cast_mut()
    }
    __strnlen(s: *const c_char, most: usize) -> usize {
        let mut length = 0;
        while length < most && *s.add(length) != 0 {
            length += 1;
        }
        length
    }
    __stpcpy(to: *mut c_char, from: *const c_char) -> *mut c_char {
        let length = libc::strlen(from);
        std::ptr::copy_nonoverlapping(from, to, length + 1);
        to.add(length)
    }
    strcpy(to: *mut c_char, from: *const c_char) -> *mut c_char {
        __stpcpy(to, from);
        to
    }
    strncpy(to: *mut c_char, from: *const c_char, most: usize) -> *mut c_char {
        let length = __strnlen(from, most);
        std::ptr::copy_nonoverlapping(from, to, length);
        std::ptr::write_bytes(to.add(length), 0, most - length);
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    const STRINGS: [&CStr; 9] = [
        c"",
        c"a",
        c"A",
        c"ab",
        c"aB",
        c"aab",
        c"b\xffA",
        c"b\xc3\xa4/b/ab",
        c"a longer one, with an ab and a Z in it",
    ];

    /// Each pair of strings gives the same here and in the C library.
    #[test]
    fn agree_with_the_c_library_on_two_strings() {
        for a in STRINGS {
            for b in STRINGS {
                let (a, b) = (a.as_ptr(), b.as_ptr());
                // SAFETY: both are C strings.
                unsafe {
                    assert_eq!(strcmp(a, b).signum(), libc::strcmp(a, b).signum());
                    assert_eq!(__strcasecmp(a, b).signum(), libc::strcasecmp(a, b).signum());
                    assert_eq!(strstr(a, b), libc::strstr(a, b));
                    for most in 0..5 {
                        assert_eq!(strncmp(a, b, most).signum(), libc::strncmp(a, b, most).signum());
                        assert_eq!(__strncasecmp(a, b, most).signum(), libc::strncasecmp(a, b, most).signum());
                    }
                }
            }
        }
    }

    /// Each byte is found where the C library finds it.
    #[test]
    fn agree_with_the_c_library_on_a_byte() {
        for s in STRINGS {
            let (p, end) = (s.as_ptr(), s.count_bytes());
            for wanted in 0..256 {
                // SAFETY: it is a C string; rawmemchr finds at least its end.
                unsafe {
                    let first = libc::strchr(p, wanted);
                    assert_eq!(strchr(p, wanted), first);
                    assert_eq!(strrchr(p, wanted), libc::strrchr(p, wanted));
                    assert_eq!(__strchrnul(p, wanted), if first.is_null() { p.add(end).cast_mut() } else { first });
                    if !first.is_null() {
                        assert_eq!(__rawmemchr(p.cast(), wanted), first.cast());
                    }
                }
            }
        }
    }

    /// Copies end where the C library's end, and leave alone what is behind.
    #[test]
    fn agree_with_the_c_library_on_copies() {
        for s in STRINGS {
            let s = s.as_ptr();
            for most in 0..48 {
                let (mut ours, mut theirs) = ([7; 64], [7; 64]);
                // SAFETY: no string has more than 40 bytes, and 48 fit as well.
                unsafe {
                    assert_eq!(__strnlen(s, most), libc::strnlen(s, most));
                    assert_eq!(strncpy(ours.as_mut_ptr(), s, most), ours.as_mut_ptr());
                    libc::strncpy(theirs.as_mut_ptr(), s, most);
                }
                assert_eq!(ours, theirs);
            }
            let (mut ours, mut theirs) = ([7; 64], [7; 64]);
            // SAFETY: no string has more than 40 bytes.
            unsafe {
                assert_eq!(strcpy(ours.as_mut_ptr(), s), ours.as_mut_ptr());
                libc::strcpy(theirs.as_mut_ptr(), s);
                assert_eq!(__stpcpy(ours.as_mut_ptr(), s), ours.as_mut_ptr().add(libc::strlen(s)));
            }
            assert_eq!(ours, theirs);
        }
    }
}
