#!/usr/bin/env bash
# Runs each fuzz target of the module for FUZZTIME: a number of inputs (default 10000x, a few seconds) or a time (1m).
set -euo pipefail
cd "$(dirname "$0")/.."

n=0
while IFS=: read -r file name; do
    echo "fuzz: $(dirname "$file") $name"
    if ! out=$(go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10000x}" -parallel 2 -timeout 30m \
        "./$(dirname "$file")" 2>&1); then
        # With a time, go test may stop a worker during an input and report a failure. A real failure has written its input.
        if grep -q 'context deadline exceeded' <<<"$out" && ! grep -q 'Failing input written' <<<"$out"; then
            echo 'fuzz: the time ended during an input'
        else
            echo "$out" && exit 1
        fi
    fi
    n=$((n + 1))
done < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' backend plugin test | sed 's/func //' | sort)
echo "fuzz: $n targets, ${FUZZTIME:-10000x} each, no failure"
