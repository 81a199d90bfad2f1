#!/usr/bin/env bash
# Installs the missing requirements of builds and tests, and says so: Debian packages (as root or through sudo), and .venv
# with meson, ninja, NIXL's wheel and numpy. If nothing is missing, the script does nothing. "setup.sh build" leaves NIXL
# and numpy out. "setup.sh tests" also installs what runs in tests beside the plugin: debuggers and allocators.
set -euo pipefail
cd "$(dirname "$0")/.."

. tools/apt.sh

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
have ip || missing+=(iproute2)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)

install "${missing[@]}"

if [ "${1:-}" = tests ]; then
    beside=()
    have gdb || beside+=(gdb)
    have strace || beside+=(strace)
    compgen -G '/usr/lib/*/libjemalloc.so.2' >/dev/null || beside+=(libjemalloc2)
    compgen -G '/usr/lib/*/libtcmalloc_minimal.so.4' >/dev/null || beside+=('libtcmalloc-minimal4|libtcmalloc-minimal4t64')
    compgen -G '/usr/lib/*/libmimalloc.so.[23]' >/dev/null || beside+=('libmimalloc2.0|libmimalloc3')
    (install "${beside[@]}") || say 'the tests that need these packages are left out' # with CI set they fail
fi

if [ "${1:-}" = tests ]; then
    tools/unpacked.sh prometheus promtool prometheus || say 'the tests of the alert rules are left out'
    tools/unpacked.sh etcd-server etcd || say 'the tests of metadata by etcd are left out'
fi

have go || { say "Go is missing: see https://go.dev/doc/install (go.mod names the version)" && exit 1; }

# pip runs from its wheel: installing and compiling it first takes 9 s of processor time.
if ! cmp -s tools/requirements.txt .venv/installed.txt; then
    wheel=$(python3 -c 'import ensurepip, glob, os
folders = [ensurepip._WHEEL_PKG_DIR or "", os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")]
print(next(w for f in folders for w in glob.glob(os.path.join(f, "pip-*.whl"))))')
    pip() { .venv/bin/python "$wheel/pip" install -q --no-compile --disable-pip-version-check --no-deps "$@"; }
    if [ "${1:-}" = build ]; then
        say "installing what tools/requirements.txt names into .venv: meson, ninja, NIXL's wheel, numpy"
        python3 -m venv --without-pip .venv
        # shellcheck disable=SC2046
        pip $(grep -E '^(meson|ninja)=' tools/requirements.txt)
    else
        [ -x .venv/bin/meson ] || "$0" build
        pip -r tools/requirements.txt "$wheel"
        cp tools/requirements.txt .venv/installed.txt
    fi
fi
