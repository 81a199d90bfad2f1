#!/usr/bin/env bash
# `make quickstart`: two Python agents in two processes move 64 MiB both ways through the plugin just built. GORAIL_LOG
# makes the plugin say which path it took.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

export NIXL_PLUGIN_DIR=$GORAIL_PLUGIN_DIR NIXL_LOG_LEVEL=${NIXL_LOG_LEVEL:-WARN} GORAIL_LOG=${GORAIL_LOG:-info}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if ! timeout 60 "$GORAIL_PYTHON" examples/two_agents.py "$@" 2>"$log"; then
    cat "$log" >&2
    exit 1
fi
echo "path taken, as the plugin logged it (GORAIL_LOG=$GORAIL_LOG):"
awk '/backend=GORAIL/ && /path|rail/ && n++ < 4 { print "  " $0 } END { if (!n) print "  (nothing logged)" }' "$log"
