#!/usr/bin/env bash
# `make test-frameworks`: the parts of vLLM, SGLang, LMCache, Ray, verl and ModelExpress that use NIXL, and the crate nixl-sys, over
# GORAIL. The first time it installs tools/frameworks/requirements.txt (800 MB) into .cache/frameworks. vLLM, torch and NIXL are those of `make test-vllm`; the
# environments of another checkout serve: GORAIL_TEST_VLLM_ENV=/path/.cache/vllm, beside which is vllm-next. Arguments go to pytest. Run `make build` before.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

if [ -z "${GORAIL_TEST_VLLM_ENV:-}" ]; then tools/vllm/next.sh; fi
base=$(realpath "${GORAIL_TEST_VLLM_ENV:-.cache/vllm}")
purelib() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
env=$PWD/.cache/frameworks

if [ "$({ echo "$base" && cat tools/frameworks/requirements.txt; } | sha256sum)" != "$(cat "$env/installed" 2>/dev/null)" ]; then
    echo "test-frameworks: installing SGLang, LMCache, Ray and others, 450 MB, into $env" >&2
    rm -rf "$env"
    "$base/bin/python" -m venv --without-pip "$env"
    purelib "$base-next/bin/python" >"$(purelib "$env/bin/python")/base.pth"
    purelib "$base/bin/python" >>"$(purelib "$env/bin/python")/base.pth"
    # Without dependencies: theirs are kernels for GPUs. What the tested modules import is in the list.
    "$base/bin/pip" --python "$env/bin/python" install -q --disable-pip-version-check --no-deps --no-compile --no-cache-dir \
        -r tools/frameworks/requirements.txt
    { echo "$base" && cat tools/frameworks/requirements.txt; } | sha256sum >"$env/installed"
fi

# nixl-sys: its build needs cargo and libclang, which is in the list. It opens NIXL's library of the wheel.
if command -v cargo >/dev/null; then
    site=$(purelib "$env/bin/python")
    export LIBCLANG_PATH=$site/clang/native BINDGEN_EXTRA_CLANG_ARGS="-I$(g++ -print-file-name=include)"
    cargo build -q --locked --manifest-path test/frameworks/nixl_sys/Cargo.toml --target-dir "$env/cargo"
    export GORAIL_TEST_NIXL_SYS=$env/cargo/debug/nixl_sys_peer
    # The crate's own tests: its source is where cargo has it. Its toolchain file asks for another cargo.
    source=$(cargo metadata --format-version 1 --locked --manifest-path test/frameworks/nixl_sys/Cargo.toml |
        "$env/bin/python" -c 'import json, os, sys; print(*(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"] if p["name"] == "nixl-sys"))')
    suite=$env/$(basename "$source")
    if [ ! -d "$suite" ]; then cp -r "$source" "$suite" && rm "$suite/rust-toolchain.toml"; fi
    GORAIL_TEST_NIXL_SYS_SUITE=$(cargo test -q --locked --features stub-api --manifest-path "$suite/Cargo.toml" --target-dir "$env/cargo" --test tests --no-run --message-format json |
        "$env/bin/python" -c 'import json, sys; print(*(m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")))')
    export GORAIL_TEST_NIXL_SYS_SUITE
    GORAIL_TEST_NIXL_LIBS=$(dirname "$(compgen -G "$(purelib "$base/bin/python")/.nixl_cu*.mesonpy.libs/libnixl_capi.so" | head -n 1)")
    export GORAIL_TEST_NIXL_LIBS
fi

# Caches of the frameworks and the plugin's links stay in the environment.
export XDG_CACHE_HOME=$env/home XDG_CONFIG_HOME=$env/home HF_HUB_OFFLINE=1 LMCACHE_TRACK_USAGE=false
export PYTHONPATH=$PWD/python
exec "$env/bin/python" -B -m pytest -v -p no:cacheprovider "$@" test/frameworks
