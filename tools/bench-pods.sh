#!/usr/bin/env bash
# `make bench-pods` measures GORAIL and the wheel's UCX between two pods of one node, and GORAIL between two processes of one of the pods
# (GORAIL@here), both with private memory and with shared memory files (GORAIL@memfd), in one run. The pods have pid, network, ipc, uts, cgroup and
# mount namespaces of their own, a veth pair, and a folder of the node at /run/gorail. Needs root. BENCH_TIME is the time of a point (300ms), BENCH_REPEATS the number of turns (5), BENCH_COMPARE the backends.
# Arguments go to `gorail bench`. The run is written to build/bench/pods.json, too.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
PATH=$PWD/build:$PATH
address=10.88.0.1:18515

case "${1:-}" in
node) # the node's network, and a pid namespace with which all ends
    dir=$2
    shift 2
    mkdir "$dir/gorail"
    gorail plugins --dir "$dir/nixl" --plugin build/libplugin_GORAIL.so --wheel "$NIXL_WHEEL_DIR" >/dev/null
    export NIXL_PLUGIN_DIR=$dir/nixl/plugins
    # pod NUMBER COMMAND...: starts a pod and sets pid
    pod() {
        unshare --net --pid --ipc --uts --cgroup --mount --fork --kill-child --mount-proc tools/bench-pods.sh pod "$dir" "$@" &
        pid=$!
        until [ "$(readlink "/proc/$pid/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
    }
    pod 1 gorail bench --listen "$address" 2>"$dir/target.log"
    target=$pid
    # shellcheck disable=SC2016
    pod 2 bash -c 'until grep -q "the part after #" "$0"; do sleep 0.01; done; GORAIL_PEER_TOKEN=$(sed -n "1s/.*#//p" "$0"); export GORAIL_PEER_TOKEN; exec "$@"' "$dir/target.log" \
        gorail bench --connect "$address" --compare "${BENCH_COMPARE:-GORAIL,GORAIL@memfd,GORAIL@here,GORAIL@here@memfd,UCX}" --op_type WRITE,READ --shapes 4K,64K,1M,64M \
        --limits '' --time "${BENCH_TIME:-300ms}" --repeats "${BENCH_REPEATS:-5}" --json build/bench/pods.json --title 'Two pods of one node' "$@"
    ip link add eth0 netns "$target" type veth peer name eth0 netns "$pid"
    wait "$pid" || { cat "$dir/target.log" >&2 && exit 1; }
    ;;
pod)
    dir=$2 number=$3
    shift 3
    until ip link set eth0 up 2>/dev/null; do sleep 0.01; done
    ip link set lo up
    ip addr add "10.88.0.$number/24" dev eth0
    mount -t tmpfs tmpfs /run
    mkdir /run/gorail
    mount --bind "$dir/gorail" /run/gorail
    exec "$@"
    ;;
*)
    mkdir -p build/bench
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    unshare --net --mount --pid --fork --kill-child --mount-proc tools/bench-pods.sh node "$dir" "$@"
    ;;
esac
