#!/usr/bin/env bash
# Runs the tests: scripts/test.sh quick|all|cassandra WORKERS [pytest's arguments]. Those of Spark are a
# process of their own: one session serves them all, and with pandas and pyarrow loaded every fork
# of the others would cost several times as much. It runs beside the others, because both wait for
# much of their time; what it says comes after what they say.
set -uo pipefail

cd "$(dirname "$0")/.."
# The tests start hundreds of processes, and without bytecode each compiles the package anew.
unset PYTHONDONTWRITEBYTECODE
# A test that hangs fails with the stacks of its threads, even beside busy processes.
limit=(--timeout=600 --timeout-method=signal)
usage="usage: scripts/test.sh quick|all|cassandra WORKERS [pytest's arguments]"
kind=${1:?$usage}
workers=${2:?$usage}
shift 2
nothing=5 # pytest's status where no test was selected
case $kind in
quick) set -- -m "smoke or not (slow or matrix)" "$@" ;;
all) ;;
cassandra)
    if ! bash scripts/fetch_cassandra.sh; then
        echo "make test-cassandra has run nothing: there is no Cassandra here"
        exit 0
    fi
    # One node serves one process.
    exec .venv/bin/python -P -m pytest "${limit[@]}" -m cassandra "$@"
    ;;
*) echo "$usage" >&2 && exit 2 ;;
esac

part() {
    # -P keeps the checkout's root off the import path, so that nothing can import `jobs` or `lua`.
    WORKSTEALING_TEST_PART=$1 exec .venv/bin/python -P -m pytest "${limit[@]}" "${@:2}"
}

said=$(mktemp)
spark=
# A child in the background does not hear Ctrl-C, but hears SIGTERM.
trap '[ -z "$spark" ] || kill "$spark"; rm -f "$said"' EXIT
trap 'exit 130' INT TERM
part spark "$@" > "$said" 2>&1 &
spark=$!
(part others -n "$workers" --dist worksteal "$@")
status=$?
wait "$spark"
code=$?
spark=
cat "$said"
if [ $code != $nothing ] && { [ $status = $nothing ] || [ $status = 0 ]; }; then
    status=$code
fi
if [ "$kind" = quick ]; then
    echo "make test has left out the tests marked slow or matrix; make test-all runs them too"
    [ $status != $nothing ] || echo "and none was left: make test-all with the same arguments"
fi
exit $status
