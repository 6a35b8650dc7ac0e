//! Paths of the host that a sandbox contains.

use std::path::Path;

use crate::child::Network;

/// Returns all readable paths: programs, libraries and settings.
pub(super) fn system<'a>(network: Network) -> impl Iterator<Item = &'a Path> {
    let etc_network = if network == Network::Full {
        ETC_NETWORK
    } else {
        &[]
    };
    SYSTEM
        .iter()
        .chain(ETC)
        .chain(etc_network)
        .map(|path| Path::new(*path))
}

/// Programs and libraries. A symbolic link, such as `/bin` on most systems, becomes an identical link.
pub(super) const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix",
    "/gnu",
    "/run/current-system",
];

/// Parts of `/etc` that programs need, without secrets: certificates but not keys, no accounts.
const ETC: &[&str] = &[
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/java",
    "/etc/java-11-openjdk",
    "/etc/java-17-openjdk",
    "/etc/java-21-openjdk",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.conf",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/perl",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/python3",
    "/etc/python3.11",
    "/etc/python3.13",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
    "/etc/zoneinfo",
];

/// Files for name resolution, added with the host's network. `/etc/resolv.conf` usually links to one of the others.
const ETC_NETWORK: &[&str] = &[
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/run/NetworkManager/resolv.conf",
    "/run/connman/resolv.conf",
    "/run/resolvconf/resolv.conf",
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
];

/// Harmless devices.
pub(super) const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];
