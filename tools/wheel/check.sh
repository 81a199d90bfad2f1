#!/usr/bin/env bash
# `make test-dist`: builds the wheels, checks their symbol versions, installs the one for this machine beside NIXL's oldest and newest
# wheel into fresh environments, and runs two agents there. A second build must give the same bytes. Before 1.4.0 NIXL's Python API
# needs torch: there gorail bench of the wheel drives NIXL's libraries, and compares the bytes.
set -euo pipefail
cd "$(dirname "$0")/../.."

. tools/apt.sh
fail() { echo "test-dist: $*" >&2 && exit 1; }

tools/wheel/build.sh
version=$(cat VERSION)
for arch in x86_64 aarch64; do
    wheel=dist/nixl_gorail-$version-py3-none-manylinux_2_28_$arch.whl
    shown=$(.cache/zig/bin/auditwheel show "$wheel" | tr '\n' ' ')
    tag=$(grep -oE 'consistent with the following platform tag: "manylinux_2_[0-9]+_'"$arch" <<<"$shown" | grep -oE '2_[0-9]+' | head -1)
    [ -n "$tag" ] && [ "${tag#2_}" -le 28 ] || fail "$wheel is no manylinux_2_28: $shown"
    say "$arch: auditwheel says manylinux_$tag"
done

wheel=$PWD/dist/nixl_gorail-$version-py3-none-manylinux_2_28_$(uname -m).whl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for nixl in ${NIXL_CHECKED:-1.0.0 1.4.0 1.5.1}; do
    python3 -m venv "$work/$nixl"
    (
        # Nothing of the checkout is in the way, and the cache folder is new.
        cd "$work"
        unset GORAIL_PLUGIN_DIR NIXL_PLUGIN_DIR NIXL_WHEEL_DIR PYTHONPATH
        export XDG_CACHE_HOME=$work/cache-$nixl NIXL_LOG_LEVEL=WARN
        "$work/$nixl/bin/pip" install -q --disable-pip-version-check --no-deps "nixl-cu12==$nixl" numpy "$wheel"
        if grep -q '^import torch' "$work/$nixl"/lib/python3*/site-packages/nixl_cu12/_api.py; then
            timeout 120 "$work/$nixl/bin/gorail" bench --wheel "$work/$nixl"/lib/python3*/site-packages --compare GORAIL --limits memcpy \
                --shapes 64K --op_type WRITE,READ >bench.txt 2>&1 && ! grep -q 'GORAIL: ' bench.txt ||
                { cat bench.txt >&2 && fail "gorail bench fails with nixl-cu12 $nixl"; }
        else
            timeout 120 "$work/$nixl/bin/python" -m nixl_gorail.two_agents >two.txt 2>&1 && grep -q verified two.txt ||
                { cat two.txt >&2 && fail "two agents fail with nixl-cu12 $nixl"; }
        fi
        got=$("$work/$nixl/bin/gorail" --version)
        grep -qF "$version" <<<"$got" || fail "gorail --version says $got, VERSION says $version"
        got=$("$work/$nixl/bin/python" -c 'import nixl_gorail; print(nixl_gorail.__version__)')
        [ "$got" = "$version" ] || fail "nixl_gorail.__version__ is $got, VERSION says $version"
    )
    say "the wheel moves verified bytes with nixl-cu12 $nixl"
done

cp -r dist "$work/first"
rm -rf build/wheel-* dist
tools/wheel/build.sh
cmp -s "$work/first/$(basename "$wheel")" "$wheel" || fail 'two builds differ'
say 'two builds have the same bytes'
