#!/usr/bin/env bash
# `make test`: what must hold before a change lands, 4 minutes on two quiet cores, 5 at most. Every test runs, the long ones in a short form (-short);
# `make test-all` has the rest. All stages run, whichever fails.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
. tools/env.sh
. tools/stages.sh

stage build
tools/build.sh
stage 'gofmt, go vet, docs/options.md'
tools/static.sh
stage 'wheels: the oldest and the newest'
NIXL_WHEELS=$(tools/wheels.sh ${NIXL_WHEEL_VERSIONS:-1.0.0 1.5.1})
export NIXL_WHEELS

tools/go-test.sh -short || failed=1
stage 'meson tests (shim, ABI, sanitizers)'
meson test -C build --print-errorlogs || failed=1
summary
