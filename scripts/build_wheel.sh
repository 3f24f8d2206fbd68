#!/usr/bin/env bash
# Builds the wheel into a folder: scripts/build_wheel.sh FOLDER. It builds from a copy, so that
# neither a build/ folder of before nor a second build at the same time can get into the wheel.
set -euo pipefail

out=$(mkdir -p "${1:?usage: scripts/build_wheel.sh FOLDER}" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

tar --exclude=__pycache__ -cf - pyproject.toml README.md LICENSE workstealing jobs lua |
    tar -xf - -C "$copy"
.venv/bin/python -m build --wheel --no-isolation --outdir "$out" "$copy" > "$copy/log" 2>&1 || {
    cat "$copy/log" >&2
    echo "build_wheel: the wheel could not be built; the builder's output is above" >&2
    exit 1
}
