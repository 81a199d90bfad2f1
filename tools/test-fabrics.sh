#!/usr/bin/env bash
# Runs end-to-end tests over imitations of EFA and CXI (test/fabric), which record every breach of those fabrics' rules.
#
#     tools/test-fabrics.sh [SEEDS] [KINDS]     e.g. 200 "efa efa-direct cxi"
#
# Odd seeds have one rail, even ones four. From 20 seeds on the first two run all that makes sense there, and each other one an
# eighth of it, in turn, beside the four tests that put most on the wire.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
seeds=${1:-5} kinds=${2:-efa efa-direct cxi}
# What depends on the address or the descriptors of a real device, or on fences, is not for these fabrics: docs/fabrics.md.
quick=(TestNotifAfterData TestNotifAlone TestBothDirections TestDeregisterInFlight)
all=(TestTargetAsleep TestFirstPostAsleep 'TestNotif.*' TestLoopback TestTwoAgentsOneProcess TestBothDirections TestOverlapping TestManyRegions TestPartialMetadata TestReload TestReloadInFlight TestConnectEarly TestRestart 'TestKill.*' 'TestRelease.*' 'TestDeregister.*' TestCloseInFlight 'TestScattered.*' TestPrepared TestSizes TestZeroLength TestRepost TestParallelRequests)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cc -std=gnu17 -O1 -g -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -Wl,--version-script=test/fabric/lib/exports.map \
    -Wl,-soname,libfabric-imitation.so -o "$tmp/libfabric.so.1" test/fabric/lib/*.c -ldl -pthread
go test -c -o "$tmp/e2e.test" ./test/e2e
failed=0
for seed in $(seq 1 "$seeds"); do
    for kind in $kinds; do
        n=$((seed % 2 ? 1 : 4)) tests=("${quick[@]}")
        for i in "${!all[@]}"; do
            [ "$seeds" -lt 20 ] || { [ "$seed" -gt 2 ] && [ $((i % 8)) != $((seed / 2 % 8)) ]; } || tests+=("${all[i]}")
        done
        run="^($(IFS='|' && echo "${tests[*]}"))\$"
        if (cd test/e2e && GORAIL_LIBFABRIC_PATH="$tmp/libfabric.so.1" GORAIL_PROVIDER="${kind%%-*}" GORAIL_CONTROL_DEVICES=lo \
            GORAIL_FABRIC="kind=$kind,rails=$n,seed=$seed" GORAIL_FABRIC_BREACHES="$tmp/breaches" \
            timeout 600 "$tmp/e2e.test" -test.v -test.run "$run" -test.timeout 590s) > "$tmp/log" 2>&1 && [ ! -s "$tmp/breaches" ] &&
            grep -q "^--- PASS" "$tmp/log" && ! grep -q "^--- SKIP" "$tmp/log"; then
            echo "ok   $kind rails=$n seed=$seed"
        else
            echo "FAIL $kind rails=$n seed=$seed"
            grep -vE 'level=(INFO|DEBUG)' "$tmp/log" | tail -40
            [ ! -s "$tmp/breaches" ] || sort "$tmp/breaches" | uniq -c | head -20
            failed=1
        fi
        rm -f "$tmp/breaches"
    done
done
exit $failed
