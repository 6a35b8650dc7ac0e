//! `kill -9` while a skill is installed or removed.

use std::fs;

use crate::harness::Home;
use crate::seccomp_trace::{Verdict, trace};

const TEA: &str =
    "---\nname: tea\ndescription: Makes tea. 茶\n---\nBoil water, then run sh scripts/steep.sh.\n";

#[test]
fn killed_install_leaves_a_whole_skill_or_none() {
    const STEPS: [libc::c_long; 8] = [
        libc::SYS_openat,
        libc::SYS_mkdirat,
        libc::SYS_write,
        libc::SYS_syncfs,
        libc::SYS_fsync,
        libc::SYS_unlinkat,
        libc::SYS_rename,
        libc::SYS_mkdir,
    ];
    let other = Home::empty();
    other.write("tea/SKILL.md", TEA);
    other.write("tea/scripts/steep.sh", "echo steeped\n");
    let from = other.path("tea").display().to_string();
    let home = Home::empty();
    let bantam = |args: &[&str]| home.bantam().arg("skills").args(args).run();
    let is_there = || {
        let list = bantam(&["list"]);
        let list = list.exits(0).is_quiet();
        assert!(
            list.stdout.contains("journal"),
            "those that are compiled in are gone: {}",
            list.stdout
        );
        let tea = home.path("agent/skills/tea");
        assert_eq!(tea.exists(), list.stdout.contains("tea"), "{}", list.stdout);
        if tea.exists() {
            assert_eq!(fs::read_to_string(tea.join("SKILL.md")).unwrap(), TEA);
            assert_eq!(
                fs::read_to_string(tea.join("scripts/steep.sh")).unwrap(),
                "echo steeped\n"
            );
        }
        tea.exists()
    };
    let mut kills = 0;
    for (args, wanted) in [
        (&["install", from.as_str(), "-y"][..], true),
        (&["remove", "tea", "-y"], false),
    ] {
        for last in 1.. {
            let mut step = 0;
            let run = trace(
                &STEPS,
                || bantam(args),
                |stop| {
                    step += usize::from(stop.program().is_some());
                    if step == last && stop.program().is_some() {
                        Verdict::Kill
                    } else {
                        Verdict::GoOn
                    }
                },
            );
            let is_there = is_there();
            if run.killed_by.is_none() {
                run.exits(0);
                assert_eq!(is_there, wanted);
                break;
            }
            kills += 1;
            if is_there == wanted {
                // It was killed after the change, so it is repeated from the start.
                let back: &[&str] = if wanted {
                    &["remove", "tea", "-y"]
                } else {
                    &["install", &from, "-y"]
                };
                bantam(back).exits(0);
            }
        }
    }
    assert!(kills > 20, "only {kills} kills");
    let left: Vec<String> = home
        .files()
        .into_iter()
        .filter(|file| file.contains(".new") || file.contains(".old"))
        .collect();
    assert_eq!(left, [""; 0]);
}
