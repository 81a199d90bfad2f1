# Sourced by other scripts. say prints a message, have looks for a command, and install PACKAGE... installs Debian
# packages as root or through sudo.
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
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@" >/dev/null
}
