# Sourced by the scripts that use NIXL. It sets the paths of the plugin, the wheel and the interpreter, and keeps the
# variables that are already set. It warns about a plugin of another checkout: a shell that has sourced another checkout's
# env.sh has that path.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$root/.venv/bin:$PATH
if [ "${GORAIL_PLUGIN_DIR:-$root/build}" != "$root/build" ] && ! [ "$GORAIL_PLUGIN_DIR" -ef "$root/build" ]; then
    echo "env.sh: using the plugin in $GORAIL_PLUGIN_DIR, not $root/build; to use $root/build:" \
        "unset GORAIL_PLUGIN_DIR NIXL_WHEEL_DIR GORAIL_PYTHON" >&2
fi
export GORAIL_PLUGIN_DIR=${GORAIL_PLUGIN_DIR:-$root/build}
export GORAIL_PYTHON=${GORAIL_PYTHON:-$root/.venv/bin/python}
if [ -z "${NIXL_WHEEL_DIR:-}" ]; then
    NIXL_WHEEL_DIR=$(echo "$root"/.venv/lib/python3*/site-packages)
fi
export NIXL_WHEEL_DIR
# With version stamps go build fails in a checkout of another user (a container's mount).
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"
