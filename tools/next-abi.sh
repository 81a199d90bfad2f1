#!/usr/bin/env bash
# Says what moved in the plugin interface of a NIXL source tree (or of a folder with its headers) against the one that this GORAIL knows:
# functions, members, values. Exit status 0: nothing; 1: something; 2: wrong use. Usage: next-abi.sh NIXL_TREE
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
program=$(mktemp)
trap 'rm -f "$program"' EXIT
(cd "$root" && go build -buildvcs=false -o "$program" ./internal/nextabi) # go run has no exit status of its own
"$program" "$root" "$@"
