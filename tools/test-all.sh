#!/usr/bin/env bash
# `make test-all`: the tests that `make test` shortens or leaves out. A failed stage does not stop the others. With LIMIT
# (in minutes) a stage that does not fit any more is left out, and a line says so. The minutes count from BEGAN, in
# seconds since 1970 (default now).
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh tests
. tools/env.sh
. tools/stages.sh
tools/build.sh >/dev/null

began=${BEGAN:-$(date +%s)}
left_out=()
# run MINUTES NAME COMMAND: runs a stage. MINUTES is its time on two cores.
run() {
    local minutes=$1 name=$2 spent
    shift 2
    spent=$((($(date +%s) - began) / 60))
    if [ -n "${LIMIT:-}" ] && [ $((spent + minutes)) -gt "$LIMIT" ]; then
        echo "left out: $name takes $minutes minutes, and $spent of $LIMIT minutes are used"
        left_out+=("$name")
        return
    fi
    stage "$name"
    "$@" || { failed=1 && echo "FAILED: $name"; }
}

NIXL_WHEELS=$(tools/wheels.sh ${NIXL_WHEEL_VERSIONS:-})
export NIXL_WHEELS
# Where the long form does not fit, what `make test` leaves out runs in its short form.
[ -z "${LIMIT:-}" ] || run 9 'what make test leaves out, in the short form' tools/go-test.sh later
run 30 'all tests in the long form, all wheels, the thread sanitizer' tools/go-test.sh
run 10 'every failpoint over every fabric' gotest failpoints -vet=off -count=1 -tags failpoints -run '^TestFailpoints' -parallel 6 -timeout 60m -- ./backend/engine
run 2 'the Python package' tools/test-python.sh
run 16 "imitated EFA and CXI fabrics, ${FABRIC_SEEDS:-20} seeds" tools/test-fabrics.sh "${FABRIC_SEEDS:-20}"
run 4 'fuzz targets, 10,000 inputs each' tools/fuzz.sh
run 12 'histories of agents that are killed, stopped and cut off' tools/test-history.sh
run 2 'broken set-ups, their first FAIL and their remedy' tools/test-broken.sh
run 2 'pages of studies in a browser' bash -c '. tools/apt.sh; have chromium || install chromium; go test ./gorail/page -run "^TestColumns\$" -count=1'
run 6 'hosts of others, and other releases of Go' tools/test-hosts.sh
run 3 'rails that fail at random' env GORAIL_SOAK="${SOAK:-2m}" go test ./test/e2e -run "^TestFailover\$" -count=1 -timeout 0
if [ -e "${GORAIL_RDMA_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/gorail/rdma}/stamp" ] || [ -n "${RDMA:-}" ]; then
    run "$([ "${RDMA:-}" = 1 ] && echo 41 || echo 7)" 'software RDMA in guests' tools/test-rdma.sh $([ "${RDMA:-}" = 1 ] || echo -short)
else
    echo 'left out: guests with software RDMA (to run them, set RDMA=1, or RDMA=short for a part)'
fi
if [ -d "${TRIXIE_DIR:-.cache/trixie}" ] || [ -n "${TRIXIE:-}" ]; then
    run 14 'make test on Debian 13' tools/test-trixie.sh
else
    echo 'left out: Debian 13 (the chroot is missing: run make test-trixie, which makes it in 2 minutes, or set TRIXIE=1)'
fi
if [ -e .cache/aarch64/stamp ] || [ -n "${AARCH64:-}" ]; then
    run 5 'aarch64 in an emulated guest' tools/test-aarch64.sh
else
    echo 'left out: aarch64 (the guest is missing: run make test-aarch64, which makes it in half a minute, or set AARCH64=1)'
fi
if [ -e .cache/zig/installed.txt ] || [ -n "${WHEELS:-}" ]; then
    run 8 'wheels, source archive, SBOM' tools/dist.sh check
else
    echo 'left out: wheels (the compiler is missing: run make test-dist, which installs it, or set WHEELS=1)'
fi
if [ -e .cache/systems/testing/ready ] && compgen -G 'dist/*.whl' >/dev/null; then
    run 2 'the wheel on Debian 11, 12, 13 and testing' tools/test-systems.sh
else
    echo 'left out: the wheel on other systems (run make wheels and make test-systems, which unpacks four chroots in 2 minutes)'
fi
if [ -e .cache/vllm/installed.txt ] || [ -n "${VLLM:-}" ]; then
    run 60 'vLLM for processors' tools/test-vllm.sh
    run 20 'NIXL code of vLLM, SGLang, LMCache, Ray, verl, ModelExpress and nixl-sys' tools/test-frameworks.sh
else
    echo 'left out: vLLM, SGLang, LMCache, Ray, verl, ModelExpress, nixl-sys (their environment is missing: run make test-vllm, which installs 7 GB, or set VLLM=1)'
fi
if [ -n "${GOVULNDB:-}" ]; then
    run 3 'known vulnerabilities' go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 -db "$GOVULNDB" ./... ./gorail/...
else
    echo 'left out: govulncheck (set GOVULNDB to a database: https://vuln.go.dev, or file:///FOLDER of a stored one)'
fi
[ ${#left_out[@]} = 0 ] || echo "left out for lack of time: ${left_out[*]}"
summary
