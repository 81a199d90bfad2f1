#!/usr/bin/env bash
# `make bench`: figures side by side with the wheel's stock UCX.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

exec go run ./test/bench "$@"
