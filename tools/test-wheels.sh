#!/usr/bin/env bash
# `make test-wheels`: tests one plugin binary with every NIXL release from 1.0.0 on.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

# The assignment is separate from export, so that a failed download ends the script.
NIXL_WHEELS=$(tools/wheels.sh "$@")
export NIXL_WHEELS
go test -v -count=1 -timeout 30m -run 'ABI|Wheel' ./test/...
