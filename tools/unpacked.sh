#!/usr/bin/env bash
# Unpacks a Debian package into .cache/PACKAGE, for tests that start its programs: installing it would start a server. It does nothing if
# all programs are in PATH. Usage: unpacked.sh PACKAGE PROGRAM...
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/apt.sh
package=$1 missing=
shift
for program; do have "$program" || missing=$program; done
dir=$PWD/.cache/$package
if [ -z "$missing" ] || [ -x "$dir/usr/bin/$missing" ]; then exit; fi
rm -rf "$dir.new" && mkdir -p "$dir.new"
(cd "$dir.new" && apt-get download -q "$package" >&2 && dpkg-deb -x "$package"_*.deb . && rm "$package"_*.deb)
rm -rf "$dir" && mv "$dir.new" "$dir"
