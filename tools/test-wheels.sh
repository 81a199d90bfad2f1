#!/usr/bin/env bash
# `make test-wheels`: one plugin binary in every NIXL release from 1.0.0 on.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

# Given alone: the list is assigned before it is exported, so that a failed download stops here.
NIXL_WHEELS=$(tools/wheels.sh "$@")
export NIXL_WHEELS
go test -v -count=1 -timeout 30m -run 'ABI|Wheel' ./test/...
