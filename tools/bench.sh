#!/usr/bin/env bash
# `make bench` measures GORAIL, the wheel's UCX and this host's limits. Results go to build/bench: a page with tables
# and plots for each part, Markdown and JSON. docs/benchmarks.md has the first part's tables. BENCH_TIME is the time of a
# point (300ms), BENCH_REPEATS the number of turns (3), BENCH_COMPARE the backends. With arguments the script runs only
# `gorail bench` with these arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
PATH=$PWD/build:$PATH

if [ $# -gt 0 ]; then
    exec gorail bench "$@"
fi
runs=build/bench
rm -rf "$runs" && mkdir -p "$runs"
n=0

# one TITLE ARG...: runs one benchmark. The page has the benchmarks in this order.
one() {
    n=$((n + 1))
    echo "bench: $1" >&2
    gorail bench --compare "${BENCH_COMPARE:-GORAIL,UCX}" --time "${BENCH_TIME:-300ms}" --repeats "${BENCH_REPEATS:-3}" \
        --output "html=$runs/$n.html,md=$runs/$n.md,json=$runs/$n.json" --title "$@" || echo "bench: $1: the tables have the failures" >&2
}

shapes=4K,16K,64K,256K,1M,4M,16M,64M,64x4K,10000x8K
one 'Progress thread off' --op_type WRITE,READ --shapes $shapes
one 'Progress thread on' --op_type WRITE,READ --shapes $shapes --enable_pt --limits ''
one 'A target that naps 1 ms between polls' --op_type WRITE,READ --shapes 4K,1M,64x4K,10000x8K --target naps --limits ''
one 'Small messages' --mode small --limits ''
one 'Cost of a descriptor' --mode descriptors --limits memcpy,process_vm
one 'Notifications' --mode notify --num_iter 100000
one 'Idle, progress thread off' --mode idle --time 10s
one 'Idle, progress thread on' --mode idle --time 10s --enable_pt
