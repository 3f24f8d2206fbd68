#!/usr/bin/env bash
# Puts the wheel into a folder: scripts/build_wheel.sh FOLDER. It is built once from the same files,
# whoever asks for it: .cache/wheel keeps it until one of them changes. It builds from a copy, so
# that neither a build/ folder of before nor a second build at the same time can get into the wheel.
set -euo pipefail

out=$(mkdir -p "${1:?usage: scripts/build_wheel.sh FOLDER}" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
kept=.cache/wheel
mkdir -p "$kept"
exec 9> "$kept/lock"
flock 9

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar --exclude=__pycache__ -cf - pyproject.toml README.md LICENSE workstealing jobs lua |
    tar -xf - -C "$copy"
# Of the copy: what is edited meanwhile belongs to the next wheel.
sum=$({ cat scripts/build_wheel.sh constraints.txt && cd "$copy" &&
    find . -type f -print0 | sort -z | xargs -0 sha256sum; } | sha256sum)
if [ "$(cat "$kept/sum" 2> /dev/null)" != "$sum" ]; then
    rm -f "$kept"/*.whl "$kept/sum"
    .venv/bin/python -m build --wheel --no-isolation --outdir "$kept" "$copy" > "$copy/log" 2>&1 || {
        cat "$copy/log" >&2
        echo "build_wheel: the wheel could not be built; the builder's output is above" >&2
        exit 1
    }
    printf '%s\n' "$sum" > "$kept/sum"
fi
cp "$kept"/*.whl "$out"
