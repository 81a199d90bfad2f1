#!/usr/bin/env bash
# Builds build/libplugin_GORAIL.so and build/gorail, or only the targets that are named. GORAIL_MESON_ARGS are arguments of `meson setup` for
# a new build folder.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH

if ! [ -f build/build.ninja ]; then
    # shellcheck disable=SC2086
    meson setup build ${GORAIL_MESON_ARGS:-}
fi
[ $# -gt 0 ] || go generate ./internal/include
ninja -C build "$@"
