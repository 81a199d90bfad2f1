#!/usr/bin/env bash
# Runs end-to-end tests over imitated EFA and CXI fabrics (test/fabric), which record each breach of a fabric's rules.
#
#     tools/test-fabrics.sh [SEEDS] [KINDS]     e.g. 200 "efa efa-direct cxi"; 14-15 cxi for seeds 14 and 15 of 200
#
# Odd seeds have one rail, even seeds have four. With fewer than 20 seeds each seed runs all tests of the lists below. Else
# seeds 1 and 2 run all tests, and each other seed runs the list quick and an eighth of the list all. JOBS runs go on at
# the same time (default: one for each core).
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
range=${1:-5} kinds=${2:-efa efa-direct cxi} jobs=${JOBS:-$(nproc)}
[[ $range = *-* ]] && first=${range%-*} last=${range#*-} few=0 || first=1 last=$range few=$((range < 20))
# docs/fabrics.md has the tests that do not run over these fabrics, with the reasons. The list quick has the tests with the
# most operations.
quick=(TestNotifAfterData TestNotifAlone TestBothDirections TestDeregisterInFlight)
all=(TestRemoveDelivers TestCloseDelivers TestTargetAsleep TestFirstPostAsleep 'TestNotif.*' TestLoopback TestTwoAgentsOneProcess TestBothDirections TestAccess TestManyRegions TestPartialMetadata TestReload TestReloadInFlight TestConnectEarly TestRestart 'TestKill.*' 'TestDeregister.*' TestCloseInFlight 'TestScattered.*' TestPrepared TestSizes TestRepost)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go run ./test/fabric/make "$tmp/libfabric.so.1"
go test -c -o "$tmp/e2e.test" ./test/e2e

# one SEED KIND: runs the tests once, in one process.
one() {
    local seed=$1 kind=$2 n=$(($1 % 2 ? 1 : 4)) own="$tmp/$2-$1" tests=("${quick[@]}") run i
    mkdir "$own"
    for i in "${!all[@]}"; do
        [ $few = 1 ] || { [ "$seed" -gt 2 ] && [ $((i % 8)) != $((seed / 2 % 8)) ]; } || tests+=("${all[i]}")
    done
    run="^($(IFS='|' && echo "${tests[*]}"))\$"
    if (cd test/e2e && GORAIL_LIBFABRIC_PATH="$tmp/libfabric.so.1" GORAIL_PROVIDER="${kind%%-*}" GORAIL_CONTROL_DEVICES=lo \
        GORAIL_FABRIC="kind=$kind,rails=$n,seed=$seed" GORAIL_FABRIC_BREACHES="$own/breaches" \
        timeout 600 "$tmp/e2e.test" -test.v -test.run "$run" -test.timeout 590s) > "$own/log" 2>&1 && [ ! -s "$own/breaches" ] &&
        grep -q "^--- PASS" "$own/log" && ! grep -q "^--- SKIP" "$own/log"; then
        echo "ok   $kind rails=$n seed=$seed"
    else
        echo "FAIL $kind rails=$n seed=$seed"
        # The output of each failed test. After a crash or the time limit there is none: then the end of the log.
        awk '/level=(INFO|DEBUG)/ {next} /^=== RUN +[^\/]*$/ {said=""} {said=said $0 "\n"} /^--- FAIL/ {printf "%s", said; any=1} END {exit !any}' \
            "$own/log" || tail -40 "$own/log"
        [ ! -s "$own/breaches" ] || sort "$own/breaches" | uniq -c | head -20
        touch "$tmp/failed"
    fi
    rm -r "$own"
}

for seed in $(seq "$first" "$last"); do
    for kind in $kinds; do
        [ "$(jobs -rp | wc -l)" -lt "$jobs" ] || wait -n
        one "$seed" "$kind" &
    done
done
wait
[ ! -e "$tmp/failed" ]
