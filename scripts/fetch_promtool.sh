#!/usr/bin/env bash
# Fetches promtool, which the tests of the alert rules want, into .cache/servers/ of this checkout.
# It is part of Debian's package "prometheus". That is only downloaded and unpacked, not installed:
# installed, it would start a server that listens on this machine. Needs apt and no root. What
# cannot be had is said in one sentence, with exit status 1: the tests know what to do without.
set -u

cd "$(dirname "$0")/.."
home=.cache/servers
mkdir -p "$home"
say() { printf 'servers: %s\n' "$*" >&2; }

! command -v promtool > /dev/null && [ ! -x "$home/promtool" ] || exit 0
if ! command -v apt-get > /dev/null || ! command -v dpkg-deb > /dev/null; then
    say "promtool cannot be fetched without apt; put Prometheus' promtool on PATH"
    exit 1
fi
staging=$(mktemp -d "$PWD/.cache/promtool.XXXXXX") || exit 1
trap 'rm -rf "$staging"' EXIT
# As root, apt downloads as a user of its own, who must be let in.
chmod 755 "$staging"
say "fetching promtool from the package prometheus (about 20 MB)"
if ! (cd "$staging" && apt-get -qq -o APT::Sandbox::User=root download prometheus) \
    < /dev/null > "$home/promtool.log" 2>&1; then
    say "promtool could not be fetched ($(tail -n 1 "$home/promtool.log"))"
    exit 1
fi
dpkg-deb --fsys-tarfile "$staging"/prometheus_*.deb | tar -x -C "$staging" ./usr/bin/promtool || exit 1
if ! "$staging/usr/bin/promtool" --version > "$home/promtool.version" 2>&1; then
    say "promtool was unpacked but does not start: $(head -n 1 "$home/promtool.version")"
    exit 1
fi
mv "$staging/usr/bin/promtool" "$home/promtool"
say "promtool is ready ($(head -n 1 "$home/promtool.version"))"
