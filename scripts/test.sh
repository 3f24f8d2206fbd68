#!/usr/bin/env bash
# Runs the tests: scripts/test.sh WORKERS [pytest's arguments]. Those of Spark run by themselves: one
# session serves them all, and with pandas and pyarrow loaded every fork of the others would cost
# several times as much.
set -uo pipefail

cd "$(dirname "$0")/.."
workers=${1:?usage: scripts/test.sh WORKERS [pytest arguments]}
shift
nothing=5 # pytest's status where no test was selected
status=$nothing

part() {
    local code
    # -P keeps the checkout's root off the import path, so that nothing can import `jobs` or `lua`.
    WORKSTEALING_TEST_PART=$1 .venv/bin/python -P -m pytest "${@:2}"
    code=$?
    if [ $code != $nothing ] && { [ $status = $nothing ] || [ $status = 0 ]; }; then
        status=$code
    fi
}

part others -n "$workers" --dist worksteal "$@"
part spark "$@"
exit $status
