#!/usr/bin/env bash
# Tests of the Python package (python/tests), with the oldest and the newest Python that NIXL has wheels for, or with what is
# nearest to them on this machine. Creates an environment for each in .cache/python. Arguments go to pytest.
# PYTHONS="3.11 3.12" names other versions. Run `make build` before.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh

versions=(3.10 3.11 3.12 3.13 3.14) # of NIXL's wheels
nixl=$(sed -n 's/^nixl-cu12==//p' tools/requirements.txt)
have() { "$1" -c 'import venv' 2>/dev/null; }

# interpreter 3.X: prints its path, if there is one: in PATH, of pyenv, of uv.
interpreter() {
    local path
    for path in "$(command -v "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1."*/bin/python; do
        if [ -n "$path" ] && have "$path" && "$path" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')"; then
            "$path" -c 'import os, sys; print(os.path.realpath(sys.executable))'
            return
        fi
    done
    if command -v uv >/dev/null; then
        timeout 120 uv python install --quiet --install-dir .cache/python/uv "$1" >/dev/null 2>&1 || return 0
        find "$PWD/.cache/python/uv" -path "*/bin/python$1" | head -n 1
    fi
}

# nearest 3.X...: prints the first of these versions that there is an interpreter for.
nearest() {
    local v path
    for v in "$@"; do
        path=$(interpreter "$v")
        [ -z "$path" ] || { echo "$v $path" && return; }
        echo "test-python: skipped Python $v: no interpreter here (install python$v or uv)" >&2
    done
}

mapfile -t reversed < <(printf '%s\n' "${versions[@]}" | tac)
if [ -n "${PYTHONS:-}" ]; then
    found=$(for v in $PYTHONS; do nearest "$v"; done)
else
    found=$(nearest "${versions[@]}" && nearest "${reversed[@]}")
fi
[ -n "$found" ] || { echo "test-python: no Python of ${versions[*]}" >&2 && exit 1; }

tools/wheels.sh 1.0.0 1.5.1 >/dev/null
failed=0
while read -r version path; do
    env=.cache/python/$version
    wanted="$path $nixl"
    if [ "$(cat "$env/installed.txt" 2>/dev/null)" != "$wanted" ]; then
        echo "test-python: installing NIXL $nixl for Python $version into $env" >&2
        rm -rf "$env"
        "$path" -m venv "$env"
        "$env/bin/pip" install -q --disable-pip-version-check pytest==9.2.0 mypy==2.4.1 numpy
        "$env/bin/pip" install -q --disable-pip-version-check --no-deps "nixl==$nixl" "nixl-cu12==$nixl" "nixl-cu13==$nixl"
        echo "$wanted" >"$env/installed.txt"
    fi
    echo "== Python $version"
    "$env/bin/mypy" --strict --cache-dir "$env/mypy" --exclude "two_agents|examples" python/nixl_gorail || failed=1
    "$env/bin/python" -B -m pytest -q -p no:cacheprovider "$@" python/tests || failed=1
done < <(sort -u <<<"$found")
exit "$failed"
