#!/usr/bin/env bash
# Gets one Python for scripts/matrix.py: scripts/fetch_pythons.sh 3.13|3.14|3.13t|3.14t. It is put into
# .cache/pythons/VERSION, and .cache/pythons/VERSION.path names the program.
#
# 3.13 is Debian trixie's, 3.14 Debian forky's: downloaded and unpacked, which needs no root, and
# started by a script through the loader that came with it. No release of Debian has 3.13t and 3.14t,
# the free-threaded ones: they are built from the sources of the same releases, which takes a C
# compiler, the headers of OpenSSL, zlib and libffi, and some minutes. Exit status 1, and one
# sentence, for a Python that cannot be had.
set -u

cd "$(dirname "$0")/.."
version=${1:?usage: scripts/fetch_pythons.sh 3.13|3.14|3.13t|3.14t}
home=$PWD/.cache/pythons
root=$home/$version
mkdir -p "$home"

say() { printf 'python %s: %s\n' "$version" "$*" >&2; }
. scripts/debian.sh

# The stamp holds the whole path: a checkout that has moved since needs a new one.
[ "$(cat "$root.path" 2> /dev/null)" = "$root/usr/bin/python$version" ] && exit 0
rm -rf "$root" "$root.path" "$home/build-$version".*

# Says that it works, as an environment's program must: with TLS and compression, for pip.
finish() {
    local program=$root/usr/bin/python$version
    if ! "$program" -I -c 'import ctypes, hashlib, ssl, zlib' > "$root.log" 2>&1; then
        say "it does not start, or lacks a module: $(tail -n 1 "$root.log")"
        return 1
    fi
    printf '%s\n' "$program" > "$root.path"
    say "$("$program" -I -c 'import sys; print(sys.version.split()[0])') is ready"
}

# unpack SUITE: Debian's own build, with all its libraries.
unpack() {
    local staging deb loader libraries
    local -a debs
    can_debootstrap "Debian's python$version" || return 1
    download "$1" "$root.log" "python$version" || return 1
    mkdir -p "$root"
    for deb in "${debs[@]}"; do
        case "$(basename "$deb")" in
        "python$version"* | "libpython$version"* | libc6_* | libgcc-s1_* | \
            libstdc++6_* | libssl3* | zlib1g_* | libzstd1_* | libexpat1_* | libffi8_* | \
            libbz2-1* | liblzma5_* | libsqlite3-0_* | libncursesw6_* | libtinfo6_* | \
            libreadline8* | libuuid1_* | libdb5* | libgdbm* | libcrypt1_* | libnsl2_* | \
            libtirpc3* | libmpdec* | libb2-1_* | libgomp1_*)
            dpkg-deb -x "$deb" "$root" || return 1
            ;;
        esac
    done
    rm -rf "$staging" "$root"/usr/share "$root"/etc "$root"/var "$root"/run
    # An absolute link of the package would point out of the folder.
    loader=$(cd "$root" && find . -name 'ld-linux*.so.*' -type f | head -n 1)
    if [ -z "$loader" ] || [ ! -x "$root/usr/bin/python$version" ]; then
        say "Debian $1 has no such package"
        return 1
    fi
    libraries=$(library_path "$root" "$root")
    mv "$root/usr/bin/python$version" "$root/usr/bin/python$version.real"
    # The name by which it was called stays its first argument: an environment is known by that.
    cat > "$root/usr/bin/python$version" << EOF
#!/bin/sh
exec "$root/${loader#./}" --argv0 "\$0" --library-path "$libraries" \\
    "$root/usr/bin/python$version.real" "\$@"
EOF
    chmod +x "$root/usr/bin/python$version"
    finish
}

# build SUITE: the free-threaded one, from the sources of Debian's package.
build() {
    local mirror apt work name=${version%t} log=$root.log
    command -v gcc > /dev/null && command -v make > /dev/null || {
        say "no release of Debian has it, and there is no C compiler to build it with;" \
            "run: sudo apt-get install build-essential libssl-dev zlib1g-dev libffi-dev"
        return 1
    }
    mirror=$(machine_mirror)
    if [ -z "$mirror" ] || ! command -v apt-get > /dev/null || [ ! -r "$keyring" ]; then
        say "no release of Debian has it, and its sources are fetched by Debian's apt-get alone"
        return 1
    fi
    work=$(mktemp -d "$home/build-$version.XXXXXX") || return 1
    # apt with lists of its own, which need no root and leave the machine's alone.
    mkdir -p "$work"/apt/{lists/partial,cache/archives/partial,state,parts}
    : > "$work/apt/state/status"
    printf 'deb-src [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$1" > "$work/apt/sources.list"
    apt=(apt-get -qq -o "Dir::State=$work/apt/state" -o "Dir::State::status=$work/apt/state/status"
        -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache"
        -o "Dir::Etc::SourceList=$work/apt/sources.list" -o "Dir::Etc::SourceParts=$work/apt/parts"
        -o APT::Sandbox::User=root)
    say "building it from the sources of Debian $1 (some minutes)"
    if ! (cd "$work" && "${apt[@]}" update && "${apt[@]}" --download-only source "python$name") \
        < /dev/null > "$log" 2>&1; then
        say "the sources of Debian $1 cannot be fetched ($(grep -m 1 -oE '[0-9]{3} +[A-Z][A-Za-z ]+' "$log" ||
            tail -n 1 "$log"))"
        rm -rf "$work"
        return 1
    fi
    mkdir "$work/source"
    if ! (tar -xf "$work"/python"$name"_*.orig.tar.[gx]z -C "$work/source" --strip-components=1 &&
        cd "$work/source" &&
        ./configure --quiet --disable-gil --prefix="$root/usr" --with-ensurepip=no \
            --disable-test-modules &&
        make -s -j "$(nproc)" && make -s altinstall) < /dev/null >> "$log" 2>&1; then
        say "it does not build ($(grep -E 'rror' "$log" | tail -n 1)); the whole log is in $log"
        rm -rf "$work"
        return 1
    fi
    cp "$log" "$root.build.log"
    rm -rf "$work"
    finish
}

case $version in
3.13) unpack trixie ;;
3.14) unpack forky ;;
3.13t) build trixie ;;
3.14t) build forky ;;
*)
    say "Debian has no such Python; install it so that python$version is on PATH"
    exit 1
    ;;
esac
