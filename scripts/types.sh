#!/usr/bin/env bash
# mypy --strict over the installed package, and mypy and Pyright, both strict, over a user's program
# written against it. mypy does not follow an editable install into the mapped folders jobs/ and
# lua/, so the wheel is unpacked and checked. Paths are shown as in the checkout.
set -euo pipefail

cd "$(dirname "$0")/.."
root=$PWD
installed=.cache/types
rm -rf "$installed" .cache/types-wheel
bash scripts/build_wheel.sh .cache/types-wheel
.venv/bin/python -m zipfile -e .cache/types-wheel/*.whl "$installed"

# An environment of its own: it brings Node. basedpyright is Pyright in one wheel, and in the mode
# "strict" it checks what Pyright does; the wheel of Pyright itself downloads a program at its start.
pyright=.cache/pyright
bash scripts/group_venv.sh pyright

cd "$installed"
program=tests/typing/a_users_program.py
check() {
    "$root/.venv/bin/python" -P -m mypy --config-file "$root/pyproject.toml" \
        --cache-dir "$root/.mypy_cache" "$@" |
        sed -E 's#^workstealing/(jobs|lua)/#\1/#'
}

check -p workstealing "$@"
check "$root/$program" "$@"
printf '{"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": ["."],
    "reportUnnecessaryTypeIgnoreComment": true, "include": ["%s"]}' "$root/$program" > pyrightconfig.json
"$root/$pyright/bin/basedpyright" --pythonpath "$root/.venv/bin/python" --project . |
    sed "s#$root/##"
