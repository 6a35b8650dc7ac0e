//! Addresses that a model must not be able to reach.

/// Hosts of this machine, its networks and metadata services, in every spelling.
const HOSTS: &str = "\
    127.0.0.1 localhost LOCALHOST localhost. 127.1 127.0.1 2130706433 0x7f000001 0x7f.0.0.1 0x7f.1 \
    017700000001 0177.0.0.1 0177.0.0.01 127.0.0.1. 127.255.255.254 0.0.0.0 0 [::1] [::] \
    [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [::ffff:7f00:1] [0:0:0:0:0:ffff:7f00:1] [::127.0.0.1] \
    [64:ff9b::127.0.0.1] [64:ff9b::7f00:1] [64:ff9b:1::7f00:1] [2002:7f00:1::] [2001:0:7f00:1::] \
    [fe80::1] [fc00::1] [ff02::1] [fec0::1] [100::1] [2001:db8::1] [3fff::1] [5f00::1] 10.0.0.1 \
    10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 100.64.0.1 169.254.1.1 192.0.2.1 \
    198.18.0.1 198.51.100.1 203.0.113.1 192.88.99.1 224.0.0.1 240.0.0.1 255.255.255.255 ①②⑦.⓪.⓪.① \
    127。0。0。1";

/// Whole addresses of such hosts. `{port}` is the canary's port.
const ADDRESSES: &str = "\
    http://[fe80::1%25lo]:{port}/ http://[fd00:ec2::254]/ http://[fd20:ce::254]/ \
    http://192.168.1.1/ http://100.100.100.200/latest/meta-data/ \
    http://169.254.169.254/latest/meta-data/ http://2852039166/latest/meta-data/ \
    http://0xa9fea9fe/ http://168.63.129.16/ http://192.0.0.192/ http://user@127.0.0.1:{port}/ \
    http://example.org@127.0.0.1:{port}/ http://127.0.0.1\\@example.org:{port}/ \
    http:\\\\127.0.0.1:{port}/ http://127.0.0.1:{port}#@example.org/ \
    http://127.0.0.1:{port}?@example.org/ https://127.0.0.1:{port}/ //127.0.0.1:{port}/ \
    127.0.0.1:{port}/ HTTP://127.0.0.1:{port}/ file:///etc/passwd gopher://127.0.0.1:{port}/_x \
    ftp://127.0.0.1:{port}/ unix:///run/docker.sock jar:http://127.0.0.1:{port}/!/";

/// Returns all of them, as addresses with this port.
pub fn private(port: &str) -> Vec<String> {
    let hosts = HOSTS
        .split(' ')
        .map(|host| format!("http://{host}:{port}/"));
    let others = ADDRESSES
        .split(' ')
        .chain(["http://127.0.0.1:{port}\r\nHost: example.org/"]);
    let others = others.map(|address| address.replace("{port}", port));
    hosts.chain(others).collect()
}
