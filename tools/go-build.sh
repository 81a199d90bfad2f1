#!/usr/bin/env bash
# Runs go build for the plugin or the tool, with the flags by which both share compiled packages. Arguments: what internal/runtimeoverlay has
# printed, then those of go build. GOWORK=off is the default: the plugin's module alone.
# Debug information is not made, because the plugin's is dropped when it is linked: 5 % of the processor time.
set -euo pipefail
mapfile -t build <"$1"
shift
cd "$(dirname "$0")/.."
export GOWORK=${GOWORK-off} CGO_CFLAGS=${CGO_CFLAGS--O2} CGO_CXXFLAGS=${CGO_CXXFLAGS--O2}
exec "${build[@]}" -trimpath -buildvcs=false -gcflags=all=-dwarf=false "$@"
