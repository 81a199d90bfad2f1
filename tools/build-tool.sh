#!/usr/bin/env bash
# Builds the tool with the flags of the plugin's packages (tools/build-plugin.sh), so that both share what is compiled. Arguments: what
# internal/runtimeoverlay has printed, the tags, the linker's flags, the output.
set -euo pipefail
mapfile -t build <"$1"
output=$(realpath -m "$4")
cd "$(dirname "$0")/.."
"${build[@]}" -buildmode=pie -trimpath -buildvcs=false -tags "$2" -ldflags "$3" -o "$output" ./gorail
