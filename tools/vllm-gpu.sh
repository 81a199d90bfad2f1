#!/usr/bin/env bash
# Real vLLM on two GPUs over GORAIL and over NIXL's own UCX: the table of docs/benchmarks.md. PYTHON is an interpreter that has vLLM 0.26 or newer
# and NIXL; the cases tcp and pods want root, and ip for networks of their own; GORAIL_PLUGIN_DIR a folder with libplugin_GORAIL.so (default: build). Arguments go to tools/vllm/gpu/run.py; --help lists them.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
python=${PYTHON:-python3}
gorail=${GORAIL_PLUGIN_DIR:-$here/../build}

[ -e "$gorail/libplugin_GORAIL.so" ] || { echo "vllm-gpu.sh: $gorail has no libplugin_GORAIL.so: run make build, or set GORAIL_PLUGIN_DIR" >&2 && exit 2; }
stock=$("$python" -c 'import glob, sys; print(next((f for p in sys.path for f in glob.glob(p + "/nixl_cu*.libs/nixl")), ""))')
[ -n "$stock" ] || { echo "vllm-gpu.sh: $python has no NIXL: pip install nixl" >&2 && exit 2; }
alias=$(mktemp -d)
trap 'rm -r "$alias"' EXIT
ln -s "$(realpath "$gorail/libplugin_GORAIL.so")" "$alias/libplugin_UCX.so"
"$python" "$here/vllm/gpu/run.py" --gorail "$gorail" --stock "$stock" --alias "$alias" "$@"
