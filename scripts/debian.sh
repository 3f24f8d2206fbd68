#!/usr/bin/env bash
# To be sourced: how scripts/fetch_servers.sh and scripts/fetch_pythons.sh get packages of Debian
# that fit another release than this machine's. Packages are only downloaded and unpacked, so no
# root is needed. Who sources it defines say(), stands in the checkout's root, and has made .cache.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# True where debootstrap can run; otherwise one sentence on what WANTED needs.
can_debootstrap() {
    command -v debootstrap > /dev/null && [ -r "$keyring" ] && return
    say "$1 cannot be fetched without debootstrap and debian-archive-keyring;" \
        "run: sudo apt-get install --no-install-recommends debootstrap debian-archive-keyring gpgv"
    return 1
}

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

# download SUITE LOG PACKAGE...: put the packages with all that they depend on into a new folder,
# whose name it leaves in $staging; its caller removes it.
download() {
    local suite=$1 log=$2 script=
    shift 2
    use_apts_proxy
    staging=$(mktemp -d "$PWD/.cache/staging.XXXXXX") || return 1
    # An older debootstrap does not know a newer release by name; all of them share one script.
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=/usr/share/debootstrap/scripts/sid
    say "fetching $* from Debian $suite (about 15 seconds)"
    if ! debootstrap --download-only --variant=minbase --keyring="$keyring" \
        --include="$(IFS=,; printf %s "$*")" "$suite" "$staging" "$(machine_mirror)" $script \
        < /dev/null > "$log" 2>&1; then
        say "Debian $suite could not be fetched ($(tail -n 1 "$log")); the whole log is in $log"
        rm -rf "$staging"
        return 1
    fi
    debs=("$staging"/var/cache/apt/archives/*.deb)
}

# The folders of a root in which its own libraries lie, a colon between, for its loader. They begin
# with PREFIX instead of the root's path.
library_path() {
    find "$1" -name '*.so*' -type f -printf '%h\n' |
        grep -v -E '/(gconv|engines-3|ossl-modules|lib-dynload)' | sort -u |
        sed "s|^$1|$2|" | paste -sd:
}
