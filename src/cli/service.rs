//! `bantam service`: installs a systemd unit that runs the gateway of this home.
//!
//! Some settings that harden other services would break the sandbox, which needs namespaces, mounts, its own host name and a
//! `/proc` without other mounts on it, so the unit has no `RestrictNamespaces`, `ProtectHostname`, `ProtectProc`,
//! `ProtectKernelTunables` or `ProtectKernelLogs`. The gateway asks the kernel whether the clock is synchronized, which
//! `ProtectClock` forbids.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::args::Args;
use super::print;
use super::ui::Ui;
use crate::app::{self, App};
use crate::child;
use crate::config::{Env, Loaded};
use crate::error::{Context, Error, Result};
use crate::storage;
use crate::text::{self, to_single_line};

/// File name of the unit, and a line that identifies it as bantam's.
const NAME: &str = "bantam.service";
const DESCRIPTION: &str = "Description=bantam, a personal AI agent";

/// The unit, explained in systemd.service(5) and systemd.exec(5), and its settings that require the system's manager.
const UNIT: &str = include_str!("texts/bantam.service");
const SYSTEM: &str = include_str!("texts/bantam.service.system");

pub(super) fn run(app: &App, _ui: &Ui, given: &Args) -> Result<u8> {
    let loaded = app.loaded()?;
    let program = std::env::current_exe().doing("finding this program")?;
    // Removes a slash at the end.
    let root: PathBuf = std::path::absolute(app.home.root())?.components().collect();
    let is_system = given.has("system") || rustix::process::geteuid().is_root();
    let manager = Manager::new(is_system, &app.env);
    if given.has("uninstall") {
        return manager.uninstall();
    }
    let (target, system) = if is_system {
        ("multi-user.target", system(loaded, &root)?)
    } else {
        ("default.target", String::new())
    };
    let (shown_program, home) = (quoted("", &program)?, quoted("BANTAM_HOME=", &root)?);
    let values = |name: &str| match name {
        "program" => Some(shown_program.as_str()),
        "home" => Some(home.as_str()),
        "system" => Some(system.as_str()),
        _ => Some(target),
    };
    let unit = text::fill(UNIT, values).unwrap_or_default();
    if given.has("install") {
        let (home, program) = (root.to_string_lossy(), program.to_string_lossy());
        let [home, program] = [&home, &program].map(|word| shell_words::quote(word));
        let line = format!("@reboot BANTAM_HOME={home} {program} gateway");
        return manager.install(&unit, &line);
    }
    print(&unit).map(|()| 0)
}

/// The systemd that runs the unit: the user's or the system's.
struct Manager {
    is_system: bool,
    unit: PathBuf,
}

impl Manager {
    fn new(is_system: bool, env: &Env) -> Self {
        let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
        let dir = if is_system {
            // DESTDIR is set by package builds.
            let root = set("DESTDIR").map_or("/", String::as_str);
            Path::new(root).join("etc/systemd/system")
        } else {
            let home = || Path::new(set("HOME").map_or("", String::as_str)).join(".config");
            let config = set("XDG_CONFIG_HOME").map_or_else(home, PathBuf::from);
            config.join("systemd/user")
        };
        let unit = dir.join(NAME);
        Self { is_system, unit }
    }

    /// Writes the unit, enables it and starts it. Without success, no new unit remains. `crontab_line` does the same without
    /// systemd.
    fn install(&self, unit: &str, crontab_line: &str) -> Result<u8> {
        let is_new = !self.is_installed()?;
        let how = "with `crontab -e`, which works without systemd";
        let reloaded = self.systemctl(&["daemon-reload"]);
        reloaded.map_err(|e| e.hint(format!("add `{crontab_line}` {how}")))?;
        let path = &self.unit;
        fs_err::create_dir_all(path.parent().unwrap_or(path)).doing("installing the unit")?;
        fs_err::write(path, unit).doing("installing the unit")?;
        if let Err(e) = self.start() {
            if is_new {
                // It may be enabled already.
                drop(self.systemctl(&["disable", "--now", NAME]));
                storage::remove(path)?;
            }
            return Err(e);
        }
        let journal = if self.is_system { "" } else { " --user" };
        print(&format!(
            "Wrote {}\nThe gateway runs, and starts with the system.\n\
             bantam status shows its state, journalctl{journal} -u bantam its log.\n",
            path.display()
        ))?;
        Ok(0)
    }

    fn start(&self) -> Result<()> {
        self.systemctl(&["daemon-reload"])?;
        if !self.is_system {
            // Otherwise the service ends when the user logs out.
            run_program("loginctl", &["enable-linger"])?;
        }
        self.systemctl(&["enable", "--now", NAME])
    }

    /// Stops the unit and removes it.
    fn uninstall(&self) -> Result<u8> {
        let unit = self.unit.display();
        if !self.is_installed()? {
            return Err(Error::failed(format!("{unit} does not exist")));
        }
        self.systemctl(&["disable", "--now", NAME])?;
        storage::remove(&self.unit)?;
        self.systemctl(&["daemon-reload"])?;
        print(&format!("Stopped the gateway and removed {unit}\n"))?;
        Ok(0)
    }

    /// Whether the unit exists. Another program's unit with this name is an error.
    fn is_installed(&self) -> Result<bool> {
        let old = fs_err::read_to_string(&self.unit).unwrap_or_default();
        if old.is_empty() || old.contains(DESCRIPTION) {
            return Ok(!old.is_empty());
        }
        let error = format!("{} is not a unit of bantam", self.unit.display());
        Err(Error::failed(error).hint("move it away first"))
    }

    fn systemctl(&self, args: &[&str]) -> Result<()> {
        let user: &[&str] = if self.is_system { &[] } else { &["--user"] };
        run_program("systemctl", &[user, args].concat())
    }
}

fn run_program(program: &str, args: &[&str]) -> Result<()> {
    let command = format!("{program} {}", args.join(" "));
    let output = child::by_user(program).args(args).output();
    let output = output.doing(format_args!("running {command}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.trim().lines().last().unwrap_or("no reason given");
    let error = Error::failed(format!("{command}: {}", to_single_line(last, 200)));
    Err(error.hint("correct that, then run the command again"))
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
    let opened = app::tools_write(loaded)?.into_iter();
    writable.extend(opened.map(|place| place.grant.path));
    writable.retain(|path| !path.starts_with(root));
    writable.insert(0, root.to_owned());
    for path in writable {
        // The dash ignores a missing path.
        lines.push_str(&format!("ReadWritePaths={}\n", quoted("-", &path)?));
    }
    Ok(lines)
}

/// Quotes `before` and a path as one word of a unit, as required by systemd.syntax(7).
fn quoted(before: &str, path: &Path) -> Result<String> {
    let is_odd = |c: char| c.is_control() || matches!(c, '"' | '\\');
    match path.to_str().filter(|text| !text.contains(is_odd)) {
        // A single percent sign begins a specifier.
        Some(text) => Ok(format!("\"{before}{}\"", text.replace('%', "%%"))),
        None => {
            let what = format!("{:?} cannot be written in a unit", path.display());
            Err(Error::failed(what).hint("rename it without quotes, backslashes and controls"))
        }
    }
}
