#!/usr/bin/env bash
# Lists packages of both modules. "packages.sh pure" lists the packages that import no cgo package of them: their
# tests need no hardware and no library. "packages.sh rest" lists the others. "packages.sh race" and "packages.sh plain"
# divide the pure ones: those whose code or tests start goroutines or share data between them, and the others.
set -euo pipefail
cd "$(dirname "$0")/.."

cgo=$(go list -f '{{if .CgoFiles}}{{.ImportPath}}{{end}}' ./... ./gorail/... | sort)
go list -f '{{.ImportPath}} {{join .Deps " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... ./gorail/... |
    while read -r pkg deps; do
        kind=pure
        if printf '%s\n' "$pkg" $deps | sort | comm -12 - <(echo "$cgo") | grep ^gorail/ >/dev/null; then
            kind=rest
        fi
        # Tests of these need no library either, though they import C.
        case $pkg in gorail/backend/core | gorail/backend/session | gorail/backend/rails | gorail/backend/transfer | gorail/backend/provider/tcp | gorail/backend/provider/shm | gorail/backend/provider/shm/ipc) kind=pure ;; esac
        # make test-rdma tests these packages in guests with another kernel.
        case $pkg in gorail/test/rdma*) continue ;; esac
        # Packages under test/ need NIXL, independent of their imports.
        case $pkg in gorail/test/*) kind=rest ;; esac
        part=plain
        if grep -qsE '^[[:space:]]*go (func|[a-zA-Z_.]+\()|\.Go\(|"sync(/atomic)?"' "${pkg#gorail/}"/*.go; then part=race; fi
        case $1 in "$kind") echo "$pkg" ;; "$part") [ "$kind" != pure ] || echo "$pkg" ;; esac
    done
