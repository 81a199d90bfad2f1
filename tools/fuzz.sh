#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME (default 3s) each.
set -euo pipefail
cd "$(dirname "$0")/.."

n=0
while IFS=: read -r file name; do
    echo "fuzz: $(dirname "$file") $name"
    if ! out=$(go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-3s}" -parallel 2 -timeout 30m \
        "./$(dirname "$file")" 2>&1); then
        echo "$out" && exit 1
    fi
    n=$((n + 1))
done < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' backend plugin test | sed 's/func //' | sort)
echo "fuzz: $n targets, ${FUZZTIME:-3s} each, nothing found"
