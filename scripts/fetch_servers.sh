#!/usr/bin/env bash
# Fetches the Redis and Valkey servers that the tests want into .cache/servers/ of this checkout:
# redis-8 and valkey-8 from Debian trixie, and redis-7 from Debian bookworm where the machine's own
# redis-server is no 7.x. Needs debootstrap and a Debian archive keyring; needs no root, because the
# packages are only downloaded and unpacked, and each server runs through its own dynamic loader.
# What cannot be had is said in one sentence and is no error: the tests know what to do without.
set -u

cd "$(dirname "$0")/.."
home=.cache/servers
mkdir -p "$home"

say() { printf 'servers: %s\n' "$*" >&2; }
. scripts/debian.sh

# wrapper NAME ROOT PROGRAM: a command .cache/servers/NAME that becomes the server by exec, so that
# the process that the tests started is the server itself.
wrapper() {
    local name=$1 root=$2 program=$3 loader
    loader=$(cd "$root" && find . -name 'ld-linux*.so.*' | head -n 1)
    [ -n "$loader" ] && [ -x "$root/usr/bin/$program" ] || return 1
    cat > "$home/$name.part" <<EOF
#!/bin/sh
here=\$(cd "\$(dirname "\$0")" && pwd)
exec "\$here/$(basename "$root")/${loader#./}" --library-path "$(library_path "$root" "\$here/$(basename "$root")")" \\
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
    local suite=$1 staging root deb
    local -a debs
    root="$home/$suite"
    download "$suite" "$home/$suite.log" "${@:2}" || return 1
    rm -rf "$root"
    mkdir -p "$root"
    for deb in "${debs[@]}"; do
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

can_debootstrap "Redis 8, Valkey 8 or Redis 7" || exit 0
rm -rf .cache/staging.*
if [ -n "$missing" ] && fetch trixie redis-server redis-tools valkey-server valkey-tools; then
    wrapper redis-8 "$home/trixie" redis-server
    wrapper valkey-8 "$home/trixie" valkey-server
fi
if [ -n "$seven" ] && fetch bookworm redis-server redis-tools; then
    wrapper redis-7 "$home/bookworm" redis-server
fi
exit 0
