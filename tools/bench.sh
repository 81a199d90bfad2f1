#!/usr/bin/env bash
# `make bench`: figures side by side with the wheel's stock UCX, written into docs/benchmarks.md below its marker. With
# arguments: just runs test/bench with them.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

if [ $# -gt 0 ]; then
    exec go run ./test/bench "$@"
fi
tables=$(mktemp)
trap 'rm -f "$tables" "$tables.page"' EXIT
go run ./test/bench -backends GORAIL,UCX -ucx-tls tcp -modes transfer,post,start,idle -repeat 3 -time 300ms -out "$tables"
sed '/^<!-- tables/q' docs/benchmarks.md >"$tables.page"
cat "$tables" >>"$tables.page"
cp "$tables.page" docs/benchmarks.md
