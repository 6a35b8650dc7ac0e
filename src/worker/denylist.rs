//! Commands that are always refused, even with the sandbox off. This prevents mistakes of a model, not attacks. In a sandbox,
//! `/*` still includes the whole workspace.

/// Words that may precede a program's name.
const BEFORE_NAME: [&str; 20] = [
    "sudo", "doas", "env", "nohup", "exec", "time", "nice", "command", "busybox", "{", "!", "if",
    "then", "do", "else", "sh", "bash", "dash", "ash", "zsh",
];

/// Returns why this command is refused, if it is.
pub(super) fn refusal_of(command: &str) -> Option<&'static str> {
    if is_fork_bomb(command) {
        return Some("a fork bomb");
    }
    let unquoted = command.replace(['\'', '"'], "");
    unquoted
        .split([';', '&', '|', '(', ')', '`', '\n'])
        .find_map(refusal_of_simple)
}

fn refusal_of_simple(command: &str) -> Option<&'static str> {
    let name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let mut words = command.split_whitespace();
    let program = words
        .find(|word| {
            !word.contains('=') && !word.starts_with('-') && !BEFORE_NAME.contains(&&*name(word))
        })
        .map(name)?;
    match program.split('.').next()? {
        "shutdown" | "reboot" | "halt" | "poweroff" => Some("ending this machine"),
        "systemctl" if words.any(|word| matches!(word, "reboot" | "halt" | "poweroff")) => {
            Some("ending this machine")
        }
        "mkfs" | "mke2fs" => Some("making a file system"),
        "dd" if words.any(is_device) => Some("writing onto a device"),
        "rm" => {
            let is_recursive = |word: &str| match word.strip_prefix("--") {
                Some(long) => long == "recursive",
                None => word.starts_with('-') && word.contains(['r', 'R']),
            };
            let spoils = words.clone().any(is_recursive) && words.any(is_home_or_above);
            spoils.then_some("removing / or a home directory")
        }
        _ => None,
    }
}

fn is_device(word: &str) -> bool {
    word.starts_with("of=/dev/") && word != "of=/dev/null"
}

/// Whether a word is `/`, a home directory, or everything in one of these.
fn is_home_or_above(word: &str) -> bool {
    let path = word.trim_end_matches('*').trim_end_matches('/');
    word.starts_with('/') && path.is_empty()
        || matches!(path, "~" | "$HOME" | "${HOME}" | "/root" | "/home")
        || path
            .strip_prefix("/home/")
            .is_some_and(|user| !user.contains('/'))
}

/// Whether a command is `f() { f | f & }; f`, with any name for `f`.
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
    fn destructive_command_is_denied() {
        for command in r#"
rm -rf /
rm -rf /*
cd x && sudo rm -fr --no-preserve-root /
rm --recursive '/'
rm -r ~
rm -R "$HOME"/*
/bin/rm -rf /home/you/
true;rm -rf /home
FOO=1 env BAR=2 mkfs.ext4 /dev/sda1
mkfs -t vfat /dev/sdb
dd if=/dev/zero of=/dev/mmcblk0 bs=4M
echo ok | sudo -n shutdown -h now
systemctl --force reboot
if true; then { reboot; }; fi
rm -rf ${HOME}
bash -ec 'reboot'
:(){ :|:& };:
bomb() { bomb | bomb & }; bomb"#
            .lines()
            .skip(1)
        {
            assert!(refusal_of(command).is_some(), "{command}");
        }
        for command in r"
rm -rf build /tmp/x ./home
rm /
rm -rf /home/you/project
echo 'rm -rf /'
grep -r reboot /var/log
dd if=/dev/sda of=disk.img
dd if=x of=/dev/null
f() { echo a | cat; }; f
man mkfs"
            .lines()
            .skip(1)
        {
            assert_eq!(refusal_of(command), None, "{command}");
        }
    }
}
