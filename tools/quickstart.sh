#!/usr/bin/env bash
# `make quickstart`: two Python agents in two processes transfer 64 MiB in both directions through the plugin, which is built first, without the
# tool. With GORAIL_LOG=info the plugin logs the path.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

tools/setup.sh build
tools/setup.sh & # NIXL comes while the plugin is built
nixl=$!
[ -e build/libplugin_GORAIL.so ] || echo 'building the plugin: 200 s of processor time the first time; build/ and the caches of the go command take 150 MB'
if ! tools/build.sh libplugin_GORAIL.so >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
wait "$nixl"
. tools/env.sh

export NIXL_PLUGIN_DIR=$GORAIL_PLUGIN_DIR NIXL_LOG_LEVEL=${NIXL_LOG_LEVEL:-WARN} GORAIL_LOG=${GORAIL_LOG:-info}
if ! timeout 60 "$GORAIL_PYTHON" examples/two_agents.py "$@" 2>"$log"; then
    cat "$log" >&2
    exit 1
fi
echo "the plugin's log of the path (GORAIL_LOG=$GORAIL_LOG):"
awk '/backend=GORAIL/ && /path|rail/ && n++ < 4 { print "  " $0 } END { if (!n) print "  (no log lines)" }' "$log"
