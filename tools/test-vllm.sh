#!/usr/bin/env bash
# `make test-vllm`: vLLM for processors, prefill and decode as two servers, its KV over GORAIL. The first time it installs
# tools/vllm/requirements.txt (7 GB) into .cache/vllm. Arguments go to pytest. Run `make build` before.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

tools/vllm/install.sh
env=$PWD/.cache/vllm

# Caches of vLLM, torch and the plugin's links stay in the environment.
export XDG_CACHE_HOME=$env/home XDG_CONFIG_HOME=$env/home TORCHINDUCTOR_CACHE_DIR=$env/home/inductor HF_HUB_OFFLINE=1
export PYTHONPATH=$PWD/python
exec "$env/bin/python" -B -m pytest -v -s -p no:cacheprovider "$@" test/vllm
