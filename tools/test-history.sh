#!/usr/bin/env bash
# `make history`: three agents over each provider move bytes and notifications while they are killed, stopped and cut off, for HISTORY (default 10m).
# TestHistoryGPU, over our libcuda: they change what is behind registered memory. Package test/history judges what they did. SEED replays a schedule: SEED=17 HISTORY=15s TESTS=TestHistory/tcp.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
seed=${SEED:-$(date +%s)}
echo "seeds from $seed on"
GORAIL_TEST_HISTORY=${HISTORY:-10m} GORAIL_TEST_HISTORY_SEED=$seed go test -count=1 -v -parallel 8 -timeout 0 -run "${TESTS:-^TestHistory(GPU)?\$}" ./test/e2e
