#!/usr/bin/env bash
# `make test-vllm`: vLLM for processors, prefill and decode as two servers, its KV over GORAIL. The first time it installs
# tools/vllm/requirements.txt (7 GB) into .cache/vllm and tools/vllm/next.txt (60 MB) into .cache/vllm-next. All tests run on the newest
# vLLM, its Python files over the kernels of the release for processors; then the tokens on this release alone. GORAIL_TEST_VLLM=0.33 or
# 0.32: all tests on one of them. Arguments go to pytest. Run `make build` before.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

tools/vllm/next.sh
export HF_HUB_OFFLINE=1 PYTHONPATH=$PWD/python

# tests ENVIRONMENT ARGUMENTS: caches of vLLM, torch and the plugin's links stay in the environment.
tests() {
    local env=$PWD/.cache/$1
    XDG_CACHE_HOME=$env/home XDG_CONFIG_HOME=$env/home TORCHINDUCTOR_CACHE_DIR=$env/home/inductor \
        "$env/bin/python" -B -m pytest -v -s -p no:cacheprovider "${@:2}"
}

case ${GORAIL_TEST_VLLM:-} in
0.33) tests vllm-next "$@" test/vllm ;;
0.32) tests vllm "$@" test/vllm ;;
'')
    tests vllm-next "$@" test/vllm
    tests vllm "$@" test/vllm/test_vllm.py -k test_tokens
    go test ./test/python -run '^TestStores$' -count=1 # torch's TCPStore
    ;;
*) echo "test-vllm: GORAIL_TEST_VLLM is \"$GORAIL_TEST_VLLM\", not 0.33 or 0.32" >&2 && exit 2 ;;
esac
