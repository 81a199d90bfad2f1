#!/usr/bin/env bash
# Unpacks NIXL wheels into .cache/wheels/<version>, each once, and prints their folders joined by ':' (NIXL_WHEELS).
# Usage: wheels.sh [version...]; default: every release from 1.0.0 on that is known to have the plugin ABI.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(1.0.0 1.0.1 1.1.0 1.2.0 1.3.0 1.3.1 1.3.2 1.4.0 1.4.1 1.5.0 1.5.1)
[ $# -gt 0 ] || set -- "${all[@]}"

for v in "$@"; do
    dir=.cache/wheels/$v
    if ! [ -d "$dir" ]; then
        echo "wheels: nixl-cu12 $v" >&2
        mkdir -p .cache/wheels
        rm -rf "$dir.part"
        if compgen -G ".venv/lib/python3*/site-packages/nixl_cu12-$v.dist-info" >/dev/null; then # the release of requirements.txt
            mkdir "$dir.part"
            cp -a --reflink=auto .venv/lib/python3*/site-packages/{,.}nixl_*cu12* "$dir.part"
        else
            .venv/bin/pip install -q --disable-pip-version-check --no-deps --no-compile --target "$dir.part" "nixl-cu12==$v" >&2
        fi
        mv "$dir.part" "$dir"
    fi
    found+=("$PWD/$dir")
done
(IFS=: && echo "${found[*]}")
