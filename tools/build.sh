#!/usr/bin/env bash
# Builds build/libplugin_GORAIL.so and build/gorail. GORAIL_MESON_ARGS are arguments of `meson setup` for a new build folder.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH

if ! [ -f build/build.ninja ]; then
    # shellcheck disable=SC2086
    meson setup build ${GORAIL_MESON_ARGS:-}
fi
go generate ./backend/include
ninja -C build
