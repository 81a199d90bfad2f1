#!/usr/bin/env bash
# `make check`, before each commit: 80 s on two quiet cores, 90 at most. It runs gofmt, go vet, the check of generated
# pages, packages without hardware, the core and the engine on fakes, and two agents over tcp and over shared memory.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
. tools/env.sh
. tools/stages.sh

stage build
tools/build.sh
tools/static.sh
stage 'go test'
# `make test` runs the packages that mostly wait for timeouts or for other processes.
slow='gorail/(backend/(peer|gpu|provider/(shm.*|ofi|verbs|ofi/sockets))|gorail|gorail/doctor/broken|test/.*)$'
# shellcheck disable=SC2046
side_by_side \
    'gotest units -short -parallel 8 -- $(go list ./... ./gorail/... | grep -vE "$slow")' \
    'gotest e2e -short -count=1 -parallel 4 -run "^Test(TwoAgentsOneProcess|Prepared|NotifAfterData|BothDirections|Loopback|KillInFlight|Failover)$" -- ./test/e2e' \
    'GORAIL_PROVIDER=sm gotest e2e-sm -short -count=1 -parallel 4 -run "^Test(MemoryChosen|MemoryInPost|NotifAfterData|BothDirections|Staged)$" -- ./test/e2e'
summary
