#!/usr/bin/env bash
# Builds the tool. Arguments: what internal/runtimeoverlay has printed, the tags, the linker's flags, the output.
set -euo pipefail
GOWORK='' exec "$(dirname "$0")/go-build.sh" "$1" -buildmode=pie -tags "$2" -ldflags "$3" -o "$(realpath -m "$4")" ./gorail
