#!/usr/bin/env bash
# `make test-systems`: installs the wheel of dist (`make wheels`) beside NIXL's in chroots of Debian 11, 12, 13 and testing, and moves
# verified bytes between two agents there, over tcp and over shared memory. It prints a table (docs/packaging.md has it). It needs root.
# Debian 11 has no Python that NIXL supports: `gorail bench` of the wheel drives NIXL's libraries there. NIXL needs an OpenSSL 3, which
# Debian 11 does not have either: that in the wheel of psycopg2-binary is used.
#
#   SYSTEMS         suites of Debian (default: bullseye bookworm trixie testing)
#   SYSTEMS_MIRROR  Debian's archive (default: the archive in this machine's apt sources, else http://deb.debian.org/debian)
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
. tools/apt.sh
fail() { say "$*" >&2 && exit 1; }

[ "$(id -u)" = 0 ] || fail 'a chroot needs root: run it as root'
wheel=$PWD/dist/nixl_gorail-$(cat VERSION)-py3-none-manylinux_2_28_$(uname -m).whl
[ -e "$wheel" ] || fail "$wheel is missing: run make wheels"
have mmdebstrap || install mmdebstrap
dir=$PWD/.cache/systems
mkdir -p "$dir"
exec 9>"$dir/lock"
flock -n 9 || fail "another run is in $dir"
mirror=${SYSTEMS_MIRROR:-$(mirror)}

# unpack SUITE ROOT makes the chroot once.
unpack() {
    say "unpacking Debian $1 (once)"
    rm -rf "$2"
    # a mirror may keep a Release file of testing for longer than it says that it is valid
    mmdebstrap --mode=root --variant=minbase --include=python3 --aptopt='Acquire::Check-Valid-Until "false"' "$1" "$2" "$mirror" >"$dir/log" 2>&1 9>&- ||
        { tail -n 20 "$dir/log" >&2 && fail "no Debian $1"; }
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

# inside ROOT COMMAND runs a command in the chroot, in mount and pid namespaces of its own.
inside() {
    # shellcheck disable=SC2016 # the inner shell expands
    ROOT=$1 RUN=$2 timeout 180 unshare --mount --propagation private --pid --fork --kill-child bash -euo pipefail -c '
        mount -t proc proc "$ROOT/proc"
        mount --rbind /sys "$ROOT/sys"
        mount --rbind /dev "$ROOT/dev"
        mount -t tmpfs tmpfs "$ROOT/tmp"
        exec chroot "$ROOT" env -i HOME=/tmp LANG=C.UTF-8 PATH=/usr/bin:/bin PYTHONPATH=/opt/nixl PYTHONDONTWRITEBYTECODE=1 \
            LD_LIBRARY_PATH=/opt/nixl/openssl NIXL_LOG_LEVEL=WARN bash -euo pipefail -c "$RUN"' 9>&-
}

table=() failed=0
for suite in ${SYSTEMS:-bullseye bookworm trixie testing}; do
    root=$dir/$suite
    [ -e "$root/ready" ] || unpack "$suite" "$root"
    rm -rf "$root/opt/nixl"
    python=$(inside "$root" 'python3 -c "import sys; print(\"%d.%d\" % sys.version_info[:2])"')
    system="$(. "$root/etc/os-release" && echo "${PRETTY_NAME% (*}"), glibc $(inside "$root" 'ldd --version' | sed -n '1s/.* //p')"
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
        inside "$root" "export GORAIL_PROVIDER=$way; { $run; } || cat /tmp/out" >"$dir/out" 2>&1 9>&- && grep -q verified "$dir/out" ||
            { result=FAILED failed=1 && tail -n 20 "$dir/out" >&2; }
        table+=("$system | $how | NIXL $nixl | $way | $result")
    done
done
printf '%s\n' "${table[@]}"
exit $failed
