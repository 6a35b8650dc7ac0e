//! Real programs work in the sandbox in each confinement, because its filter allows the system calls they need. Programs that
//! cannot work under Landlock alone are left out there, and listed in docs/sandbox.md.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::fixture::Fixture;
use crate::harness::until;
use crate::kernel::{ALIAS, Birth};
use crate::matrix::{Starter, ground};
use crate::model::call;
use crate::netns;
use crate::refusal::{told, told_in};

/// Confinements in which a program works.
#[derive(Clone, Copy, PartialEq)]
enum Works {
    Everywhere,
    /// Fails where commands cannot change modes and times by path, make sockets or use shared memory.
    WithNamespaces,
}
use Works::{Everywhere, WithNamespaces};

/// A name, its confinements, and a command that finally prints `fine`.
const PROGRAMS: &[(&str, Works, &str)] = &[
    (
        "sh and coreutils",
        Everywhere,
        "mkdir -p a/b && seq 1 1000 | sort -r | uniq -c | tail -n 1 && cp prelude.py a/b/c && ln -s c a/b/d && mv a/b/c a/b/e \
         && touch new && nice -n 5 true && timeout 5 true && sed -i s/import/export/ a/b/e && grep -q export a/b/e \
         && find a -type f | xargs wc -l && du -s a && df . && stat new && rm -r a && mktemp && echo fine",
    ),
    (
        "chmod and touch -d",
        WithNamespaces,
        "touch x && chmod 750 x && touch -d 2001-01-01 x && cp -p x y && echo fine",
    ),
    (
        "python with threads and children",
        Everywhere,
        r#"cat >threads.py <<'end'
import asyncio, concurrent.futures, shutil, subprocess, tempfile, threading, time
seen = []
threads = [threading.Thread(target=lambda: (time.sleep(.01), seen.append(1))) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(seen) == 8
assert subprocess.run(["echo", "hi"], capture_output=True).stdout == b"hi\n"
async def child():
    process = await asyncio.create_subprocess_exec("true")
    assert await process.wait() == 0
asyncio.run(child())
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    assert sum(pool.map(abs, range(-9, 1))) == 45
with tempfile.TemporaryDirectory() as place:
    open(place + "/x", "w").write("x")
    shutil.copyfile(place + "/x", place + "/y")
print("fine")
end
python3 threads.py"#,
    ),
    (
        "python with shared memory and sockets",
        WithNamespaces,
        r#"cat >pool.py <<'end'
import multiprocessing, socket
from multiprocessing import shared_memory
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        assert pool.map(abs, [1, -2]) == [1, 2]
    queue = multiprocessing.Queue()
    queue.put(1)
    assert queue.get() == 1
    memory = shared_memory.SharedMemory(create=True, size=10)
    memory.close()
    memory.unlink()
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname()).close()
    print("fine")
end
python3 pool.py"#,
    ),
    (
        "node",
        Everywhere,
        r#"node -e 'const fs = require("fs"), { Worker } = require("worker_threads");
fs.writeFileSync("n.txt", "x");
fs.copyFileSync("n.txt", "n2.txt");
const child = require("child_process").spawnSync("echo", ["hi"]);
new Worker("require(\"worker_threads\").parentPort.postMessage(1)", { eval: true })
  .on("message", () => fs.promises.readFile("n2.txt", "utf8").then(text => text === "x" && console.log("fine")))'"#,
    ),
    (
        "node as a server",
        WithNamespaces,
        r#"node -e 'const http = require("http"), os = require("os");
os.networkInterfaces();
const server = http.createServer((_, answer) => answer.end("ok")).listen(0, "127.0.0.1", () =>
  http.get({ port: server.address().port }, answer => answer.resume().on("end", () => { console.log("fine"); server.close() })))'"#,
    ),
    (
        "gcc, compiling",
        Everywhere,
        r#"printf '#include <stdio.h>\nint main(void) { return puts("fine") < 0; }\n' >hello.c && gcc -O2 -c hello.c && echo fine"#,
    ),
    (
        "gcc, linking",
        WithNamespaces,
        "gcc hello.c -o hello && ./hello",
    ),
    (
        "tar",
        WithNamespaces,
        "mkdir -p t/u && echo x >t/u/v && tar czf t.tgz t && mkdir tt && tar xzf t.tgz -C tt && cat tt/t/u/v && echo fine",
    ),
    (
        "tar, without modes and times",
        Everywhere,
        "mkdir -p s/u && echo x >s/u/v && tar czf s.tgz s && mkdir ss && tar xzmof s.tgz --no-same-permissions -C ss && echo fine",
    ),
    (
        "rsync",
        WithNamespaces,
        "mkdir -p r/u && echo x >r/u/v && rsync -a r/ rr/ && rsync -a --delete r/ rr/ && cat rr/u/v && echo fine",
    ),
    (
        "git",
        WithNamespaces,
        "git init -q g && cd g && git config user.email a@b.c && git config user.name n && cp ../prelude.py . && git add . \
         && git commit -qm first && git gc -q && git clone -q . ../g2 && git -C ../g2 log --oneline && git status && echo fine",
    ),
    (
        "sqlite3",
        Everywhere,
        "sqlite3 x.db 'pragma journal_mode = wal; create table t(a); insert into t values(1); vacuum; select a from t' && echo fine",
    ),
    (
        "perl",
        Everywhere,
        r#"perl -e 'my $n = `echo hi`; waitpid(fork || exit, 0); print "fine\n" if $n eq "hi\n"'"#,
    ),
];

/// Serves a repository over HTTPS; prints its port in the first line.
const SERVER: &str = r#"
import http.server, os, ssl, subprocess
run = lambda *command: subprocess.run(command, check=True, capture_output=True)
place = "/tmp/served-" + str(os.getpid())
os.mkdir(place)
os.chdir(place)
run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "cert", "-subj", "/CN=x", "-days", "1")
run("git", "init", "-q", "r")
run("git", "-C", "r", "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "served")
run("git", "clone", "-q", "--bare", "r", "r.git")
run("git", "-C", "r.git", "update-server-info")
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("0.0.0.0", 4443), Quiet)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert", "key")
server.socket = context.wrap_socket(server.socket, server_side=True)
open("/tmp/served-up", "w").close()
server.serve_forever()
"#;

/// Checks that all programs work in this column, except those `left_out`, and those `lost`, which fail.
fn programs_work(column: usize, left_out: Option<Works>, lost: &[&str]) {
    let ask = move |_: &Fixture, _: &[String]| {
        let possible = PROGRAMS
            .iter()
            .filter(|(_, works, _)| Some(*works) != left_out);
        possible
            .map(|(name, _, command)| {
                call(name, "exec", &json!({ "command": command, "timeout": 120 }))
            })
            .collect()
    };
    // Without a limit, because node needs a large data segment, and memory is not under test.
    let config = json!({ "tools": { "exec": { "memory_mb": 0 } } });
    let ground = ground(column);
    told(
        ground,
        &config,
        |_| (),
        ask,
        |_, results| {
            let failed: Vec<_> = results
                .iter()
                .filter(|(_, text)| !text.contains("fine") || text.contains("[exit"))
                .collect();
            let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, lost, "{failed:#?}");
        },
    );
}

#[test]
fn programs_work_in_namespaces() {
    programs_work(2, None, &[]);
}

#[test]
fn programs_work_in_namespaces_with_landlock() {
    programs_work(4, None, &[]);
}

#[test]
fn programs_work_with_landlock_only_but_for_what_the_docs_name() {
    programs_work(3, Some(WithNamespaces), &[]);
}

#[test]
fn programs_work_for_root_with_both() {
    programs_work(0, None, &[]);
}

#[test]
fn programs_work_with_an_older_landlock_only() {
    programs_work(5, Some(WithNamespaces), &[]);
}

/// Landlock alone forbids changing modes, even of own files, which node does when it copies a file.
#[test]
fn root_programs_run_with_landlock_only() {
    programs_work(6, Some(WithNamespaces), &["node"]);
}

#[test]
fn git_clones_through_the_proxy_of_a_guarded_network() {
    let ground = Starter::User.ground(&[]);
    let config = json!({ "tools": { "exec": { "network": "guarded", "memory_mb": 0 }, "web": { "fetch": { "allow_private": true } } } });
    netns::enter(ground.owner, "nothing", |netns| {
        let mut server = Command::new("/usr/bin/python3");
        server
            .args(["-c", SERVER])
            .current_dir("/")
            .stdin(Stdio::null());
        crate::kernel::mount("tmpfs", "/tmp".as_ref(), "mode=1777,size=16m").unwrap();
        let mut server = netns.spawn(server, Birth::of(ground.owner));
        until("the repository is served", || {
            std::fs::exists("/tmp/served-up").unwrap()
        });
        let address = ALIAS.map(|byte| byte.to_string()).join(".");
        let ask = move |_: &Fixture, _: &[String]| {
            let command = format!(
                "git -c http.sslVerify=false clone -q https://{address}:4443/r.git c && git -C c log --oneline"
            );
            vec![call(
                "clone",
                "exec",
                &json!({ "command": command, "timeout": 120 }),
            )]
        };
        told_in(
            netns,
            ground,
            &config,
            |_| (),
            ask,
            |_, results| {
                assert!(results[0].1.contains("served"), "{results:?}");
            },
        );
        server.kill().unwrap();
        server.wait().unwrap();
    });
}
