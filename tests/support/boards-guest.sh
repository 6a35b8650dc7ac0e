#!/bin/sh
# Runs as process 1 of an emulated board, for tests/boards-system: installs bantam as people do, and tries it as an ordinary
# user. The last line is "board: passed" or "board: failed".
#
# /board has the files of a release or only the program, the package of this architecture if there is one, boards-model.pl,
# and `now`, the time, because some boards have no clock.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

# The kernel unpacked this system into its first root, which cannot be pivoted away, and the sandbox does that.
if [ "${1:-}" != inside ]; then
    mount --bind / /mnt
    cd /mnt && mount --move . / && exec chroot . /board/boards-guest.sh inside
fi

end() {
    echo "board: $*"
    sync
    echo o >/proc/sysrq-trigger
    sleep 1000
}
as_user() {
    setpriv --reuid 1000 --regid 1000 --clear-groups env -i HOME=/home/user PATH="$PATH" "$@"
}
# Fails unless the output of a command, which is printed, has a pattern.
expect() { # PATTERN COMMAND...
    pattern=$1
    shift
    echo "board: \$ $*"
    "$@" >/tmp/output 2>&1
    status=$?
    cat /tmp/output
    [ $status = 0 ] || end "failed: exit status $status of: $*"
    grep -Eq -- "$pattern" /tmp/output || end "failed: no $pattern in the output of: $*"
}
peak() { # COMMAND...; the largest memory of the command and its children, in KiB
    as_user time -f %M -o /tmp/peak "$@" >/tmp/output 2>&1 || end "failed: $* $(cat /tmp/output)"
    cat /tmp/peak
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
chmod 1777 /tmp
date -s "@$(cat /board/now)" >/dev/null
# SIOCSIFFLAGS with IFF_UP and IFF_RUNNING, because only the essential packages are installed.
perl -MSocket -e 'my $lo = pack("a16 s x22", "lo", 0x41); socket(S, AF_INET, SOCK_DGRAM, 0) && ioctl(S, 0x8914, $lo) or die $!' ||
    end "failed: no loopback"
mkdir -p /home/user
chown 1000:1000 /home/user
: >/tmp/peak
chmod 666 /tmp/peak
echo "board: $(uname -srm), $(sed -n 's/^MemTotal: *//p' /proc/meminfo), Debian $(cat /etc/debian_version)"

bantam=/home/user/.local/bin/bantam
if [ -e /board/SHA256SUMS ]; then
    expect "installed bantam" as_user sh /board/install.sh /board
else
    bantam=/board/bantam
fi
for package in /board/*.deb; do
    [ -e "$package" ] || continue
    expect "Setting up bantam" dpkg -i "$package"
    expect "demo" as_user /usr/bin/bantam agent -m hi
    expect "^bantam [0-9]" as_user /usr/bin/bantam --version
    rm -r /home/user/.bantam
done

expect "^bantam [0-9]" as_user $bantam --version
expect "demo" as_user $bantam agent -m hi
expect "^ok .*sandbox" as_user $bantam doctor
grep -q "3 of 3 attempts stopped" /tmp/output || end "failed: doctor did not see every attempt stopped"
! grep -qi "signal" /tmp/output || end "failed: a signal ended a command of doctor"
expect "Seccomp:[[:space:]]2" as_user $bantam agent -m "run grep Seccomp: /proc/self/status"
# shellcheck disable=SC2016
expect "42" as_user $bantam agent -m 'run echo $((6 * 7))'

perl /board/boards-model.pl &
model=$!
cat >/home/user/config.json <<'CONFIG'
{
    "model_list": [{ "model_name": "test", "model": "openai/test", "api_base": "http://127.0.0.1:8080/v1", "api_key": "key" }],
    "agents": { "defaults": { "model_name": "test" } },
    "channels": { "telegram": { "enabled": true, "token": "1:token", "allow_from": [42], "api_base": "http://127.0.0.1:8080" } }
}
CONFIG
install -o 1000 -g 1000 -m 600 /home/user/config.json /home/user/.bantam/config.json
expect "an answer" as_user $bantam agent -m "a question"
echo "board: peak of a question: $(peak $bantam agent -m "a question") KiB"
rm /home/user/.bantam/config.json
echo "board: peak of a command in the sandbox: $(peak $bantam agent -m "run true") KiB"

install -o 1000 -g 1000 -m 600 /home/user/config.json /home/user/.bantam/config.json
as_user $bantam gateway >/tmp/gateway 2>&1 &
# Workers without work end after a minute.
sleep 75
gateway=$(grep -la gateway /proc/[0-9]*/cmdline | head -n 1)
[ "$gateway" ] || end "failed: the gateway ended: $(cat /tmp/gateway)"
[ -e /tmp/polled ] || end "failed: the gateway did not poll: $(cat /tmp/gateway)"
# VmRSS lacks the pages that a processor has not counted yet, and smaps_rollup counts all.
{
    grep VmRSS: "${gateway%/*}/status"
    grep -E '^(Rss|Anonymous):' "${gateway%/*}/smaps_rollup"
} >/tmp/output || end "failed: no memory of process $gateway"
echo "board: idle gateway: $(tr -s '\t\n ' ' ' </tmp/output)"
gateway=${gateway#/proc/}
kill "${gateway%/*}" $model
wait
end passed
