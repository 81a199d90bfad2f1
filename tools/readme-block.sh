#!/usr/bin/env bash
# Prints the first block of shell commands below a heading of README.md, for the tests that run it as printed: readme-block.sh Install.
set -euo pipefail
cd "$(dirname "$0")/.."
block=$(awk -v heading="## $1" '/^## / { below = $0 == heading } /^```$/ { if (inside) exit } inside { print } below && /^```sh$/ { inside = 1 }' README.md)
[ -n "$block" ] || { echo "readme-block.sh: README.md has no block of shell commands below \"## $1\"" >&2 && exit 1; }
echo "$block"
