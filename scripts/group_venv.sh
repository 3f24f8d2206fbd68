#!/usr/bin/env bash
# Makes an environment of its own for a dependency group of pyproject.toml, in .cache/GROUP:
# scripts/group_venv.sh GROUP. Its packages are those that constraints.txt pins. Says nothing and
# takes no time while both files are as they were.
set -euo pipefail

group=${1:?usage: scripts/group_venv.sh GROUP}
cd "$(dirname "$0")/.."
home=.cache/$group
mkdir -p .cache
# Two tests at once would write into one environment.
exec 9> "$home.lock"
! command -v flock > /dev/null || flock 9

stamp=$(cksum constraints.txt pyproject.toml)
if [ "$(cat "$home/stamp" 2> /dev/null)" != "$stamp" ]; then
    rm -rf "$home"
    .venv/bin/python -m venv --without-pip "$home"
    .venv/bin/python -m pip --python "$home/bin/python" install --quiet --no-input \
        --disable-pip-version-check --constraint constraints.txt --group "$group"
    printf '%s\n' "$stamp" > "$home/stamp"
fi
