#!/usr/bin/env bash
# Writes gather.ptx and pack.ptx with clang; no CUDA toolkit is needed. .version 6.0 (CUDA 9) is the lowest version with shfl.sync. sm_50 is the lowest
# target that current drivers accept; they translate the PTX for the GPU in use. "make.sh FOLDER" writes there.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-.} clang=${CLANG:-clang-14} include=../../include
# make NAME HEADER...
make() {
    local name=$1 ptx
    shift
    ptx=$("$clang" -x cuda --cuda-device-only --cuda-gpu-arch=sm_50 -nocudainc -nocudalib -Xclang -target-feature -Xclang +ptx60 \
        -std=c++17 -O3 -Wall -Wextra -Werror -Wno-unknown-cuda-version -I"$include" -S -o - "$name.cu")
    {
        printf '// sha256 of %s: %s\n' "$name.cu $*" "$(cat "$name.cu" "${@/#/$include/}" | sha256sum | cut -d' ' -f1)"
        printf '// %s\n' "$("$clang" --version | head -n 1)"
        printf '%s\n' "$ptx" | sed -e 's|//.*$||' -e 's|[[:space:]]*$||' | grep -v '^$'
    } >"$out/$name.ptx"
}
make gather gr_gather.h gr_op.h
make pack gr_gather.h gr_op.h gr_pack.h
