#!/usr/bin/env bash
# Installs what building and testing need and this machine lacks: Debian packages (as root or through sudo) and .venv
# with meson, ninja, NIXL's wheel and numpy. Says what it does; does nothing when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null; }
say() { echo "setup: $*"; }

missing=()
have c++ || missing+=(g++)
have cc || missing+=(gcc)
[ -e /usr/include/rdma/fabric.h ] || missing+=(libfabric-dev)
[ -e /usr/include/infiniband/verbs.h ] || missing+=(libibverbs-dev)
ldconfig=$(command -v ldconfig || echo /sbin/ldconfig)
grep -q 'libfabric\.so\.1 ' <<<"$("$ldconfig" -p)" || missing+=(libfabric1)
if ! [ -x .venv/bin/python ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
fi
have ip || [ -x /sbin/ip ] || missing+=(iproute2)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)

if [ ${#missing[@]} -gt 0 ]; then
    if ! have apt-get; then
        say "please install: ${missing[*]} (no apt-get here to do it)" && exit 1
    fi
    as_root=()
    if [ "$(id -u)" != 0 ]; then
        have sudo || { say "please install as root: apt-get install ${missing[*]}" && exit 1; }
        as_root=(sudo)
    fi
    say "apt-get install ${missing[*]}"
    "${as_root[@]}" apt-get -q update >/dev/null
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -q install -y --no-install-recommends "${missing[@]}" >/dev/null
fi

have go || { say "Go is missing: see https://go.dev/doc/install (go.mod names the version)" && exit 1; }

if ! cmp -s tools/requirements.txt .venv/installed.txt; then
    say "installing $(paste -sd ' ' tools/requirements.txt) into .venv"
    python3 -m venv .venv
    .venv/bin/pip install -q --disable-pip-version-check --no-deps -r tools/requirements.txt
    cp tools/requirements.txt .venv/installed.txt
fi
