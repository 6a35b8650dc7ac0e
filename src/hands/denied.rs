//! The commands that are refused where nothing holds a command: a seat belt against a model's mistakes, not a wall.

use std::path::Path;

/// What may stand before a program's name.
const BEFORE_NAME: [&str; 15] = [
    "sudo", "doas", "env", "nohup", "exec", "time", "nice", "command", "busybox", "{", "!", "if", "then", "do", "else",
];
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "zsh"];

/// Why this command is refused, if it is.
pub(super) fn why(command: &str, workspace: &Path) -> Option<&'static str> {
    if is_fork_bomb(command) {
        return Some("a fork bomb");
    }
    simple_commands(command).iter().find_map(|words| why_simple(words, workspace))
}

/// The simple commands of a shell's line, each as its words.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut quote = None;
    let ends = |c: char| {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
        quote.is_none() && matches!(c, ';' | '&' | '|' | '(' | ')' | '`' | '\n')
    };
    line.split(ends).filter_map(|simple| shell_words::split(simple).ok()).collect()
}

fn why_simple(words: &[String], workspace: &Path) -> Option<&'static str> {
    let name = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
    let mut words = words.iter();
    let program =
        words.find(|word| !word.contains('=') && !word.starts_with('-') && !BEFORE_NAME.contains(&&*name(word)))?;
    let program = name(program);
    let mut arguments = words.as_slice().iter();
    match program.as_str() {
        shell if SHELLS.contains(&shell) => {
            arguments.find(|word| word.starts_with('-') && word.ends_with('c'))?;
            why(arguments.next()?, workspace)
        }
        "shutdown" | "reboot" | "halt" | "poweroff" => Some("ending this machine"),
        "systemctl" if arguments.any(|word| matches!(&**word, "reboot" | "halt" | "poweroff")) => {
            Some("ending this machine")
        }
        mkfs if mkfs == "mke2fs" || mkfs.split('.').next() == Some("mkfs") => Some("making a file system"),
        "dd" if arguments.any(|word| is_device(word)) => Some("writing onto a device"),
        "rm" => {
            let is_recursive = |word: &String| match word.strip_prefix("--") {
                Some(long) => long == "recursive",
                None => word.starts_with('-') && word.contains(['r', 'R']),
            };
            let spoils = arguments.clone().any(is_recursive) && arguments.any(|word| is_home_or_above(word, workspace));
            spoils.then_some("removing / or a home directory")
        }
        _ => None,
    }
}

fn is_device(word: &str) -> bool {
    let device = word.strip_prefix("of=/dev/");
    device.is_some_and(|device| {
        !matches!(device, "null" | "zero" | "full" | "stdout" | "stderr" | "tty") && !device.starts_with("shm/")
    })
}

/// Whether this is `/`, a home directory, a directory that holds the workspace, or everything in one of these.
fn is_home_or_above(word: &str, workspace: &Path) -> bool {
    let word = word.trim_end_matches('*');
    let path = Path::new(if word.len() > 1 { word.trim_end_matches('/') } else { word });
    matches!(path.to_str(), Some("~" | "$HOME" | "${HOME}" | "/root"))
        || path.is_absolute() && path != workspace && workspace.starts_with(path)
        || path.parent() == Some(Path::new("/home"))
        || path == Path::new("/home")
}

/// `f() { f | f & }; f`, whatever its name.
fn is_fork_bomb(command: &str) -> bool {
    let squeezed: String = command.split_whitespace().collect();
    squeezed.split_once("(){").is_some_and(|(before, body)| {
        let name = before.rsplit([';', '&', '|']).next().unwrap_or_default();
        !name.is_empty() && body.starts_with(&format!("{name}|{name}&"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_spoils_the_machine_is_known_by_its_words() {
        let why = |command: &str| why(command, Path::new("/srv/me/.bantam/workspace"));
        for command in [
            "rm -rf /",
            "rm -rf /*",
            "cd x && sudo rm -fr --no-preserve-root /",
            "rm --recursive '/'",
            "rm -r ~",
            "rm -R \"$HOME\"/*",
            "/bin/rm -rf /home/you/",
            "rm -rf /srv/me/.bantam",
            "true;rm -rf /srv",
            "FOO=1 env BAR=2 mkfs.ext4 /dev/sda1",
            "mkfs -t vfat /dev/sdb",
            "dd if=/dev/zero of=/dev/mmcblk0 bs=4M",
            "echo ok | sudo -n shutdown -h now",
            "systemctl --force reboot",
            "if true; then { reboot; }; fi",
            "rm -rf ${HOME}",
            "bash -ec 'reboot'",
            ":(){ :|:& };:",
            "bomb() { bomb | bomb & }; bomb",
        ] {
            assert!(why(command).is_some(), "{command}");
        }
        for command in [
            "rm -rf build /tmp/x ./home",
            "rm /",
            "rm -rf /srv/me/.bantam/workspace/target",
            "rm -rf /home/you/project",
            "echo 'rm -rf /; reboot'",
            "grep -r reboot /var/log",
            "dd if=/dev/sda of=disk.img",
            "dd if=x of=/dev/null",
            "f() { echo a | cat; }; f",
            "man mkfs",
        ] {
            assert_eq!(why(command), None, "{command}");
        }
    }
}
