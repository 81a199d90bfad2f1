#!/usr/bin/env bash
# Formats, go vet, and pages that are made from code.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(find . -name '*.go' -not -path './.*' -not -path './build*' -exec gofmt -l {} +)
if [ -n "$unformatted" ]; then
    echo "not gofmt'ed: $unformatted" && exit 1
fi
go vet ./...
before=$(cat docs/options.md 2>/dev/null || true)
go run ./backend/option/gen
if [ "$before" != "$(cat docs/options.md)" ]; then
    echo 'docs/options.md was out of date; it is written anew: commit it' && exit 1
fi
