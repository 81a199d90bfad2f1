#!/usr/bin/env bash
# `make lint`: golangci-lint (.golangci.yml), clang-format and clang-tidy, in fixed versions. The first run installs them
# into .cache/lint in 3 minutes. FIX=1 fixes the files instead of reporting.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$PWD/.cache/lint golangci=v2.15.0 clang_format=23.1.5 clang_tidy=23.1.4
mkdir -p "$dir"

if ! "$dir/golangci-lint" version 2>/dev/null | grep -q "${golangci#v}"; then
    echo "lint: building golangci-lint $golangci"
    GOBIN=$dir GOWORK=off GOFLAGS=-mod=mod go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$golangci"
fi
if ! [ -x "$dir/venv/bin/clang-tidy" ]; then
    echo "lint: installing clang-format $clang_format, clang-tidy $clang_tidy"
    python3 -m venv "$dir/venv"
    "$dir/venv/bin/pip" install -q --disable-pip-version-check "clang-format==$clang_format" "clang-tidy==$clang_tidy"
fi

failed=0
mapfile -t sources < <(git ls-files '*.c' '*.h' '*.cpp' '*.hpp')
if [ -n "${FIX:-}" ]; then
    "$dir/venv/bin/clang-format" -i "${sources[@]}"
else
    "$dir/venv/bin/clang-format" --dry-run -Werror "${sources[@]}" || failed=1
fi
. tools/env.sh
"$dir/golangci-lint" run ${FIX:+--fix} ./... ./gorail/... || failed=1

mapfile -t core < <(git ls-files 'backend/*.c' 'test/fake/*.c' | grep -v 'ctest\|failpoint')
includes=()
for d in backend/include backend/core backend/gpu test/fake \
    backend/provider/{shm/cma,verbs/ibverbs,ofi/libfabric}; do includes+=("-I$d"); done
"$dir/venv/bin/clang-tidy" --quiet "${core[@]}" -- -std=gnu17 -D_GNU_SOURCE "${includes[@]}" 2>"$dir/tidy.log" || { failed=1 && grep error "$dir/tidy.log"; }
exit "$failed"
