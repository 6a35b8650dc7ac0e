//! Tests of the choice of a grant.

use super::*;
use crate::child::Network;
use crate::test_dir::TestDir;
use crate::worker::protocol::{Confinement, Job, Policy};

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
