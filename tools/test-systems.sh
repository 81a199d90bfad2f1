#!/usr/bin/env bash
# `make test-systems`: installs the wheel of dist (`make wheels`) beside NIXL's in chroots of Debian 11, 12, 13 and testing and of Ubuntu
# 22.04 and 24.04, and moves verified bytes between two agents there, over tcp and over shared memory. With QUICKSTART=1 it runs
# `make quickstart` of the last commit instead, in chroots that have make and nothing else. It prints a table (docs/packaging.md has both).
# It needs root. Debian 11 has no Python that NIXL supports: `gorail bench` of the wheel drives NIXL's libraries there. NIXL needs an
# OpenSSL 3, which Debian 11 does not have either: that in the wheel of psycopg2-binary is used.
#
#   SYSTEMS                suites (default: bullseye bookworm trixie testing jammy noble; with QUICKSTART=1: bookworm trixie jammy noble)
#   SYSTEMS_MIRROR         Debian's archive (default: the archive in this machine's apt sources, else http://deb.debian.org/debian)
#   SYSTEMS_MIRROR_UBUNTU  Ubuntu's archive (default: http://archive.ubuntu.com/ubuntu)
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
. tools/apt.sh
fail() { say "$*" >&2 && exit 1; }

[ "$(id -u)" = 0 ] || fail 'a chroot needs root: run it as root'
have mmdebstrap || install mmdebstrap
dir=$PWD/.cache/systems
mkdir -p "$dir"
part=wheel && [ -z "${QUICKSTART:-}" ] || part=quickstart # both may run at once
exec 9>"$dir/$part.lock"
flock -n 9 || fail "another run is in $dir"
mirror=${SYSTEMS_MIRROR:-$(mirror)} ubuntu=${SYSTEMS_MIRROR_UBUNTU:-http://archive.ubuntu.com/ubuntu}
keys=$dir/ubuntu-archive-keyring.gpg

# keyring writes Ubuntu's keys, once. Debian 13 has them in a package; Debian 12 has not.
keyring() {
    [ ! -e "$keys" ] || return 0
    rm -rf "$dir/keyring-$part"
    mmdebstrap --mode=root --variant=extract --include=ubuntu-keyring trixie "$dir/keyring-$part" "$mirror" >"$dir/$part.log" 2>&1 9>&- ||
        { tail -n 20 "$dir/$part.log" >&2 && fail "no keys of Ubuntu: Debian 13's package ubuntu-keyring cannot be had from $mirror"; }
    cp "$dir/keyring-$part/usr/share/keyrings/ubuntu-archive-keyring.gpg" "$keys.$part"
    mv "$keys.$part" "$keys"
    rm -rf "$dir/keyring-$part"
}

# unpack SUITE ROOT PACKAGE makes a chroot once: a minimal system with that package. (apt is not required in Ubuntu.)
unpack() {
    local sources=("$mirror") options=() pocket
    case $1 in
    jammy | noble)
        keyring
        sources=() options=(--keyring "$keys")
        for pocket in "$1" "$1-updates" "$1-security"; do sources+=("deb $ubuntu $pocket main universe"); done
        ;;
    esac
    say "unpacking $1 with $3 (once)"
    rm -rf "$2"
    # a mirror may keep a Release file of testing for longer than it says that it is valid
    mmdebstrap --mode=root --variant=minbase "--include=apt,$3" --aptopt='Acquire::Check-Valid-Until "false"' "${options[@]}" "$1" "$2" "${sources[@]}" \
        >"$dir/$part.log" 2>&1 9>&- || { tail -n 20 "$dir/$part.log" >&2 && fail "no $1"; }
    touch "$2/ready"
}

# packages ROOT PYTHON NAME... puts wheels for that Python into ROOT/opt/nixl.
packages() {
    local root=$1 python=$2 tags=()
    shift 2
    for glibc in 17 27 28; do tags+=(--platform "manylinux_2_${glibc}_$(uname -m)"); done
    .venv/bin/pip install -q --disable-pip-version-check --no-deps --no-compile --target "$root/opt/nixl" --python-version "$python" \
        --only-binary=:all: "${tags[@]}" --platform manylinux2014_"$(uname -m)" --upgrade "$@"
}

# inside ROOT SECONDS COMMAND [NAME=VALUE]... runs a command in the chroot, in mount and pid namespaces of its own.
inside() {
    # shellcheck disable=SC2016 # the inner shell expands
    ROOT=$1 RUN=$3 GO=$(go env GOROOT) timeout "$2" unshare --mount --propagation private --pid --fork --kill-child bash -euo pipefail -c '
        mount -t proc proc "$ROOT/proc"
        mount --rbind /sys "$ROOT/sys"
        mount --rbind /dev "$ROOT/dev"
        mount -t tmpfs tmpfs "$ROOT/tmp"
        if [ -e "$ROOT/usr/local/go" ]; then
            mount --bind "$GO" "$ROOT/usr/local/go"
            mount -o remount,bind,ro "$ROOT/usr/local/go"
        fi
        exec chroot "$ROOT" env -i HOME=/tmp LANG=C.UTF-8 PATH=/usr/bin:/bin "$@" bash -euo pipefail -c "$RUN"' inside "${@:4}" 9>&-
}

# name ROOT prints the system in ROOT.
name() { (. "$1/etc/os-release" && echo "${PRETTY_NAME% (*}" | sed -E 's/(Ubuntu [0-9.]{5}).*/\1/; s,GNU/Linux ,,'); }

# row TEXT: a row of the table, which is printed at the end, too.
row() { table+=("$1") && say "$1"; }

# wheel SUITE: two agents with the wheel of dist.
wheel() {
    local root=$dir/$1 wheel python nixl how run way result system
    wheel=$PWD/dist/nixl_gorail-$(cat VERSION)-py3-none-manylinux_2_28_$(uname -m).whl
    [ -e "$wheel" ] || fail "$wheel is missing: run make wheels"
    [ -e "$root/ready" ] || unpack "$1" "$root" python3
    rm -rf "$root/opt/nixl"
    python=$(inside "$root" 60 'python3 -c "import sys; print(\"%d.%d\" % sys.version_info[:2])"')
    system="$(name "$root"), glibc $(inside "$root" 60 'ldd --version' | sed -n '1s/.* //p')"
    nixl=$(sed -n 's/^nixl-cu12==//p' tools/requirements.txt)
    if [ "${python#3.}" -lt 10 ]; then
        how='gorail bench'
        packages "$root" 3.10 "nixl-cu12==$nixl" psycopg2-binary "$wheel"
        mkdir "$root/opt/nixl/openssl"
        for lib in ssl crypto; do
            ln -s "$(basename "$root"/opt/nixl/psycopg2_binary.libs/lib$lib-*.so.3)" "$root/opt/nixl/psycopg2_binary.libs/lib$lib.so.3"
            ln -s "../psycopg2_binary.libs/lib$lib.so.3" "$root/opt/nixl/openssl/"
        done
        # shellcheck disable=SC2016
        run='/opt/nixl/nixl_gorail/bin/gorail bench --wheel /opt/nixl --compare GORAIL --limits memcpy --shapes 4K,4M --op_type WRITE,READ --repeats 1 --time 50ms >/tmp/out 2>&1 && ! grep -q "GORAIL: " /tmp/out && echo verified'
    else
        how="Python $python"
        packages "$root" "$python" "nixl-cu12==$nixl" numpy "$wheel"
        run='python3 -m nixl_gorail.two_agents --rounds 2 2>&1 | tee /tmp/out'
    fi
    for way in tcp sm; do
        result='verified bytes'
        inside "$root" 180 "{ $run; } || cat /tmp/out" GORAIL_PROVIDER=$way PYTHONPATH=/opt/nixl PYTHONDONTWRITEBYTECODE=1 \
            LD_LIBRARY_PATH=/opt/nixl/openssl NIXL_LOG_LEVEL=WARN >"$dir/$part.out" 2>&1 && grep -q verified "$dir/$part.out" ||
            { result=FAILED failed=1 && tail -n 20 "$dir/$part.out" >&2; }
        row "$system | $how | NIXL $nixl | $way | $result"
    done
}

mib() { du -smc "$@" 2>/dev/null | sed -n '$s/\t.*//p'; }

# quickstart SUITE: `make quickstart` as README.md says, of the last commit, with this machine's Go, network and certificates. What it
# installs, builds and downloads is measured, and removed at the end.
quickstart() {
    local base=$dir/$1-minimal root=$dir/$1-quickstart variables=() each before load result=FAILED real user sys
    [ -e "$base/ready" ] || unpack "$1" "$base" make
    rm -rf "$root"
    cp -a --reflink=auto "$base" "$root"
    mkdir "$root/gorail" "$root/usr/local/go"
    git archive HEAD | tar -x -C "$root/gorail"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    # They may be more than the system's.
    if cp -L "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/host.crt" 2>/dev/null; then
        variables=(PIP_CERT=/etc/host.crt SSL_CERT_FILE=/etc/host.crt)
    fi
    for each in GOPROXY GOSUMDB PIP_INDEX_URL http_proxy https_proxy no_proxy; do [ -z "${!each:-}" ] || variables+=("$each=${!each}"); done
    before=$(mib "$root") load=$(cut -d ' ' -f 1 /proc/loadavg) TIMEFORMAT='%0R %0U %0S'
    say "make quickstart on $(name "$root")"
    { time inside "$root" 1200 'cd /gorail && make quickstart' HOME=/root GOTOOLCHAIN=local \
        PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${variables[@]}" >"$dir/$1.log" 2>&1; } 2>"$dir/$part.time" &&
        grep -q verified "$dir/$1.log" && result='verified bytes' || { failed=1 && tail -n 40 "$dir/$1.log" >&2; }
    read -r real user sys <"$dir/$part.time"
    row "$(name "$root") | make quickstart | $result | $real s, load before $load | $((user + sys)) s of processor time | $(($(mib "$root") - before)) MiB: $(
        cd "$root" && echo ".venv $(mib gorail/.venv), build $(mib gorail/build), caches of Go $(mib root/go root/.cache/go-build)")"
    rm -rf "$root"
}

table=() failed=0
if [ -n "${QUICKSTART:-}" ]; then
    trap 'rm -rf "$dir"/*-quickstart' EXIT
    for suite in ${SYSTEMS:-bookworm trixie jammy noble}; do quickstart "$suite"; done
else
    for suite in ${SYSTEMS:-bullseye bookworm trixie testing jammy noble}; do wheel "$suite"; done
fi
printf '%s\n' "${table[@]}"
exit $failed
