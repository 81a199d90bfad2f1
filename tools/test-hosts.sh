#!/usr/bin/env bash
# `make test-hosts`: the plugin inside hosts that others have written and that live by signals: uvloop, gperftools' CPU profiler, py-spy, tokio. And
# the matrix of signals and the storm, with the plugin built by each Go that go.mod allows: TOOLCHAINS are versions, "" is none.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
. tools/env.sh
. tools/stages.sh
. tools/apt.sh
tools/build.sh >/dev/null

stage 'uvloop, gperftools, py-spy, tokio'
compgen -G '/usr/lib/*/libprofiler.so.0' >/dev/null || install libgoogle-perftools4
[ -e .cache/hosts/bin/py-spy ] || .venv/bin/python -m pip install -q --target .cache/hosts uvloop py-spy
# The Rust host: nixl-sys needs libclang when it is built, and opens NIXL's library of the wheel.
[ -e .cache/hosts/clang/native ] || .venv/bin/python -m pip install -q --target .cache/hosts libclang==18.1.1
if command -v cargo >/dev/null; then
    LIBCLANG_PATH=$PWD/.cache/hosts/clang/native BINDGEN_EXTRA_CLANG_ARGS="-I$(g++ -print-file-name=include)" \
        cargo build -q --release --locked --manifest-path test/guest/tokio/Cargo.toml --target-dir .cache/hosts/cargo
else
    echo 'left out: the host on tokio needs cargo (https://rustup.rs)'
fi
GORAIL_TEST_HOSTS=1 go test -vet=off ./test/guest -count=1 -v -run '^Test(Uvloop|Gperftools|PySpy|Tokio)$'

for version in ${TOOLCHAINS-1.26.0 1.26.11 1.27.0 1.27.4}; do
    stage "signals, built by go$version"
    if ! GOTOOLCHAIN=go$version go version >/dev/null; then
        echo "left out: go$version cannot be downloaded"
        continue
    fi
    folder=build/toolchains/$version
    mkdir -p "$folder"
    (
        export GOTOOLCHAIN=go$version CC=${CC:-cc} CXX=${CXX:-c++}
        .venv/bin/python internal/runtimeoverlay/overlay.py go "$folder/overlay" >"$folder/overlay.txt"
        tools/build-plugin.sh --src . --overlay "$folder/overlay.txt" --plugin "$folder/libplugin_GORAIL.so" --depfile "$folder/plugin.d" \
            --shim build/cshim/libgorail-shim.a --map cshim/gorail.map --version "$(cat VERSION)" --tags '' --go "$(command -v go)"
    )
    GORAIL_PLUGIN_DIR=$PWD/$folder go test -vet=off ./test/guest -short -count=1 -run '^Test(Signals|SignalStorm|HostFaults|GoFaults|NoRoom)$'
done
