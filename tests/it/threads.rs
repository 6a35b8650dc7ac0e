//! A machine that cannot start threads for a while.

use std::process::Command;

use rustix::process::{Resource, getrlimit, getuid};

use crate::bot::{config, ends};
use crate::botapi::BotApi;
use crate::harness::{Home, Running};
use crate::model::{Model, Reply};

/// The allowed user.
const OWNER: i64 = 42;

/// Limits the number of threads of the program. An ordinary user may do so for its own processes.
fn limit(gateway: &Running, threads: Option<u64>) {
    let soft = threads.map_or("unlimited".to_owned(), |threads| threads.to_string());
    let mut command = Command::new(if getuid().is_root() { "setpriv" } else { "env" });
    if getuid().is_root() {
        command.args(["--reuid=65534", "--clear-groups"]);
    }
    let pid = format!("--pid={}", gateway.pid());
    assert!(
        command
            .args(["prlimit", &pid, &format!("--nproc={soft}:")])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn message_waits_for_a_free_thread() {
    let (model, api) = (
        Model::answering(|_, _| Reply::text("Here I am.")),
        BotApi::start(),
    );
    let home = Home::with(&config(&model, &api));
    let mut bantam = home.bantam().arg("gateway");
    if getuid().is_root() {
        // The kernel does not limit the threads of root.
        let changed = Command::new("chown")
            .args(["-R", "65534"])
            .arg(home.path("").parent().unwrap())
            .status()
            .unwrap();
        assert!(changed.success());
        bantam = bantam.after("exec setpriv --reuid=65534 --clear-groups \"$0\" \"$@\"");
    }
    let gateway = bantam.spawn();
    api.wait_for_poll();
    limit(&gateway, Some(0));
    api.text(OWNER, "hello");
    gateway.wait_for_stderr("telegram 42: starting a thread");
    assert_eq!(model.requests().len(), 0);
    limit(&gateway, getrlimit(Resource::Nproc).maximum);
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Here I am."]);
    api.text(OWNER, "and now?");
    assert_eq!(api.wait_for_texts(OWNER, 2)[1], "Here I am.");
    ends(gateway);
}
