#!/usr/bin/env bash
# Runs the tests: scripts/test.sh quick|all|cassandra|PART|smoke:PART,...|matrix WORKERS [arguments].
# PART is a part of the tests that make test leaves out: see tests/support/parts.py. The arguments
# are pytest's, or those of scripts/matrix.py. The tests of Spark are a process of their own: one
# session serves them all, and with pandas and pyarrow loaded every fork of the others would cost
# several times as much. It runs beside the others, because both wait for much of their time; its
# words come after theirs.
#
# However the run ends, by SIGKILL too, nothing of it stays: no process, no port, no folder. A
# process in a session of its own waits for the end of this one, and sweeps.
set -uo pipefail

cd "$(dirname "$0")/.."
usage="usage: scripts/test.sh quick|all|cassandra|PART|smoke:PART,...|matrix WORKERS [arguments]"
kind=${1:?$usage}
workers=${2:?$usage}
shift 2

# What the processes of this run have in their environment, and nobody else.
mark() { printf 'RUN_OF_WORKSTEALING_TESTS=%s' "$1"; }

# Kills all that a run has started, and removes its folder. A process that is starting another one
# while it is killed may leave it: so it looks until none is left.
sweep() {
    local found
    for _ in {1..100}; do
        found=$(grep -lszxF "$(mark "$1")" /proc/[0-9]*/environ | cut -d/ -f3)
        [ -n "$found" ] || break
        # shellcheck disable=SC2086 - one word for each process
        kill -KILL $found 2> /dev/null
        sleep 0.05
    done
    rm -rf "$1"
}

if [ "$kind" = sweep ]; then
    # $workers is the folder. The pipe ends with the last process that holds its other end.
    trap '' INT TERM HUP
    cat > /dev/null
    sweep "$workers"
    exit
fi

# make may be killed, and cannot tell then; nor can this script.
bound=()
if command -v setpriv > /dev/null; then
    [ -n "${WORKSTEALING_TEST_BOUND:-}" ] || WORKSTEALING_TEST_BOUND=1 \
        exec setpriv --pdeathsig TERM bash scripts/test.sh "$kind" "$workers" "$@"
    bound=(setpriv --pdeathsig KILL)
fi
unset WORKSTEALING_TEST_BOUND

run=$(mktemp -d /tmp/ws.XXXXXX)
# PostgreSQL runs as another user, and must get through.
chmod 711 "$run"
exec 3> >(exec setsid bash scripts/test.sh sweep "$run")
sweeper=$!
# A JVM does not know TMPDIR, and a killed one of Spark's leaves its folders.
export "$(mark "$run")" TMPDIR=$run SPARK_LOCAL_DIRS=$run SPARK_SUBMIT_OPTS="-Djava.io.tmpdir=$run"
# The tests start hundreds of processes, and without bytecode each compiles the package anew.
unset PYTHONDONTWRITEBYTECODE
# A test that hangs fails with the stacks of its threads, even beside busy processes. The second
# bound only shows them: for a test that uses the first one's signal, or never looks at signals.
limit=(--timeout=600 --timeout-method=signal -o faulthandler_timeout=500)
nothing=5 # pytest's status where no test was selected
others=(-n "$workers" --dist worksteal)
spark=()
halves="others spark"
case $kind in
all) ;;
matrix) halves=matrix ;;
quick) set -- --part=quick "$@" ;;
smoke:*) set -- "--smoke=${kind#smoke:}" "$@" ;;
cassandra)
    if ! bash scripts/fetch_cassandra.sh; then
        echo "make test-cassandra has run nothing: there is no Cassandra here"
        # In CI that is a gap that nobody would see.
        [ -z "${CI:-}" ]
        exit
    fi
    # One node serves one process.
    halves=others
    others=()
    set -- --part=cassandra "$@"
    ;;
*)
    set -- "--part=$kind" "$@"
    # There is nothing beside them: two sessions use both cores.
    case $kind in
    spark*) halves=spark spark=(-n 2 --dist loadfile) ;;
    *) halves=others ;;
    esac
    ;;
esac

# Jobs of a background in groups of their own hear SIGINT from here alone, and may hear it at all.
set -m
start() {
    # -P keeps the checkout's root off the import path, so that nothing can import `jobs` or `lua`.
    local command=(-m pytest "${limit[@]}")
    [ "$1" != matrix ] || command=(scripts/matrix.py)
    WORKSTEALING_TEST_HALF=$1 "${bound[@]}" .venv/bin/python -P "${command[@]}" "${@:2}" 3>&- &
}

declare -A process=() status=()
stop() {
    trap '' INT TERM HUP
    # pytest says what it has, and has ten seconds for it.
    kill -INT -- "${process[@]/#/-}" 2> /dev/null
    for _ in {1..100}; do
        kill -0 -- "${process[@]/#/-}" 2> /dev/null || break
        sleep 0.1
    done
    finish
    exit "$1"
}
finish() {
    [ ! -e "$run/spark.txt" ] || cat "$run/spark.txt"
    exec 3>&-
    wait "$sweeper"
}
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 129' HUP

for half in $halves; do
    case $half in
    matrix) start matrix "$@" ;;
    others) start others "${others[@]}" "$@" ;;
    spark)
        if [ "$halves" = spark ]; then
            start spark "${spark[@]}" "$@"
        else
            start spark "$@" > "$run/spark.txt" 2>&1
        fi
        ;;
    esac
    process[$half]=$!
done
for half in $halves; do
    wait "${process[$half]}"
    status[$half]=$?
done
finish
code=$nothing
for half in $halves; do
    if [ "$code" = $nothing ] || { [ "$code" = 0 ] && [ "${status[$half]}" != $nothing ]; }; then
        code=${status[$half]}
    fi
done
if [ "$kind" = quick ]; then
    echo "make test has left out the tests marked slow or matrix; make test-all runs them too"
    [ $code != $nothing ] || echo "and none was left: make test-all with the same arguments"
fi
exit "$code"
