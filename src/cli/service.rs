//! `bantam service`: installs a systemd unit that runs the gateway of this home.
//!
//! Some settings that harden other services would break the sandbox, which needs namespaces, mounts, its own host name and a
//! `/proc` without other mounts on it, so the unit has no `RestrictNamespaces`, `ProtectHostname`, `ProtectProc`,
//! `ProtectKernelTunables` or `ProtectKernelLogs`. The gateway asks the kernel whether the clock is synchronised, which
//! `ProtectClock` forbids.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::args::{Args, Command};
use super::ui::Ui;
use super::{notice, print, say};
use crate::app::{self, App};
use crate::child;
use crate::config::{Env, Loaded};
use crate::error::{Context, Error, Result};
use crate::text::to_single_line;

pub(super) const COMMAND: Command = Command::row(
    "service",
    "",
    run,
    "print a systemd unit that keeps the gateway running, or install and start it",
)
.with_flags(&[
    (
        "--system",
        "a system service, which root installs (the default for root)",
    ),
    ("--install", "write the unit, enable it and start it"),
])
.with_examples(&["bantam service --install"]);

/// File name of the unit, and a line that identifies it as bantam's.
const NAME: &str = "bantam.service";
const DESCRIPTION: &str = "Description=bantam, a personal AI agent";

/// The unit, explained in systemd.service(5) and systemd.exec(5).
const UNIT: &str = "\
[Unit]
Description=bantam, a personal AI agent
{network}# Never stop restarting it.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={program} gateway
Environment={home}
# A service does not see the variables of your shell. Give it keys in a file of NAME=VALUE lines:
#EnvironmentFile=/etc/bantam.env
# or each in a file of its own, which config.json names as \"file:telegram-token\":
#LoadCredential=telegram-token:/etc/bantam/telegram-token
Restart=on-failure
RestartSec=5
# A restart does not fix wrong usage (2), a wrong configuration (3) or refused credentials (4).
RestartPreventExitStatus=2 3 4
# Turns have three seconds to end; the next start resumes the others.
TimeoutStopSec=15
KillMode=mixed
# When memory runs out, only the command that took it ends.
OOMPolicy=continue
TasksMax=512
LimitCORE=0
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
{system}
[Install]
WantedBy={target}
";

/// Settings that require the system's manager.
const SYSTEM: &str = "\
KeyringMode=private
PrivateDevices=yes
ProtectControlGroups=yes
ProtectKernelModules=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallFilter=~@cpu-emulation @module @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM
";

const NETWORK: &str = "Wants=network-online.target\nAfter=network-online.target\n";

fn run(app: &App, ui: &Ui, given: &Args) -> Result<u8> {
    let (home, loaded) = (&app.home, app.loaded()?);
    let program = std::env::current_exe().doing("finding this program")?;
    // Removes a slash at the end.
    let root: PathBuf = std::path::absolute(home.root())?.components().collect();
    let is_system = given.has("system") || rustix::process::geteuid().is_root();
    let system = if is_system {
        system(loaded, &root)?
    } else {
        String::new()
    };
    let unit = UNIT
        .replace("{network}", if is_system { NETWORK } else { "" })
        .replace(
            "{target}",
            if is_system {
                "multi-user.target"
            } else {
                "default.target"
            },
        )
        .replace("{program}", &quoted("", &program)?)
        .replace("{home}", &quoted("BANTAM_HOME=", &root)?)
        .replace("{system}", &system);
    if given.has("install") {
        return install(&unit, is_system, &app.env);
    }
    print(&unit)?;
    if !root.exists() {
        notice(&format!(
            "{} does not exist yet; bantam onboard creates it",
            root.display()
        ));
    }
    if ui.stderr_is_terminal {
        say(if is_system {
            "bantam: next, as root: bantam service --system --install"
        } else {
            "bantam: next: bantam service --install"
        });
    }
    Ok(0)
}

/// Writes the unit, enables it and starts it. Another program's unit with this name is not replaced.
fn install(unit: &str, is_system: bool, env: &Env) -> Result<u8> {
    let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let dir = if is_system {
        // DESTDIR is set by package builds.
        let root = set("DESTDIR").map_or("/", String::as_str);
        Path::new(root).join("etc/systemd/system")
    } else {
        let config = set("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| Some(Path::new(set("HOME")?).join(".config")));
        config
            .ok_or_else(|| Error::config("HOME is not set").hint("export HOME=..."))?
            .join("systemd/user")
    };
    let path = dir.join(NAME);
    let old = fs_err::read_to_string(&path).unwrap_or_default();
    if !old.is_empty() && !old.contains(DESCRIPTION) {
        return Err(
            Error::failed(format!("{} is not a unit of bantam", path.display()))
                .hint("move it away first"),
        );
    }
    fs_err::create_dir_all(&dir).doing("installing the unit")?;
    fs_err::write(&path, unit).doing("installing the unit")?;
    print(&format!("Wrote {}\n", path.display()))?;
    let user: &[&str] = if is_system { &[] } else { &["--user"] };
    systemctl("systemctl", &[user, &["daemon-reload"]].concat())?;
    systemctl("systemctl", &[user, &["enable", "--now", NAME]].concat())?;
    if !is_system {
        // Otherwise the service ends when the user logs out.
        systemctl("loginctl", &["enable-linger"])?;
    }
    print("The gateway runs, and starts with the system\n")?;
    notice(if is_system {
        "bantam status shows how it is, journalctl -u bantam its log"
    } else {
        "bantam status shows how it is, journalctl --user -u bantam its log"
    });
    Ok(0)
}

fn systemctl(program: &str, args: &[&str]) -> Result<()> {
    let command = format!("{program} {}", args.join(" "));
    let output = child::by_user(program)
        .args(args)
        .output()
        .doing(format_args!("running {command}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim().lines().last().unwrap_or("no reason given");
    Err(
        Error::failed(format!("{command}: {}", to_single_line(last, 200)))
            .hint("correct that, then run `bantam service --install`"),
    )
}

/// Returns the lines for the system's manager: the user and the writable directories.
fn system(loaded: &Loaded, root: &Path) -> Result<String> {
    // The owner of the home runs the service; the current user will own a new home.
    let owner =
        fs_err::metadata(root).map_or(rustix::process::geteuid().as_raw(), |meta| meta.uid());
    let mut lines = match owner {
        0 => {
            "# This runs as root. A user of its own, who owns the home, is better:\n#User=bantam\n"
                .to_owned()
        }
        // Without capabilities, because the sandbox gets its own in a user namespace.
        owner => format!("User={owner}\nCapabilityBoundingSet=\n"),
    };
    lines.push_str(SYSTEM);
    // Without the restriction, tools may write wherever the user can.
    if !loaded.config.agents.defaults.restrict_to_workspace {
        return Ok(lines + "ProtectSystem=full\n");
    }
    lines.push_str("ProtectSystem=strict\nProtectHome=read-only\n");
    let mut writable = vec![app::workspace(loaded)?];
    writable.extend(app::write_paths(loaded)?);
    writable.retain(|path| !path.starts_with(root));
    for path in [root]
        .into_iter()
        .chain(writable.iter().map(PathBuf::as_path))
    {
        // The dash ignores a missing path.
        lines.push_str(&format!("ReadWritePaths={}\n", quoted("-", path)?));
    }
    Ok(lines)
}

/// Quotes `before` and a path as one word of a unit, as required by systemd.syntax(7) and systemd.unit(5).
fn quoted(before: &str, path: &Path) -> Result<String> {
    let text = path
        .to_str()
        .filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| {
        Error::failed(format!("{:?} cannot be written in a unit", path.display()))
            .hint("rename it without control characters")
    })?;
    let mut out = format!("\"{before}");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            // A single percent sign begins a specifier.
            '%' => out.push_str("%%"),
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_that_means_itself() {
        let quoted = |path: &str| quoted("", Path::new(path)).map_err(|e| e.message);
        assert_eq!(quoted("/usr/bin/bantam").unwrap(), "\"/usr/bin/bantam\"");
        assert_eq!(
            quoted("/a b/100%/\"x\"\\$HOME/日本").unwrap(),
            "\"/a b/100%%/\\\"x\\\"\\\\$HOME/日本\""
        );
        assert!(
            quoted("/a\nUser=root")
                .unwrap_err()
                .contains("cannot be written in a unit")
        );
    }
}
