#!/usr/bin/env bash
# `make test`: everything that this machine can check. Stops at the first stage that fails.
set -euo pipefail
cd "$(dirname "$0")/.."

stage() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

stage setup
tools/setup.sh
. tools/env.sh

stage build
tools/build.sh

stage 'gofmt, go vet'
unformatted=$(find . -name '*.go' -not -path './.*' -not -path './build*' -exec gofmt -l {} +)
if [ -n "$unformatted" ]; then
    echo "not gofmt'ed: $unformatted" && exit 1
fi
go vet ./...

stage 'docs/options.md is what the option table says'
before=$(cat docs/options.md 2>/dev/null || true)
go run ./backend/option/gen
if [ "$before" != "$(cat docs/options.md)" ]; then
    echo 'docs/options.md was out of date; it is written anew: commit it' && exit 1
fi

stage 'meson tests (shim, ABI, sanitizers)'
meson test -C build --print-errorlogs

stage 'wheels for the matrix'
NIXL_WHEELS=$(tools/wheels.sh ${NIXL_WHEEL_VERSIONS:-1.0.0 1.2.0 1.4.0 1.5.1})
export NIXL_WHEELS

# The packages that touch NIXL, sockets or time run one by one: on two cores they would disturb each other.
stage 'go test'
go build -o build/gosum ./tools/gosum
{
    go test -json -race -timeout 10m $(tools/packages.sh pure) || true
    go test -count=1 -json -p 1 -timeout 35m $(tools/packages.sh rest) || true
    # Once more by the memory of this host, but for what is about libfabric, networks and their rails, names its provider, or a target that serves nothing.
    GORAIL_PROVIDER=sm go test -count=1 -json -p 1 -timeout 35m ./test/e2e -skip \
        '^Test(TwoHosts.*|WireCut|Devices|NoCommonDevice|Rail.*|Fabric.*|NoLibfabric|NothingToUse|TransferTimeout|StatsPaths|Memory.*|Crossings.*|Links|Slices|Firewall.*|DataPort.*|Unauthenticated.*|LoopbackAlone|MoreThanMaxRails|UnknownNames|FirstEngine|Matrix|ReleasedRead.*|ErrorMeansQuiet)$' || true
} | build/gosum | tee build/go-test.txt

stage 'fabrics that nobody here has, imitated'
tools/test-fabrics.sh "${FABRIC_SEEDS:-5}"

stage fuzz
tools/fuzz.sh

stage done
tail -n 1 build/go-test.txt
