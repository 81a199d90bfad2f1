# Sourced by the scripts that run against NIXL: where the plugin, the wheel and the interpreter are. What the caller set
# already is kept.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$root/.venv/bin:$PATH
export GORAIL_PLUGIN_DIR=${GORAIL_PLUGIN_DIR:-$root/build}
export GORAIL_PYTHON=${GORAIL_PYTHON:-$root/.venv/bin/python}
if [ -z "${NIXL_WHEEL_DIR:-}" ]; then
    NIXL_WHEEL_DIR=$(echo "$root"/.venv/lib/python3*/site-packages)
fi
export NIXL_WHEEL_DIR
# A checkout that belongs to somebody else (a container's mount) must build too.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"
