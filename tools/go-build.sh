#!/usr/bin/env bash
# Runs go build for the plugin or the tool, which share compiled packages (go-flags.sh). Arguments: what internal/runtimeoverlay has printed, then
# those of go build. GOWORK=off is the default: the plugin's module alone.
set -euo pipefail
mapfile -t build <"$1"
shift
cd "$(dirname "$0")/.."
. tools/go-flags.sh
export GOWORK=${GOWORK-off}
exec "${build[@]}" "${go_flags[@]}" -buildvcs=false "$@"
