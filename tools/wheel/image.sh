#!/usr/bin/env bash
# Does without docker what examples/deploy/Dockerfile does with pip and gorail, in a fresh environment: the wheels come from dist, and
# /opt is a folder of this run. Then its CMD runs with its ENV. apt-get, useradd and the base image are not checked.
set -euo pipefail
cd "$(dirname "$0")/../.."

. tools/apt.sh
root=$PWD file=examples/deploy/Dockerfile
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here() { sed "s,/opt/,$work/opt/,g; s,=/dist,=$root/dist,g"; }

python3 -m venv "$work/venv"
unset GORAIL_PLUGIN_DIR NIXL_PLUGIN_DIR NIXL_WHEEL_DIR PYTHONPATH
NIXL=$(sed -n 's/^ARG NIXL=//p' $file)
export NIXL PATH=$work/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 XDG_CACHE_HOME=$work/cache
mkdir "$work/opt"
sed -nE 's/^RUN (--mount=[^ ]+ )?((test|pip|gorail) .*)/\2/p' $file | here >"$work/run"
[ "$(wc -l <"$work/run")" = 3 ] || { say "$file: expected three lines with pip or gorail, found: $(cat "$work/run")" && exit 1; }
(cd "$work" && bash -euxc "$(cat run)" >log 2>&1) || { cat "$work/log" >&2 && say "$file: a RUN fails" && exit 1; }

env=$(sed -n 's/^ENV //p' $file | here)
mapfile -t command < <(python3 -c 'import json, sys; print("\n".join(json.loads(sys.argv[1])))' "$(sed -n 's/^CMD //p' $file)")
(cd "$work" && timeout 120 env "$env" "${command[@]}" >log 2>&1) && grep -q verified "$work/log" ||
    { cat "$work/log" >&2 && say "$file: CMD fails" && exit 1; }
say "$file: its pip and gorail lines work, and its CMD moves verified bytes"
