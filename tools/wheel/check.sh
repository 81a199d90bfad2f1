#!/usr/bin/env bash
# The part of `make test-dist` (tools/dist.sh) that looks at the wheels in dist: checks their symbol versions, installs the one for this
# machine beside NIXL's oldest and newest wheel into fresh environments, and runs two agents there. Before 1.4.0 NIXL's Python API
# needs torch: there gorail bench of the wheel drives NIXL's libraries, and compares the bytes. Then README.md's block Install runs as printed.
set -euo pipefail
cd "$(dirname "$0")/../.."

. tools/apt.sh
fail() { echo "test-dist: $*" >&2 && exit 1; }

# Prints what the plugin in nixl_gorail tells NIXL (nixlBackendPlugin::get_plugin_version).
plugin_version='
import ctypes
from nixl_gorail import _files

class Plugin(ctypes.Structure):
    _fields_ = [("api", ctypes.c_int), ("create", ctypes.c_void_p), ("destroy", ctypes.c_void_p),
                ("name", ctypes.CFUNCTYPE(ctypes.c_char_p)), ("version", ctypes.CFUNCTYPE(ctypes.c_char_p))]

init = ctypes.CDLL(str(_files.plugin())).nixl_plugin_init
init.restype = ctypes.POINTER(Plugin)
print(init().contents.name().decode(), init().contents.version().decode())
'

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
        [ "$got" = "gorail $version" ] || fail "gorail --version says $got, VERSION says $version"
        got=$("$work/$nixl/bin/python" -c "$plugin_version")
        [ "$got" = "GORAIL $version" ] || fail "the plugin tells NIXL $got, VERSION says $version"
        got=$("$work/$nixl/bin/python" -c 'import nixl_gorail; print(nixl_gorail.__version__)')
        [ "$got" = "$version" ] || fail "nixl_gorail.__version__ is $got, VERSION says $version"
    )
    say "the wheel moves verified bytes with nixl-cu12 $nixl"
done
tools/wheel/readme.sh
