#!/usr/bin/env bash
# Builds statsd_exporter, against which the tests of deploy/ hold their stand-in, into .cache/servers/
# of this checkout: from the Go module proxy, by the Go that is on PATH, in half a minute. What cannot
# be had is said in one sentence, with exit status 1: the tests know what to do without.
set -u

cd "$(dirname "$0")/.."
home=.cache/servers
version=v0.31.0
mkdir -p "$home"
say() { printf 'servers: %s\n' "$*" >&2; }

! command -v statsd_exporter > /dev/null && [ ! -x "$home/statsd_exporter" ] || exit 0
if ! command -v go > /dev/null; then
    say "statsd_exporter cannot be built without Go; the tests do with a stand-in"
    exit 1
fi
staging=$(mktemp -d "$PWD/.cache/statsd_exporter.XXXXXX") || exit 1
trap 'rm -rf "$staging"' EXIT
say "building statsd_exporter $version by Go (half a minute)"
# Its modules stay in a folder of their own, which can be removed: by default they are read-only.
if ! GOPATH="$staging/path" GOBIN="$staging/bin" GOFLAGS=-modcacherw \
    timeout 300 go install "github.com/prometheus/statsd_exporter@$version" \
    < /dev/null > "$home/statsd_exporter.log" 2>&1; then
    say "statsd_exporter could not be built ($(tail -n 1 "$home/statsd_exporter.log"))"
    exit 1
fi
"$staging/bin/statsd_exporter" --version > "$home/statsd_exporter.version" 2>&1 || exit 1
mv "$staging/bin/statsd_exporter" "$home/statsd_exporter"
say "statsd_exporter is ready ($(head -n 1 "$home/statsd_exporter.version"))"
