#!/bin/sh
# Installs bantam from the files of a release, or replaces an older one.
#
#     sh install.sh [FROM]      FROM is a folder or an https address with these files
#
# It writes nothing but ~/.local/bin/bantam, or bantam in $BANTAM_BIN.
set -eu
from=${1:-}
bin=${BANTAM_BIN:-$HOME/.local/bin}

fail() { echo "install: $*" >&2; exit 1; }

fetch() { # NAME: from the release into the current directory
    case $from in
    https://*)
        if command -v curl >/dev/null; then curl -fsSLO --proto =https "$from/$1"
        else wget -q "$from/$1"; fi || fail "cannot download $from/$1" ;;
    *) cp "$from/$1" . || fail "cannot read $from/$1" ;;
    esac
}

# A 64-bit kernel may run a 32-bit system, so the fifth byte of /bin/sh decides: 1 is 32 bits, 2 is 64.
case $(uname -m):$(od -An -tu1 -j4 -N1 /bin/sh | tr -d ' ') in
x86_64:2) target=x86_64-unknown-linux-musl ;;
aarch64:2 | arm64:2) target=aarch64-unknown-linux-musl ;;
aarch64:1 | armv8l:1 | armv7l:1) target=armv7-unknown-linux-musleabihf ;;
armv6l:1) target=arm-unknown-linux-musleabihf ;; # Pi Zero and Pi 1
*) fail "there is no binary for $(uname -m); build bantam with: cargo install --locked --path ." ;;
esac
[ -n "$from" ] || fail "name the folder or the https address of a release"
case $from in https://*) ;; *) from=$(cd "$from" 2>/dev/null && pwd) || fail "there is no folder $1" ;; esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fetch SHA256SUMS
archive=$(sed -n "s/^[0-9a-f]* [ *]\(bantam-[^ /]*-$target\.tar\.gz\)$/\1/p" SHA256SUMS | head -n 1)
[ -n "$archive" ] || fail "the release has no archive for $target"
fetch "$archive"
grep " [ *]$archive\$" SHA256SUMS | sha256sum -c - >/dev/null 2>&1 || fail "$archive is damaged: its checksum is another one"
tar -xzf "$archive"
new=$scratch/${archive%.tar.gz}/bantam
version=$("$new" --version) || fail "the new program does not start here; nothing was installed"

mkdir -p "$bin"
cp "$new" "$bin/.bantam.new"
mv -f "$bin/.bantam.new" "$bin/bantam"
echo "installed $version in $bin/bantam"
case :$PATH: in *:"$bin":*) ;; *) echo "add it to your PATH: export PATH=\"$bin:\$PATH\"" ;; esac
