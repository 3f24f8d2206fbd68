#!/usr/bin/env bash
# Builds the site into .cache/site, and fails at the first broken link: scripts/docs.sh. Needs .venv,
# as make setup makes it. The packages of the dependency group `docs` have an environment of their
# own, .cache/docs.
set -euo pipefail

cd "$(dirname "$0")/.."
bash scripts/group_venv.sh docs
exec 9> .cache/docs-site.lock
! command -v flock > /dev/null || flock 9
.venv/bin/python -P scripts/docs_site.py
# The theme's notice about its successor is for its users, not for ours.
NO_MKDOCS_2_WARNING=1 .cache/docs/bin/python -m mkdocs --quiet build --strict --clean
printf 'docs: open %s\n' ".cache/site/index.html"
