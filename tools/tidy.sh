#!/usr/bin/env bash
# Runs `go mod tidy` for both modules, the plugin's and the tool's, and brings versions that differ to the same. No proxy has the version
# of the plugin that the tool requires, so the tool's is tidied in a copy of its go.mod that leads to this tree.
set -euo pipefail
cd "$(dirname "$0")/.."

GOWORK=off go mod tidy
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp gorail/go.mod "$work/go.mod"
cp gorail/go.sum "$work/go.sum"
go mod edit -replace "gorail=$PWD" "$work/go.mod"
(cd gorail && GOWORK=off go mod tidy -modfile "$work/go.mod")
go mod edit -dropreplace gorail "$work/go.mod"
cp "$work/go.mod" "$work/go.sum" gorail/
go work sync
