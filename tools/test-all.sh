#!/usr/bin/env bash
# `make test-all`: what `make test` shortens or leaves out. All stages run, whichever fails. With LIMIT (minutes, from BEGAN on: a time in seconds
# since 1970, default now) a stage that would not fit any more is left out, with a line that says so.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
. tools/env.sh
. tools/stages.sh
tools/build.sh >/dev/null

began=${BEGAN:-$(date +%s)}
left_out=()
# run MINUTES NAME COMMAND: the time is what the stage takes on two cores.
run() {
    local minutes=$1 name=$2 spent
    shift 2
    spent=$((($(date +%s) - began) / 60))
    if [ -n "${LIMIT:-}" ] && [ $((spent + minutes)) -gt "$LIMIT" ]; then
        echo "left out: $name takes $minutes minutes; $spent of $LIMIT are gone"
        left_out+=("$name")
        return
    fi
    stage "$name"
    "$@" || { failed=1 && echo "FAILED: $name"; }
}

NIXL_WHEELS=$(tools/wheels.sh ${NIXL_WHEEL_VERSIONS:-})
export NIXL_WHEELS
run 12 'every test in its long form, every wheel, the thread sanitizer' tools/go-test.sh
run 16 "imitations of EFA and CXI, ${FABRIC_SEEDS:-20} seeds" tools/test-fabrics.sh "${FABRIC_SEEDS:-20}"
run 4 'fuzz targets, 10,000 inputs each' tools/fuzz.sh
run 12 'histories of agents that are killed, stopped and cut off' tools/test-history.sh
run 3 'rails down and up at random' env GORAIL_SOAK="${SOAK:-2m}" go test ./test/e2e -run TestRailsSoak -count=1 -timeout 0
if [ -e .cache/rdma/ready ] || [ -n "${RDMA:-}" ]; then
    run "$([ "${RDMA:-}" = 1 ] && echo 41 || echo 7)" 'software RDMA in guests' tools/test-rdma.sh $([ "${RDMA:-}" = 1 ] || echo -short)
else
    echo 'left out: guests with software RDMA (no kernel is built here: make test-rdma builds one in 4 minutes, or set RDMA=1)'
fi
if [ -e .cache/trixie/ready ] || [ -n "${TRIXIE:-}" ]; then
    run 14 'all of make test on Debian 13' tools/test-trixie.sh
else
    echo 'left out: Debian 13 (no chroot is made here: make test-trixie makes one in 2 minutes, or set TRIXIE=1)'
fi
[ ${#left_out[@]} = 0 ] || echo "left out for lack of time: ${left_out[*]}"
summary
