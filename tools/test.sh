#!/usr/bin/env bash
# `make test`, before a merge: 357 s on two quiet cores from a clean clone, with the standard library compiled. Long tests run in a short form (-short).
# `make test-all` has the rest (CONTRIBUTING.md lists it). A failed stage does not stop the later tests.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh tests
. tools/env.sh
. tools/stages.sh

stage 'build, and the oldest and the newest wheel'
tools/wheels.sh ${NIXL_WHEEL_VERSIONS:-1.0.0 1.5.1} >build/test/wheels.txt & # waits for the network
wheels=$!
tools/build.sh
wait "$wheels"
NIXL_WHEELS=$(cat build/test/wheels.txt)
export NIXL_WHEELS
stage 'gofmt, go vet, docs/options.md'
tools/static.sh

meson test -C build --print-errorlogs host >build/test/meson.txt 2>&1 &
meson=$!
tools/go-test.sh -short || failed=1
stage 'meson test (shim, ABI)'
wait "$meson" || failed=1
cat build/test/meson.txt
summary
