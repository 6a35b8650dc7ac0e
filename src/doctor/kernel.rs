//! What this kernel lets a program do to confine itself, and the lines that allow more.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::{Check, Fix};
use crate::config::Env;
use crate::sandbox::OLDEST_ABI;

/// Reads a file without the white space at its ends. Tests pass their own.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(crate) fn read_file(path: &str) -> Option<String> {
    fs_err::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

const DOCKER: &str = "start the container with: docker run --security-opt seccomp=unconfined \
    --security-opt apparmor=unconfined --security-opt systempaths=unconfined ...";
const PODMAN: &str = "start the container with: podman run --security-opt seccomp=unconfined \
    --security-opt unmask=ALL ...";
const CONTAINER: &str =
    "let the container create user namespaces and mount in them (LXC: security.nesting=true)";
const FILTER: &str = "a filter of system calls forbids namespaces to bantam: in a systemd unit, remove RestrictNamespaces= and add @mount to SystemCallFilter=";
/// Files that forbid namespaces when they say 0, and the setting that allows them.
const SETTINGS: [(&str, &str); 2] = [
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "kernel.unprivileged_userns_clone=1",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "user.max_user_namespaces=15000",
    ),
];

/// Lines that open namespaces to `exe`, this program, and to as little else as possible.
pub(crate) fn namespace_fixes(exe: &Path, env: &Env, read: ReadFile) -> Vec<Fix> {
    let is_set = |path: &str, value: &str| read(path).is_some_and(|text| text == value);
    let container = if read("/run/.containerenv").is_some() {
        Some(PODMAN)
    } else if read("/.dockerenv").is_some() {
        Some(DOCKER)
    } else {
        // systemd's convention, which LXC keeps too.
        env.get("container")
            .filter(|kind| !kind.is_empty())
            .map(|_| CONTAINER)
    };
    let advice = |text: &str| Fix::Advice(text.to_owned());
    let mut fixes: Vec<Fix> = container.into_iter().map(advice).collect();
    for (_, setting) in SETTINGS.iter().filter(|(path, _)| is_set(path, "0")) {
        fixes.push(Fix::Command(format!(
            "sudo sysctl {setting}    # to keep it: that line in /etc/sysctl.d/99-userns.conf"
        )));
    }
    // In a container, the profile and the filter are the host's.
    if is_set(
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
    ) && container.is_none()
    {
        fixes.extend(profile(exe).map(Fix::Command));
    }
    let is_filtered = read("/proc/self/status")
        .is_some_and(|status| status.lines().any(|line| line == "Seccomp:\t2"));
    if is_filtered && fixes.is_empty() {
        fixes.push(advice(FILTER));
    }
    fixes
}

/// Ubuntu's way: namespaces for this program alone, by its path.
fn profile(exe: &Path) -> [String; 2] {
    // In quotes and without patterns.
    let exe = exe.to_string_lossy();
    let exe: String = exe
        .chars()
        .flat_map(|c| {
            "*?[]{}^\"\\@"
                .contains(c)
                .then_some('\\')
                .into_iter()
                .chain([c])
        })
        .collect();
    let profile = format!("profile bantam \"{exe}\" flags=(unconfined) {{");
    let lines = shell_words::join([
        "abi <abi/4.0>,",
        "include <tunables/global>",
        &profile,
        "  userns,",
        "}",
    ]);
    [
        format!("printf '%s\\n' {lines} | sudo tee /etc/apparmor.d/bantam"),
        "sudo apparmor_parser -r /etc/apparmor.d/bantam".to_owned(),
    ]
}

/// The line that would bring a Landlock that confines, from what the kernel said about it.
pub(crate) fn landlock_fix(abi: &io::Result<u32>, read: ReadFile) -> Option<Fix> {
    let fix = match abi {
        // Something else failed.
        Ok(abi) if *abi >= OLDEST_ABI => None,
        Ok(_) => Some("use Linux 6.2 or newer: the Landlock of this kernel is too old".to_owned()),
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let modules = read("/sys/kernel/security/lsm")
                .unwrap_or_else(|| "[the current modules]".to_owned());
            Some(format!(
                "Landlock is off: start the kernel with lsm=landlock,{modules} on its command line"
            ))
        }
        // The kernel has none, or a filter hides it: no line changes that.
        Err(_) => None,
    };
    fix.map(Fix::Advice)
}

/// The kernel, and the two system calls that confinement needs.
pub(crate) fn kernel() -> Check {
    const NAME: &str = "kernel";
    let uname = rustix::system::uname();
    let [system, release, machine] =
        [uname.sysname(), uname.release(), uname.machine()].map(|part| part.to_string_lossy());
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let openat2 = match openat2(
        CWD,
        ".",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        beneath,
    ) {
        Err(Errno::NOSYS | Errno::PERM) => "no openat2 (file tools are refused)",
        _ => "openat2",
    };
    let found = |seccomp| format!("{system} {release} {machine}: {seccomp}, {openat2}");
    // Older kernels have seccomp without this file, but not the call that sets its filters here.
    if Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        Check::ok(NAME, found("seccomp"))
    } else {
        Check::info(NAME, found("no seccomp"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_to_namespaces_has_its_fix() {
        const APPARMOR: (&str, &str) = (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
        );
        const SECCOMP: (&str, &str) = ("/proc/self/status", "Seccomp:\t2");
        let fixes = |files: &[(&str, &str)]| {
            let read = |path: &str| {
                files
                    .iter()
                    .find(|(name, _)| *name == path)
                    .map(|(_, text)| (*text).to_owned())
            };
            let fixes = namespace_fixes(Path::new("/opt/my bots/b[1]"), &Env::new(), &read);
            let texts = fixes.iter().map(|fix| fix.text().to_owned());
            texts.collect::<Vec<_>>()
        };
        assert_eq!(fixes(&[]), [""; 0]);
        assert_eq!(
            fixes(&[APPARMOR]),
            [
                r#"printf '%s\n' 'abi <abi/4.0>,' 'include <tunables/global>' 'profile bantam "/opt/my bots/b\[1\]" flags=(unconfined) {' '  userns,' } | sudo tee /etc/apparmor.d/bantam"#,
                "sudo apparmor_parser -r /etc/apparmor.d/bantam"
            ]
        );
        let [first, second] = SETTINGS.map(|(path, _)| (path, "0"));
        let both = fixes(&[first, second, SECCOMP]);
        assert!(
            both.len() == 2 && both[1].starts_with("sudo sysctl user.max_user_namespaces=15000 "),
            "{both:?}"
        );
        // The profile is the host's matter, and so is the filter.
        assert_eq!(fixes(&[("/.dockerenv", ""), APPARMOR, SECCOMP]), [DOCKER]);
        assert_eq!(fixes(&[SECCOMP]), [FILTER]);
    }

    #[test]
    fn landlock_that_is_switched_off_is_switched_on_by_the_command_line() {
        let read = |_: &str| Some("capability,apparmor".to_owned());
        let off =
            landlock_fix(&Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)), &read).unwrap();
        assert!(
            off.text().contains("lsm=landlock,capability,apparmor"),
            "{off:?}"
        );
        assert_eq!(
            landlock_fix(&Err(io::Error::from_raw_os_error(libc::ENOSYS)), &read),
            None
        );
        assert!(landlock_fix(&Ok(1), &read).unwrap().text().contains("6.2"));
        assert_eq!(landlock_fix(&Ok(OLDEST_ABI), &read), None);
    }
}
