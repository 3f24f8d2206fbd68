#!/usr/bin/env bash
# Fetches promtool and Prometheus, which the tests of deploy/ want, into .cache/servers/ of this
# checkout. They are part of Debian's package "prometheus". That is only downloaded and unpacked, not
# installed: installed, it would start a server that listens on this machine. Needs apt and no root.
# What cannot be had is said in one sentence, with exit status 1: the tests know what to do without.
set -u

cd "$(dirname "$0")/.."
home=.cache/servers
mkdir -p "$home"
say() { printf 'servers: %s\n' "$*" >&2; }
has() { command -v "$1" > /dev/null || [ -x "$home/$1" ]; }

! has promtool || ! has prometheus || exit 0
if ! command -v apt-get > /dev/null || ! command -v dpkg-deb > /dev/null; then
    say "promtool and prometheus cannot be fetched without apt; put both on PATH"
    exit 1
fi
staging=$(mktemp -d "$PWD/.cache/promtool.XXXXXX") || exit 1
trap 'rm -rf "$staging"' EXIT
# As root, apt downloads as a user of its own, who must be let in.
chmod 755 "$staging"
say "fetching promtool and prometheus from the package prometheus (about 20 MB)"
if ! (cd "$staging" && apt-get -qq -o APT::Sandbox::User=root download prometheus) \
    < /dev/null > "$home/promtool.log" 2>&1; then
    say "promtool could not be fetched ($(tail -n 1 "$home/promtool.log"))"
    exit 1
fi
dpkg-deb --fsys-tarfile "$staging"/prometheus_*.deb \
    | tar -x -C "$staging" ./usr/bin/promtool ./usr/bin/prometheus || exit 1
for program in prometheus promtool; do
    if ! "$staging/usr/bin/$program" --version > "$home/$program.version" 2>&1; then
        say "$program was unpacked but does not start: $(head -n 1 "$home/$program.version")"
        exit 1
    fi
    mv "$staging/usr/bin/$program" "$home/$program"
    say "$program is ready ($(head -n 1 "$home/$program.version"))"
done
