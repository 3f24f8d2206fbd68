#!/usr/bin/env bash
# Builds the site into .cache/site, or another folder, and fails if a link is broken:
# scripts/docs.sh [FOLDER]. Needs .venv, as make setup makes it. The packages of the dependency
# group `docs` have an environment of their own, .cache/docs.
set -euo pipefail

cd "$(dirname "$0")/.."
site=${1:-.cache/site}
bash scripts/group_venv.sh docs
# The prepared pages stand in one place, from which two builds at once would take each other's.
exec 9> .cache/docs-site.lock
! command -v flock > /dev/null || flock 9
.venv/bin/python -P scripts/docs_site.py
# The theme's notice about its successor is for its users, not for ours. Not --quiet: mkdocs counts
# the warnings that it prints, and --strict fails by their number.
log=.cache/docs-site.log
if ! NO_MKDOCS_2_WARNING=1 .cache/docs/bin/python -m mkdocs build --strict --clean \
    --site-dir "$(realpath -m "$site")" > "$log" 2>&1; then
    grep -v "^INFO" "$log" >&2
    exit 1
fi
printf 'docs: open %s\n' "$site/index.html"
