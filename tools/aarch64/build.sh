#!/usr/bin/env bash
# Builds what `make test-aarch64` runs, into the folder given: GORAIL's wheel, installed; test programs of Go packages; the C and C++ drivers.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/apt.sh
root=$PWD disk=$(realpath "$1")

say "the wheel for aarch64"
tools/wheel/build.sh aarch64
.venv/bin/pip install -q --disable-pip-version-check --no-deps --no-index --target "$disk/site" --only-binary=:all: \
    --platform manylinux_2_28_aarch64 "dist/nixl_gorail-$(cat VERSION)-py3-none-manylinux_2_28_aarch64.whl"

say 'test programs'
export KEEP=$disk/tests KEEP_ROOT=$root
mkdir -p "$KEEP"
# shellcheck disable=SC2046
GOOS=linux GOARCH=arm64 CGO_ENABLED=1 CC=$root/.cache/wheel/aarch64/cc go test -count=1 -vet=off -trimpath -ldflags '-s -w -linkmode external' \
    -exec "$root/tools/aarch64/keep.sh" $(tools/aarch64/packages.sh) >"$disk/../go-test.log" 2>&1 || { cat "$disk/../go-test.log" >&2 && exit 1; }

# driver NAME FOLDER... -- FLAG...: a C driver of a package. Undefined behaviour ends it.
driver() {
    local name=$1 sources=() include=()
    shift
    while [ "$1" != -- ]; do sources+=("$1"/*.c) include+=("-I$1") && shift; done
    shift
    .cache/wheel/aarch64/cc -std=gnu17 -O1 -Wall -Wextra -Werror -Wno-gnu-variable-sized-type-not-at-end -fsanitize=undefined -fsanitize-trap=undefined -Ibackend/include "${include[@]}" "$@" \
        "${sources[@]}" -o "$disk/tests/driver/$name"
}
say 'C drivers'
mkdir "$disk/tests/driver"
driver core backend/core{,/ctest} test/fake -- -Ibackend/core -DGR_TEST_PAUSE -Wl,--wrap=gr_now_ns,--wrap=core_event,--wrap=core_event_nodes,--wrap=malloc,--wrap=sched_yield
driver cma backend/provider/internal/clib backend/provider/shm/cma backend/provider/shm/cma/ctest --
driver sock backend/provider/internal/clib backend/provider/tcp/sock backend/provider/tcp/sock/ctest -- -D_GNU_SOURCE
# The C++ shim with a stub of the Go half: how a function returns an object is the processor's own (cshim/host_table_aarch64.cpp). One
# compilation, since most of its time is the standard library's headers. That library needs a newer glibc, which the guest has.
printf '#include "%s"\n' cshim/*.cpp cshim/identify/*.cpp cshim/test/{host*,cases*,stub_backend,oom,refusals}.cpp |
    .cache/wheel/aarch64/c++ -std=c++20 -O0 -Wall -Wextra -Werror -I. -Icshim -DHOST_LINKED "-DGORAIL_VERSION=\"$(cat VERSION)\"" -x c++ - -x none \
        -Wl,--wrap=pthread_create -Wl,--allow-shlib-undefined -pthread -ldl -o "$disk/tests/driver/shim"
# What the guest's frames of tcp have to be: this machine's, which the tests of backend/provider/tcp/sock compare with the model.
cc -std=gnu17 -D_GNU_SOURCE -Ibackend/include -Ibackend/provider/tcp/sock backend/provider/internal/clib/*.c backend/provider/tcp/sock/{,ctest/}*.c -o "$disk/../sock" -pthread -ldl
"$disk/../sock" vectors >"$disk/tests/driver/vectors"

# Some tests read files of the source tree.
mkdir "$disk/src"
tar -c --exclude=./.git --exclude=./.venv --exclude=./.cache --exclude='./build*' --exclude=./dist . | tar -x -C "$disk/src"
