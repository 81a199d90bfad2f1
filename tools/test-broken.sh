#!/usr/bin/env bash
# `make broken`: makes broken set-ups, and prints for each how it was made, the first FAIL of gorail doctor or the line of an agent's
# log, the remedy and the result. Arguments go to go test: -run 'TestSetups/one_rail_down' tries one.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
GORAIL_TEST_BROKEN=$work/table go test -count=1 -parallel 4 -timeout 20m "$@" ./gorail/doctor/broken >"$work/log" 2>&1 || failed=1
[ ! -e "$work/table" ] || cat "$work/table"
[ "$failed" = 0 ] || grep -v ' serves ' "$work/log"
exit "$failed"
