#!/usr/bin/env bash
# `make history-gpu`: three agents with memory of all GPUs here, and of the host, which change what is behind registered addresses, for HISTORY
# (default 10m), over shared memory and over tcp, one after the other. GORAIL_TEST_CUDA is the driver (default libcuda.so.1). SEED replays a
# schedule: SEED=17 HISTORY=80s TESTS=TestHistoryGPU/memory (a round of 20 s: four cases share HISTORY).
#
# A machine without Go and without NIXL needs this script and build/history-gpu.tar.gz (26 MB), and has bash, tar, /dev/nvidia* and the
# driver. Where Go is, `make build && tools/test-history-gpu.sh pack` makes that file. In it:
#   history.test                            the tests of test/e2e
#   libplugin_GORAIL.so
#   .nixl_cu*.mesonpy.libs, nixl_cu*.libs   the parts of NIXL's wheel that its C API and its UCX plugin load (UCX also needs a libcudart.so.12)
# The benchmark of what importers keep, in build/history-gpu, after the script has unpacked it; with GORAIL_TEST_BACKEND=UCX of the wheel's plugin:
#   GORAIL_TEST_CUDA=libcuda.so.1 GORAIL_PLUGIN_DIR=$PWD NIXL_WHEEL_DIR=$PWD ./history.test -test.run NONE -test.bench GivenBack -test.benchtime 1x
# The script unpacks and uses it where there is no `go`.
set -euo pipefail
cd "$(dirname "$0")/.."
packed=build/history-gpu

pack() {
    . tools/env.sh
    rm -rf $packed && mkdir -p $packed
    CGO_LDFLAGS=-s go test -c -ldflags=-w -o $packed/history.test ./test/e2e
    cp "$GORAIL_PLUGIN_DIR/libplugin_GORAIL.so" $packed/
    strip --strip-unneeded $packed/libplugin_GORAIL.so
    # Dependencies are asked for in the order in which package nixlapi loads them.
    local lib dep to
    for lib in "$NIXL_WHEEL_DIR"/.nixl_cu*.mesonpy.libs/lib{nixl_build,serdes,stream,nixl_common,nixl,nixl_capi}.so \
        "$NIXL_WHEEL_DIR"/nixl_cu*.libs/{nixl/libplugin_UCX.so,ucx/libuct_cuda*.so*,ucx/libuct_cma*.so*,ucx/libucm_cuda*.so*}; do
        [ -e "$lib" ] || continue
        to=$packed/$(dirname "$(realpath -s --relative-to="$NIXL_WHEEL_DIR" "$lib")")
        mkdir -p "$to"
        cp "$lib" "$to/"
        for dep in $(ldd "$lib" | awk '/=> .*\.libs\// { print $3 }' | xargs -r readlink -f); do
            mkdir -p "$packed/$(basename "$(dirname "$dep")")"
            cp -n "$dep" "$packed/$(basename "$(dirname "$dep")")/"
        done
    done
    tar -C build -czf $packed.tar.gz "$(basename $packed)"
    du -h $packed.tar.gz
}

if [ "${1:-}" = pack ]; then
    pack
    exit
fi
seed=${SEED:-$(date +%s)}
echo "seeds from $seed on"
export GORAIL_TEST_CUDA=${GORAIL_TEST_CUDA:-libcuda.so.1} GORAIL_TEST_HISTORY=${HISTORY:-10m} GORAIL_TEST_HISTORY_SEED=$seed
tests=${TESTS:-^TestHistoryGPU\$}
if command -v go >/dev/null; then
    . tools/env.sh
    exec go test -count=1 -v -parallel 8 -timeout 0 -run "$tests" ./test/e2e
fi
[ -d $packed ] || tar -C build -xzf $packed.tar.gz
export GORAIL_PLUGIN_DIR=$PWD/$packed NIXL_WHEEL_DIR=$PWD/$packed
exec $packed/history.test -test.count=1 -test.v -test.parallel 8 -test.timeout 0 -test.run "$tests"
