#!/usr/bin/env bash
# mypy --strict over the installed package, and over a user's program written against it. mypy does
# not follow an editable install into the mapped folders jobs/ and lua/, so the wheel is unpacked
# and checked. Paths are shown as in the checkout.
set -euo pipefail

cd "$(dirname "$0")/.."
root=$PWD
installed=.cache/types
rm -rf "$installed" .cache/types-wheel
bash scripts/build_wheel.sh .cache/types-wheel
.venv/bin/python -m zipfile -e .cache/types-wheel/*.whl "$installed"
cd "$installed"
check() {
    "$root/.venv/bin/python" -P -m mypy --config-file "$root/pyproject.toml" \
        --cache-dir "$root/.mypy_cache" "$@" |
        sed -E 's#^workstealing/(jobs|lua)/#\1/#'
}

check -p workstealing "$@"
check "$root/tests/typing/a_users_program.py" "$@"
