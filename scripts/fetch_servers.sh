#!/usr/bin/env bash
# Fetches the Redis and Valkey servers that the tests want into .cache/servers/ of this checkout:
# redis-8 and valkey-8 from Debian trixie, and redis-7 from Debian bookworm where the machine's own
# redis-server is no 7.x. Needs debootstrap and a Debian archive keyring; needs no root, because the
# packages are only downloaded and unpacked, and each server runs through its own dynamic loader.
# What cannot be had is said in one sentence and is no error: the tests know what to do without.
set -u

cd "$(dirname "$0")/.."
home=.cache/servers
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p "$home"

say() { printf 'servers: %s\n' "$*" >&2; }

# The Debian mirror of this machine's own apt, or nothing: then debootstrap takes its default.
machine_mirror() {
    [ "$(. /etc/os-release 2>/dev/null && printf %s "${ID:-}")" = debian ] || return 0
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources \
        2>/dev/null | grep -v '^[[:space:]]*#' | grep -oE 'https?://[^[:space:]]+/debian/?([[:space:]]|$)' |
        head -n 1 | tr -d '[:space:]'
}

# debootstrap downloads by wget, which does not know apt's proxy.
use_apts_proxy() {
    local proxy=
    eval "$(apt-config shell proxy Acquire::http::Proxy 2>/dev/null)"
    if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then
        export http_proxy="${http_proxy:-$proxy}"
    fi
}

# The folders of a root in which its own libraries lie, for the loader.
library_path() {
    find "$1" -name '*.so*' -type f -printf '%h\n' | grep -v -E '/(gconv|engines-3|ossl-modules)' |
        sort -u | sed "s|^$1|\$here/$(basename "$1")|" | paste -sd:
}

# wrapper NAME ROOT PROGRAM: a command .cache/servers/NAME that becomes the server by exec, so that
# the process that the tests started is the server itself.
wrapper() {
    local name=$1 root=$2 program=$3 loader
    loader=$(cd "$root" && find . -name 'ld-linux*.so.*' | head -n 1)
    [ -n "$loader" ] && [ -x "$root/usr/bin/$program" ] || return 1
    cat > "$home/$name.part" <<EOF
#!/bin/sh
here=\$(cd "\$(dirname "\$0")" && pwd)
exec "\$here/$(basename "$root")/${loader#./}" --library-path "$(library_path "$root")" \\
    "\$here/$(basename "$root")/usr/bin/$program" "\$@"
EOF
    chmod +x "$home/$name.part"
    if ! "$home/$name.part" --version > "$home/$name.version" 2>&1; then
        say "$name was unpacked but does not start: $(head -n 1 "$home/$name.version")"
        rm -f "$home/$name.part" "$home/$name.version"
        return 1
    fi
    mv "$home/$name.part" "$home/$name"
    say "$name is ready ($(grep -oE 'v=[0-9.]+' "$home/$name.version"))"
}

# fetch SUITE PACKAGE...: download the packages with all that they depend on, keep what runs.
fetch() {
    local suite=$1 staging root script=
    shift
    root="$home/$suite"
    staging=$(mktemp -d "$PWD/.cache/staging.XXXXXX") || return 1
    # An older debootstrap does not know a newer release by name; all of them share one script.
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=/usr/share/debootstrap/scripts/sid
    say "fetching $* from Debian $suite (about 15 seconds)"
    if ! debootstrap --download-only --variant=minbase --keyring="$keyring" \
        --include="$(IFS=,; printf %s "$*")" "$suite" "$staging" \
        "$mirror" "$script" \
        > "$home/$suite.log" 2>&1; then
        say "Debian $suite could not be fetched ($(tail -n 1 "$home/$suite.log")); the whole log is in $home/$suite.log"
        rm -rf "$staging"
        return 1
    fi
    rm -rf "$root"
    mkdir -p "$root"
    local deb
    for deb in "$staging"/var/cache/apt/archives/*.deb; do
        case "$(basename "$deb")" in
        redis-* | valkey-* | libc6_* | lib*ssl3* | libjemalloc* | liblua* | lua-* | libsystemd0_* | \
            libcap2_* | libzstd1_* | liblzma5_* | liblz4-* | liblzf1_* | libhiredis* | libgcc-s1_* | \
            libstdc++6_* | libatomic1_* | libgcrypt20_* | libgpg-error0_* | zlib1g_*)
            dpkg-deb -x "$deb" "$root" || return 1
            ;;
        esac
    done
    rm -rf "$staging" "$root"/usr/share "$root"/etc "$root"/usr/lib/systemd "$root"/var "$root"/run
}

missing=
[ -x "$home/redis-8" ] && [ -x "$home/valkey-8" ] || missing=trixie
seven=
if ! redis-server --version 2>/dev/null | grep -q 'v=7\.' && [ ! -x "$home/redis-7" ]; then
    seven=bookworm
fi
[ -n "$missing$seven" ] || exit 0

if ! command -v debootstrap > /dev/null || [ ! -r "$keyring" ]; then
    say "Redis 8, Valkey 8 and Redis 7 cannot be fetched without debootstrap and debian-archive-keyring;" \
        "run: sudo apt-get install --no-install-recommends debootstrap debian-archive-keyring gpgv"
    exit 0
fi

use_apts_proxy
mirror=$(machine_mirror)
rm -rf .cache/staging.*
if [ -n "$missing" ] && fetch trixie redis-server redis-tools valkey-server valkey-tools; then
    wrapper redis-8 "$home/trixie" redis-server
    wrapper valkey-8 "$home/trixie" valkey-server
fi
if [ -n "$seven" ] && fetch bookworm redis-server redis-tools; then
    wrapper redis-7 "$home/bookworm" redis-server
fi
exit 0
