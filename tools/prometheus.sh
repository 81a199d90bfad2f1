#!/usr/bin/env bash
# Prints a folder that has promtool and prometheus, for the test of the alert rules. Debian's package is unpacked into .cache/prometheus, and
# not installed: that would start a server.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/apt.sh
if have promtool && have prometheus; then
    dirname "$(command -v promtool)"
    exit
fi
dir=$PWD/.cache/prometheus
if ! [ -x "$dir/usr/bin/promtool" ]; then
    rm -rf "$dir.new" && mkdir -p "$dir.new"
    (cd "$dir.new" && apt-get download -q prometheus >&2 && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb)
    rm -rf "$dir" && mv "$dir.new" "$dir"
fi
echo "$dir/usr/bin"
