# Shared by tests/boards and tests/boards-system, which source it from the top of the repository.
# shellcheck shell=bash

# shellcheck disable=SC2034
declare -A targets=(
    [x86_64]=x86_64-unknown-linux-musl
    [aarch64]=aarch64-unknown-linux-musl
    [armv7]=armv7-unknown-linux-musleabihf
    [armv6]=arm-unknown-linux-musleabihf # Pi Zero and Pi 1
    [riscv64]=riscv64gc-unknown-linux-musl
)
build=${CARGO_TARGET_DIR:-target}
misc=/proc/sys/fs/binfmt_misc

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# Installs packages of Debian, as root.
install_packages() { # PACKAGE...
    [ $# -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "missing programs; on Debian, run: sudo apt-get install $*"
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Unpacks the packages of Debian 13 below $build/qemu, because qemu-user older than 10 lacks openat2. The programs of
# qemu-user are static and start from there. The others need chroot.
fetch_qemu() {
    [ ! -e "$build/qemu/ready" ] || return 0
    local packages=()
    command -v mmdebstrap >/dev/null || packages+=(mmdebstrap)
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || packages+=(debian-archive-keyring)
    install_packages "${packages[@]}"
    rm -rf "$build/qemu"
    mmdebstrap --quiet --variant=extract --include=base-files,qemu-user,qemu-system-x86,qemu-system-arm,qemu-system-riscv \
        --include=opensbi trixie "$build/qemu" || fail "Debian's archive did not serve qemu 10"
    touch "$build/qemu/ready"
}

# Has the kernel start a board's programs with an interpreter.
register() { # NAME BOARD INTERPRETER FLAGS
    local class=2 machine
    case $2 in
        aarch64) machine='\xb7' ;;
        armv7 | armv6) machine='\x28' class=1 ;;
        riscv64) machine='\xf3' ;;
    esac
    [ -e $misc/register ] || mount -t binfmt_misc none $misc
    unregister "$1"
    local head="\\x7fELF\\x0$class\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00${machine}\\x00"
    local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    printf '%s' ":$1:M::$head:$mask:$(realpath "$3"):$4" >$misc/register
}

unregister() { # NAME
    [ ! -e "$misc/$1" ] || echo -1 >"$misc/$1"
}
