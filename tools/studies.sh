#!/usr/bin/env bash
# Runs every study of `gorail study` on this machine, with --quick or the effort that EFFORT names: rails and a cut rail in shaped namespaces
# (as root; without root those are left out). Pages and JSON go to build/studies. A few minutes on two quiet cores.
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

if [ "$(id -u)" = 0 ]; then
    run rails rails --lab "${LAB:-rails=2,rate=1gbit}"
else
    echo 'left out: rails and a cut rail in a lab, which needs root'
fi
run transports transports
run kv kv
run kv-kill kv --chaos kill --model llama-70b-tp8
[ "$(id -u)" != 0 ] || run kv-cut kv --chaos cut --model llama-70b-tp8
exit $failed
