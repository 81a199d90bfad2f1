#!/usr/bin/env bash
# A part of `make test-dist` (tools/wheel/check.sh calls it): runs the block "Install" of README.md as printed, in the folder of the wheels,
# in a fresh environment that has NIXL's newest wheel.
#
# `gorail doctor` may find a FAIL of this machine, as a limit or a missing device node, and then exits with 1 after a correct installation.
# That is accepted. A FAIL of its areas "options" and "software" is not: the block has installed these.
set -euo pipefail
cd "$(dirname "$0")/../.."

. tools/apt.sh
fail() { echo "README.md, Install: $*" >&2 && exit 1; }
block=$(tools/readme-block.sh Install)
[[ $(tail -n 1 <<<"$block") =~ ^gorail\ doctor ]] || fail 'this test expects gorail doctor in the last line'
dist=$PWD/dist
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
unset GORAIL_PLUGIN_DIR NIXL_PLUGIN_DIR NIXL_WHEEL_DIR PYTHONPATH PYTHONHOME
export PATH=$work/venv/bin:$PATH VIRTUAL_ENV=$work/venv XDG_CACHE_HOME=$work/cache PIP_DISABLE_PIP_VERSION_CHECK=1
# As `pip install nixl` would, but without torch, which NIXL wants and the block does without: gigabytes. The packages are of one release.
pip install -q --no-deps nixl-cu12 numpy
nixl=$(pip show nixl-cu12 | sed -n 's/^Version: //p')
pip install -q --no-deps "nixl==$nixl" "nixl-cu13==$nixl"
cd "$dist"

code=0
timeout 300 bash -euo pipefail -c "$block" >"$work/log" 2>&1 || code=$?
grep -q verified "$work/log" || { cat "$work/log" >&2 && fail "no verified bytes (exit status $code)"; }
[ "$code" -le 1 ] || { cat "$work/log" >&2 && fail "the block ends with status $code"; }
gorail doctor --json >"$work/doctor.json" || [ $? = 1 ] || fail 'gorail doctor --json fails'
# Prints the FAILs of this machine; others end it.
python3 - "$work/doctor.json" "$code" <<'END' || { cat "$work/log" >&2 && fail 'gorail doctor does not say what a correct installation has'; }
import json, sys
checks = json.load(open(sys.argv[1]))["checks"]
assert {"options", "software"} <= {check["area"] for check in checks}, "areas"
fails = [check for check in checks if check["status"].upper() == "FAIL"]
for check in fails:
    print("README.md, Install: gorail doctor:", check["id"], check["text"])
wrong = [check["id"] for check in fails if check["area"] in ("options", "software")]
assert not wrong, wrong
assert bool(fails) == (sys.argv[2] == "1"), "status %s with %d FAILs" % (sys.argv[2], len(fails))
END
say "README.md's block Install works as printed, beside nixl $nixl (exit status of gorail doctor: $code)"
