#!/usr/bin/env bash
# All Go tests; arguments are for go test. End-to-end tests run over tcp and over shared memory.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
. tools/stages.sh

# Tests of libfabric, networks and their rails, tests that name their provider, and a target that serves nothing have nothing to do over shared memory.
not_sm='^Test(TwoHosts.*|WireCut|Devices|NoCommonDevice|Rail.*|Fabric.*|NoLibfabric|NothingToUse|TransferTimeout|StatsPaths|Memory.*|Crossings.*|Links|Slices|Firewall.*|DataPort.*|Unauthenticated.*|LoopbackAlone|MoreThanMaxRails|UnknownNames|FirstEngine|Matrix|ReleasedRead.*|ErrorMeansQuiet)$'

stage 'go test'
# shellcheck disable=SC2034,SC2046
flags=$*
# The walk of failpoints is built with their tag: a short one over one fabric, or all of them.
side_by_side \
    'gotest pure $flags -race -timeout 15m -- $(tools/packages.sh pure) || e=1
     gotest rest $flags -count=1 -p 2 -parallel 8 -timeout 25m -- $(tools/packages.sh rest | grep -v test/e2e) || e=1
     gotest failpoints $flags -count=1 -tags failpoints -run "^TestFailpoints" -timeout 25m -- ./backend/engine || e=1; exit ${e:-0}' \
    'gotest e2e $flags -count=1 -parallel 6 -timeout 25m -- ./test/e2e || e=1
     GORAIL_PROVIDER=sm gotest e2e-sm $flags -count=1 -parallel 6 -timeout 25m -skip "$not_sm" -- ./test/e2e || e=1; exit ${e:-0}'
exit "$failed"
