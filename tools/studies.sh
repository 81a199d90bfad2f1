#!/usr/bin/env bash
# Runs `gorail study kv` on this machine, without a disturbance and with faults, and `gorail study weights`, with --quick or the effort that
# EFFORT names. Pages and JSON go to build/studies. A few minutes on two quiet cores. `gorail study rails` is for a machine with rails, or for two.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
out=build/studies
mkdir -p "$out"
effort=${EFFORT---quick}
failed=0

# run NAME STUDY FLAGS...: the page goes to NAME.html.
run() {
    local name=$1
    shift
    echo "== $name: gorail study $* $effort"
    # shellcheck disable=SC2086
    build/gorail study "$@" $effort --output "html=$out/$name.html,json=$out/$name.json" || { failed=1 && echo "FAILED: $name" >&2; }
}

run kv kv
run kv-campaign kv --chaos campaign --compare UCX
run weights weights --model llama-8b
exit $failed
