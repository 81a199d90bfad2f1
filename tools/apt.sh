# Sourced by other scripts. say prints a message, have looks for a command, install PACKAGE... installs Debian packages as
# root or through sudo (A|B: the one that this Debian has), and mirror prints the address of Debian's archive.
say() { echo "$(basename "$0" .sh): $*"; }
have() { command -v "$1" >/dev/null || [ -x "/sbin/$1" ]; }

install() {
    [ $# -gt 0 ] || return 0
    have apt-get || { say "please install: $* (this machine has no apt-get)" && exit 1; }
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        have sudo || { say "please install as root: apt-get install $*" && exit 1; }
        as_root=(sudo)
    fi
    say "apt-get install $*"
    "${as_root[@]}" apt-get -q update >/dev/null
    local each names=() one
    for each in "$@"; do
        for one in ${each//|/ }; do
            if apt-cache show "$one" 2>/dev/null | grep -q '^Version:'; then break; fi
        done
        names+=("$one")
    done
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${names[@]}" >/dev/null
}

# mirror prints the archive in this machine's apt sources, else Debian's own.
mirror() {
    local found
    found=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
        sed -nE 's,^(URIs:|deb( \[[^]]*\])?) *(https?://[^/ ]*/debian)/?( .*)?$,\3,p' | sed -n 1p || true)
    echo "${found:-http://deb.debian.org/debian}"
}
