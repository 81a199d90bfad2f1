#!/usr/bin/env bash
# Runs all Go tests, except those in guests. Arguments go to go test. End-to-end tests run over tcp and over shared memory.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
. tools/stages.sh

# End-to-end tests that do not use shared memory: tests of libfabric, of networks and their rails, tests that set the
# provider, and tests that need a stopped target to block transfers.
not_sm='^Test(TwoHosts.*|WireCut|Devices|NoCommonDevice|Rail.*|Fabric.*|NoLibfabric|NothingToUse|TransferTimeout|StatsPaths|Memory.*|OneHost.*|Crossings.*|Links|Slices|Firewall.*|DataPort.*|Unauthenticated.*|LoopbackAlone|MoreThanMaxRails|UnknownNames|FirstEngine|Matrix|ReleasedRead.*|ErrorMeansQuiet|History|IdleConnectionCut)$'

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
