#!/usr/bin/env bash
# `make test-trixie`: runs `make test` in a chroot of Debian 13 (libfabric 2.1, Python 3.13, gcc 14) with this machine's
# kernel and Go. It needs root. It uses new mount and pid namespaces, so that no mount and no process stays at the end.
#
#   TRIXIE_RUN     bash command to run there, after the build and tools/env.sh (default: make test)
#   TRIXIE_DIR     folder of the chroot (default: .cache/trixie)
#   TRIXIE_MIRROR  Debian's archive (default: the archive in this machine's apt sources, else http://deb.debian.org/debian)
set -euo pipefail
cd "$(dirname "$0")/.."

. tools/apt.sh
[ "$(id -u)" = 0 ] || { say 'a chroot needs root: run it as root' && exit 1; }
command -v go >/dev/null || { say 'Go is missing: see https://go.dev/doc/install (go.mod names the version)' && exit 1; }
mkdir -p "${TRIXIE_DIR:=.cache/trixie}"
dir=$(realpath "$TRIXIE_DIR") root=$(realpath "$TRIXIE_DIR")/root
exec 9>"$dir/lock"
flock -n 9 || { say "another run is in $dir" && exit 1; }

if ! [ -e "$dir/ready" ]; then
    have debootstrap || install debootstrap
    say "debootstrap into $root (once; after rm -rf $dir again)"
    rm -rf "$root"
    # tools/setup.sh installs the requirements of the tests later.
    debootstrap --variant=minbase --include=make,python3 trixie "$root" "${TRIXIE_MIRROR:-$(mirror)}" >"$dir/log" 2>&1 ||
        { tail -n 20 "$dir/log" && exit 1; }
    touch "$dir/ready"
fi

# Builds and downloads stay in the chroot from run to run. The checkout is copied each time.
src=$root/gorail
mkdir -p "$src" "$root/usr/local/go" "$root/root/go/pkg/mod" "$root/etc/ssl"
find "$src" -mindepth 1 -maxdepth 1 ! -name .venv ! -name .cache ! -name build -exec rm -rf {} +
tar -c --exclude=./.git --exclude=./.venv --exclude=./.cache --exclude='./build*' . | tar -x -C "$src"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
# This machine's CA certificates, for pip. They may be more than Debian's.
cp -L "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/host.crt" 2>/dev/null || rm -f "$root/etc/ssl/host.crt"
go mod download
TRIXIE_ROOT=$root TRIXIE_GOROOT=$(go env GOROOT) TRIXIE_MODULES=$(go env GOMODCACHE)
export TRIXIE_ROOT TRIXIE_GOROOT TRIXIE_MODULES TRIXIE_RUN=${TRIXIE_RUN:-make test}

# shellcheck disable=SC2016 # the inner shell expands
exec unshare --mount --propagation private --pid --fork --kill-child bash -euo pipefail -c '
    mount --bind "$TRIXIE_ROOT" "$TRIXIE_ROOT"
    cd "$TRIXIE_ROOT"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    mount -t tmpfs tmpfs tmp
    for pair in "$TRIXIE_GOROOT:usr/local/go" "$TRIXIE_MODULES:root/go/pkg/mod"; do
        mount --bind "${pair%%:*}" "${pair#*:}"
        mount -o remount,bind,ro "${pair#*:}"
    done
    keep=()
    for name in CI FABRIC_SEEDS FUZZTIME NIXL_WHEEL_VERSIONS PIP_INDEX_URL http_proxy https_proxy no_proxy; do
        [ -z "${!name:-}" ] || keep+=("$name=${!name}")
    done
    [ ! -e etc/ssl/host.crt ] || keep+=(PIP_CERT=/etc/ssl/host.crt)
    # pivot_root instead of chroot: the tests enter mount namespaces, and a process that enters one gets the root of that namespace.
    pivot_root . .
    umount -l .
    cd /gorail
    exec env -i HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 GOTOOLCHAIN=local \
        PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${keep[@]}" \
        bash -c "tools/setup.sh && . tools/env.sh && tools/build.sh >/dev/null && $TRIXIE_RUN" 9>&-
'
