#!/usr/bin/env bash
# Puts the wheel into a folder: scripts/build_wheel.sh FOLDER [sdist]; with "sdist" that one, too.
# Both are built at once, the wheel out of the sdist, and once from the same files of a commit,
# whoever asks for them: .cache/wheel keeps them until one of the files or the commit changes. They
# are built from a copy, so that neither a build/ folder of before nor a second build at the same
# time can get into them; scripts/artifacts.py makes the copy and says what it changes in it. The
# same commit makes the same bytes, whoever builds it and when.
set -euo pipefail

out=$(mkdir -p "${1:?usage: scripts/build_wheel.sh FOLDER [sdist]}" && cd "$1" && pwd)
with_sdist=${2:-}
cd "$(dirname "$0")/.."
kept=.cache/wheel
mkdir -p "$kept"
exec 9> "$kept/lock"
flock 9

umask 022
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2> /dev/null || echo 1577836800)
export SOURCE_DATE_EPOCH
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
.venv/bin/python -P scripts/artifacts.py copy "$copy"
# Of the copy: what is edited meanwhile belongs to the next wheel.
sum=$({ cat scripts/build_wheel.sh scripts/artifacts.py constraints.txt &&
    echo "$SOURCE_DATE_EPOCH" && cd "$copy" &&
    find . -type f -print0 | sort -z | xargs -0 sha256sum; } | sha256sum)
if [ "$(cat "$kept/sum" 2> /dev/null)" != "$sum" ]; then
    rm -f "$kept"/*.whl "$kept"/*.tar.gz "$kept/sum"
    .venv/bin/python -m build --no-isolation --outdir "$kept" "$copy" > "$copy/log" 2>&1 || {
        cat "$copy/log" >&2
        echo "build_wheel: the wheel could not be built; the builder's output is above" >&2
        exit 1
    }
    .venv/bin/python -P scripts/artifacts.py settle "$kept"/*.tar.gz
    printf '%s\n' "$sum" > "$kept/sum"
fi
cp "$kept"/*.whl "$out"
[ -z "$with_sdist" ] || cp "$kept"/*.tar.gz "$out"
