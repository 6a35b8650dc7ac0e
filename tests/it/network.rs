//! Network access of commands: none, guarded, or full.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::harness::{Home, has_all, has_none, merged};
use crate::model::{Model, Reply};
use crate::sites::serve;

/// Returns the port of a server that answers every connection with a page, and reports it.
fn page() -> (u16, Receiver<()>) {
    let (tell, told) = channel();
    let address = serve(move |mut connection| {
        // The test may have ended.
        if tell.send(()).is_err() {
            return;
        }
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && connection.read(&mut byte).is_ok_and(|n| n == 1) {
            head.push(byte[0]);
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached";
        // A client that has hung up is counted anyway.
        drop(connection.write_all(answer));
    });
    (address.port(), told)
}

#[derive(Clone, Copy)]
enum By {
    /// A direct connection.
    Itself,
    /// A tunnel through the configured proxy.
    Tunnel,
    /// A plain HTTP request to that proxy.
    PlainProxy,
}

/// Returns the result of a command that fetches the page.
fn fetch(port: u16, tools: &Value, by: By) -> String {
    let (address, asks) = match by {
        By::Itself => (format!("127.0.0.1/{port}"), "GET /".to_owned()),
        By::Tunnel => (
            "${proxy%:*}/${proxy#*:}".to_owned(),
            format!("CONNECT 127.0.0.1:{port}"),
        ),
        By::PlainProxy => (
            "${proxy%:*}/${proxy#*:}".to_owned(),
            format!("GET http://127.0.0.1:{port}/"),
        ),
    };
    let within = if matches!(by, By::Tunnel) {
        r"while read -r line <&3 && [ ${#line} -gt 1 ]; do echo $line; done
printf 'GET / HTTP/1.1\r\nHost: x\r\n\r\n' >&3"
    } else {
        ""
    };
    let script = format!(
        r"proxy=${{http_proxy#http://}} proxy=${{proxy%/}}
exec 3<>/dev/tcp/{address} || exit
printf '{asks} HTTP/1.1\r\nHost: x\r\n\r\n' >&3
{within}
timeout 20 cat <&3"
    );
    let model = Model::scripted([
        Reply::call(
            "exec",
            &json!({ "command": format!("bash <<'END'\n{script}\nEND") }),
        ),
        Reply::text("Done."),
    ]);
    let home = Home::asking(&model, &json!({ "tools": tools }));
    home.agent(["-m", "fetch it"]).answers("Done.\n");
    model.request(1).last("tool")
}

#[test]
fn disabled_network_reaches_no_host() {
    let (port, connections) = page();
    let result = fetch(port, &json!({}), By::Itself);
    assert!(!result.contains("reached"), "{result}");
    assert!(connections.try_recv().is_err(), "somebody connected");
    let model = Model::scripted([Reply::text("Done.")]);
    Home::with(&model.config())
        .agent(["-m", "look it up"])
        .exits(0);
    let tools = model.request(0).body["tools"].to_string();
    has_all(&tools, ["no network", "tools.exec.network"]);
}

#[test]
fn guarded_network_reaches_only_public_addresses() {
    let (port, connections) = page();
    let guarded = json!({ "exec": { "network": "guarded" } });
    let result = fetch(port, &guarded, By::Tunnel);
    assert!(result.contains("403"), "{result}");
    assert!(!fetch(port, &guarded, By::Itself).contains("reached"));
    assert!(
        connections.try_recv().is_err(),
        "the guard let somebody through"
    );

    let open = merged(
        guarded,
        &json!({ "web": { "fetch": { "allow_private": true } } }),
    );
    let result = fetch(port, &open, By::Tunnel);
    assert!(result.contains("reached"), "{result}");
    assert!(connections.try_recv().is_ok());
    assert!(
        !fetch(port, &open, By::Itself).contains("reached"),
        "there is a way past the proxy"
    );
    let result = fetch(port, &open, By::PlainProxy);
    has_all(&result, ["use https://"]);
    has_none(&result, ["reached"]);
    assert!(
        connections.try_recv().is_err(),
        "somebody went past the proxy"
    );
}

#[test]
fn a_full_network_is_the_hosts() {
    let (port, connections) = page();
    let result = fetch(port, &json!({ "exec": { "network": "full" } }), By::Itself);
    assert!(result.contains("reached"), "{result}");
    assert!(connections.try_recv().is_ok());
}

/// Simulates `/etc/resolv.conf` of systemd-resolved, a link to a file in `/run`, in a private mount namespace.
const RESOLVED: &str = r#"
exec unshare -rm sh -c '
set -e
mount -t tmpfs none /run
mkdir -p /run/systemd/resolve /run/etc
cp -a /etc/. /run/etc/ 2>/run/left-out || :
echo "nameserver 192.0.2.1" >/run/systemd/resolve/stub-resolv.conf
echo "not for commands" >/run/systemd/secret
ln -sf ../run/systemd/resolve/stub-resolv.conf /run/etc/resolv.conf
mount --bind /run/etc /etc
exec "$0" "$@"' "$0" "$@""#;

#[test]
fn host_network_uses_the_host_resolver() {
    let command = "cat /etc/resolv.conf; cat /run/systemd/secret";
    let model = Model::scripted([
        Reply::call("exec", &json!({ "command": command })),
        Reply::text("Done."),
    ]);
    let home = Home::asking(
        &model,
        &json!({ "tools": { "exec": { "network": "full" } } }),
    );
    home.bantam()
        .args(["agent", "-m", "look"])
        .after(RESOLVED)
        .run()
        .exits(0);
    let result = model.request(1).last("tool");
    has_all(&result, ["nameserver 192.0.2.1"]);
    has_none(&result, ["not for commands"]);
}
