//! Stands in for functions of the C library and of gcc in the dist build, and so keeps large parts of both out of the binary.
//!
//! A linker takes a part of a static library only for a name that nothing before it defines. Each name here is one by
//! which a static glibc brings in what this program never does: it sets no locale, so there is nothing to translate and
//! no character set to convert; it loads no shared library; C prints no floating-point number for it. glibc keeps its
//! promises about none of these names, but one that it no longer knows is merely never called. Together with `strings` and
//! `ctype`, which do take the place of something, 520 KB on x86-64.

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
    __wcrtomb __wcsrtombs __wctrans __towctrans __wcsmbs_load_conv __wcsmbs_clone_conv __wcsmbs_named_conv
    // printf of floating-point numbers.
    __printf_fp __printf_fphex
    // What comes after a shared library has been loaded, or its code asked for an executable stack.
    __libc_dlsym __libc_dlvsym __libc_dlclose __nptl_change_stack_perm
    // Asking the caching daemon nscd. It is not asked for hosts once `sys::set_up` has said where to look for them.
    __nscd_getai __nscd_gethostbyname2_r __nscd_getservbyname_r
    // What getaddrinfo does only for a named service, or for IPv4 alone.
    __getservbyname_r __gethostbyname2_r
    // Profiling of shared libraries.
    _dl_start_profile
    // All that /etc and the domain name system could be asked for but hosts: groups, networks, users, mail aliases and so on.
    _nss_files_endaliasent _nss_files_endetherent _nss_files_endgrent _nss_files_endnetent _nss_files_endnetgrent
    _nss_files_endprotoent _nss_files_endpwent _nss_files_endrpcent _nss_files_endservent _nss_files_endsgent
    _nss_files_endspent _nss_files_getaliasbyname_r _nss_files_getaliasent_r _nss_files_getetherent_r
    _nss_files_getgrent_r _nss_files_getgrgid_r _nss_files_getgrnam_r _nss_files_gethostton_r
    _nss_files_getnetbyaddr_r _nss_files_getnetbyname_r _nss_files_getnetent_r _nss_files_getnetgrent_r
    _nss_files_getntohost_r _nss_files_getprotobyname_r _nss_files_getprotobynumber_r _nss_files_getprotoent_r
    _nss_files_getpwent_r _nss_files_getpwnam_r _nss_files_getpwuid_r _nss_files_getrpcbyname_r
    _nss_files_getrpcbynumber_r _nss_files_getrpcent_r _nss_files_getservbyname_r _nss_files_getservbyport_r
    _nss_files_getservent_r _nss_files_getsgent_r _nss_files_getsgnam_r _nss_files_getspent_r _nss_files_getspnam_r
    _nss_files_initgroups_dyn _nss_files_setaliasent _nss_files_setetherent _nss_files_setgrent _nss_files_setnetent
    _nss_files_setnetgrent _nss_files_setprotoent _nss_files_setpwent _nss_files_setrpcent _nss_files_setservent
    _nss_files_setsgent _nss_files_setspent _nss_dns_getnetbyaddr_r _nss_dns_getnetbyname_r _nss_dns_getcanonname_r
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

/// When the caching daemon nscd last saw the network change: there is no such daemon.
#[unsafe(no_mangle)]
extern "C" fn __nscd_get_nl_timestamp() -> u32 {
    0
}

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
