//! Stands in for functions of the C library and of gcc in the dist build, and so keeps large parts of both out of the binary.
//!
//! A linker takes a part of a static library only for a name that nothing before it defines. Each name here is one by
//! which a static glibc brings in what this program never does: it sets no locale, so there is nothing to translate and
//! no character set to convert; it loads no shared library; C prints no floating-point number for it. glibc keeps its
//! promises about none of these names, but one that it no longer knows is merely never called. Together 310 KB on x86-64.

use libc::{c_char, c_int, c_void};

/// Never called; the linker only has to find them. If one is called after all, the process ends as it does after a panic.
macro_rules! never_called {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> ! {
                std::process::abort()
            }
        )*
    };
}

never_called! {
    // Prints which assertion inside glibc has failed, in the user's language, and aborts. This only aborts.
    __assert_fail __fxprintf
    // Converting character sets, which wide output and locales would need.
    __gconv_find_transform __gconv_close_transform __gconv_release_step __gconv_lock
    __gconv_transform_ascii_internal __gconv_transform_internal_ascii __gconv_btwoc_ascii
    // Loading a locale.
    _nl_find_locale __libc_setlocale_lock
    // printf of wide characters.
    __wcrtomb __wcsrtombs
    // printf of floating-point numbers.
    __printf_fp __printf_fphex
    // What comes after a shared library has been loaded, or its code asked for an executable stack.
    __libc_dlsym __libc_dlvsym __libc_dlclose __nptl_change_stack_perm
    // Looking up a name in another script, which only a flag of getaddrinfo asks for.
    __idna_to_dns_encoding __idna_from_dns_encoding
}

/// Loading a shared library: there is none.
#[unsafe(no_mangle)]
extern "C" fn __libc_dlopen_mode(_name: *const c_char, _mode: c_int) -> *const c_void {
    std::ptr::null()
}

/// Looking up a symbol at run time: a static program keeps no list of them.
#[unsafe(no_mangle)]
extern "C" fn dlsym(_library: *const c_void, _name: *const c_char) -> *const c_void {
    std::ptr::null()
}

/// Finding out at the start where shared libraries would be.
#[unsafe(no_mangle)]
extern "C" fn _dl_init_paths() {}

/// Translating a message: without a locale it is the message itself.
#[unsafe(no_mangle)]
extern "C" fn __dcgettext(_domain: *const c_char, message: *const c_char, _category: c_int) -> *const c_char {
    message
}

/// Where a thread's stack is, which glibc reads with scanf. Without an answer the standard library does not tell a stack
/// overflow from other bad accesses: it ends in a plain SIGSEGV, without a message.
#[unsafe(no_mangle)]
extern "C" fn pthread_getattr_np(_thread: libc::pthread_t, _attributes: *mut c_void) -> c_int {
    libc::ENOSYS
}

/// Answers every request for a backtrace with "the stack ends here".
///
/// The dist build has no tables to walk the stack with (`.cargo/dist.ld`), and with this answer the optimiser finds that
/// the standard library's reader of debug information is never used: 200 KB. It takes the place of a function of gcc's.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_trace: *const c_void, _data: *mut c_void) -> c_int {
    5 // _URC_END_OF_STACK
}
