//! Tests of the choice of a grant, and of the race against swapped links.

use super::*;
use crate::child::Network;
use crate::test_dir::TestDir;
use crate::worker::protocol::{Confinement, Job, Policy};
use race::{INSIDE, OUTSIDE, RacyWorkspace};

#[path = "../../tests/support/race.rs"]
mod race;

fn unconfined(policy: &Policy) -> Setup {
    Setup::new(
        policy,
        Confinement::Unconfined,
        &Job::File(FileJob::Passages),
    )
}

#[test]
fn path_belongs_only_to_its_own_grant() {
    let root = TestDir::new();
    for dir in ["work", "open", "closed"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    let at = |below: &str| root.join(below);
    let grant = |below: &str, access| Grant::at(at(below), access);
    let policy = Policy {
        network: Network::None,
        workspace: Grant {
            path: at("named"),
            ..grant("work", Access::Write)
        },
        grants: vec![
            grant("closed", Access::Read),
            grant("not/there", Access::Read),
            grant("open", Access::Write),
        ],
        notes: None,
        all_except: None,
        user_home: None,
        named_sockets: true,
        memory_mb: 0,
    };
    let setup = unconfined(&policy);
    let grants = OpenGrants::open(
        Dir::open(&setup.policy.workspace.real).unwrap(),
        &setup,
        Vec::new(),
    )
    .unwrap();
    for (path, access, comes_to) in [
        (at("work"), Access::Write, Some("")),
        (at("named/a"), Access::Write, Some("a")),
        (at("work/"), Access::Read, Some("")),
        (at("work//a/./b"), Access::Write, Some("a/b")),
        (at("work/../secret"), Access::Read, Some("../secret")),
        ("a/b".into(), Access::Write, Some("a/b")),
        ("".into(), Access::Read, Some(".")),
        (at("open/closed/a"), Access::Read, Some("closed/a")),
        (at("open/closed/a"), Access::Write, Some("closed/a")),
        (at("closed/open/a"), Access::Read, Some("open/a")),
        (at("closed/a"), Access::Write, None),
        (at("worker/a"), Access::Read, None),
        (at("not/there/a"), Access::Read, None),
        ("/".into(), Access::Read, None),
    ] {
        let path = path.to_str().unwrap();
        let found = grants.find(path, access).ok();
        assert_eq!(
            found.map(|target| target.path),
            comes_to.map(PathBuf::from),
            "{path} for {access:?}"
        );
    }
}

/// Number of calls.
const TRIES: usize = 20_000;

/// Cycles through all tools, on paths through the swapped links.
fn job(n: usize) -> FileJob {
    let path = ["dir/file", "file", "dir/../dir/file", "dir/new"][n / 10 % 4].to_owned();
    let content = INSIDE.to_owned();
    match n % 10 {
        0 => FileJob::WriteFile {
            path,
            content,
            shown: None,
        },
        1 => {
            let (old_text, new_text) = if n % 20 == 1 { ("i", "I") } else { ("I", "i") };
            FileJob::EditFile {
                path,
                old_text: old_text.into(),
                new_text: new_text.into(),
                replace_all: Some(true),
            }
        }
        2 => FileJob::AppendFile { path, content },
        3 => FileJob::ListDir {
            path: "dir".into(),
            depth: Some(2),
        },
        4 => FileJob::Grep {
            pattern: ".".into(),
            path: Some("dir".into()),
            glob: None,
            max: None,
        },
        5 => FileJob::Grep {
            pattern: ".".into(),
            path: None,
            glob: Some("f*".into()),
            max: Some(5),
        },
        _ => FileJob::ReadFile {
            path,
            offset: None,
            limit: Some(5),
            pages: None,
        },
    }
}

/// Calls the code of the tools `TRIES` times.
#[track_caller]
fn assert_no_escape(racy: &RacyWorkspace) {
    let workspace = racy.workspace.clone();
    let policy = Policy {
        network: Network::None,
        workspace: Grant::at(workspace.clone(), Access::Write),
        grants: Vec::new(),
        notes: None,
        all_except: None,
        user_home: None,
        named_sockets: true,
        memory_mb: 0,
    };
    let setup = unconfined(&policy);
    let (mut done, mut refused) = (0, 0);
    for n in 0..TRIES {
        // Opens a new handle of the root, as each call does.
        let reply = perform(
            &OpenGrants::open(Dir::open(&workspace).unwrap(), &setup, Vec::new()).unwrap(),
            &job(n),
            &mut std::io::sink(),
        );
        let said = match reply {
            Ok(reply) => {
                assert!(matches!(
                    reply.header,
                    Header::Text | Header::Changed { .. }
                ));
                done += 1;
                String::from_utf8(reply.body).unwrap()
            }
            Err(error) => {
                refused += 1;
                error.message
            }
        };
        assert!(
            !said.contains(OUTSIDE.trim_end()),
            "try {n}, {:?}: {said}",
            job(n)
        );
        if n % 1000 == 0 {
            racy.is_unchanged();
        }
    }
    racy.is_unchanged();
    // Both outcomes happened often, so the calls did race.
    assert!(
        done > TRIES / 10 && refused > TRIES / 20,
        "{done} done, {refused} refused"
    );
}

#[test]
fn file_tools_resist_swapped_links() {
    let root = TestDir::new();
    let racy = RacyWorkspace::new(&root);
    racy.while_swapping(|| assert_no_escape(&racy));
    racy.is_unchanged();
}
