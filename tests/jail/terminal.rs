//! A command cannot type into the terminal that its agent was started from.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::attack::{Attack, Effect, python};
use crate::fixture::Fixture;
use crate::kernel::Birth;
use crate::matrix::{NO_LANDLOCK, NO_NAMESPACES, Starter};
use crate::model::{Model, Reply};
use crate::netns::{self, Netns};

const TYPE: Attack = python(
    "TYPE",
    "keys pushed into the terminal's input",
    Effect::Got,
    r#"
import fcntl
fds = [0, 1, 2]
try:
    fds.append(os.open("/dev/tty", os.O_RDWR))
except OSError as error:
    print(error)
for fd in fds:
    for key in b"injected\n":
        try:
            fcntl.ioctl(fd, 0x5412, bytes([key]))
        except OSError as error:
            print(error)
            break
"#,
);

/// Returns the display of a terminal that runs this line. Typed text is echoed.
fn shown(netns: &Netns, fixture: &Fixture, line: &str, birth: Birth) -> String {
    let mut script = Command::new("script");
    script
        .args(["-qec", line, "/dev/null"])
        .current_dir(fixture.workspace());
    script
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("BANTAM_HOME", fixture.home());
    script
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = netns.spawn(script, birth);
    let mut text = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut text).unwrap();
    child.wait().unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn command_cannot_type_into_agent_terminal() {
    for starter in [Starter::Root, Starter::User] {
        for rules in [&[NO_LANDLOCK][..], &[NO_NAMESPACES], &[]] {
            let ground = starter.ground(rules);
            netns::enter(ground.owner, "nothing", |netns| {
                let slot: Arc<Mutex<Option<Arc<Fixture>>>> = Arc::default();
                let model = {
                    let slot = Arc::clone(&slot);
                    Model::answering(move |_, number| {
                        let fixture = slot.lock().unwrap().clone().unwrap();
                        let command = TYPE.command(fixture.marker(&TYPE));
                        if number == 0 {
                            Reply::call("exec", &json!({ "command": command }))
                        } else {
                            Reply::text("Done.")
                        }
                    })
                };
                let fixture = Fixture::shared(netns, ground.owner, &[TYPE], &model.config());
                std::fs::write(fixture.workspace().join(TYPE.file()), TYPE.text()).unwrap();
                fixture.agent.store(1, Ordering::Relaxed);
                fixture.prepare(&[TYPE]);
                *slot.lock().unwrap() = Some(Arc::clone(&fixture));
                let bare = shown(
                    netns,
                    &fixture,
                    &TYPE.command(fixture.marker(&TYPE)),
                    Birth::of(ground.owner),
                );
                assert!(
                    bare.contains("injected"),
                    "inconclusive: bare, nothing was typed either: {bare}"
                );
                std::fs::remove_file(fixture.workspace().join("ran-TYPE")).unwrap();
                let line = format!("{} agent -n -m x", crate::program::program());
                let birth = Birth {
                    rules: ground.rules,
                    ..Birth::of(ground.uid)
                };
                let sandboxed = shown(netns, &fixture, &line, birth);
                assert!(
                    fixture.has_begun(&TYPE),
                    "inconclusive: it never ran: {sandboxed}"
                );
                assert!(
                    !sandboxed.contains("injected"),
                    "typed into the agent's terminal: {sandboxed}"
                );
            });
        }
    }
}
