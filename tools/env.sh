# Sourced by the scripts that run against NIXL: where the plugin, the wheel and the interpreter are. What the caller set
# already is kept; a plugin of another checkout, as a shell that has sourced this there hands on, is told.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$root/.venv/bin:$PATH
if [ "${GORAIL_PLUGIN_DIR:-$root/build}" != "$root/build" ] && ! [ "$GORAIL_PLUGIN_DIR" -ef "$root/build" ]; then
    echo "env.sh: the plugin in $GORAIL_PLUGIN_DIR is used, not $root/build; to use that:" \
        "unset GORAIL_PLUGIN_DIR NIXL_WHEEL_DIR GORAIL_PYTHON" >&2
fi
export GORAIL_PLUGIN_DIR=${GORAIL_PLUGIN_DIR:-$root/build}
export GORAIL_PYTHON=${GORAIL_PYTHON:-$root/.venv/bin/python}
if [ -z "${NIXL_WHEEL_DIR:-}" ]; then
    NIXL_WHEEL_DIR=$(echo "$root"/.venv/lib/python3*/site-packages)
fi
export NIXL_WHEEL_DIR
# A checkout that belongs to somebody else (a container's mount) must build too.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"
