#!/usr/bin/env bash
# `make quickstart`: two Python agents in two processes transfer 64 MiB in both directions through the built plugin.
# With GORAIL_LOG=info the plugin logs the path.
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
echo "the plugin's log of the path (GORAIL_LOG=$GORAIL_LOG):"
awk '/backend=GORAIL/ && /path|rail/ && n++ < 4 { print "  " $0 } END { if (!n) print "  (no log lines)" }' "$log"
