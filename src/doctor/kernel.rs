//! What this kernel, and whoever set it up, lets a program do to confine itself; and how to have more of it.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::Check;
use crate::config::Env;
use crate::sys;

/// What was found out about this system.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// This program.
    pub exe: PathBuf,
    pub obstacles: Vec<Obstacle>,
    pub container: Option<Container>,
    /// The modules that the kernel started with, where that can be read.
    pub modules: Option<String>,
}

/// What keeps namespaces from ordinary users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Debian's switch, `kernel.unprivileged_userns_clone`, is there and off.
    CloneOff,
    /// `user.max_user_namespaces` is 0.
    NoneAllowed,
    /// `kernel.apparmor_restrict_unprivileged_userns` is on, as on Ubuntu.
    AppArmor,
    /// Somebody put a filter of system calls on this program before it started.
    Filter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    Docker,
    Podman,
    Other,
}

impl Facts {
    pub fn gather(env: &Env) -> Self {
        let read = |path: &str| fs_err::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let set_to = |path: &str, value: &str| read(path).is_some_and(|text| text == value);
        let container = if Path::new("/run/.containerenv").exists() {
            Some(Container::Podman)
        } else if Path::new("/.dockerenv").exists() {
            Some(Container::Docker)
        } else {
            // systemd's convention, which LXC keeps too.
            env.get("container").filter(|kind| !kind.is_empty()).map(|_| Container::Other)
        };
        let filtered = read("/proc/self/status").is_some_and(|status| status.lines().any(|line| line == "Seccomp:\t2"));
        let obstacles = [
            (Obstacle::CloneOff, set_to("/proc/sys/kernel/unprivileged_userns_clone", "0")),
            (Obstacle::NoneAllowed, set_to("/proc/sys/user/max_user_namespaces", "0")),
            (Obstacle::AppArmor, set_to("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")),
            (Obstacle::Filter, filtered),
        ];
        Self {
            exe: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/local/bin/bantam")),
            obstacles: obstacles.into_iter().filter_map(|(obstacle, is_there)| is_there.then_some(obstacle)).collect(),
            container,
            modules: read("/sys/kernel/security/lsm"),
        }
    }

    /// Lines that would open namespaces to bantam, and to as little else as can be.
    pub fn open_namespaces(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(container) = self.container {
            lines.push(match container {
                Container::Docker => "start the container with: docker run --security-opt seccomp=unconfined \
                    --security-opt apparmor=unconfined --security-opt systempaths=unconfined ..."
                    .to_owned(),
                Container::Podman => "start the container with: podman run --security-opt seccomp=unconfined \
                    --security-opt unmask=ALL ..."
                    .to_owned(),
                Container::Other => {
                    "let the container make user namespaces and mount in them (LXC: security.nesting=true)".to_owned()
                }
            });
        }
        let keep = "    # to keep it: that line in /etc/sysctl.d/99-userns.conf";
        for obstacle in &self.obstacles {
            match obstacle {
                // These are the host's to set, and a container shows them.
                Obstacle::CloneOff => lines.push(format!("sudo sysctl kernel.unprivileged_userns_clone=1{keep}")),
                Obstacle::NoneAllowed => lines.push(format!("sudo sysctl user.max_user_namespaces=15000{keep}")),
                Obstacle::AppArmor if self.container.is_none() => lines.extend(self.profile()),
                Obstacle::Filter if lines.is_empty() => lines.push(
                    "whoever starts bantam forbids it namespaces by a filter of system calls: in a systemd unit, remove \
                     RestrictNamespaces= and let SystemCallFilter= have @mount"
                        .to_owned(),
                ),
                Obstacle::AppArmor | Obstacle::Filter => {}
            }
        }
        lines
    }

    /// Ubuntu's way: namespaces for this program alone, by the path it has.
    fn profile(&self) -> Vec<String> {
        const FILE: &str = "/etc/apparmor.d/bantam";
        let profile = format!("profile bantam {} flags=(unconfined) {{", apparmor_path(&self.exe));
        let lines = ["abi <abi/4.0>,", "include <tunables/global>", &profile, "  userns,", "}"];
        let quoted: Vec<_> = lines.iter().map(|line| shell_words::quote(line)).collect();
        vec![
            format!("printf '%s\\n' {} | sudo tee {FILE}", quoted.join(" ")),
            format!("sudo apparmor_parser -r {FILE}"),
        ]
    }

    /// Lines that would bring Landlock, from what the kernel said about it.
    pub fn open_landlock(&self, abi: &io::Result<u32>) -> Vec<String> {
        let line = match abi.as_ref().map_err(io::Error::raw_os_error) {
            Ok(_) => "a kernel from 6.2 on has a Landlock that will do".to_owned(),
            Err(Some(libc::EOPNOTSUPP)) => {
                let now = self.modules.as_deref().unwrap_or("what is there");
                format!("start the kernel with lsm=landlock,{now} on its command line: its Landlock is switched off")
            }
            // A kernel without it, or a filter that hides it: nothing that one line would change.
            Err(_) => return Vec::new(),
        };
        vec![line]
    }
}

/// A path as `AppArmor` takes it: in quotes, and with nothing that would be a pattern.
fn apparmor_path(path: &Path) -> String {
    let mut out = String::from("\"");
    for c in path.to_string_lossy().chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '^' | '"' | '\\' | '@') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

/// The kernel, and the two calls that everything leans on.
pub fn kernel() -> Check {
    const WHAT: &str = "kernel";
    let uname = rustix::system::uname();
    let name = format!(
        "{} {} {}",
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy(),
        uname.machine().to_string_lossy()
    );
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let openat2 = match openat2(CWD, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), beneath) {
        Err(Errno::NOSYS | Errno::PERM) => "no openat2 (files are opened a step at a time, without symbolic links)",
        _ => "openat2",
    };
    // Older kernels have seccomp without this file, but not the call that sets its filters here.
    if Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        Check::well(WHAT, format!("{name}: seccomp, {openat2}"))
    } else {
        Check::aside(WHAT, format!("{name}: no sign of seccomp, {openat2}"))
    }
}

/// Landlock, by asking for it.
pub fn landlock(abi: &io::Result<u32>) -> Check {
    const WHAT: &str = "landlock";
    match abi {
        Ok(abi) => Check::well(WHAT, format!("version {abi}")),
        Err(e) => Check::aside(WHAT, format!("none: {e}")),
    }
}

pub fn landlock_abi() -> io::Result<u32> {
    sys::landlock_abi()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_to_namespaces_has_its_line() {
        let base = Facts { exe: "/opt/my bots/b[1]".into(), ..Facts::default() };
        assert!(base.open_namespaces().is_empty());

        let with = |obstacles: &[Obstacle], container| {
            Facts { obstacles: obstacles.to_vec(), container, ..base.clone() }.open_namespaces()
        };
        let lines = with(&[Obstacle::AppArmor], None);
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[0],
            r#"printf '%s\n' 'abi <abi/4.0>,' 'include <tunables/global>' 'profile bantam "/opt/my bots/b\[1\]" flags=(unconfined) {' '  userns,' } | sudo tee /etc/apparmor.d/bantam"#
        );
        assert_eq!(lines[1], "sudo apparmor_parser -r /etc/apparmor.d/bantam");

        let lines = with(&[Obstacle::CloneOff, Obstacle::NoneAllowed, Obstacle::Filter], None);
        assert!(lines[0].contains("unprivileged_userns_clone=1") && lines[1].contains("max_user_namespaces="));
        assert_eq!(lines.len(), 2);

        // A profile is the host's matter, and so is its filter.
        let lines = with(&[Obstacle::AppArmor, Obstacle::Filter], Some(Container::Docker));
        assert!(matches!(lines.as_slice(), [line] if line.contains("docker run")), "{lines:?}");

        assert!(with(&[Obstacle::Filter], None)[0].contains("RestrictNamespaces="));
    }

    #[test]
    fn landlock_that_is_switched_off_is_switched_on_by_the_command_line() {
        let facts = Facts { modules: Some("capability,apparmor".into()), ..Facts::default() };
        let off = facts.open_landlock(&Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        assert!(off[0].contains("lsm=landlock,capability,apparmor"), "{off:?}");
        assert!(facts.open_landlock(&Err(io::Error::from_raw_os_error(libc::ENOSYS))).is_empty());
        assert!(facts.open_landlock(&Ok(1))[0].contains("6.2"));
    }
}
