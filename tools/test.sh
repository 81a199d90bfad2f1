#!/usr/bin/env bash
# `make test`, before a merge: 750 s on two cores with empty caches, the build included; 300 wanted. Long tests run in a short form (-short).
# `make test-all` has the rest (CONTRIBUTING.md lists it). A failed stage does not stop the later tests.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh tests
. tools/env.sh
. tools/stages.sh

stage build
tools/build.sh
stage 'gofmt, go vet, docs/options.md'
tools/static.sh
stage 'the oldest and the newest wheel'
NIXL_WHEELS=$(tools/wheels.sh ${NIXL_WHEEL_VERSIONS:-1.0.0 1.5.1})
export NIXL_WHEELS

meson test -C build --print-errorlogs >build/test/meson.txt 2>&1 &
meson=$!
tools/go-test.sh -short || failed=1
stage 'meson tests (shim, ABI, sanitizers)'
wait "$meson" || failed=1
cat build/test/meson.txt
summary
