//! What this kernel and its settings let a program do to confine itself, and the lines that would allow more.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::Check;
use crate::config::Env;

/// What keeps namespaces and Landlock from programs on this system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Obstacles {
    /// This program.
    exe: PathBuf,
    /// The fix for the container that this program runs in.
    container: Option<&'static str>,
    /// The fixes for settings of the kernel that forbid namespaces.
    settings: Vec<&'static str>,
    /// AppArmor keeps namespaces from programs without a profile, as on Ubuntu.
    apparmor: bool,
    /// Another program set a filter of system calls before it started this one.
    filter: bool,
    /// The security modules that the kernel started with.
    modules: Option<String>,
}

const DOCKER: &str = "start the container with: docker run --security-opt seccomp=unconfined \
    --security-opt apparmor=unconfined --security-opt systempaths=unconfined ...";
const PODMAN: &str = "start the container with: podman run --security-opt seccomp=unconfined \
    --security-opt unmask=ALL ...";
const CONTAINER: &str = "let the container make user namespaces and mount in them (LXC: security.nesting=true)";
const FILTER: &str = "a filter of system calls forbids namespaces to bantam: in a systemd unit, remove RestrictNamespaces= \
    and let SystemCallFilter= have @mount";
/// Files that forbid namespaces with a value, and the fix.
const SETTINGS: [(&str, &str, &str); 2] = [
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "sudo sysctl kernel.unprivileged_userns_clone=1    # to keep it: that line in /etc/sysctl.d/99-userns.conf",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "sudo sysctl user.max_user_namespaces=15000    # to keep it: that line in /etc/sysctl.d/99-userns.conf",
    ),
];

impl Obstacles {
    pub(crate) fn find(env: &Env) -> Self {
        let read = |path: &str| fs_err::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let is_set = |path: &str, value: &str| read(path).is_some_and(|text| text == value);
        let container = if Path::new("/run/.containerenv").exists() {
            Some(PODMAN)
        } else if Path::new("/.dockerenv").exists() {
            Some(DOCKER)
        } else {
            // systemd's convention, which LXC keeps too.
            env.get("container").filter(|kind| !kind.is_empty()).map(|_| CONTAINER)
        };
        let settings = SETTINGS.iter().filter(|(path, value, _)| is_set(path, value));
        Self {
            exe: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/local/bin/bantam")),
            container,
            settings: settings.map(|(_, _, fix)| *fix).collect(),
            apparmor: is_set("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
            filter: read("/proc/self/status").is_some_and(|status| status.lines().any(|line| line == "Seccomp:\t2")),
            modules: read("/sys/kernel/security/lsm"),
        }
    }

    /// Lines that open namespaces to bantam, and to as little else as possible.
    pub(crate) fn namespace_fixes(&self) -> Vec<String> {
        let mut fixes: Vec<String> = self.container.iter().chain(&self.settings).map(|&fix| fix.to_owned()).collect();
        // In a container, the profile and the filter are the host's.
        if self.apparmor && self.container.is_none() {
            fixes.extend(self.profile());
        }
        if self.filter && fixes.is_empty() {
            fixes.push(FILTER.to_owned());
        }
        fixes
    }

    /// Ubuntu's way: namespaces for this program alone, by its path.
    fn profile(&self) -> [String; 2] {
        // In quotes and without patterns.
        let exe = self.exe.to_string_lossy();
        let exe: String =
            exe.chars().flat_map(|c| "*?[]{}^\"\\@".contains(c).then_some('\\').into_iter().chain([c])).collect();
        let profile = format!("profile bantam \"{exe}\" flags=(unconfined) {{");
        let lines = shell_words::join(["abi <abi/4.0>,", "include <tunables/global>", &profile, "  userns,", "}"]);
        [
            format!("printf '%s\\n' {lines} | sudo tee /etc/apparmor.d/bantam"),
            "sudo apparmor_parser -r /etc/apparmor.d/bantam".to_owned(),
        ]
    }

    /// The line that would bring a Landlock that confines, from what the kernel said about it.
    pub(crate) fn landlock_fix(&self, abi: &io::Result<u32>) -> Option<String> {
        match abi {
            Ok(_) => Some("use a kernel from 6.2 on: the Landlock of this one is too old".to_owned()),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                let modules = self.modules.as_deref().unwrap_or("[the modules of now]");
                Some(format!(
                    "Landlock is switched off: start the kernel with lsm=landlock,{modules} on its command line"
                ))
            }
            // The kernel has none, or a filter hides it: no line changes that.
            Err(_) => None,
        }
    }
}

/// The kernel, and the two system calls that confinement needs.
pub(crate) fn kernel() -> Check {
    const NAME: &str = "kernel";
    let uname = rustix::system::uname();
    let [system, release, machine] =
        [uname.sysname(), uname.release(), uname.machine()].map(|part| part.to_string_lossy());
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let openat2 = match openat2(CWD, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), beneath) {
        Err(Errno::NOSYS | Errno::PERM) => "no openat2 (files are opened a step at a time, without symbolic links)",
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
        let base = Obstacles { exe: "/opt/my bots/b[1]".into(), ..Obstacles::default() };
        assert!(base.namespace_fixes().is_empty());

        let fixes = Obstacles { apparmor: true, ..base.clone() }.namespace_fixes();
        assert_eq!(
            fixes,
            [
                r#"printf '%s\n' 'abi <abi/4.0>,' 'include <tunables/global>' 'profile bantam "/opt/my bots/b\[1\]" flags=(unconfined) {' '  userns,' } | sudo tee /etc/apparmor.d/bantam"#,
                "sudo apparmor_parser -r /etc/apparmor.d/bantam"
            ]
        );

        let settings = SETTINGS.map(|(_, _, fix)| fix).to_vec();
        let fixes = Obstacles { settings: settings.clone(), filter: true, ..base.clone() }.namespace_fixes();
        assert_eq!(fixes, settings);

        // The profile is the host's matter, and so is the filter.
        let docker = Obstacles { container: Some(DOCKER), apparmor: true, filter: true, ..base.clone() };
        assert_eq!(docker.namespace_fixes(), [DOCKER]);

        assert_eq!(Obstacles { filter: true, ..base }.namespace_fixes(), [FILTER]);
    }

    #[test]
    fn landlock_that_is_switched_off_is_switched_on_by_the_command_line() {
        let obstacles = Obstacles { modules: Some("capability,apparmor".into()), ..Obstacles::default() };
        let off = obstacles.landlock_fix(&Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))).unwrap();
        assert!(off.contains("lsm=landlock,capability,apparmor"), "{off}");
        assert_eq!(obstacles.landlock_fix(&Err(io::Error::from_raw_os_error(libc::ENOSYS))), None);
        assert!(obstacles.landlock_fix(&Ok(1)).unwrap().contains("6.2"));
    }
}
