#!/usr/bin/env bash
# `make bench-failover-rdma`: one of two soft RoCE rails (200 Mbit/s each, in a guest of test/rdma) fails FAILURES times (default 300) at
# random moments of transfers. A line for each failure, then percentiles of the gaps, go to standard output and to
# build/bench/failover-rdma.txt. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
tools/rdma-kernel.sh
mkdir -p build/bench build/rdma
go test -c -o build/rdma/inside.test ./test/rdma/inside
root=$PWD
cd test/rdma/inside
export GORAIL_PROVIDER=verbs GORAIL_TEST_PATIENT=4 GORAIL_CONNECT_TIMEOUT=20s GORAIL_PEER_TIMEOUT=20s
"$root/tools/rdma-run" -n 2 -r 200mbit -m 4096 -t 6h \
    "GOMAXPROCS=4 ../../../build/rdma/inside.test -test.run NONE -test.bench '^BenchmarkFailover\$' -test.benchtime ${FAILURES:-300}x -test.timeout 0" |
    tee "$root/build/bench/failover-rdma.txt"
