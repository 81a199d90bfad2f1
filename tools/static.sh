#!/usr/bin/env bash
# Checks gofmt, go vet, and the pages that are generated from code.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(find . -path './.*' -prune -o -path './build*' -prune -o -name '*.go' -exec gofmt -l {} +)
if [ -n "$unformatted" ]; then
    echo "run gofmt -w on: $unformatted" && exit 1
fi
# With the flags of the build, vet reads what the build has compiled. With its own it compiles everything again: 282 s of processor time, 105 so.
. tools/env.sh
. tools/go-flags.sh
# shellcheck disable=SC2046
go vet $(like_plugin) ./... ./gorail/...
# The plugin's module, and its tests, need nothing of the tool's.
GOWORK=off go list -test -deps ./... >/dev/null
pages() { cat docs/options.md docs/limits.md docs/errors.md docs/proved.md 2>/dev/null || true; }
before=$(pages)
# shellcheck disable=SC2046
go run $(like_plugin) ./internal/pages
if [ "$before" != "$(pages)" ]; then
    echo 'docs/options.md, limits.md, errors.md or proved.md was out of date; commit the new version, which is written' && exit 1
fi
