#!/usr/bin/env bash
# `make test-frameworks`: the parts of SGLang and LMCache that move KV with NIXL, and the crate nixl-sys, on processors, over
# GORAIL. The first time it installs tools/frameworks/requirements.txt (600 MB) into .cache/frameworks. Torch and NIXL are those of `make test-vllm`; the
# environment of another checkout serves: GORAIL_TEST_VLLM_ENV=/path/.cache/vllm. Arguments go to pytest. Run `make build` before.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

if [ -z "${GORAIL_TEST_VLLM_ENV:-}" ]; then tools/vllm/install.sh; fi
base=$(realpath "${GORAIL_TEST_VLLM_ENV:-.cache/vllm}")
env=$PWD/.cache/frameworks

if [ "$({ echo "$base" && cat tools/frameworks/requirements.txt; } | sha256sum)" != "$(cat "$env/installed" 2>/dev/null)" ]; then
    echo "test-frameworks: installing SGLang and LMCache, 350 MB, into $env" >&2
    rm -rf "$env"
    "$base/bin/python" -m venv --without-pip "$env"
    site=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/base.pth"
    # Without dependencies: theirs are kernels for GPUs. What the tested modules import is in the list.
    "$base/bin/pip" --python "$env/bin/python" install -q --disable-pip-version-check --no-deps --no-compile --no-cache-dir \
        -r tools/frameworks/requirements.txt
    { echo "$base" && cat tools/frameworks/requirements.txt; } | sha256sum >"$env/installed"
fi

# nixl-sys: its build needs cargo and libclang, which is in the list. It opens NIXL's library of the wheel.
if command -v cargo >/dev/null; then
    site=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    LIBCLANG_PATH=$site/clang/native BINDGEN_EXTRA_CLANG_ARGS="-I$(g++ -print-file-name=include)" \
        cargo build -q --locked --manifest-path test/frameworks/nixl_sys/Cargo.toml --target-dir "$env/cargo"
    export GORAIL_TEST_NIXL_SYS=$env/cargo/debug/nixl_sys_peer
    GORAIL_TEST_NIXL_LIBS=$(dirname "$(compgen -G "$(cat "$site/base.pth")/.nixl_cu*.mesonpy.libs/libnixl_capi.so" | head -n 1)")
    export GORAIL_TEST_NIXL_LIBS
fi

# Caches of the frameworks and the plugin's links stay in the environment.
export XDG_CACHE_HOME=$env/home XDG_CONFIG_HOME=$env/home HF_HUB_OFFLINE=1 LMCACHE_TRACK_USAGE=false
export PYTHONPATH=$PWD/python
exec "$env/bin/python" -B -m pytest -v -p no:cacheprovider "$@" test/frameworks
